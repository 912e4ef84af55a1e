//! A whole layer of a row alone, but for its output projection, in one launch. See gpu/delta_step.cu.

use std::sync::atomic::Ordering;

use tensor::DType;

use crate::device::{DeltaLayerArgs, DeltaNetShape, Segment, Visibility};
use crate::error::DeviceError;
use crate::gpu::delta_net::launches::{Layer, Norm, defines};
use crate::gpu::delta_net::{Inputs, check, q_scale};
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{CLUSTERS, DeviceFacts, DevicePtr, Launch, Source};
use crate::gpu::linear::{LINE_BYTES, SLICES, row_forms_bytes, slices_of};
use crate::gpu::matrix::{Form, GpuMatrix, TILE_ROWS, tile_bytes};
use crate::gpu::memory::ptr;
use crate::gpu::tables::TablePtrs;

/// Warps of a block, and columns of each input that it can have.
const WARPS: usize = 18;
const MOST_STRIP: usize = 32;
/// Inputs that pieces of 256 are made of; longer ones have not been tried.
const MOST_INPUTS: usize = 1024;
const _: () = assert!(
    slices_of(MOST_INPUTS) == SLICES,
    "all of them have as many slices"
);
/// Slices of the inputs that a warp multiplies at a time.
const SLICES_OF_PIECE: usize = 2;
/// Shared memory besides what the launch asks for, rounded up.
const OWN_BYTES: usize = 4 << 10;

/// See gpu/delta_step.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct Weights {
    at: DevicePtr,
    dtype: u32,
    unused: u32,
}

/// See gpu/delta_step.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct StepArgs {
    tables: TablePtrs,
    layer: Layer,
    norm: Norm,
    weights: [Weights; 4],
    row: DevicePtr,
    gamma: DevicePtr,
    eps: f32,
    q_scale: f32,
    cols: u32,
    weights_at: u32,
    piece_bytes: u32,
    gate_piece_bytes: u32,
}

/// How large such a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    /// Blocks of a cluster.
    cluster: usize,
    weights_at: usize,
    piece_bytes: usize,
    gate_piece_bytes: usize,
    shared_bytes: usize,
}

impl Size {
    /// Of layers whose clusters, one for each head, run all at a time, beside half as many of others; none where they do not, or where a layer is too
    /// large. `dtypes`: of what makes qkv, z, alpha and beta.
    fn of(
        shape: &DeltaNetShape,
        dtypes: [DType; 4],
        cols: usize,
        facts: &DeviceFacts,
    ) -> Option<Self> {
        let is_even = shape.num_k_heads == shape.num_v_heads
            && shape.k_dim == shape.v_dim
            && cols.is_multiple_of(256)
            && cols <= MOST_INPUTS;
        if !is_even {
            return None;
        }
        let room = facts.shared_bytes_per_block as usize;
        // The more blocks share a head the better.
        let known = CLUSTERS.into_iter().zip(facts.clusters).rev();
        let fitting = known.filter_map(|(cluster, at_a_time)| {
            let cluster = cluster as usize;
            let strip = shape.v_dim / cluster;
            let heads = shape.num_v_heads;
            let fits = heads + heads / 2 <= at_a_time as usize
                && shape.v_dim == strip * cluster
                && strip.is_multiple_of(TILE_ROWS)
                && (1..=MOST_STRIP).contains(&strip);
            fits.then(|| Self::with(cluster, shape, dtypes, cols))
        });
        let mut fitting = fitting.filter(|size| size.shared_bytes + OWN_BYTES <= room);
        fitting.next()
    }

