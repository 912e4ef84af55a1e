//! States of sequences in real buffers.

#![allow(clippy::unwrap_used)]

use kernels::{CpuDevice, DeltaNetShape, Device, KvType, KvTypes, PAGE_TOKENS};
use kv_cache::{Cache, CacheError, CacheShape, LayerMut, LayerSnapshot, LayerState, StatePart};

const DELTA: DeltaNetShape = DeltaNetShape {
    num_k_heads: 1,
    num_v_heads: 2,
    k_dim: 4,
    v_dim: 4,
    conv_taps: 4,
};

fn cache(device: &dyn Device, tokens: usize) -> Cache {
    cache_of(device, tokens, KvType::F32)
}

fn cache_of(device: &dyn Device, tokens: usize, kv_type: KvType) -> Cache {
    let layers = vec![
        LayerState::DeltaNet(DELTA),
        LayerState::Attention {
            num_kv_heads: 2,
            head_dim: 4,
        },
    ];
    let shape = CacheShape {
        layers,
        kv_type: KvTypes::both(kv_type),
    };
    Cache::new(device, shape, tokens, 2).expect("the cache fits")
}

/// Fills every buffer with distinct values.
fn fill(device: &dyn Device, cache: &mut Cache) {
    for index in 0..2 {
        let buffers = match cache.layer_mut(index).expect("a layer") {
            LayerMut::Attention(kv) => [&mut kv.k, &mut kv.v],
            LayerMut::DeltaNet(state) => [&mut state.recurrent, &mut state.conv],
        };
        for (number, buffer) in buffers.into_iter().enumerate() {
            let values: Vec<f32> = (0..buffer.len()).map(|i| (i * 2 + number) as f32).collect();
            device.write(buffer, 0, &values);
        }
    }
}

#[test]
fn snapshot_moves_between_pages_and_slots() {
    let device = CpuDevice::new(1).unwrap();
    let mut cache = cache(&device, 4 * PAGE_TOKENS + 1);
    assert_eq!(cache.num_pages(), 5);
    let first = cache.create(&device).unwrap();
    fill(&device, &mut cache);
    cache.reserve(first, PAGE_TOKENS + 3).unwrap();
    cache.advance(first, PAGE_TOKENS + 3).unwrap();
    let snapshot = cache.snapshot(&device, first).unwrap();
    let LayerSnapshot::Attention { k, v } = &snapshot.layers[1] else {
        panic!()
    };
    let page = cache.pages(first).unwrap()[1] as usize;
    let float =
        |bytes: &[u8], at: usize| f32::from_le_bytes(*bytes[at * 4..].first_chunk().unwrap());
    // Slots 2 and 3 of the second page, head 1, dim 3; the second one is not of the sequence.
    let page_len = 8 * PAGE_TOKENS;
    let [key, value] = [(4 + 3) * PAGE_TOKENS + 2, (PAGE_TOKENS + 2) * 4 + 3];
    let value_of = |at: usize, number: usize| ((page * page_len + at) * 2 + number) as f32;
    assert_eq!(float(k, page_len + key), value_of(key, 0));
    assert_eq!(float(v, page_len + value), value_of(value, 1));
    assert_eq!(
        [float(k, page_len + key + 1), float(v, page_len + value + 4)],
        [0.0; 2]
    );
    let second = cache.restore(&device, &snapshot).unwrap();
    assert_ne!(cache.pages(first).unwrap(), cache.pages(second).unwrap());
    assert_eq!(cache.snapshot(&device, second).unwrap(), snapshot);
    assert_eq!(
        snapshot.bytes(),
        4 * (2 * 2 * page_len + DELTA.state_len() + DELTA.conv_len())
    );
}

