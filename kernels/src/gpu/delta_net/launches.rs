//! Kernels of DeltaNet layers: what they take, what they are compiled for, and how large a block is.

use crate::device::DeltaNetShape;
use crate::gpu::delta_net::step;
use crate::gpu::driver::{DevicePtr, Source};
use crate::gpu::linear::COLUMNS;
use crate::gpu::tables::TablePtrs;

/// Threads of a block that walks with a strip of a head: of four walkers, a carrier and an adder.
pub(super) const WALK_THREADS: u32 = 192;
/// Threads of a block that prepares rows, and its warps.
pub(super) const THREADS: u32 = 128;
pub(super) const WARPS: usize = 4;
/// Columns of a head that a block walks with, for each of a lane's.
const STRIP: usize = 16;
/// Columns of a warp of a block that walks with a whole head.
const HEAD_COLUMNS: usize = 16;

/// See gpu/delta_rows.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Layer {
    pub qkv: DevicePtr,
    pub alpha: DevicePtr,
    pub beta: DevicePtr,
    pub conv_weight: DevicePtr,
    pub a: DevicePtr,
    pub dt_bias: DevicePtr,
    pub history: DevicePtr,
    pub states: DevicePtr,
}

impl Layer {
    pub const NONE: Self = Self {
        qkv: DevicePtr::NULL,
        alpha: DevicePtr::NULL,
        beta: DevicePtr::NULL,
        conv_weight: DevicePtr::NULL,
        a: DevicePtr::NULL,
        dt_bias: DevicePtr::NULL,
        history: DevicePtr::NULL,
        states: DevicePtr::NULL,
    };
}

/// See gpu/gated_norm.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Norm {
    pub z: DevicePtr,
    pub gamma: DevicePtr,
    pub out: DevicePtr,
    pub eps: f32,
}

/// See gpu/delta_net.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PrepareArgs {
    pub tables: TablePtrs,
    pub layer: Layer,
    pub prepared: DevicePtr,
    pub gates: DevicePtr,
    pub num_rows: u32,
    pub rows_per_warp: u32,
    pub q_scale: f32,
}

/// See gpu/delta_net.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct WalkArgs {
    pub tables: TablePtrs,
    pub layer: Layer,
    pub prepared: DevicePtr,
    pub gates: DevicePtr,
    pub out: DevicePtr,
    pub spill: DevicePtr,
    pub shared_levels: u32,
}

/// See gpu/delta_heads.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct HeadsArgs {
    pub tables: TablePtrs,
    pub layer: Layer,
    pub norm: Norm,
    pub tickets: DevicePtr,
    pub q_scale: f32,
}

/// All that this module launches, for the shapes of the published models; see [`crate::gpu::sources`].
pub(in crate::gpu) fn sources() -> Vec<Source> {
    let shapes = [16, 32, 48].map(|num_v_heads| DeltaNetShape {
        num_k_heads: 16,
        num_v_heads,
        k_dim: 128,
        v_dim: 128,
        conv_taps: 4,
    });
    let all = |shape| {
        let walks = [1, 2, 4].map(|columns| long_walks(shape, columns));
        walks
            .into_iter()
            .chain([whole_heads(shape), commits(shape)])
    };
    let mut sources: Vec<_> = shapes.iter().flat_map(all).collect();
    sources.extend(step::sources());
    sources
}

/// Kernels for any rows. `columns`: see [`own_columns`].
pub(super) fn long_walks(shape: &DeltaNetShape, columns: usize) -> Source {
    let text = include_str!("../../../gpu/delta_net.cu");
    let mut source = source("delta_net.cu", text, shape);
    source.defines.push(("OWN_COLUMNS", columns.to_string()));
    source
}

/// Columns of a head that a walking lane has: as few as there are multiprocessors for, so that a block is alone on one.
pub(super) fn own_columns(shape: &DeltaNetShape, multiprocessors: u32) -> usize {
    let fits = |columns: &usize| walking_blocks(shape, *columns) <= multiprocessors as usize;
    [1, 2].into_iter().find(fits).unwrap_or(4)
}

/// Kernels for short chains.
pub(super) fn whole_heads(shape: &DeltaNetShape) -> Source {
    let text = include_str!("../../../gpu/delta_heads.cu");
    source("delta_heads.cu", text, shape)
}

/// Kernels for accepted paths.
pub(super) fn commits(shape: &DeltaNetShape) -> Source {
    let text = include_str!("../../../gpu/delta_commit.cu");
    source("delta_commit.cu", text, shape)
}

fn source(name: &'static str, text: &'static str, shape: &DeltaNetShape) -> Source {
    Source {
        name,
        text,
        defines: defines(shape),
    }
}

/// What gpu/delta_rows.h is compiled for.
pub(in crate::gpu) fn defines(shape: &DeltaNetShape) -> Vec<(&'static str, String)> {
    let define = |name, value: usize| (name, value.to_string());
    vec![
        define("HK", shape.num_k_heads),
        define("HV", shape.num_v_heads),
        define("DK", shape.k_dim),
        define("DV", shape.v_dim),
        define("TAPS", shape.conv_taps),
    ]
}

/// Bytes of what gpu/step_recurrence.h stages of a row: see `DeltaShared`.
pub(in crate::gpu) fn staged_bytes(shape: &DeltaNetShape) -> usize {
    (2 * shape.k_dim.next_multiple_of(32) + shape.v_dim + 4) * size_of::<f32>()
}

/// Bytes of a level that a walking block saves.
pub(super) fn level_bytes(shape: &DeltaNetShape, columns: usize) -> u32 {
    (shape.k_dim.next_multiple_of(32) * STRIP * columns * size_of::<f32>()) as u32
}

/// Blocks that walk a sequence's state.
pub(super) fn walking_blocks(shape: &DeltaNetShape, columns: usize) -> usize {
    shape.num_v_heads * shape.v_dim.div_ceil(STRIP * columns)
}

/// Whether each of so many walking blocks is to have a multiprocessor for itself: two would share its schedulers while others have none. But where
/// many are left free, blocks of a product of few rows would gather on them, and do better beside those that walk.
pub(super) fn are_alone(blocks: usize, num_rows: usize, multiprocessors: u32) -> bool {
    let all = multiprocessors as usize;
    let leave_many = blocks < all / 8 * 7;
    blocks <= all && (num_rows > COLUMNS || !leave_many)
}

/// Threads of a block that walks with a whole head.
pub(super) fn head_threads(shape: &DeltaNetShape) -> u32 {
    (32 * (shape.v_dim / HEAD_COLUMNS).next_multiple_of(WARPS)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walkers_have_schedulers_for_themselves_where_they_can() {
        let shape = |num_v_heads| DeltaNetShape {
            num_k_heads: 16,
            num_v_heads,
            k_dim: 128,
            v_dim: 128,
            conv_taps: 4,
        };
        // An H200, and a 3090.
        let columns = |heads| [132, 82].map(|of| own_columns(&shape(heads), of));
        assert_eq!([16, 32, 48].map(columns), [[1, 2], [2, 4], [4, 4]]);
        // Of a 27B and a 0.8B.
        let alone = |blocks| [8, 9].map(|num_rows| are_alone(blocks, num_rows, 132));
        assert_eq!(alone(96), [false, true]);
        assert_eq!(alone(128), [true, true]);
        assert_eq!(alone(192), [false, false]);
    }
}
