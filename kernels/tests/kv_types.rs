//! Attention over keys and values kept in f16: the same bits on every instruction set of the CPU, and the bits of f32
//! where rounding to f16 changes nothing; on GPUs, which add in other orders, as good as f32 there.

use half::f16;
use kernels::{
    AttentionArgs, CpuDevice, Device, DeviceName, KvLayer, KvType, PAGE_TOKENS, RopeArgs,
    RopeStyle, Segment, Tier, Visibility, open_device,
};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;

/// Values in [-2, 2) that f16 holds exactly.
fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f16::from_f32((state >> 8) as f32 / (1 << 22) as f32 - 2.0).to_f32()
        })
        .collect()
}

/// A chain of `len` tokens, then a tree on top of it.
fn attend(device: &dyn Device, kv_type: KvType, len: usize) -> Vec<f32> {
    let load = |values: &[f32]| {
        let mut buffer = device.zeros(values.len()).expect("memory");
        device.write(&mut buffer, 0, values);
        buffer
    };
    let slots = (len + 8).next_multiple_of(PAGE_TOKENS) * KV_HEADS * HEAD_DIM;
    let mut cache = KvLayer {
        k: device.kv_zeros(slots, kv_type).expect("memory"),
        v: device.kv_zeros(slots, kv_type).expect("memory"),
    };
    let pages: Vec<u32> = (0..(len + 8).div_ceil(PAGE_TOKENS) as u32).rev().collect();
    let chain: Vec<i32> = (-1..len as i32 - 1).collect();
    let mut all = Vec::new();
    for (parents, committed_len) in [(chain.as_slice(), 0), (&[-1, 0, 0, 1, 2][..], len)] {
        let rows = parents.len();
        let mut q = load(&values(rows * HEADS * HEAD_DIM, 1));
        let mut k = load(&values(rows * KV_HEADS * HEAD_DIM, 2));
        let v = load(&values(rows * KV_HEADS * HEAD_DIM, 3));
        let mut out = device.zeros(rows * HEADS * HEAD_DIM).expect("memory");
        device.attention(AttentionArgs {
            num_heads: HEADS,
            num_kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            q: &mut q,
            gated: false,
            k: &mut k,
            v: &v,
            head_norm: None,
            // A rotation by nothing leaves keys as they are.
            rope: RopeArgs {
                style: RopeStyle::Neox,
                inv_freq: &[],
            },
            cache: &mut cache,
            segments: &[Segment {
                first_row: 0,
                parents,
                committed_len,
                first_position: 0,
                pages: &pages,
                state_index: 0,
                advance: false,
                window: None,
            }],
            visibility: Visibility::Ancestors,
            window: None,
            out: &mut out,
        });
        let mut got = vec![0.0; out.len()];
        device.read(&out, 0, &mut got);
        all.extend(got);
    }
    all
}

#[test]
fn f16_equals_f32_on_values_that_f16_holds() {
    for len in [3, 64, 130] {
        let scalar = CpuDevice::with_tier(1, Tier::Scalar).expect("always there");
        let expected = attend(&scalar, KvType::F32, len);
        for &tier in Tier::ALL.iter().filter(|tier| tier.is_available()) {
            let device = CpuDevice::with_tier(2, tier).expect("is available");
            let got = attend(&device, KvType::F16, len);
            let same = got
                .iter()
                .zip(&expected)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{} at {len} tokens", tier.name());
        }
    }
}

/// Queries are split in two halves of f16, and so are weights: what is lost is no more than in f32's own sums.
#[test]
fn f16_on_gpus_is_as_good_as_f32_on_values_that_f16_holds() {
    let names = std::env::var("TANDEM_TEST_DEVICES").unwrap_or_else(|_| "emulated".to_owned());
    let names = names.split(',').map(|name| name.parse().expect("a name"));
    for name in names.filter(|name| *name != DeviceName::Cpu) {
        let device = open_device(name, 0).expect("a device");
        let scalar = CpuDevice::with_tier(1, Tier::Scalar).expect("always there");
        for len in [3, 64, 130, 300] {
            let expected = attend(&scalar, KvType::F32, len);
            let norm: f32 = expected.iter().map(|v| v * v).sum();
            for kv_type in [KvType::F32, KvType::F16] {
                let got = attend(&*device, kv_type, len);
                let error: f32 = got
                    .iter()
                    .zip(&expected)
                    .map(|(a, b)| (a - b).powi(2))
                    .sum();
                let error = (error / norm).sqrt();
                assert!(error < 1e-6, "{kv_type} on {name} at {len}: {error:e}");
            }
        }
    }
}

#[test]
fn keys_and_values_are_rounded_to_nearest_even() {
    let device = CpuDevice::new(1).expect("a device");
    let mut buffer = device.kv_zeros(3, KvType::F16).expect("memory");
    let ulp = 2.0_f32.powi(-10);
    device.write(
        &mut buffer,
        0,
        &[1.0 + ulp * 0.5, 1.0 + ulp * 1.5, -1.0 - ulp * 0.75],
    );
    let mut got = [0.0; 3];
    device.read(&buffer, 0, &mut got);
    assert_eq!(got, [1.0, 1.0 + 2.0 * ulp, -1.0 - ulp]);
}
