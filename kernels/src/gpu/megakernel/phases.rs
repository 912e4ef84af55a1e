//! What gpu/phases.h has for gpu/megakernel.cu.

use bytemuck::{Pod, Zeroable};

use crate::gpu::driver::DevicePtr;
use crate::gpu::tables::TablePtrs;

/// Matrices of a product.
pub(super) const MOST_OUTPUTS: usize = 4;

/// Where `number` is 0, plain values. Else a row's, `at` bytes from the beginning of the token's; or words of the number, of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Source {
    pub at: DevicePtr,
    pub number: u64,
}

/// Where a row goes: among those of the token, from so many bytes on, 0: not there; and as plain values for whoever comes after the launch, null:
/// nobody.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Target {
    pub row: u64,
    pub plain: DevicePtr,
}

/// Memory of a row, whose values lie by 256, as `row_place` of gpu/together.h has it.
pub(super) fn row_bytes(len: usize) -> usize {
    len.next_multiple_of(256) * size_of::<f32>()
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Output {
    pub to: Target,
    pub first_sixteen: u32,
    pub rows: u32,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Product {
    pub row: Source,
    pub gamma: DevicePtr,
    pub head_gamma: DevicePtr,
    pub z: Source,
    pub add: Source,
    pub eps: f32,
    pub head_eps: f32,
    pub cols: u32,
    pub num_outputs: u32,
    pub gated: u32,
    pub forms: u32,
    pub round: u32,
    pub slices: u32,
    pub tails: u32,
    pub unused: u32,
    pub outputs: [Output; MOST_OUTPUTS],
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Delta {
    pub qkv: Source,
    pub alpha: Source,
    pub beta: Source,
    pub conv_weight: DevicePtr,
    pub a: DevicePtr,
    pub dt_bias: DevicePtr,
    pub history: DevicePtr,
    pub states: DevicePtr,
    pub out: Target,
    pub q_scale: f32,
    pub unused: u32,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Move {
    pub qkv: Source,
    pub after: Source,
    pub history: DevicePtr,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Attend {
    pub q: Source,
    pub k: Source,
    pub v: Source,
    pub gates: Source,
    pub scores: Source,
    pub q_gamma: DevicePtr,
    pub k_gamma: DevicePtr,
    pub turns: DevicePtr,
    pub cache_k: DevicePtr,
    pub cache_v: DevicePtr,
    pub partials: DevicePtr,
    pub sums: DevicePtr,
    pub eps: f32,
    pub num_kv_heads: u32,
    pub q_stride: u32,
    pub num_splits: u32,
    pub pairs: u32,
    pub adjacent: u32,
    pub stride: u32,
    pub unused: u32,
    pub out: Target,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Combine {
    pub gates: Source,
    pub partials: DevicePtr,
    pub sums: DevicePtr,
    pub out: Target,
    pub number: u32,
    pub num_heads: u32,
    pub q_stride: u32,
    pub num_splits: u32,
}

/// A phase, before it lies on the device.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Product(Product),
    Delta(Delta),
    Move(Move),
    Score(Attend),
    Mix(Attend),
    Combine(Combine),
}

/// Words of what a phase's kind takes.
const PAYLOAD_WORDS: usize = 30;

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PackedPhase {
    kind: u32,
    number: u32,
    /// Where a block puts its own.
    share: Share,
    payload: [u64; PAYLOAD_WORDS],
}

impl Phase {
    /// `number`: which of the step's it is, from 1 on.
    pub fn pack(&self, number: u32) -> PackedPhase {
        let (kind, bytes) = match self {
            Self::Product(product) => (8, bytemuck::bytes_of(product)),
            Self::Delta(delta) => (0, bytemuck::bytes_of(delta)),
            Self::Move(history) => (1, bytemuck::bytes_of(history)),
            Self::Score(attend) => (2, bytemuck::bytes_of(attend)),
            Self::Mix(attend) => (3, bytemuck::bytes_of(attend)),
            Self::Combine(combine) => (4, bytemuck::bytes_of(combine)),
        };
        let mut payload = [0; PAYLOAD_WORDS];
        bytemuck::cast_slice_mut(&mut payload)[..bytes.len()].copy_from_slice(bytes);
        PackedPhase {
            kind,
            number,
            share: Share::default(),
            payload,
        }
    }
}

/// What a block has of a phase; a count of 0: it is not the block's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Share {
    pub first: u32,
    pub count: u32,
}

/// The row of an id.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Embed {
    pub tiles: DevicePtr,
    pub out: DevicePtr,
    pub rows: u32,
    pub cols: u32,
    pub tiles_per_row: u32,
    pub unused: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct StepArgs {
    pub phases: DevicePtr,
    pub shares: DevicePtr,
    pub pieces: DevicePtr,
    pub first_piece: DevicePtr,
    pub tables: TablePtrs,
    pub is_stuck: DevicePtr,
    pub mail: DevicePtr,
    pub lists: DevicePtr,
    pub ended: DevicePtr,
    pub said: DevicePtr,
    pub rows: DevicePtr,
    pub embed: Embed,
    pub top_k: u32,
    pub num_tokens: u32,
    pub patience: u64,
    pub last_epoch: u32,
    pub listed: u32,
    pub num_phases: u32,
    pub epoch: u32,
    pub rows_bytes: u32,
    pub unused: u32,
}
