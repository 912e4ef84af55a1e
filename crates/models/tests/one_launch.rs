//! A step of one row as one launch: the bits of the step operation by operation. On the emulation, or the GPU asked for.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use gguf::{GgufFile, GgufWriter, Value};
use kernels::{DecodePath, Device, DeviceName, GpuDevice, KvTypes, open_device};
use models::{BatchSegment, KvType, LoadOptions, LogitsWanted, Model, SequenceId, Snapshot, load};

use common::{OPTIONS, batch, chain, data, device_name, open_on};

/// Files whose matrices, heads and layers differ, and how keys and values are kept.
type Case = (&'static str, KvType);
const HYBRID: [Case; 3] = [
    ("qwen35-nano-Q4_0.gguf", KvType::F16),
    ("qwen35-heads-Q8_0.gguf", KvType::Q8_0),
    ("qwen35-tiny-Q4_K_M.gguf", KvType::Bf16),
];
const DENSE: [Case; 3] = [
    ("qwen3-tiny-Q5_K_M.gguf", KvType::Q5_1),
    ("qwen3-nano-BF16.gguf", KvType::Q4_1),
    ("llama-nano-F16.gguf", KvType::F16),
];
/// Tokens before the steps, so that these cross from one split of attention to the next.
const PROMPT: usize = 250;
const STEPS: usize = 18;
/// Of them, where logits, best ids and likeliest ids are asked for by turns: of each kind a step runs, and the next one is recorded.
const AS_ONE: u64 = STEPS as u64 - 6;
/// Likeliest ids with their logits: as many as samplers draw from by default.
const TOP: usize = 20;

fn gpu() -> Arc<GpuDevice> {
    let device = match device_name() {
        DeviceName::Cuda(ordinal) => GpuDevice::cuda(ordinal),
        _ => GpuDevice::emulated(),
    };
    Arc::new(device.unwrap())
}

fn token(i: usize) -> u32 {
    ((i * 37 + i * i * 7 + 11) % 500) as u32
}

fn open(device: &Arc<GpuDevice>, (name, kv_type): Case) -> Model {
    open_on(Arc::clone(device) as _, data().join(name), kv_type)
}

/// What of a step's logits is asked for: all, the best id alone, or the likeliest ones.
fn by_turns(i: usize) -> LogitsWanted {
    match i % 3 {
        0 => LogitsWanted::Last,
        1 => LogitsWanted::LastBest,
        _ => LogitsWanted::LastTop(TOP),
    }
}

/// Takes in a prompt of `len` tokens, some `rows` at a time, of which it is a multiple.
fn take_prompt(model: &mut Model, sequence: SequenceId, len: usize, rows: usize) {
    for i in (0..len).step_by(rows) {
        let tokens: Vec<u32> = (i..i + rows).map(token).collect();
        let segment = BatchSegment {
            logits: LogitsWanted::Last,
            ..chain(sequence, &tokens)
        };
        model.forward(&batch(vec![segment])).unwrap();
    }
}

/// Bits of the logits of some steps after a prompt, and of the state after them.
fn run(
    device: &Arc<GpuDevice>,
    case: Case,
    wanted: impl Fn(usize) -> LogitsWanted,
) -> (Vec<u32>, Snapshot) {
    let mut model = open(device, case);
    // Others that nothing happens to.
    let other = model.create_sequence().unwrap();
    let sequence = model.create_sequence().unwrap();
    take_prompt(&mut model, sequence, PROMPT, 50);
    let before = model.snapshot(other).unwrap();
    let mut bits = Vec::new();
    for i in PROMPT..PROMPT + STEPS {
        let segment = BatchSegment {
            logits: wanted(i),
            ..chain(sequence, &[token(i)])
        };
        let output = model.forward(&batch(vec![segment])).unwrap();
        bits.extend(output.logits.iter().map(|value| value.to_bits()));
        bits.extend(output.best.iter().map(|(_, best)| best));
        let tops = output.tops.iter().flat_map(|(_, top)| top);
        bits.extend(tops.flat_map(|(id, value)| [*id, value.to_bits()]));
    }
    assert!(model.snapshot(other).unwrap() == before, "{case:?}");
    (bits, model.snapshot(sequence).unwrap())
}

fn check(cases: &[Case]) {
    for &case in cases {
        let pieces = gpu();
        pieces.set_decode_path(DecodePath::Graph);
        let whole = gpu();
        whole.set_decode_path(DecodePath::Megakernel);
        let expected = run(&pieces, case, by_turns);
        let got = run(&whole, case, by_turns);
        assert_eq!(pieces.one_row_steps().0, 0, "{case:?}");
        assert_eq!(whole.one_row_steps().0, AS_ONE, "{case:?}");
        assert!(got.0 == expected.0, "{case:?}: logits differ");
        assert!(got.1 == expected.1, "{case:?}: states differ");
    }
}

#[test]
fn one_launch_has_the_bits_of_many_in_hybrid_models() {
    check(&HYBRID);
}

#[test]
fn one_launch_has_the_bits_of_many_in_dense_models() {
    check(&DENSE);
}

/// A file of the data with other sizes, and feed-forward parts that are `times` as wide, of the same weights again and again.
fn remade(name: &str, sizes: &[(&str, u32)], times: usize) -> GgufFile {
    let file = GgufFile::open(data().join(name)).unwrap();
    let mut other = GgufWriter::new();
    for (key, value) in file.metadata().iter() {
        other.set(key, value.clone());
    }
    for (key, size) in sizes {
        other.set(*key, Value::U32(*size));
    }
    for tensor in file.tensors() {
        let wide = if tensor.name.contains(".ffn_down.") {
            Some(0)
        } else if tensor.name.contains(".ffn_gate.") || tensor.name.contains(".ffn_up.") {
            Some(1)
        } else {
            None
        };
        let (mut dims, mut data) = (tensor.dims.to_vec(), tensor.data.to_vec());
        if let Some(axis) = wide {
            dims[axis] *= times as u64;
            data = data.repeat(times);
        }
        other
            .add_tensor(tensor.name, tensor.dtype, &dims, data)
            .unwrap();
    }
    GgufFile::from_bytes("remade.gguf", other.to_bytes().unwrap()).unwrap()
}

/// Some steps as one launch each, and operation by operation. What comes before them is the CPU's work, whose state goes to the GPU as it is.
fn check_after_prompt(file: &GgufFile, kv_type: KvType, (length, rows): (usize, usize)) {
    let options = LoadOptions {
        max_tokens: length + STEPS,
        max_batch_rows: 512,
        kv_type: Some(KvTypes::both(kv_type)),
        ..OPTIONS
    };
    let open = |device| load(file, device, options, &mut |_| {}).unwrap();
    let mut on_cpu = open(open_device(DeviceName::Cpu, 2).unwrap());
    let sequence = on_cpu.create_sequence().unwrap();
    take_prompt(&mut on_cpu, sequence, length, rows);
    let prompt = on_cpu.snapshot(sequence).unwrap();
    let steps_of = |path| {
        let device = gpu();
        device.set_decode_path(path);
        let mut model = open(Arc::clone(&device) as _);
        let sequence = model.restore(&prompt).unwrap();
        let steps = (length..length + 4).flat_map(|i| {
            let segment = BatchSegment {
                logits: LogitsWanted::Last,
                ..chain(sequence, &[token(i)])
            };
            let output = model.forward(&batch(vec![segment])).unwrap();
            output.logits.into_iter().map(f32::to_bits)
        });
        let bits: Vec<u32> = steps.collect();
        (bits, device.one_row_steps().0)
    };
    let (expected, none) = steps_of(DecodePath::Graph);
    let (got, some) = steps_of(DecodePath::Megakernel);
    assert!(none == 0 && some > 0, "{some} steps were one launch");
    assert!(got == expected, "logits differ");
}

/// So many splits that whoever puts them together takes them in several goes, keys are scored by wide tiles, and groups have several splits.
#[test]
fn a_row_that_sees_many_splits_has_the_bits_of_many_launches() {
    let (name, kv_type) = DENSE[2];
    let longer = remade(name, &[("llama.context_length", 1 << 15)], 1);
    check_after_prompt(&longer, kv_type, (17_000, 500));
}

/// A feed-forward part of ten times 256 inputs: of two slices the last piece is another warp's than the first. And one of so many inputs that
/// there are half as many slices.
#[test]
fn slices_of_two_warps_have_the_bits_of_many_launches() {
    let (name, kv_type) = HYBRID[2];
    for times in [10, 17] {
        let length = 256 * times;
        let wider = remade(
            name,
            &[("qwen35.feed_forward_length", length)],
            times as usize,
        );
        check_after_prompt(&wider, kv_type, (20, 20));
    }
}

/// A launch goes on with the next token where that is asked for in time, and ends where it is not, or where something else is.
#[test]
fn several_tokens_of_a_launch_have_the_bits_of_as_many_launches() {
    let all_but_one = |i| match i {
        255 => LogitsWanted::Last,
        _ => LogitsWanted::LastBest,
    };
    let top = |_| LogitsWanted::LastTop(TOP);
    // Long enough where a sanitizer runs the launch, and two dozen others beside it.
    let (long, short) = (Duration::from_secs(10), Duration::from_nanos(1));
    type Wanted = fn(usize) -> LogitsWanted;
    let cases: [(Case, Wanted, &[Duration]); 3] = [
        (HYBRID[2], all_but_one, &[long]),
        (HYBRID[0], top, &[long]),
        (DENSE[0], |_| LogitsWanted::LastBest, &[long, short]),
    ];
    for (case, wanted, patiences) in cases {
        let pieces = gpu();
        pieces.set_decode_path(DecodePath::Graph);
        let expected = run(&pieces, case, wanted);
        for &patience in patiences {
            let whole = gpu();
            whole.set_decode_path(DecodePath::Megakernel);
            whole.set_one_row_patience(patience);
            let (bits, state) = run(&whole, case, wanted);
            let (steps, launches) = whole.one_row_steps();
            assert!(steps > 6, "{case:?}: {steps} steps");
            match patience == long {
                true => assert!(launches < steps, "{case:?}: {launches} launches of {steps}"),
                false => assert_eq!(launches, steps, "{case:?}"),
            }
            assert!(bits == expected.0, "{case:?}, {patience:?}: results differ");
            assert!(state == expected.1, "{case:?}, {patience:?}: states differ");
        }
    }
}

/// As chips before sm_90 do; on a GPU with fewer warps in a block than otherwise.
#[test]
fn copies_by_lanes_change_no_bit() {
    for case in [HYBRID[2], DENSE[1]] {
        let at_once = gpu();
        at_once.set_decode_path(DecodePath::Megakernel);
        let by_lanes = gpu();
        by_lanes.set_decode_path(DecodePath::Megakernel);
        by_lanes.set_one_row_copies_by_lanes(true);
        assert!(
            run(&by_lanes, case, by_turns) == run(&at_once, case, by_turns),
            "{case:?}: results differ"
        );
        assert_eq!(by_lanes.one_row_steps().0, AS_ONE, "{case:?}");
    }
}

/// What the others wait for never comes: the step ends all the same, and says so.
#[test]
fn a_block_that_is_lost_is_an_error_and_no_standstill() {
    let device = gpu();
    device.set_decode_path(DecodePath::Megakernel);
    device.lose_one_row_blocks(1);
    let mut model = open(&device, HYBRID[0]);
    let sequence = model.create_sequence().unwrap();
    let mut step = |i| model.forward(&batch(vec![chain(sequence, &[token(i)])]));
    let error = (0..STEPS).find_map(|i| step(i).err()).expect("an error");
    assert!(error.to_string().contains("waited in vain"), "{error}");
    // Nothing that it says from now on is to be believed.
    assert!(step(0).is_err());
}

/// More blocks than run at a time: the step goes as before, and the answer is the same.
#[test]
fn blocks_that_do_not_fit_are_no_launch_and_change_no_bit() {
    let case = HYBRID[0];
    let pieces = gpu();
    pieces.set_decode_path(DecodePath::Graph);
    let crowded = gpu();
    crowded.set_decode_path(DecodePath::Megakernel);
    crowded.set_one_row_blocks(4 * crowded.facts().multiprocessors as usize);
    assert!(run(&crowded, case, by_turns) == run(&pieces, case, by_turns));
    assert_eq!(crowded.one_row_steps().0, 0);
}