    fn with(cluster: usize, shape: &DeltaNetShape, dtypes: [DType; 4], cols: usize) -> Self {
        let lines = |bytes: usize| bytes.next_multiple_of(LINE_BYTES);
        let floats = |count: usize| count * size_of::<f32>();
        let of_sixteen = SLICES / SLICES_OF_PIECE;
        let pieces = 4 * (shape.v_dim / cluster / TILE_ROWS) * of_sixteen;
        let gate_pieces = 2 * of_sixteen;
        let of_block = gate_pieces / cluster;
        let inbox = floats(2 * shape.k_dim + gate_pieces + shape.v_dim);
        let row_at = lines(inbox) + lines(floats((pieces + of_block) * TILE_ROWS));
        let weights_at = row_at + lines(row_forms_bytes(types_of(dtypes), cols));
        let blocks_of_piece = (cols / 256 * SLICES_OF_PIECE).div_ceil(SLICES);
        let piece_bytes = |a: DType, b: DType| {
            let most = bytes_of_256(a).max(bytes_of_256(b));
            lines(blocks_of_piece * most)
        };
        let [qkv, z, alpha, beta] = dtypes;
        let (piece_bytes, gate_piece_bytes) = (piece_bytes(qkv, z), piece_bytes(alpha, beta));
        Self {
            cluster,
            weights_at,
            piece_bytes,
            gate_piece_bytes,
            // Whose place the state takes, four words more for each of its rows.
            shared_bytes: weights_at
                + (pieces * piece_bytes + of_block * gate_piece_bytes)
                    .max(floats(shape.k_dim * (shape.v_dim / cluster + 4))),
        }
    }
}

/// Bit mask of the types in use.
fn types_of(dtypes: [DType; 4]) -> u32 {
    dtypes
        .iter()
        .fold(0, |all, dtype| all | 1 << dtype.ggml_id())
}

/// Of 16 rows.
fn bytes_of_256(dtype: DType) -> usize {
    256 / Form::of(dtype).cols() * tile_bytes(dtype)
}

/// The kernel for such layers.
fn source(shape: &DeltaNetShape, dtypes: [DType; 4], cluster: usize) -> Source {
    let mut defines = defines(shape);
    defines.push(("TYPES", types_of(dtypes).to_string()));
    defines.push(("CLUSTER", cluster.to_string()));
    Source {
        name: "delta_step.cu",
        text: include_str!("../../../gpu/delta_step.cu"),
        defines,
    }
}

/// For published models whose clusters run at a time, of usual types.
pub(super) fn sources() -> Vec<Source> {
    let mixed = [DType::Q6K, DType::Q4K, DType::Q4K, DType::Q4K];
    let kinds = [
        (16, 4, mixed),
        (16, 4, [DType::Q4K; 4]),
        (16, 4, [DType::Q8_0; 4]),
        (8, 8, [DType::BF16; 4]),
    ];
    let source = |(heads, cluster, dtypes)| {
        let shape = DeltaNetShape {
            num_k_heads: heads,
            num_v_heads: heads,
            k_dim: 128,
            v_dim: 128,
            conv_taps: 4,
        };
        source(&shape, dtypes, cluster)
    };
    kinds.into_iter().map(source).collect()
}

