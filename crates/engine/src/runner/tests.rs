//! What a step that cannot be computed does, and weights that do not come back. The rest of the thread is tested through [`crate::Engine`].

use std::path::Path;

use generation::{GenerateEvent, ModelDescription};
use gguf::GgufFile;
use kernels::CpuDevice;
use models::{LoadOptions, load_path};
use sampling::SamplingParams;

use super::parking::Tries;
use super::*;
use crate::stream::GenerateStream;

const CONFIG: EngineConfig = EngineConfig {
    max_sequences: 4,
    queue_len: 4,
    context_length: 64,
    prefill_chunk_tokens: 8,
    speculation: generation::SpeculationConfig::OFF,
    prefix_cache: crate::config::PrefixCacheConfig::OFF,
    verify_lossless: false,
};

fn runner() -> Runner {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/demo/demo-target.gguf");
    let options = LoadOptions {
        max_tokens: 4 * 64,
        max_sequences: 4,
        max_batch_rows: 12,
        kv_type: None,
    };
    let device = Arc::new(CpuDevice::new(1).unwrap());
    let mut model = load_path(&path, device, options, &mut |_| {}).unwrap();
    model.keep_file(GgufFile::open(&path).unwrap());
    let description = ModelDescription {
        name: "demo-target".to_owned(),
        architecture: "qwen35".to_owned(),
        context_length: 64,
        vocab_size: 8192,
        max_sequences: 4,
        device: "test".to_owned(),
    };
    let shared = Arc::new(Shared::new(description, &CONFIG, model.can_park()));
    Runner::new(model, shared, CONFIG, None)
}

fn push(runner: &Runner, prompt_tokens: u32) -> GenerateStream {
    let request = GenerateRequest {
        request_id: prompt_tokens.to_string(),
        prompt: (300..300 + prompt_tokens).collect(),
        history_tokens: 0,
        max_tokens: 3,
        min_tokens: 0,
        stop_ids: Vec::new(),
        sampling: SamplingParams::default(),
        logprobs: false,
        top_logprobs: 0,
        speculation: None,
        thinking: None,
        grammar: None,
    };
    runner.shared.push(request, None).unwrap()
}

/// The last event of a stream whose request has ended.
async fn last(mut stream: GenerateStream) -> Result<GenerateEvent, GenerateError> {
    let mut last = None;
    while let Some(event) = stream.recv().await {
        last = Some(event);
    }
    last.unwrap()
}

#[tokio::test]
async fn a_step_that_fails_ends_the_requests_in_it_and_no_others() {
    let mut runner = runner();
    let streams = [push(&runner, 6), push(&runner, 2), push(&runner, 5)];
    runner.round();
    // The first two fill the chunk; the third has not begun. The model loses the second behind the engine's back.
    let lost = runner.running[1].place.id;
    runner.model.free_sequence(lost).unwrap();
    runner.limits.prefill_chunk_tokens = 0;
    runner.step();
    runner.limits.prefill_chunk_tokens = 8;
    assert_eq!(runner.running.len(), 1);
    assert_eq!(runner.promised_pages, 1);
    while !runner.running.is_empty() {
        runner.round();
    }
    assert_eq!(runner.model.cache().free_sequences(), 4);
    assert_eq!(runner.promised_pages, 0);
    let [first, second, third] = streams;
    for stream in [first, second] {
        let end = last(stream).await;
        assert!(
            matches!(&end, Err(GenerateError::Model(why)) if why.contains("does not exist")),
            "{end:?}"
        );
    }
    assert!(matches!(
        last(third).await,
        Ok(GenerateEvent::Finished { .. })
    ));
    let stats = runner.shared.stats();
    assert_eq!((stats.running_sequences, stats.finished_requests), (0, 1));
}

#[tokio::test]
async fn requests_wait_no_longer_than_the_patience_for_weights_that_do_not_come_back() {
    let mut runner = runner();
    let running = push(&runner, 6);
    runner.round();
    let waiting = push(&runner, 4);
    let device = Arc::clone(runner.model.device());
    runner.model.park().unwrap();
    device.limit_memory(1);
    let mut tries = Tries::default();
    runner.come_back(&mut tries);
    assert!(runner.model.is_parked());
    let first = tries.next().unwrap();
    let stats = runner.shared.stats();
    assert_eq!((stats.running_sequences, stats.queued_requests), (1, 1));
    runner.patience = Duration::ZERO;
    runner.come_back(&mut tries);
    assert!(tries.next().unwrap() > first);
    let stats = runner.shared.stats();
    assert_eq!((stats.running_sequences, stats.queued_requests), (0, 0));
    for stream in [running, waiting] {
        let end = last(stream).await;
        assert!(
            matches!(&end, Err(GenerateError::Away(why)) if why.contains("does not fit")),
            "{end:?}"
        );
    }
    device.limit_memory(u64::MAX);
    runner.come_back(&mut tries);
    let again = push(&runner, 6);
    while runner.shared.stats().finished_requests == 0 {
        runner.round();
    }
    assert!(matches!(
        last(again).await,
        Ok(GenerateEvent::Finished { .. })
    ));
}
