//! GPUs: one implementation of [`crate::Device`] over a [`driver::Driver`], with kernels compiled for the chip found.
//!
//! Everything that a device is asked for runs on one stream, in order; the host waits only where values are read.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "calls into a runtime come in groups that one argument covers"
)]

mod ahead;
mod attention;
mod bandwidth;
mod budget;
mod cuda;
mod delta_net;
mod device;
mod driver;
mod emulation;
mod exchange;
mod hip;
mod image_cache;
mod inbox;
mod inputs;
mod linear;
mod matrix;
mod megakernel;
mod memory;
mod modules;
mod notes;
mod nvrtc;
mod one_row;
mod places;
mod rope;
mod rows;
mod scratch;
mod sharing;
mod sparse;
mod steps;
mod tables;
mod tail;
mod top_k;
mod words;

#[doc(hidden)]
pub use ahead::{AheadCompiler, KernelSource};
pub(crate) use cuda::check_cuda;
pub use cuda::{CudaDevice, CudaReport};
pub use device::GpuDevice;
pub(crate) use device::GpuValues;
pub use driver::DeviceFacts;
#[doc(hidden)]
pub use linear::ProductShape;
pub(crate) use matrix::GpuMatrix;

/// Every source with every set of constants that operations ask for, so that all can be compiled ahead of time. A file
/// of operations has a `sources()` of its own, which belongs in this list.
fn sources() -> Vec<driver::Source> {
    [
        attention::sources(),
        bandwidth::sources(),
        delta_net::sources(),
        linear::sources(),
        vec![inbox::source()],
        megakernel::sources(),
        rows::sources(),
        sparse::sources(),
        tail::sources(),
        top_k::sources(),
    ]
    .concat()
}
