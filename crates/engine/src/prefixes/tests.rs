//! Which prefixes are found, and which ones make room.

use std::path::Path;

use generation::{ModelDescription, SpeculationConfig};
use kernels::CpuDevice;
use models::{Batch, BatchSegment, LogitsWanted, load_path};

use super::*;
use crate::config::EngineConfig;

const CONFIG: EngineConfig = EngineConfig {
    max_sequences: 2,
    queue_len: 1,
    context_length: 256,
    prefill_chunk_tokens: 256,
    speculation: SpeculationConfig::OFF,
    prefix_cache: PrefixCacheConfig {
        slots: 3,
        max_bytes: usize::MAX,
    },
    verify_lossless: false,
};

/// A model and its prefixes.
struct Stand {
    model: Model,
    prefixes: Prefixes,
    shared: Arc<Shared>,
}

impl Stand {
    fn new(config: PrefixCacheConfig) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = path.join("../models/tests/data/qwen35-nano-Q4_0.gguf");
        let device = Arc::new(CpuDevice::new(1).unwrap());
        let options = CONFIG.load_options(None);
        let model = load_path(path, device, options, &mut |_| {}).unwrap();
        let description = ModelDescription {
            name: String::new(),
            architecture: String::new(),
            context_length: 256,
            vocab_size: 512,
            max_sequences: 2,
            device: String::new(),
        };
        let shared = Arc::new(Shared::new(description, &CONFIG, false));
        Self {
            model,
            prefixes: Prefixes::new(config, Arc::clone(&shared)),
            shared,
        }
    }

    /// Computes `tokens`, from `origin` on where there is one, and keeps the state.
    fn keep(&mut self, tokens: &[u32], origin: Option<PrefixId>, worth: Worth) -> Option<PrefixId> {
        let sequence = match origin {
            Some(origin) => self.prefixes.resume(&mut self.model, origin).unwrap()?,
            None => self.model.create_sequence().unwrap(),
        };
        let seen = self.model.sequence_len(sequence).unwrap();
        let segment = BatchSegment {
            sequence,
            tokens: tokens[seen..].to_vec(),
            parents: Vec::new(),
            advance: true,
            logits: LogitsWanted::None,
        };
        let batch = Batch {
            segments: vec![segment],
            capture_layers: Vec::new(),
        };
        self.model.forward(&batch).unwrap();
        let keep = Keep {
            sequence,
            tokens,
            features: None,
            worth,
            origin,
        };
        self.prefixes.keep(&mut self.model, keep).unwrap();
        self.model.free_sequence(sequence).unwrap();
        self.id(tokens)
    }

    fn id(&self, tokens: &[u32]) -> Option<PrefixId> {
        let same = |kept: &&Prefix| kept.tokens == tokens;
        self.prefixes.kept.iter().find(same).map(|kept| kept.id)
    }

    fn has(&self, tokens: &[u32]) -> bool {
        self.id(tokens).is_some()
    }
}

const UNBOUNDED: PrefixCacheConfig = CONFIG.prefix_cache;

#[test]
fn the_longest_prefix_is_found_and_a_token_is_left_to_compute() {
    let mut stand = Stand::new(UNBOUNDED);
    let short = stand.keep(&[1, 2], None, Worth::Own).unwrap();
    let long = stand.keep(&[1, 2, 3, 4], None, Worth::Own).unwrap();
    let found = |prompt: &[u32]| {
        let found = stand.prefixes.find(prompt);
        (found.prefix, found.common)
    };
    assert_eq!(found(&[1, 2, 3, 4, 5]), (Some((long, 4)), 4));
    assert_eq!(found(&[1, 2, 3, 9, 5]), (Some((short, 2)), 3));
    assert_eq!(found(&[1, 2, 3, 4]), (Some((short, 2)), 3));
    assert_eq!(found(&[1, 2]), (None, 1));
    assert_eq!(found(&[1]), (None, 0));
    assert_eq!(found(&[2, 2, 3]), (None, 0));
    assert_eq!(found(&[]), (None, 0));
}

#[test]
fn what_was_not_used_for_longest_makes_room() {
    let mut stand = Stand::new(UNBOUNDED);
    for first in [1, 2, 3] {
        stand.keep(&[first, 7], None, Worth::Own).unwrap();
    }
    assert!(stand.prefixes.has(&[1, 7]));
    stand.keep(&[4, 7], None, Worth::Own).unwrap();
    assert!(stand.has(&[1, 7]) && !stand.has(&[2, 7]) && stand.has(&[3, 7]));
    let stats = stand.shared.counters.prefix_cache.get();
    assert_eq!((stats.prefixes, stats.evictions), (3, 1));
}

