//! Conversations over the tiny model, each turn of which is answered cold and by an engine that keeps things.

#![allow(clippy::unwrap_used, dead_code)]

use std::sync::Arc;

use engine::{DiskCacheConfig, DrafterLease, Engine, EngineConfig, PrefixCacheConfig};
use generation::{GenerateRequest, SpeculationConfig, SpeculationMode};
use kernels::Device;
use models::{Model, PAGE_TOKENS, load_path};
use sampling::SamplingParams;

use super::gated::{Gate, GatedDevice};
use super::in_process::InProcess;
use super::{CONFIG, Stand, describe, device, model_data, request};

pub const TARGET: &str = "qwen35-nano-Q4_0.gguf";
pub const DRAFT: &str = "dflash/dflash-qwen35-nano-BF16.gguf";
pub const TREE: SpeculationConfig = SpeculationConfig {
    mode: SpeculationMode::Tree,
    budget: 16,
};
pub const ROOMY: PrefixCacheConfig = PrefixCacheConfig {
    slots: 64,
    max_bytes: usize::MAX,
};
/// Conversations side by side.
pub const AT_ONCE: usize = 4;

pub const COLD: EngineConfig = EngineConfig {
    max_sequences: AT_ONCE,
    queue_len: AT_ONCE,
    context_length: 512,
    prefill_chunk_tokens: 64,
    ..CONFIG
};

/// An engine over the tiny model, with room for `pages` pages or for whole contexts.
pub fn tiny(config: EngineConfig, pages: Option<usize>) -> Stand {
    tiny_with(config, pages, None)
}

/// The same, with prefixes in files.
pub fn tiny_with(
    config: EngineConfig,
    pages: Option<usize>,
    disk: Option<DiskCacheConfig>,
) -> Stand {
    let gate = Arc::new(Gate::default());
    let device = Arc::new(GatedDevice::new(Arc::clone(&gate)));
    let model = tiny_model_on(device, config, pages);
    let description = describe(&model, config);
    let engine = Engine::start(model, description, config, disk).unwrap();
    Stand {
        handle: engine.handle(),
        engine: Some(engine),
        gate,
    }
}

pub fn tiny_model(config: EngineConfig, pages: Option<usize>) -> Model {
    tiny_model_on(device(), config, pages)
}

fn tiny_model_on(device: Arc<dyn Device>, config: EngineConfig, pages: Option<usize>) -> Model {
    let mut options = config.load_options(None);
    if let Some(pages) = pages {
        options.max_tokens = pages * PAGE_TOKENS;
    }
    load_path(model_data(TARGET), device, options, &mut |_| {}).unwrap()
}

pub fn tiny_draft(stand: &Stand) -> DrafterLease {
    let draft = InProcess::open(&model_data(DRAFT), &model_data(TARGET), 2 * AT_ONCE);
    stand.handle.set_drafter(Box::new(draft))
}

/// The same numbers every time.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = (self.0)
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    pub fn text(&mut self, tokens: usize) -> Vec<u32> {
        (0..tokens).map(|_| self.below(500) as u32).collect()
    }
}

/// A conversation of some turns, each of which is answered cold and with what is kept. It begins with one of a few texts, and a
/// turn may leave out what the answer before it began or ended with, or go back and take another way.
pub async fn converse(number: usize, cold: &Stand, warm: &Stand) {
    let mut rng = Rng(number as u64 * 977 + 3);
    let beginning = number % 5;
    let lengths = [3, 63, 64, 130, 200];
    let mut history = Rng(beginning as u64).text(lengths[beginning]);
    let mut earlier = Vec::new();
    for turn in 0..3 + rng.below(3) {
        let message = 1 + rng.below(40);
        history.extend(rng.text(message));
        let request = GenerateRequest {
            // The next turn may keep to it or not.
            history_tokens: rng.below(history.len() + 1) as u32,
            logprobs: true,
            sampling: SamplingParams {
                temperature: if rng.below(4) == 0 { 0.9 } else { 0.0 },
                seed: number as u64,
                ..SamplingParams::default()
            },
            ..request(&history, 1 + rng.below(12) as u32)
        };
        let expected = cold.answer(&request).await;
        let answer = warm.answer(&request).await;
        let what = format!("conversation {number}, turn {turn}: {:?}", answer.started);
        assert_eq!(answer.tokens, expected.tokens, "{what}");
        assert_eq!(answer.reason(), expected.reason(), "{what}");
        earlier.push(history.clone());
        match rng.below(6) {
            0 => history = earlier[rng.below(earlier.len())].clone(),
            1 => history.truncate(history.len().saturating_sub(rng.below(5))),
            _ => history.extend(answer.ids()),
        }
    }
}
