use super::*;

fn request() -> CompressRequest {
    CompressRequest {
        request_id: "r".to_owned(),
        tokens: (0..100).collect(),
        keep_ratio: 0.25,
        protected: vec![60..100, 0..7],
        within_budget: true,
        chunk_scores: true,
    }
}

#[test]
fn requests_come_back_as_they_went() {
    let back = compress_request_from_proto(compress_request_to_proto(request()).unwrap());
    assert_eq!(back.unwrap(), request());
}

#[test]
fn a_request_that_cannot_be_is_refused_by_name() {
    let check = |change: fn(&mut wire::CompressRequest), words: &str| {
        let mut message = compress_request_to_proto(request()).unwrap();
        change(&mut message);
        let error = compress_request_from_proto(message).unwrap_err();
        assert!(matches!(error, WorkerError::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    };
    check(|message| message.keep_ratio = 0.0, "keep_ratio is 0");
    check(|message| message.keep_ratio = 1.5, "keep_ratio is 1.5");
    check(|message| message.keep_ratio = f64::NAN, "keep_ratio is NaN");
    check(|message| message.protected[0].end = 101, "60..101");
    check(|message| message.protected[1].start = 7, "7..7");
}

#[test]
fn events_come_back_as_they_went() {
    let progress = CompressProgress {
        phase: CompressPhase::Scoring,
        done: 3,
        total: 28,
    };
    let finished = Compression {
        kept: vec![0..32, 64..100],
        tokens_in: 100,
        tokens_out: 68,
        timings: CompressTimings {
            score: Duration::from_millis(7),
            ..CompressTimings::default()
        },
        chunk_scores: vec![0.5, 0.25, 0.125, 0.0],
    };
    for event in [
        CompressEvent::Progress(progress),
        CompressEvent::Finished(finished),
    ] {
        let back = compress_event_from_proto(compress_event_to_proto(&event).unwrap());
        assert_eq!(back.unwrap(), event);
    }
}

#[test]
fn spans_that_are_no_part_of_the_prompt_are_errors() {
    let check = |kept: Vec<Range<usize>>, tokens_out| {
        let event = CompressEvent::Finished(Compression {
            kept,
            tokens_in: 100,
            tokens_out,
            ..Compression::default()
        });
        let back = compress_event_from_proto(compress_event_to_proto(&event).unwrap());
        let error = back.unwrap_err().to_string();
        assert!(error.contains("Compression.kept"), "{error}");
    };
    check(vec![0..32, 90..101], 43);
    check(vec![64..96, 0..32], 64);
    check(vec![0..32, 32..64], 64);
    check(vec![0..32, 16..64], 80);
    check(vec![0..32, 64..96], 63);
}

#[test]
fn a_description_keeps_its_token_list_and_may_have_none() {
    let mut description = PrefillDescription {
        name: "drafter".to_owned(),
        architecture: "qwen3".to_owned(),
        context_length: 40960,
        vocab_size: 151_936,
        token_list: Some([7; 32]),
        device: "cpu".to_owned(),
        is_resident: true,
    };
    let back = |description: &PrefillDescription| prefill_from_proto(prefill_to_proto(description));
    assert_eq!(back(&description).unwrap(), description);
    description.token_list = None;
    assert_eq!(back(&description).unwrap(), description);
    let mut message = prefill_to_proto(&description);
    message.token_list = vec![7; 31];
    let error = prefill_from_proto(message).unwrap_err().to_string();
    assert!(error.contains("31 bytes"), "{error}");
}
