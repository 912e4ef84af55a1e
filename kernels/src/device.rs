//! The operations that a device offers, and their arguments.
//!
//! Shapes: N rows (nodes) in the batch, E hidden size, H query heads, Hkv key/value heads, D head dim; Hk, Hv
//! DeltaNet key/value heads with dims dk, dv. Buffers are row-major f32. Ops panic on a caller's shape mistake that
//! would read outside a buffer (a bug, not an input); everything that depends on a file is an error at load.

mod attention;
mod batch;
mod delta_net;
mod linear;
mod matrix;
mod rows;

use tensor_channel::ChannelDevice;

use crate::buffer::Buffer;
use crate::decode_path::DecodePath;
use crate::error::DeviceError;
use crate::kv::KvType;
use crate::prompt::{SparseAttentionArgs, TailProductsArgs, TailWeightsArgs};

pub use crate::device::attention::{
    AttentionArgs, HeadNorm, KvAppendArgs, KvCommitArgs, KvCommitLayer, KvLayer, RopeArgs,
    RopeStyle, Window,
};
pub use crate::device::batch::{Segment, Step, Visibility};
pub use crate::device::delta_net::{
    DeltaLayerArgs, DeltaNetArgs, DeltaNetCommitArgs, DeltaNetCommitLayer, DeltaNetShape,
    DeltaNetState,
};
pub use crate::device::linear::{FeedForwardArgs, GatedLinearArgs, LinearArgs, Norm, Projection};
pub use crate::device::matrix::{Matrix, MatrixSource};
pub use crate::device::rows::{StoreColumnsArgs, TopKArgs};

/// Tokens in one page of KV rows; also the fixed split of attention, aligned to absolute positions.
pub const PAGE_TOKENS: usize = 64;

/// A device: memory and fused operations. One thread drives it.
pub trait Device: Send + Sync {
    /// Name and instruction set or chip, for people.
    fn name(&self) -> String;

    /// The number by which the libraries of its maker know the device, where it has one.
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    /// What of the device decides the bits of a result, beside this program: states of another one are not its own.
    fn arithmetic(&self) -> String {
        self.name()
    }

    /// Bytes a second that this device reads from memory, measured now (takes about a second).
    fn read_bandwidth(&self) -> f64;

    /// What tensor channels need of it; `None` where its memory is the host's.
    fn channel_device(&self) -> Option<&dyn ChannelDevice> {
        None
    }

    /// Whether an operation takes long the first time that it meets a shape, because its kernel is compiled then.
    fn compiles_kernels(&self) -> bool {
        false
    }

    /// Compiles what products like those of steps that came before need where steps have other numbers of rows, up to `most`: what is compiled
    /// now, on all processors, lets no answer wait.
    fn compile_for_rows(&self, most: usize) {
        let _ = most;
    }

    /// Chooses how steps are launched that were not launched before.
    fn set_decode_path(&self, path: DecodePath) {
        let _ = path;
    }

    /// Bytes that it can still give, where that is known.
    fn free_memory(&self) -> Option<u64>;

    /// Gives no more than so many bytes together from now on, for a plan that must fit a smaller device. The CPU gives
    /// what it is asked for, and only says that it has no more.
    fn limit_memory(&self, bytes: u64);

    /// Gives back what operations keep for themselves from call to call, and forgets recorded steps. Buffers and matrices stay.
    fn release_working_memory(&self) {}

    /// Takes as much again as was released, so that no operation has to ask for it later.
    ///
    /// # Errors
    /// No memory.
    fn restore_working_memory(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Brings a matrix into the device's layout.
    ///
    /// # Errors
    /// Wrong byte count, row length or no memory.
    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Matrix, DeviceError>;

    /// `len` zeros.
    ///
    /// # Errors
    /// No memory.
    fn zeros(&self, len: usize) -> Result<Buffer, DeviceError>;

    /// `len` zeros for keys or values, kept as `kv_type`; whole heads of them. Only attention and the copies to and from the
    /// host take them.
    ///
    /// # Errors
    /// No memory.
    fn kv_zeros(&self, len: usize, kv_type: KvType) -> Result<Buffer, DeviceError>;

    /// Copies host values to `buffer[offset..]`, of f32 or f16.
    fn write(&self, buffer: &mut Buffer, offset: usize, values: &[f32]);

    /// Copies `buffer[offset..]`, of f32 or f16, to host values.
    fn read(&self, buffer: &Buffer, offset: usize, values: &mut [f32]);

    /// Waits until everything asked is done.
    ///
    /// # Errors
    /// What went wrong in an operation since the device was made; a device with an error is of no use any more.
    fn finish(&self) -> Result<(), DeviceError>;

    /// `out[i] = x[rows[i]]`, rows of `row_len` values.
    fn gather_rows(&self, x: &Buffer, row_len: usize, rows: &[usize], out: &mut Buffer);

    /// `out[i] = table[ids[i]]`.
    fn embed(&self, table: &Matrix, ids: &[u32], out: &mut Buffer);

    /// Calls `work`, which calls operations of this device: always the same, with the same buffers, for steps with the same
    /// variant and shapes. A device may record them, for which it may call `work` more than once, and, the next time, repeat what it
    /// recorded instead of calling it.
    fn step(&self, step: &Step<'_>, work: &mut dyn FnMut()) {
        let _ = step;
        work();
    }

    /// See [`StoreColumnsArgs`].
    fn store_columns(&self, args: StoreColumnsArgs<'_>);

    /// See [`LinearArgs`].
    fn linear(&self, args: LinearArgs<'_, '_>);

    /// See [`GatedLinearArgs`].
    fn gated_linear(&self, args: GatedLinearArgs<'_>);

    /// See [`FeedForwardArgs`]: its two products, with the same bits.
    fn feed_forward(&self, mut args: FeedForwardArgs<'_>) {
        self.gated_linear(args.gated());
        args.project(|linear| self.linear(linear));
    }

    /// See [`AttentionArgs`].
    fn attention(&self, args: AttentionArgs<'_>);

    /// See [`KvCommitArgs`].
    fn kv_commit(&self, args: KvCommitArgs<'_>);

    /// See [`KvAppendArgs`].
    fn kv_append(&self, args: KvAppendArgs<'_>);

    /// In a step: the `k` likeliest ids of one row of logits (\[vocab_size\]) are what [`Device::top_k`] is asked for as soon as the step
    /// has been, with their values where they are more than one. A device may look for them as a part of the step.
    fn seek_top(&self, logits: &Buffer, vocab_size: usize, k: usize) {
        let _ = (logits, vocab_size, k);
    }

    /// See [`TopKArgs`].
    fn top_k(&self, args: TopKArgs<'_>);

    /// See [`DeltaNetArgs`].
    fn delta_net(&self, args: DeltaNetArgs<'_>);

    /// See [`DeltaLayerArgs`]: its two operations, with the same bits.
    fn delta_layer(&self, mut args: DeltaLayerArgs<'_>) {
        args.make_inputs(|linear| self.linear(linear));
        self.delta_net(args.recurrence());
    }

    /// See [`DeltaNetCommitArgs`].
    fn delta_net_commit(&self, args: DeltaNetCommitArgs<'_>);

    /// See [`SparseAttentionArgs`].
    fn sparse_attention(&self, args: SparseAttentionArgs<'_>);

    /// See [`TailProductsArgs`].
    fn tail_products(&self, args: TailProductsArgs<'_>);

    /// See [`TailWeightsArgs`].
    fn tail_weights(&self, args: TailWeightsArgs<'_>);
}
