//! Accepted paths: rows of a forward pass along which the states of all layers move. See gpu/delta_commit.cu.

use crate::device::{DeltaNetCommitArgs, DeltaNetCommitLayer, DeltaNetShape};
use crate::error::DeviceError;
use crate::gpu::delta_net::Inputs;
use crate::gpu::delta_net::launches::{Layer, THREADS, WARPS, commits};
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch};
use crate::gpu::scratch::Scratch;

/// Layers and rows that one launch commits, for which a 27B's rows that are made ready take some 20 MB. The states and histories after so many rows
/// are those that the next ones find.
const MOST_LAYERS: usize = 48;
const MOST_ROWS: usize = 12;
/// Columns of a head that a block moves.
const WIDTH: usize = 16 * WARPS;

/// See gpu/delta_commit.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct CommitArgs {
    ready: DevicePtr,
    gates: DevicePtr,
    state: u32,
    num_rows: u32,
    rows: [u32; MOST_ROWS],
    layers: [Layer; MOST_LAYERS],
}

/// Blocks of a layer.
fn items(shape: &DeltaNetShape) -> usize {
    shape.num_v_heads * shape.v_dim.div_ceil(WIDTH)
}

/// See `Arriving` in gpu/delta_commit.cu: columns of a state, a share of the histories, and rows.
fn arriving_bytes(shape: &DeltaNetShape) -> usize {
    let keys = shape.k_dim.next_multiple_of(32);
    let channels = 4 * (shape.conv_channels() / 4).div_ceil(items(shape));
    let values = keys * WIDTH + shape.conv_taps * channels + MOST_ROWS * (keys + WIDTH + 4);
    values * size_of::<f32>()
}

impl GpuDevice {
    pub(in crate::gpu) fn delta_net_commit_op(
        &self,
        args: DeltaNetCommitArgs<'_>,
    ) -> Result<(), DeviceError> {
        let num_rows = args.rows.iter().map(|row| row + 1).max().unwrap_or(0);
        let mut layers = Vec::with_capacity(args.layers.len());
        for layer in &args.layers {
            let inputs = Inputs::of_commit(args.shape, layer);
            inputs.check(num_rows, args.state_index + 1)?;
            layers.push(inputs.layer());
        }
        for layers in layers.chunks(MOST_LAYERS) {
            for rows in args.rows.chunks(MOST_ROWS) {
                self.commit_piece(&args.shape, args.state_index, layers, rows)?;
            }
        }
        Ok(())
    }

    fn commit_piece(
        &self,
        shape: &DeltaNetShape,
        state_index: usize,
        layers: &[Layer],
        rows: &[usize],
    ) -> Result<(), DeviceError> {
        let (heads, kept_rows) = (shape.num_v_heads, layers.len() * rows.len());
        let ready = shape.num_k_heads * shape.k_dim + heads * shape.v_dim;
        let gates_at = (kept_rows * ready * size_of::<f32>()).next_multiple_of(256);
        let gates_bytes = kept_rows * heads * size_of::<[f32; 4]>();
        let scratch = self.scratch(Scratch::Commit, gates_at + gates_bytes)?;
        let mut commit = CommitArgs {
            ready: scratch,
            gates: scratch.add(gates_at),
            state: state_index as u32,
            num_rows: rows.len() as u32,
            rows: [0; MOST_ROWS],
            layers: [Layer::NONE; MOST_LAYERS],
        };
        commit.layers[..layers.len()].copy_from_slice(layers);
        for (to, &row) in commit.rows.iter_mut().zip(rows) {
            *to = row as u32;
        }
        let warps = shape.num_k_heads + heads;
        let source = commits(shape);
        let launch_of = |x: usize, shared_bytes: usize| Launch {
            grid: [x as u32, layers.len() as u32, 1],
            threads: THREADS,
            shared_bytes: shared_bytes as u32,
        };
        let of_rows = launch_of(warps.div_ceil(WARPS), 0);
        self.launch(&source, "delta_commit_rows", of_rows, &commit)?;
        let of_states = launch_of(items(shape), arriving_bytes(shape));
        self.launch(&source, "delta_commit", of_states, &commit)
    }
}

impl<'a> Inputs<'a> {
    fn of_commit(shape: DeltaNetShape, layer: &'a DeltaNetCommitLayer<'_>) -> Self {
        Self {
            op: "delta_net_commit",
            shape,
            qkv: layer.qkv,
            alpha: layer.alpha,
            beta: layer.beta,
            conv_weight: layer.conv_weight,
            a: layer.a,
            dt_bias: layer.dt_bias,
            state: layer.state,
        }
    }
}
