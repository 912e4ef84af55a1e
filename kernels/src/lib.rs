//! The only room that talks to a device.
//!
//! [`Device`] is an object-safe set of fused operations over f32 activations; a graph in `models` is a sequence of
//! calls on it. [`CpuDevice`] runs them with the best instruction set found at start. Every result is
//! *batch-invariant*: a row's bits do not depend on how many other rows share the call; but for sparse attention, where the
//! rows of a query block choose together what they see.

mod buffer;
mod cpu;
mod decode_path;
mod device;
mod error;
mod gpu;
mod kv;
mod memory;
mod open;
mod prompt;
mod span;

pub use crate::buffer::Buffer;
pub use crate::cpu::{CpuDevice, Tier};
pub use crate::decode_path::DecodePath;
pub use crate::device::{
    AttentionArgs, DeltaLayerArgs, DeltaNetArgs, DeltaNetCommitArgs, DeltaNetCommitLayer,
    DeltaNetShape, DeltaNetState, Device, FeedForwardArgs, GatedLinearArgs, HeadNorm, KvAppendArgs,
    KvCommitArgs, KvCommitLayer, KvLayer, LinearArgs, Matrix, MatrixSource, Norm, PAGE_TOKENS,
    Projection, RopeArgs, RopeStyle, Segment, Step, StoreColumnsArgs, TopKArgs, Visibility, Window,
};
pub use crate::error::DeviceError;
#[doc(hidden)]
pub use crate::gpu::{AheadCompiler, KernelSource, ProductShape};
pub use crate::gpu::{CudaDevice, CudaReport, DeviceFacts, GpuDevice};
pub use crate::kv::{KvType, KvTypes, Side, clear_slots};
pub use crate::open::{DeviceName, open_device, open_limited_device};
pub use crate::prompt::{
    KEY_BLOCK_TOKENS, SparseAttentionArgs, TailProductsArgs, TailWeightsArgs, mean_pages,
};
pub use crate::span::{Span, SpanMut};
