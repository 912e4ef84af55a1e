//! Gated DeltaNet layers: rows are prepared, the recurrence is walked, answers are normed. See gpu/delta_net.cu.
//!
//! A commit is the same walk over the rows of the forward pass, with tables in which the accepted path is a chain.
//!
//! Which kernels run, and how large, follows from the number of rows of each segment and from which segments advance;
//! trees and states may change where a step that was recorded runs again.

use crate::buffer::Buffer;
use crate::device::{DeltaNetArgs, DeltaNetCommitArgs, DeltaNetShape, DeltaNetState, Visibility};
use crate::error::DeviceError;
use crate::gpu::device::{GpuDevice, Scratch, Staged};
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::tables::{HostTables, MAX_SAVED_LEVELS, SegmentEntry, TablePtrs, levels_of};

const DELTA_NET: &str = include_str!("../../gpu/delta_net.cu");
/// Threads of a block of each kernel, and what a block covers.
const THREADS: u32 = 128;
const WARPS: usize = 4;
/// Columns of a head that a block walks with.
const STRIP: usize = 32;
/// Rows of a segment up to which a block walks with a whole head, and the most threads that it has registers for.
const SHORT_WALK: u32 = 8;
const MOST_HEAD_THREADS: usize = 512;
/// Shared memory that walking blocks use besides saved levels, rounded up.
const WALK_SHARED_BYTES: u32 = 16 * 1024;
/// Rows that a warp prepares one after another where there are many: it reads its weights once.
const LONG_RUN: u32 = 4;
/// Rows from which on there are many.
const MANY_ROWS: usize = 128;

/// See gpu/delta_net.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct PrepareArgs {
    tables: TablePtrs,
    qkv: DevicePtr,
    alpha: DevicePtr,
    beta: DevicePtr,
    conv_weight: DevicePtr,
    a: DevicePtr,
    dt_bias: DevicePtr,
    history: DevicePtr,
    prepared: DevicePtr,
    gates: DevicePtr,
    num_rows: u32,
    rows_per_warp: u32,
    q_scale: f32,
}

/// See gpu/delta_net.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct WalkArgs {
    tables: TablePtrs,
    prepared: DevicePtr,
    gates: DevicePtr,
    qkv: DevicePtr,
    states: DevicePtr,
    history: DevicePtr,
    out: DevicePtr,
    spill: DevicePtr,
    shared_levels: u32,
}

/// See gpu/delta_net.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct NormArgs {
    tables: TablePtrs,
    z: DevicePtr,
    gamma: DevicePtr,
    out: DevicePtr,
    num_rows: u32,
    eps: f32,
}

/// See gpu/delta_net.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct HeadsArgs {
    prepare: PrepareArgs,
    walk: WalkArgs,
    norm: NormArgs,
    tickets: DevicePtr,
}

/// What the recurrence is made from, in a forward pass and in a commit.
struct Inputs<'a> {
    op: &'static str,
    source: Source,
    shape: DeltaNetShape,
    qkv: &'a Buffer,
    alpha: &'a Buffer,
    beta: &'a Buffer,
    conv_weight: &'a Buffer,
    a: &'a Buffer,
    dt_bias: &'a Buffer,
    state: &'a DeltaNetState,
}

fn ptr(buffer: &Buffer) -> DevicePtr {
    buffer.on_gpu().memory.ptr()
}

/// All that this module launches, for the shapes of the published models; see [`crate::gpu::sources`].
pub(super) fn sources() -> Vec<Source> {
    [16, 32, 48]
        .map(|num_v_heads| {
            source(&DeltaNetShape {
                num_k_heads: 16,
                num_v_heads,
                k_dim: 128,
                v_dim: 128,
                conv_taps: 4,
            })
        })
        .into()
}

