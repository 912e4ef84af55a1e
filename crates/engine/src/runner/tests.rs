//! What a step that cannot be computed does. The rest of the thread is tested through [`crate::Engine`].

use std::path::Path;

use generation::{GenerateEvent, ModelDescription};
use kernels::CpuDevice;
use models::{LoadOptions, load_path};
use sampling::SamplingParams;

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
    let model = load_path(path, device, options, &mut |_| {}).unwrap();
    let description = ModelDescription {
        name: "demo-target".to_owned(),
        architecture: "qwen35".to_owned(),
        context_length: 64,
        vocab_size: 8192,
        max_sequences: 4,
        device: "test".to_owned(),
    };
    let shared = Arc::new(Shared::new(description, &CONFIG));
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
