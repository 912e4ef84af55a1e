//! GPUs: one implementation of [`crate::Device`] over a [`driver::Driver`], with kernels compiled for the chip found.
//!
//! Everything that a device is asked for runs on one stream, in order; the host waits only where values are read.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "calls into a runtime come in groups that one argument covers"
)]

mod attention;
mod delta_net;
mod device;
mod driver;
mod emulation;
mod linear;
mod matrix;
mod memory;
mod modules;
mod rows;
mod steps;
mod tables;

pub use device::GpuDevice;
pub(crate) use device::GpuValues;
pub use driver::DeviceFacts;
pub(crate) use matrix::GpuMatrix;
