//! Gated DeltaNet layers: rows are prepared, the recurrence is walked, answers are normed on their way to the output projection. See
//! gpu/delta_net.cu and gpu/activate.cu, gpu/delta_heads.cu for short chains, gpu/delta_step.cu for a row alone with what makes its inputs, and
//! gpu/delta_commit.cu.
//!
//! Which kernels run, and how large, follows from the number of rows of each segment and from which segments advance;
//! trees and states may change where a step that was recorded runs again.

mod commit;
mod launches;
mod step;

use crate::buffer::Buffer;
use crate::device::{DeltaNetArgs, DeltaNetShape, DeltaNetState, Visibility};
use crate::error::DeviceError;
use crate::gpu::delta_net::launches::{
    HeadsArgs, Layer, Norm, PrepareArgs, THREADS, WALK_THREADS, WARPS, WalkArgs, are_alone,
    head_threads, level_bytes, long_walks, own_columns, walking_blocks, whole_heads,
};
pub(super) use crate::gpu::delta_net::launches::{defines, sources, staged_bytes};
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch};
use crate::gpu::inputs::Staged;
use crate::gpu::linear::GatedNorm;
use crate::gpu::matrix::TILE_ROWS;
use crate::gpu::memory::ptr;
use crate::gpu::scratch::Scratch;
use crate::gpu::tables::{SegmentEntry, levels_of};

/// Of a multiprocessor's shared memory, what keeps others from lying beside a block.
const ALONE_PERCENT: u32 = 55;
/// Rows of a segment up to which a block walks with a whole head.
const SHORT_WALK: u32 = 8;
/// Shared memory through which a whole head's state is stored, at most.
const LINES_BYTES: u32 = 32 << 10;
/// The largest value head that a block's threads can hold.
const MOST_V_DIM: usize = 256;
/// Shared memory that walking blocks use besides saved levels, rounded up.
const WALK_SHARED_BYTES: u32 = 40 * 1024;
/// Rows that a warp prepares one after another where there are many: it reads its weights once.
const LONG_RUN: u32 = 4;
/// Rows from which on there are many.
const MANY_ROWS: usize = 128;

/// What the recurrence of a layer is made from, in a forward pass and in a commit.
struct Inputs<'a> {
    op: &'static str,
    shape: DeltaNetShape,
    qkv: &'a Buffer,
    alpha: &'a Buffer,
    beta: &'a Buffer,
    conv_weight: &'a Buffer,
    a: &'a Buffer,
    dt_bias: &'a Buffer,
    state: &'a DeltaNetState,
}

/// Saved levels that the walk of a segment may need.
fn levels(segment: &SegmentEntry) -> u32 {
    if is_chain(segment) {
        return 0;
    }
    levels_of(segment.num_rows)
}

/// Whether each row follows the one before, whatever the tree: a step may be recorded and run with another tree.
fn is_chain(segment: &SegmentEntry) -> bool {
    segment.advance == 1 || segment.num_rows < 2
}

/// What queries are scaled by.
pub(super) fn q_scale(shape: &DeltaNetShape) -> f32 {
    1.0 / (shape.k_dim as f32).sqrt()
}