#[test]
fn a_new_sequence_has_zeroed_states() {
    let device = CpuDevice::new(1).unwrap();
    let mut cache = cache(&device, PAGE_TOKENS);
    fill(&device, &mut cache);
    let id = cache.create(&device).unwrap();
    let snapshot = cache.snapshot(&device, id).unwrap();
    let LayerSnapshot::DeltaNet { recurrent, conv } = &snapshot.layers[0] else {
        panic!()
    };
    assert!(recurrent.iter().chain(conv).all(|&value| value == 0.0));
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_no_trace() {
    let device = CpuDevice::new(1).unwrap();
    let mut large = cache(&device, 3 * PAGE_TOKENS);
    let id = large.create(&device).unwrap();
    assert!(matches!(
        large.advance(id, 1),
        Err(CacheError::NotReserved {
            wanted: 1,
            reserved: 0
        })
    ));
    large.reserve(id, 2 * PAGE_TOKENS).unwrap();
    large.advance(id, 2 * PAGE_TOKENS).unwrap();
    let mut snapshot = large.snapshot(&device, id).unwrap();
    let mut small = cache(&device, PAGE_TOKENS);
    assert!(matches!(
        small.restore(&device, &snapshot),
        Err(CacheError::OutOfPages { missing: 1, .. })
    ));
    assert_eq!((small.free_pages(), small.free_sequences()), (1, 2));
    snapshot.layers.pop();
    assert!(matches!(
        small.restore(&device, &snapshot),
        Err(CacheError::SnapshotShape { .. })
    ));
    large.free(id).unwrap();
    assert!(matches!(
        large.len(id),
        Err(CacheError::UnknownSequence { .. })
    ));
}

/// Lengths around a page's border, keys and values of both types.
#[test]
fn a_fork_has_the_state_and_shares_the_full_pages() {
    let device = CpuDevice::new(1).unwrap();
    for kv_type in [KvType::F32, KvType::F16] {
        for len in [0, 1, PAGE_TOKENS - 1, PAGE_TOKENS, PAGE_TOKENS + 1, 130] {
            let mut cache = cache_of(&device, 6 * PAGE_TOKENS, kv_type);
            let first = cache.create(&device).unwrap();
            fill(&device, &mut cache);
            // Pages beyond its length are a tree's scratch, which the fork has no use for.
            cache.reserve(first, len + 100).unwrap();
            cache.advance(first, len).unwrap();
            let before = cache.snapshot(&device, first).unwrap();
            let fork = cache.fork(&device, first).unwrap();
            assert!(cache.snapshot(&device, fork).unwrap() == before, "{len}");
            let full = len / PAGE_TOKENS;
            let [pages, forked] = [first, fork].map(|id| cache.pages(id).unwrap());
            assert_eq!(pages[..full], forked[..full]);
            assert_eq!(forked.len(), len.div_ceil(PAGE_TOKENS));
            assert!(pages[full..].iter().all(|page| !forked.contains(page)));
            assert!(matches!(
                cache.fork(&device, first),
                Err(CacheError::NoFreeSequence { .. })
            ));
            // What one holds alone is free when it goes; what both hold is not.
            let all = cache.num_pages();
            cache.free(first).unwrap();
            assert_eq!(cache.free_pages(), all - len.div_ceil(PAGE_TOKENS));
            assert!(cache.snapshot(&device, fork).unwrap() == before, "{len}");
            cache.free(fork).unwrap();
            assert_eq!(cache.free_pages(), all);
        }
    }
}

#[test]
fn a_fork_without_room_for_its_last_page_leaves_no_trace() {
    let device = CpuDevice::new(1).unwrap();
    let mut cache = cache(&device, 2 * PAGE_TOKENS);
    let id = cache.create(&device).unwrap();
    cache.reserve(id, PAGE_TOKENS + 1).unwrap();
    cache.advance(id, PAGE_TOKENS + 1).unwrap();
    assert!(matches!(
        cache.fork(&device, id),
        Err(CacheError::OutOfPages { missing: 1, .. })
    ));
    assert_eq!((cache.free_pages(), cache.free_sequences()), (0, 1));
}

#[test]
fn a_state_moves_by_its_parts_between_caches_to_the_bit() {
    let device = CpuDevice::new(1).unwrap();
    for kv_type in [KvType::F32, KvType::F16] {
        for len in [0, 1, PAGE_TOKENS - 1, PAGE_TOKENS, PAGE_TOKENS + 1, 130] {
            let mut from = cache_of(&device, 4 * PAGE_TOKENS, kv_type);
            let mut to = cache_of(&device, 7 * PAGE_TOKENS, kv_type);
            fill(&device, &mut from);
            let ids = [&mut from, &mut to].map(|cache| {
                let _other = cache.create_for_parts(&device, 1).unwrap();
                cache.create_for_parts(&device, len).unwrap()
            });
            let pages = (0..len.div_ceil(PAGE_TOKENS)).map(StatePart::Page);
            for part in pages.chain([StatePart::Recurrent(0)]) {
                let bytes = from.read_part(ids[0], part).unwrap();
                let sizes = from.part_bytes();
                assert_eq!(
                    bytes.len(),
                    match part {
                        StatePart::Page(_) => sizes.page,
                        StatePart::Recurrent(number) => sizes.recurrent[number],
                    }
                );
                to.write_part(ids[1], part, &bytes).unwrap();
                assert!(matches!(
                    to.write_part(ids[1], part, &bytes[1..]),
                    Err(CacheError::PartBytes { .. })
                ));
            }
            let moved = to.snapshot(&device, ids[1]).unwrap();
            assert!(moved == from.snapshot(&device, ids[0]).unwrap(), "{len}");
            for part in [
                StatePart::Page(len.div_ceil(PAGE_TOKENS)),
                StatePart::Recurrent(1),
            ] {
                let read = from.read_part(ids[0], part);
                assert!(matches!(read, Err(CacheError::UnknownPart { .. })));
            }
        }
    }
}

#[test]
fn a_sequence_without_room_for_its_parts_leaves_no_trace() {
    let device = CpuDevice::new(1).unwrap();
    let mut cache = cache(&device, PAGE_TOKENS);
    let error = cache.create_for_parts(&device, PAGE_TOKENS + 1);
    assert!(matches!(error, Err(CacheError::OutOfPages { .. })));
    assert_eq!((cache.free_pages(), cache.free_sequences()), (1, 2));
}
