use super::*;
use crate::stream::GenerateStream;
use sampling::SamplingParams;

fn waiting(name: &str) -> (Waiting, GenerateStream) {
    let (events, stream) = GenerateStream::new();
    let request = GenerateRequest {
        request_id: name.to_owned(),
        prompt: vec![1],
        history_tokens: 0,
        max_tokens: 1,
        min_tokens: 0,
        stop_ids: Vec::new(),
        sampling: SamplingParams::default(),
        logprobs: false,
        top_logprobs: 0,
        speculation: None,
        thinking: None,
        grammar: None,
    };
    let waiting = Waiting {
        request,
        matcher: None,
        events,
    };
    (waiting, stream)
}

fn push(queue: &mut Queue, name: &str) -> Result<GenerateStream, GenerateError> {
    let (waiting, stream) = waiting(name);
    queue.push(waiting)?;
    Ok(stream)
}

fn admit(queue: &mut Queue) -> Option<String> {
    queue
        .admit(|_| true)
        .map(|waiting| waiting.request.request_id)
}

#[test]
fn requests_are_served_in_order_of_arrival() {
    let mut queue = Queue::new(8, 8);
    let _streams: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| push(&mut queue, name).unwrap())
        .collect();
    let order: Vec<_> = std::iter::from_fn(|| admit(&mut queue)).collect();
    assert_eq!(order, ["a", "b", "c"]);
    assert_eq!((queue.running(), queue.waiting()), (3, 0));
}

#[test]
fn the_queue_is_bounded_beyond_the_free_places() {
    let mut queue = Queue::new(2, 1);
    let full = GenerateError::QueueFull { limit: 1 };
    let _streams: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| push(&mut queue, name).unwrap())
        .collect();
    assert_eq!(push(&mut queue, "d").unwrap_err(), full);
    assert!(admit(&mut queue).is_some() && admit(&mut queue).is_some());
    assert_eq!(admit(&mut queue), None);
    assert_eq!(push(&mut queue, "d").unwrap_err(), full);
    queue.leave();
    let _last = push(&mut queue, "d").unwrap();
}

#[test]
fn the_first_request_is_not_overtaken_where_it_does_not_fit() {
    let mut queue = Queue::new(2, 2);
    let _streams = [push(&mut queue, "large"), push(&mut queue, "small")];
    assert!(
        queue
            .admit(|request| request.request_id == "small")
            .is_none()
    );
    assert_eq!((queue.running(), queue.waiting()), (0, 2));
    assert_eq!(admit(&mut queue).unwrap(), "large");
}

#[test]
fn cancelled_requests_make_room_without_a_place() {
    let mut queue = Queue::new(1, 2);
    let _a = push(&mut queue, "a").unwrap();
    let b = push(&mut queue, "b").unwrap();
    let _c = push(&mut queue, "c").unwrap();
    drop(b);
    assert_eq!(queue.drop_cancelled(), 1);
    assert_eq!(admit(&mut queue).unwrap(), "a");
    queue.leave();
    assert_eq!(admit(&mut queue).unwrap(), "c");
}

#[test]
fn a_queue_that_ends_takes_nothing_more() {
    let mut queue = Queue::new(1, 4);
    let _a = push(&mut queue, "a").unwrap();
    queue.drain(None);
    assert_eq!(
        push(&mut queue, "b").unwrap_err(),
        GenerateError::ShuttingDown
    );
    let why = GenerateError::Model("broken".to_owned());
    assert_eq!(queue.close(why.clone()).len(), 1);
    assert_eq!(push(&mut queue, "c").unwrap_err(), why);
    // A later drain does not reopen it.
    queue.drain(None);
    assert_eq!(push(&mut queue, "d").unwrap_err(), why);
}
