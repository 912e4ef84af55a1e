//! Two stages at the ends of a real link, on threads of one process.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kernels::{DeviceName, KvType, KvTypes, open_device};
use models::{
    Batch, BatchSegment, LoadOptions, LogitsWanted, Model, ModelError, SequenceId, load_stage,
    split_layers,
};
use stage_link::{EarlierEnd, LaterEnd, LinkError, LinkShape, link_spec};
use tensor_channel::{Ends, OfferOptions, Tag, TensorSender, Transport, attach, offer};

const OPTIONS: LoadOptions = LoadOptions {
    max_tokens: 512,
    max_sequences: 4,
    max_batch_rows: 100,
    kv_type: Some(KvTypes::both(KvType::F32)),
};
const PATIENCE: Duration = Duration::from_secs(20);
const CUT: usize = 2;

fn path() -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data");
    data.join("qwen35-nano-Q4_0.gguf")
}

/// The layers of a stage; `None`: all.
fn open(stage: Option<std::ops::Range<usize>>) -> Model {
    let file = gguf::GgufFile::open(path()).unwrap();
    let all = split_layers(&file, &[1.0]).unwrap().remove(0);
    let stage = stage.map_or(all.clone(), |stage| stage.start..stage.end.min(all.end));
    let device = open_device(DeviceName::Cpu, 1).unwrap();
    load_stage(&file, stage, device, OPTIONS, &mut |_| {}).unwrap()
}

fn shape(model: &Model) -> LinkShape {
    LinkShape {
        hidden_size: model.config().hidden_size,
        max_batch_rows: OPTIONS.max_batch_rows,
        max_sequences: OPTIONS.max_sequences,
    }
}

/// Both sides of a link: of the stage that offers it, and of the one that attaches.
fn ends(shape: &LinkShape, transport: Transport) -> (Ends, Ends) {
    let options = OfferOptions {
        instance: format!("stage-link-test-{}", std::process::id()),
        tcp_bind: "127.0.0.1:0".to_owned(),
        tcp_host: None,
    };
    let offer = offer(transport, link_spec(shape), &options, None).unwrap();
    let descriptor = offer.descriptor().clone();
    let accepting = thread::spawn(move || offer.accept(PATIENCE).unwrap());
    let later = attach(&descriptor, link_spec(shape), PATIENCE, None).unwrap();
    (accepting.join().unwrap(), later)
}

/// Serves until the link is over, tells why and returns it.
fn serve(mut model: Model, ends: Ends, shape: LinkShape) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut end = EarlierEnd::new(ends, shape).unwrap();
        let started = Instant::now();
        let error = loop {
            assert!(started.elapsed() < PATIENCE, "the watchdog saw no end");
            if let Err(error) = end.serve(&mut model, Duration::from_millis(20)) {
                break error;
            }
        };
        let why = format!("stage 1 of 2: {error}");
        end.end(&mut model, Some(&why));
        assert_eq!(model.cache().free_sequences(), OPTIONS.max_sequences);
        assert_eq!(model.cache().free_pages(), model.cache().num_pages());
        why
    })
}

fn segment(sequence: SequenceId, tokens: &[u32], parents: &[i32], advance: bool) -> BatchSegment {
    BatchSegment {
        sequence,
        tokens: tokens.to_vec(),
        parents: parents.to_vec(),
        advance,
        logits: LogitsWanted::All,
    }
}

/// Bits of logits and features while sequences come, grow by trees, and go.
fn life(model: &mut Model) -> Vec<u32> {
    let last = model.config().num_layers - 1;
    let mut seen = Vec::new();
    let mut step = |model: &mut Model, segments: Vec<BatchSegment>| {
        let rows = segments.iter().map(|s| s.tokens.len()).sum();
        let batch = Batch {
            segments,
            capture_layers: vec![last, 0, 1],
        };
        let output = model.forward(&batch).unwrap();
        let features = model.features(0..rows);
        let values = output.logits.iter().chain(&features);
        seen.extend(values.map(|value| value.to_bits()));
    };
    let [a, b] = [(); 2].map(|()| model.create_sequence().unwrap());
    // More rows than a slot holds.
    let prompt: Vec<u32> = (0..90).map(|i| (i * 37 + i * i * 7) % 500).collect();
    step(model, vec![segment(a, &prompt, &[], true)]);
    for _ in 0..40 {
        // More than the ring of commands has slots.
        let c = model.create_sequence().unwrap();
        model.free_sequence(c).unwrap();
    }
    let tree = segment(a, &[5, 6, 7, 8], &[-1, 0, 0, 2], false);
    step(model, vec![segment(b, &[9, 10], &[-1, 0], true), tree]);
    model.commit(a, &[0, 2, 3]).unwrap();
    step(
        model,
        vec![segment(a, &[11], &[], true), segment(b, &[12], &[], true)],
    );
    model.free_sequence(b).unwrap();
    step(model, vec![segment(a, &[13], &[], false)]);
    model.commit(a, &[]).unwrap();
    let c = model.fork_sequence(a).unwrap();
    step(model, vec![segment(a, &[14], &[], true)]);
    step(model, vec![segment(c, &[15], &[], true)]);
    seen
}

