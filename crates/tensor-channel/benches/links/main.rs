//! Two processes, one link: how long a round trip takes, and how much goes through.
//!
//! `cargo bench -p tensor-channel` takes some seconds, `-- --quick` about one. Prints a table; both transports go
//! through the same steps. The other process is this program, started again.

mod machine;
mod peer;

use std::time::{Duration, Instant};

use machine::Switches;
use peer::{Peer, Task};
use tensor_channel::{
    ChannelSpec, ElementType, Ends, LinkSpec, OfferOptions, Tag, Transport, futex_calls, offer,
};

/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Elements of a feature row: five layers of 5120, 100 KiB.
const ROW_LEN: usize = 25_600;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(task) = peer::task(&arguments) {
        machine::pin(1);
        return peer::run(&task);
    }
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let trips = if is_quick { 2_000 } else { 50_000 };
    machine::print_facts();
    machine::pin(0);
    println!(
        "round trips: {trips} after {} of warm-up; the two processes are pinned to hardware threads 0 and 1",
        trips / 10
    );
    println!();
    println!("transport  what                               p50 us    p99 us  futex calls  sleeps");
    for transport in [Transport::Shm, Transport::Tcp] {
        round_trip(transport, "64 B there and back", &link(16, 16), trips, None);
        round_trip(
            transport,
            "100 KiB row there, 64 B back",
            &link(ROW_LEN, 16),
            trips / 5,
            None,
        );
        let pause = Some(Duration::from_millis(1));
        round_trip(
            transport,
            "64 B, the peer asleep",
            &link(16, 16),
            trips / 50,
            pause,
        );
    }
    println!();
    println!("transport  what                               GB/s   messages/s");
    for transport in [Transport::Shm, Transport::Tcp] {
        one_way(
            transport,
            "100 KiB rows one way, 8 slots",
            &link(ROW_LEN, 16),
            trips / 2,
        );
        one_way(transport, "64 B one way, 8 slots", &link(16, 16), trips * 4);
    }
}

/// Channels of 8 slots of one row: so many elements there, so many back.
fn link(there: usize, back: usize) -> LinkSpec {
    let channel = |row_len| ChannelSpec {
        element: ElementType::F32,
        row_len,
        slot_rows: 1,
        slots: 8,
    };
    LinkSpec {
        inbound: channel(back),
        outbound: channel(there),
    }
}

fn linked(transport: Transport, task: Task, link: &LinkSpec) -> (Ends, Peer) {
    let options = OfferOptions {
        instance: format!("bench-{}", std::process::id()),
        tcp_bind: "127.0.0.1:0".to_owned(),
        tcp_host: None,
    };
    let offer = offer(transport, *link, &options, None).expect("the machine has the transport");
    let peer = Peer::start(task, offer.descriptor(), link);
    (offer.accept(PATIENCE).expect("the peer attaches"), peer)
}

/// Prints the times of `trips` round trips, with a pause before each for the peer to fall asleep.
fn round_trip(
    transport: Transport,
    what: &str,
    link: &LinkSpec,
    trips: usize,
    pause: Option<Duration>,
) {
    let (mut ends, peer) = linked(transport, Task::Echo, link);
    let payload = vec![1; link.outbound.slot_bytes()];
    let mut room = vec![0; link.inbound.slot_bytes()];
    let mut trip = || {
        let start = Instant::now();
        ends.sender
            .send(Tag::default(), &payload, PATIENCE)
            .expect("the peer reads");
        let answer = ends
            .receiver
            .receive(&mut room, PATIENCE)
            .expect("the peer answers");
        assert!(answer.is_some(), "the peer answers in time");
        start.elapsed()
    };
    for _ in 0..trips / 10 {
        trip();
    }
    let (futex_before, switches_before) = (futex_calls(), Switches::now());
    let mut times: Vec<Duration> = (0..trips)
        .map(|_| {
            pause.inspect(|pause| std::thread::sleep(*pause));
            trip()
        })
        .collect();
    let futex = futex_calls() - futex_before;
    let sleeps = Switches::now().voluntary_since(&switches_before);
    times.sort_unstable();
    let micros = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
    let (p50, p99) = (micros(50), micros(99));
    println!("{transport:<10} {what:<32} {p50:>8.1}  {p99:>8.1}  {futex:>11}  {sleeps:>6}");
    drop(ends);
    peer.finish();
}

/// Prints how fast `messages` go one way.
fn one_way(transport: Transport, what: &str, link: &LinkSpec, messages: usize) {
    let (mut ends, peer) = linked(transport, Task::Count(messages), link);
    let payload = vec![1; link.outbound.slot_bytes()];
    let start = Instant::now();
    for _ in 0..messages {
        ends.sender
            .send(Tag::default(), &payload, PATIENCE)
            .expect("the peer reads");
    }
    let mut room = vec![0; link.inbound.slot_bytes()];
    let answer = ends
        .receiver
        .receive(&mut room, PATIENCE)
        .expect("the peer answers");
    assert!(answer.is_some(), "the peer has counted in time");
    let seconds = start.elapsed().as_secs_f64();
    let gigabytes = (messages * payload.len()) as f64 / 1e9;
    let (rate, per_second) = (gigabytes / seconds, messages as f64 / seconds);
    println!("{transport:<10} {what:<32} {rate:>7.2}  {per_second:>11.0}");
    drop(ends);
    peer.finish();
}
