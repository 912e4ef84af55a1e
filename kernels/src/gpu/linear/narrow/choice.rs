//! What a launch of few rows may be like.

use tensor::DType;

use crate::gpu::linear::work::dtypes;
use crate::gpu::matrix::Form;

/// Types whose products need more registers, and the warps that there are for them.
pub const HEAVY_WARPS: usize = 16;
pub const HEAVY: [DType; 3] = [DType::F32, DType::F16, DType::Q2K];

/// What may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub warps: usize,
    /// Blocks of the launch that a multiprocessor holds.
    pub per_multiprocessor: usize,
    /// Blocks that there is room for, those of the next launch among them.
    pub resident: usize,
    /// A single row is made ready by every block for itself.
    pub row_inside: bool,
    /// Of a piece of work: 1 or 2, of many inputs 1.
    pub slices: usize,
    /// A block has more than half of a multiprocessor's shared memory, so that no two of the launch come to lie on one.
    pub apart: bool,
    /// Sixteens of rows of a block, at least.
    pub sixteens: usize,
    /// Blocks of a cluster, which take neighbouring multiprocessors, so that those which they leave are neighbours as well; 1: none.
    pub cluster: usize,
    /// Multiprocessors that are left to the launch before.
    pub leaves: usize,
    /// All of a block's weights are in shared memory when its row comes, if they fit.
    pub held: bool,
    /// Of a single row's rings, those that fill before it is there.
    pub early_stages: usize,
    /// What is left to L1 of a multiprocessor's shared memory where rows are read from there, a third of it at most.
    pub l1_bytes: usize,
}

/// For a row alone: nearly all shared memory is rings, which fill while the launches before run.
pub const USUAL: Choice = Choice {
    warps: 20,
    per_multiprocessor: 1,
    resident: 1,
    row_inside: true,
    slices: 2,
    apart: false,
    sixteens: 1,
    cluster: 1,
    leaves: 0,
    held: false,
    early_stages: 2,
    l1_bytes: 36 << 10,
};

/// For a row alone and a matrix of which a multiprocessor's share is as much as half of its shared memory holds: two launches at a time,
/// one of which has all its weights when its row comes.
pub const SMALL: Choice = Choice {
    warps: 8,
    resident: 2,
    held: true,
    early_stages: 3,
    ..USUAL
};
/// The same of types, and of rows, whose products leave registers for twice as many warps.
pub const SMALL_AND_LIGHT: Choice = Choice { warps: 16, ..SMALL };
/// The same beside clusters of other launches: with all of its weights asked for early.
pub const LIGHT_BESIDE_CLUSTERS: Choice = Choice {
    early_stages: 8,
    ..SMALL_AND_LIGHT
};
/// The same of types that need registers: a block for each multiprocessor but those of the launch before.
pub const BESIDE_CLUSTERS: Choice = Choice {
    warps: 12,
    apart: true,
    held: true,
    early_stages: 8,
    ..USUAL
};
/// For a row alone and a small matrix with fewer sixteens of rows than there are multiprocessors: eight of its warps have a slice each, which they ask
/// for before the row is there; the others help to make that ready.
pub const FEW: Choice = Choice {
    warps: 16,
    held: true,
    early_stages: 8,
    ..USUAL
};
/// The same beside clusters of other launches, which find the more room the fewer multiprocessors it takes: two sixteens of rows a block, whose warps
/// have a slice each.
pub const FEW_TOGETHER: Choice = Choice {
    sixteens: 2,
    cluster: 4,
    ..FEW
};
/// Bytes of a block up to which it is so.
pub const TOGETHER_BYTES: usize = 128 << 10;
/// Of a multiprocessor's shared memory, what blocks that are apart have.
pub const APART_PERCENT: usize = 60;
/// Bytes of a multiprocessor's share up to which a matrix is small.
pub const SMALL_BYTES: usize = 140 << 10;

/// For some rows, which are read from L1.
pub const SEVERAL: Choice = Choice {
    warps: 8,
    per_multiprocessor: 2,
    resident: 2,
    row_inside: false,
    l1_bytes: 72 << 10,
    ..USUAL
};

pub fn is_heavy(types: u32) -> bool {
    dtypes(types).any(|dtype| HEAVY.contains(&dtype))
}

/// Whether 64 registers do for one row's products.
pub fn is_light(types: u32) -> bool {
    let is_light = |dtype| Form::of(dtype) != Form::By256 && !HEAVY.contains(&dtype);
    dtypes(types).all(is_light)
}