impl GpuDevice {
    pub(super) fn delta_net_op(&self, args: DeltaNetArgs<'_>) -> Result<(), DeviceError> {
        let shape = args.shape;
        let staged = self.tables(args.segments, Visibility::Ancestors)?;
        let num_rows = staged.host().rows.len();
        let width = shape.num_v_heads * shape.v_dim;
        for (what, buffer, len) in [
            ("z", args.z, num_rows * width),
            ("answers", &*args.answers, num_rows * width),
            ("norm", args.norm.gamma, shape.v_dim),
        ] {
            check("delta_net", what, buffer.len(), len)?;
        }
        let norm = Norm {
            z: ptr(args.z),
            gamma: ptr(args.norm.gamma),
            out: ptr(args.answers),
            eps: args.norm.eps,
        };
        let inputs = Inputs::of_forward(&args);
        let segments = &staged.host().segments;
        let indices = segments.iter().map(|s| s.state_index as usize + 1);
        inputs.check(num_rows, indices.max().unwrap_or(0))?;
        if self.walks_heads(&shape, segments) {
            let tickets = segments.len() * shape.num_k_heads * size_of::<u32>();
            let heads = HeadsArgs {
                tables: staged.ptrs,
                layer: inputs.layer(),
                norm,
                tickets: self.scratch(Scratch::Tickets, tickets)?,
                q_scale: q_scale(&shape),
            };
            // Where the launch after it finds multiprocessors enough besides, it has none of those of the heads: memory is slower for two.
            let is_alone = num_rows == 1
                && shape.num_v_heads + args.output.rows().div_ceil(TILE_ROWS)
                    <= self.facts().multiprocessors as usize;
            let launch = Launch {
                grid: [shape.num_v_heads as u32, segments.len() as u32, 1],
                threads: head_threads(&shape),
                shared_bytes: self.alone_bytes(is_alone).saturating_sub(LINES_BYTES),
            };
            let name = match segments.iter().all(|segment| segment.num_rows < 2) {
                true => "delta_decode_heads",
                false => "delta_walk_heads",
            };
            self.launch(&whole_heads(&shape), name, launch, &heads)?;
            return args.project(|linear| self.linear_op(linear));
        }
        self.prepare_and_walk(&inputs, &staged, norm.out)?;
        let gated = GatedNorm {
            head_dim: shape.v_dim,
            z: args.z,
            norm: args.norm,
        };
        args.project(|linear| self.gated_heads_op(&linear, gated))
    }

    /// Prepares rows, walks them, and moves the states of segments that advance.
    fn prepare_and_walk(
        &self,
        inputs: &Inputs<'_>,
        staged: &Staged<'_>,
        out: DevicePtr,
    ) -> Result<(), DeviceError> {
        let shape = &inputs.shape;
        let segments = &staged.host().segments;
        let num_rows = staged.host().rows.len();
        let (channels, heads) = (shape.conv_channels(), shape.num_v_heads);
        let prepared_bytes = num_rows * channels * size_of::<f32>();
        let gates_bytes = num_rows * heads * size_of::<[f32; 4]>();
        let spill_at = (prepared_bytes + gates_bytes).next_multiple_of(256);
        let multiprocessors = self.facts().multiprocessors;
        let own_columns = own_columns(shape, multiprocessors);
        let source = long_walks(shape, own_columns);
        let blocks = walking_blocks(shape, own_columns);
        let level_bytes = level_bytes(shape, own_columns);
        let needed = segments.iter().map(levels).max().unwrap_or(0);
        let room = (self.level_bytes_left() / level_bytes).min(needed);
        let spilled = |segment| levels(segment).saturating_sub(room) as usize;
        let spilled: usize = segments.iter().map(spilled).sum();
        let spill_bytes = spilled * blocks * level_bytes as usize;
        let scratch = self.scratch(Scratch::Recurrence, spill_at + spill_bytes)?;

        let rows_per_warp = if num_rows < MANY_ROWS { 1 } else { LONG_RUN };
        let prepare = PrepareArgs {
            tables: staged.ptrs,
            layer: inputs.layer(),
            prepared: scratch,
            gates: scratch.add(prepared_bytes),
            num_rows: num_rows as u32,
            rows_per_warp,
            q_scale: q_scale(shape),
        };
        let all_heads = 2 * shape.num_k_heads + heads;
        let launch = Launch {
            grid: [
                prepare.num_rows.div_ceil(rows_per_warp),
                all_heads.div_ceil(WARPS) as u32,
                1,
            ],
            threads: THREADS,
            shared_bytes: 0,
        };
        self.launch(&source, "delta_prepare", launch, &prepare)?;

        let walk = WalkArgs {
            tables: staged.ptrs,
            layer: prepare.layer,
            prepared: prepare.prepared,
            gates: prepare.gates,
            out,
            spill: scratch.add(spill_at),
            shared_levels: room,
        };
        let moves = segments.iter().any(|segment| segment.advance == 1);
        let history_blocks = match moves {
            true => channels.div_ceil(WALK_THREADS as usize),
            false => 0,
        };
        let has_trees = !segments.iter().all(is_chain);
        let name = match has_trees {
            true => "delta_walk_trees",
            false => "delta_walk_chains",
        };
        let walking = blocks * segments.len();
        let alone = self.alone_bytes(are_alone(walking, num_rows, multiprocessors));
        let shared_bytes = alone.min(self.level_bytes_left()).max(room * level_bytes);
        let launch = Launch {
            grid: [(blocks + history_blocks) as u32, segments.len() as u32, 1],
            threads: WALK_THREADS,
            shared_bytes,
        };
        self.launch(&source, name, launch, &walk)
    }