#[test]
fn over_a_link_the_bits_are_those_of_the_whole_model() {
    let whole = life(&mut open(None));
    for transport in [Transport::Shm, Transport::Tcp] {
        let mut model = open(Some(CUT..usize::MAX));
        let shape = shape(&model);
        let (earlier, later) = ends(&shape, transport);
        let serving = serve(open(Some(0..CUT)), earlier, shape);
        let end = LaterEnd::new(later, shape, "stage 1".to_owned(), false).unwrap();
        model.set_earlier(Some(Box::new(end)));
        assert!(life(&mut model) == whole, "{transport}");
        drop(model);
        assert!(serving.join().unwrap().contains("the peer is gone"));
    }
}

/// A later stage and the earlier end of its link, which nobody serves yet.
fn linked() -> (Model, Ends, LinkShape) {
    let mut model = open(Some(CUT..usize::MAX));
    let shape = shape(&model);
    let (earlier, later) = ends(&shape, Transport::Shm);
    let end = LaterEnd::new(later, shape, "stage 1 on cpu".to_owned(), true).unwrap();
    model.set_earlier(Some(Box::new(end)));
    assert!(model.compiles_kernels());
    (model, earlier, shape)
}

fn forward(model: &mut Model, sequence: SequenceId) -> String {
    let batch = Batch {
        segments: vec![segment(sequence, &[1, 2], &[], true)],
        capture_layers: Vec::new(),
    };
    match model.forward(&batch) {
        Err(ModelError::EarlierLayers(error)) => error.to_string(),
        other => panic!("no earlier layers, not {other:?}"),
    }
}

#[test]
fn a_stage_that_is_gone_is_named() {
    let (mut model, earlier, _) = linked();
    let sequence = model.create_sequence().unwrap();
    drop(earlier);
    let error = forward(&mut model, sequence);
    assert!(
        error.starts_with("stage 1 on cpu: the peer is gone"),
        "{error}"
    );
}

#[test]
fn a_stage_that_fails_says_why_in_the_place_of_an_answer() {
    let (mut model, earlier, shape) = linked();
    // A stage that begins elsewhere has nothing to compute from.
    let serving = serve(open(Some(1..CUT)), earlier, shape);
    let sequence = model.create_sequence().unwrap();
    let error = forward(&mut model, sequence);
    assert_eq!(
        error,
        "stage 1 of 2: the layers before layer 1 are not there"
    );
    assert_eq!(serving.join().unwrap(), error);
}

/// What a stage says to a command that a later stage never sends.
fn refusal(send: impl FnOnce(&mut dyn TensorSender)) -> String {
    let mut model = open(Some(0..CUT));
    let shape = shape(&model);
    let (earlier, mut later) = ends(&shape, Transport::Shm);
    let mut end = EarlierEnd::new(earlier, shape).unwrap();
    send(later.sender.as_mut());
    let error = loop {
        match end.serve(&mut model, Duration::ZERO) {
            Ok(true) => {}
            Ok(false) => panic!("it was accepted"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, LinkError::Foreign { .. } | LinkError::Model(_)),
        "{error:?}"
    );
    error.to_string()
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let check = |commands: &[([u64; 4], &[u32])], words: &str| {
        let error = refusal(|sender| {
            for (tag, payload) in commands {
                let payload: Vec<u8> = payload.iter().flat_map(|word| word.to_ne_bytes()).collect();
                sender.send(Tag(*tag), &payload, PATIENCE).unwrap();
            }
        });
        assert!(error.contains(words), "{error}");
    };
    let (create, free, commit, forward, fork) = (1, 2, 3, 4, 5);
    check(&[([9, 0, 0, 0], &[])], "kind is 9");
    check(&[([free, 7, 0, 0], &[])], "sequence is 7");
    check(&[([commit, 7, 0, 0], &[0])], "sequence is 7");
    check(&[([create, 7, 0, 0], &[1])], "length is 1");
    check(
        &[([create, 7, 0, 0], &[]), ([create, 7, 0, 0], &[])],
        "sequence is 7",
    );
    check(
        &[([create, 7, 0, 0], &[]), ([commit, 7, 0, 0], &[0])],
        "no verified segment",
    );
    check(&[([fork, 7, 8, 0], &[])], "sequence is 7");
    check(
        &[([create, 7, 0, 0], &[]), ([fork, 7, 7, 0], &[])],
        "sequence is 7",
    );
    let many: Vec<([u64; 4], &[u32])> = (0..5).map(|n| ([create, n, 0, 0], &[][..])).collect();
    check(&many, "all 4 sequence slots");
    check(&[([forward, 1, 0, 5], &[])], "number of segments is 5");
    let one = ([create, 0, 0, 0], &[][..]);
    check(
        &[one, ([forward, 1, 0, 1], &[0, 0, 3, 1, 99_999])],
        "id 99999",
    );
    check(&[one, ([forward, 1, 1, 1], &[7, 0, 0, 3, 1, 5])], "layer 7");
    check(
        &[one, ([forward, 1, 0, 1], &[0, 0, 1, 2, 5, 5, 0, 9])],
        "parent",
    );
}