/// A long conversation drives no other out.
#[test]
fn what_only_led_to_a_longer_one_goes_first_and_where_texts_part_stays() {
    let mut stand = Stand::new(UNBOUNDED);
    stand.keep(&[9, 9], None, Worth::Own).unwrap();
    let first = stand.keep(&[1], None, Worth::Own).unwrap();
    let second = stand.keep(&[1, 2], Some(first), Worth::Own).unwrap();
    let third = stand.keep(&[1, 2, 3], Some(second), Worth::Own).unwrap();
    assert!(stand.has(&[9, 9]) && !stand.has(&[1]) && stand.has(&[1, 2]));
    // A second text parts there.
    stand.keep(&[1, 2, 4], Some(second), Worth::Own).unwrap();
    assert!(!stand.has(&[9, 9]) && stand.has(&[1, 2]) && stand.has(&[1, 2, 3]));
    // One of many on the way is the first to go until it was used.
    stand.keep(&[1, 2, 3, 5], Some(third), Worth::Step).unwrap();
    assert!(!stand.has(&[1, 2, 3]));
    stand.keep(&[8], None, Worth::Own).unwrap();
    assert!(stand.has(&[1, 2]) && stand.has(&[1, 2, 4]) && stand.has(&[8]));
}

#[test]
fn prefixes_stay_within_their_bytes_and_share_pages() {
    let mut stand = Stand::new(UNBOUNDED);
    let shape = stand.model.cache().shape().clone();
    let prompt: Vec<u32> = (0..150).collect();
    let bytes = |stand: &Stand| stand.shared.counters.prefix_cache.get().bytes as usize;
    let all = stand.model.cache().num_pages();
    let pages = |stand: &Stand| all - stand.model.cache().free_pages();
    let first = stand.keep(&prompt[..64], None, Worth::Own);
    let second = stand.keep(&prompt[..128], first, Worth::Own);
    assert_eq!((bytes(&stand), pages(&stand)), (shape.bytes(0, 2), 2));
    // The page that is not full is each one's own.
    let third = stand.keep(&prompt[..130], second, Worth::Own);
    assert_eq!((bytes(&stand), pages(&stand)), (shape.bytes(0, 3), 3));
    stand.keep(&prompt[..140], third, Worth::Own);
    assert_eq!((bytes(&stand), pages(&stand)), (shape.bytes(0, 3), 4));

    let mut stand = Stand::new(PrefixCacheConfig {
        max_bytes: shape.bytes(0, 2) - 1,
        ..UNBOUNDED
    });
    stand.keep(&prompt[..130], None, Worth::Own);
    stand.keep(&[7; 65], None, Worth::Own);
    assert!(!stand.has(&prompt[..130]) && stand.has(&[7; 65]));
    // What is too large by itself is not kept.
    let mut stand = Stand::new(PrefixCacheConfig {
        max_bytes: shape.bytes(0, 1) - 1,
        ..UNBOUNDED
    });
    stand.keep(&[8], None, Worth::Own);
    assert_eq!((bytes(&stand), pages(&stand)), (0, 0));
}

#[test]
fn prefixes_give_way_to_running_sequences_as_far_as_that_frees_pages() {
    let mut stand = Stand::new(UNBOUNDED);
    let all = stand.model.cache().num_pages();
    let shared = stand.keep(&[5; 64], None, Worth::Own).unwrap();
    stand.keep(&[6; 65], None, Worth::Own).unwrap();
    stand.keep(&[7; 65], None, Worth::Own).unwrap();
    let running = stand.prefixes.resume(&mut stand.model, shared).unwrap();
    assert!(running.is_some());
    let free = stand.model.cache().free_pages();
    assert_eq!(free, all - 5);
    let Stand {
        model, prefixes, ..
    } = &mut stand;
    prefixes.make_room(model, free).unwrap();
    assert_eq!(prefixes.kept.len(), 3);
    prefixes.make_room(model, free + 1).unwrap();
    assert_eq!(model.cache().free_pages(), free + 2);
    prefixes.make_room(model, all).unwrap();
    assert_eq!(model.cache().free_pages(), all - 1);
    // Without it no page would be free.
    assert!(stand.has(&[5; 64]));
}