fn source(shape: &DeltaNetShape) -> Source {
    let define = |name, value: usize| (name, value.to_string());
    Source {
        name: "delta_net.cu",
        text: DELTA_NET,
        defines: vec![
            define("HK", shape.num_k_heads),
            define("HV", shape.num_v_heads),
            define("DK", shape.k_dim),
            define("DV", shape.v_dim),
            define("TAPS", shape.conv_taps),
        ],
    }
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

/// Bytes of a level that a walking block saves.
fn level_bytes(shape: &DeltaNetShape) -> u32 {
    (shape.k_dim.next_multiple_of(32) * STRIP * size_of::<f32>()) as u32
}

/// Threads of a block that walks with a whole head.
fn head_threads(shape: &DeltaNetShape) -> usize {
    32 * (shape.v_dim / 8).max(WARPS)
}

/// Blocks that walk a sequence's state.
fn walking_blocks(shape: &DeltaNetShape) -> usize {
    shape.num_v_heads * shape.v_dim.div_ceil(STRIP)
}

impl GpuDevice {
    pub(super) fn delta_net_op(&self, args: DeltaNetArgs<'_>) -> Result<(), DeviceError> {
        let shape = args.shape;
        let staged = self.tables(args.segments, Visibility::Ancestors)?;
        let num_rows = staged.host().rows.len();
        let width = shape.num_v_heads * shape.v_dim;
        for (what, buffer, len) in [
            ("z", args.z, num_rows * width),
            ("out", &*args.out, num_rows * width),
            ("norm", args.norm.gamma, shape.v_dim),
        ] {
            check("delta_net", what, buffer.len(), len)?;
        }
        let norm = NormArgs {
            tables: staged.ptrs,
            z: ptr(args.z),
            gamma: ptr(args.norm.gamma),
            out: ptr(args.out),
            num_rows: num_rows as u32,
            eps: args.norm.eps,
        };
        let inputs = Inputs {
            op: "delta_net",
            source: source(&shape),
            shape,
            qkv: args.qkv,
            alpha: args.alpha,
            beta: args.beta,
            conv_weight: args.conv_weight,
            a: args.a,
            dt_bias: args.dt_bias,
            state: args.state,
        };
        let (prepare, walk) = self.delta_args(&inputs, &staged)?;
        let out = norm.out;
        let walk = WalkArgs { out, ..walk };
        let segments = &staged.host().segments;
        if self.walks_heads(&shape, segments) {
            let tickets = segments.len() * shape.num_k_heads * size_of::<u32>();
            let args = HeadsArgs {
                prepare,
                walk,
                norm,
                tickets: self.scratch(Scratch::Tickets, tickets)?,
            };
            let launch = Launch {
                grid: [shape.num_v_heads as u32, segments.len() as u32, 1],
                threads: head_threads(&shape) as u32,
                shared_bytes: 0,
            };
            return self.launch(&inputs.source, "delta_walk_heads", launch, &args);
        }
        self.prepare_and_walk(&inputs, segments, &prepare, &walk)?;
        let launch = Launch {
            grid: [(num_rows * shape.num_v_heads).div_ceil(WARPS) as u32, 1, 1],
            threads: THREADS,
            shared_bytes: 0,
        };
        self.launch(&inputs.source, "delta_norm", launch, &norm)
    }

    pub(super) fn delta_net_commit_op(
        &self,
        args: DeltaNetCommitArgs<'_>,
    ) -> Result<(), DeviceError> {
        let staged = self.stage(HostTables::path(args.rows, args.state_index))?;
        let inputs = Inputs {
            op: "delta_net_commit",
            source: source(&args.shape),
            shape: args.shape,
            qkv: args.qkv,
            alpha: args.alpha,
            beta: args.beta,
            conv_weight: args.conv_weight,
            a: args.a,
            dt_bias: args.dt_bias,
            state: args.state,
        };
        let (prepare, walk) = self.delta_args(&inputs, &staged)?;
        self.prepare_and_walk(&inputs, &staged.host().segments, &prepare, &walk)
    }

    /// How the rows of the tables are prepared and walked, without answers.
    fn delta_args(
        &self,
        inputs: &Inputs<'_>,
        staged: &Staged<'_>,
    ) -> Result<(PrepareArgs, WalkArgs), DeviceError> {
        let shape = &inputs.shape;
        inputs.check(staged.host())?;
        let num_rows = staged.host().rows.len();
        let (channels, heads) = (shape.conv_channels(), shape.num_v_heads);
        let prepared_bytes = num_rows * channels * size_of::<f32>();
        let gates_bytes = num_rows * heads * size_of::<[f32; 2]>();
        let spill_at = (prepared_bytes + gates_bytes).next_multiple_of(256);
        let room = self.level_room(shape);
        let spilled: usize = staged
            .host()
            .segments
            .iter()
            .map(|segment| levels(segment).saturating_sub(room) as usize)
            .sum();
        let spill_bytes = spilled * walking_blocks(shape) * level_bytes(shape) as usize;
        let scratch = self.scratch(Scratch::Recurrence, spill_at + spill_bytes)?;
        let gates = scratch.add(prepared_bytes);

        let prepare = PrepareArgs {
            tables: staged.ptrs,
            qkv: ptr(inputs.qkv),
            alpha: ptr(inputs.alpha),
            beta: ptr(inputs.beta),
            conv_weight: ptr(inputs.conv_weight),
            a: ptr(inputs.a),
            dt_bias: ptr(inputs.dt_bias),
            history: ptr(&inputs.state.conv),
            prepared: scratch,
            gates,
            num_rows: num_rows as u32,
            rows_per_warp: if num_rows < MANY_ROWS { 1 } else { LONG_RUN },
            q_scale: 1.0 / (shape.k_dim as f32).sqrt(),
        };
        let walk = WalkArgs {
            tables: staged.ptrs,
            prepared: scratch,
            gates,
            qkv: prepare.qkv,
            states: ptr(&inputs.state.recurrent),
            history: prepare.history,
            out: DevicePtr::NULL,
            spill: scratch.add(spill_at),
            shared_levels: room,
        };
        Ok((prepare, walk))
    }

    /// Prepares rows, walks them, and moves the states of segments that advance.
    fn prepare_and_walk(
        &self,
        inputs: &Inputs<'_>,
        segments: &[SegmentEntry],
        prepare: &PrepareArgs,
        walk: &WalkArgs,
    ) -> Result<(), DeviceError> {
        let shape = &inputs.shape;
        let all_heads = 2 * shape.num_k_heads + shape.num_v_heads;
        let launch = Launch {
            grid: [
                prepare.num_rows.div_ceil(prepare.rows_per_warp),
                all_heads.div_ceil(WARPS) as u32,
                1,
            ],
            threads: THREADS,
            shared_bytes: 0,
        };
        self.launch(&inputs.source, "delta_prepare", launch, prepare)?;
        let moves = segments.iter().any(|segment| segment.advance == 1);
        let history_blocks = match moves {
            true => shape.conv_channels().div_ceil(THREADS as usize),
            false => 0,
        };
        let has_trees = !segments.iter().all(is_chain);
        let (name, shared_bytes) = match has_trees {
            // As much as there is room for: a kernel is told the most that it will ask for when it is loaded.
            true => ("delta_walk_trees", walk.shared_levels * level_bytes(shape)),
            false => ("delta_walk_chains", 0),
        };
        let launch = Launch {
            grid: [
                (walking_blocks(shape) + history_blocks) as u32,
                segments.len() as u32,
                1,
            ],
            threads: THREADS,
            shared_bytes,
        };
        self.launch(&inputs.source, name, launch, walk)
    }

    /// Whether blocks of whole heads, which do all in one kernel, are faster: where walks are short and few.
    fn walks_heads(&self, shape: &DeltaNetShape, segments: &[SegmentEntry]) -> bool {
        let blocks = segments.len() * shape.num_v_heads;
        head_threads(shape) <= MOST_HEAD_THREADS
            && shape.num_k_heads <= shape.num_v_heads
            && blocks <= self.facts().multiprocessors as usize
            && segments
                .iter()
                .all(|segment| is_chain(segment) && segment.num_rows <= SHORT_WALK)
    }

    /// Levels for which there is shared memory when all blocks of a sequence run at once.
    fn level_room(&self, shape: &DeltaNetShape) -> u32 {
        let facts = self.facts();
        let resident = (walking_blocks(shape) as u32).div_ceil(facts.multiprocessors.max(1));
        let bytes = facts.shared_bytes_per_block / resident.max(1);
        let levels = bytes.saturating_sub(WALK_SHARED_BYTES) / level_bytes(shape);
        levels.min(MAX_SAVED_LEVELS)
    }
}

impl Inputs<'_> {
    fn check(&self, tables: &HostTables) -> Result<(), DeviceError> {
        let shape = &self.shape;
        let num_rows = tables.rows.len();
        let indices = tables.segments.iter().map(|s| s.state_index as usize + 1);
        let sequences = indices.max().unwrap_or(0);
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
            ("value head dim", shape.v_dim, 8),
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