/// Whether it is one row, whose state moves along.
fn is_row_alone(segments: &[Segment<'_>]) -> bool {
    matches!(segments, [segment] if segment.advance && segment.parents.len() == 1 && segment.first_row == 0)
}

impl GpuDevice {
    /// The layer, in the way that suits its rows.
    pub(in crate::gpu) fn delta_layer_op(
        &self,
        mut args: DeltaLayerArgs<'_>,
    ) -> Result<(), DeviceError> {
        let weights = args.weights.map(|weight| weight.on_gpu());
        let dtypes = weights.map(|weight| weight.dtype);
        let size = match is_row_alone(args.segments) {
            true => Size::of(&args.shape, dtypes, weights[0].cols, self.facts()),
            false => None,
        };
        let Some(size) = size else {
            args.make_inputs(|linear| self.linear_op(linear))?;
            return self.delta_net_op(args.recurrence());
        };
        // Relaxed: a matter of speed alone.
        self.has_clusters.store(true, Ordering::Relaxed);
        self.delta_step(&mut args, weights, size)?;
        args.recurrence().project(|linear| self.linear_op(linear))
    }

    /// Up to what the output projection reads.
    fn delta_step(
        &self,
        args: &mut DeltaLayerArgs<'_>,
        weights: [&GpuMatrix; 4],
        size: Size,
    ) -> Result<(), DeviceError> {
        let shape = args.shape;
        let cols = weights[0].cols;
        let (heads, width) = (shape.num_v_heads, shape.num_v_heads * shape.v_dim);
        let staged = self.tables(args.segments, Visibility::Ancestors)?;
        for (what, matrix, rows) in [
            ("rows of what makes qkv", weights[0], shape.conv_channels()),
            ("rows of what makes z", weights[1], width),
            ("rows of what makes alpha", weights[2], heads),
            ("rows of what makes beta", weights[3], heads),
        ] {
            check("delta_layer", what, matrix.rows, rows)?;
            check("delta_layer", "inputs of a matrix", matrix.cols, cols)?;
        }
        for (what, buffer, len) in [
            ("h", &*args.h, cols),
            ("norm", args.norm.gamma, cols),
            ("answers", &*args.answers, width),
            ("norm of heads", args.head_norm.gamma, shape.v_dim),
        ] {
            check("delta_layer", what, buffer.len(), len)?;
        }
        let recurrence = args.recurrence();
        let inputs = Inputs::of_forward(&recurrence);
        let states = staged.host().segments[0].state_index as usize + 1;
        inputs.check(1, states)?;
        let step = StepArgs {
            tables: staged.ptrs,
            layer: inputs.layer(),
            norm: Norm {
                z: DevicePtr::NULL,
                gamma: ptr(recurrence.norm.gamma),
                out: ptr(recurrence.answers),
                eps: recurrence.norm.eps,
            },
            weights: weights.map(|weight| Weights {
                at: weight.memory.ptr(),
                dtype: weight.dtype.ggml_id(),
                unused: 0,
            }),
            row: ptr(recurrence.out),
            gamma: ptr(args.norm.gamma),
            eps: args.norm.eps,
            q_scale: q_scale(&shape),
            cols: cols as u32,
            weights_at: size.weights_at as u32,
            piece_bytes: size.piece_bytes as u32,
            gate_piece_bytes: size.gate_piece_bytes as u32,
        };
        let dtypes = weights.map(|weight| weight.dtype);
        let launch = Launch {
            grid: [(heads * size.cluster) as u32, 1, 1],
            threads: 32 * WARPS as u32,
            shared_bytes: size.shared_bytes as u32,
        };
        let source = source(&shape, dtypes, size.cluster);
        self.launch(&source, "delta_step", launch, &step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::linear::facts;

    fn size(heads: usize, dim: usize, dtype: DType, clusters: [u32; 3], kib: u32) -> Option<usize> {
        let shape = DeltaNetShape {
            num_k_heads: heads,
            num_v_heads: heads,
            k_dim: dim,
            v_dim: dim,
            conv_taps: 4,
        };
        let facts = DeviceFacts {
            clusters,
            ..facts(132, kib)
        };
        let size = Size::of(&shape, [dtype; 4], 1024, &facts)?;
        Some(size.cluster)
    }

    #[test]
    fn layers_whose_heads_run_all_at_a_time_are_taken() {
        // As two H100s were wired.
        for hopper in [[66, 32, 16], [66, 31, 15]] {
            for dtype in [DType::Q4K, DType::Q6K, DType::Q8_0] {
                assert_eq!(size(8, 128, dtype, hopper, 227), Some(8), "{dtype}");
                assert_eq!(size(16, 128, dtype, hopper, 227), Some(4), "{dtype}");
                assert_eq!(size(24, 128, dtype, hopper, 227), None, "{dtype}");
            }
            // A block of four has two sixteens of each input, which is too much of 16 bits.
            assert_eq!(size(8, 128, DType::BF16, hopper, 227), Some(8));
            assert_eq!(size(16, 128, DType::BF16, hopper, 227), None);
        }
        assert_eq!(size(16, 128, DType::Q4K, [0; 3], 227), None);
        // What conformance tests have on the emulated GPU.
        let emulated = [2, 1, 0];
        assert_eq!(size(1, 128, DType::Q4K, emulated, 96), Some(4));
        assert_eq!(size(1, 64, DType::Q8_0, emulated, 96), Some(4));
        assert_eq!(size(1, 32, DType::Q6K, emulated, 96), Some(2));
    }
}