    /// Whether blocks of whole heads, which do all in one kernel, are faster: where walks are short and few. A row alone is always theirs.
    fn walks_heads(&self, shape: &DeltaNetShape, segments: &[SegmentEntry]) -> bool {
        let rows: u32 = segments.iter().map(|segment| segment.num_rows).sum();
        let blocks = segments.len() * shape.num_v_heads;
        (rows == 1 || blocks <= self.facts().multiprocessors as usize)
            && segments
                .iter()
                .all(|segment| is_chain(segment) && segment.num_rows <= SHORT_WALK)
    }

    /// Shared memory with which a block is alone on its multiprocessor, if that is what it is to be.
    fn alone_bytes(&self, is_alone: bool) -> u32 {
        match is_alone {
            true => self.facts().shared_bytes_per_block / 100 * ALONE_PERCENT,
            false => 0,
        }
    }

    /// Shared memory that a walking block has for levels, where it is alone on its multiprocessor.
    fn level_bytes_left(&self) -> u32 {
        let bytes = self.facts().shared_bytes_per_block;
        bytes.saturating_sub(WALK_SHARED_BYTES)
    }
}

impl<'a> Inputs<'a> {
    fn of_forward(args: &'a DeltaNetArgs<'_>) -> Self {
        Self {
            op: "delta_net",
            shape: args.shape,
            qkv: args.qkv,
            alpha: args.alpha,
            beta: args.beta,
            conv_weight: args.conv_weight,
            a: args.a,
            dt_bias: args.dt_bias,
            state: args.state,
        }
    }
}

impl Inputs<'_> {
    fn layer(&self) -> Layer {
        Layer {
            qkv: ptr(self.qkv),
            alpha: ptr(self.alpha),
            beta: ptr(self.beta),
            conv_weight: ptr(self.conv_weight),
            a: ptr(self.a),
            dt_bias: ptr(self.dt_bias),
            history: ptr(&self.state.conv),
            states: ptr(&self.state.recurrent),
        }
    }

    /// Whether there is room for so many rows, and for the states of so many sequences.
    fn check(&self, num_rows: usize, sequences: usize) -> Result<(), DeviceError> {
        let shape = &self.shape;
        let (channels, heads) = (shape.conv_channels(), shape.num_v_heads);
        for (what, buffer, len) in [
            ("qkv", self.qkv, num_rows * channels),
            ("alpha", self.alpha, num_rows * heads),
            ("beta", self.beta, num_rows * heads),
            ("conv_weight", self.conv_weight, channels * shape.conv_taps),
            ("a", self.a, heads),
            ("dt_bias", self.dt_bias, heads),
            (
                "states",
                &self.state.recurrent,
                sequences * shape.state_len(),
            ),
            ("history", &self.state.conv, sequences * shape.conv_len()),
        ] {
            check(self.op, what, buffer.len(), len)?;
        }
        for (what, dim, unit) in [
            ("key head dim", shape.k_dim, 4),
            ("value head dim", shape.v_dim, 16),
        ] {
            if dim == 0 || !dim.is_multiple_of(unit) {
                return Err(DeviceError::Shape {
                    op: self.op,
                    what,
                    expected: dim.next_multiple_of(unit).max(unit),
                    got: dim,
                });
            }
        }
        for (what, got, most) in [
            ("value head dim", shape.v_dim, MOST_V_DIM),
            ("key heads", shape.num_k_heads, shape.num_v_heads),
        ] {
            if got > most {
                return Err(DeviceError::Shape {
                    op: self.op,
                    what,
                    expected: most,
                    got,
                });
            }
        }
        Ok(())
    }
}

fn check(
    op: &'static str,
    what: &'static str,
    got: usize,
    expected: usize,
) -> Result<(), DeviceError> {
    if got >= expected {
        return Ok(());
    }
    Err(DeviceError::Shape {
        op,
        what,
        expected,
        got,
    })
}
