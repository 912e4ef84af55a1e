//! Products with weight matrices.

use crate::device::{GatedLinearArgs, LinearArgs};
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;

impl GpuDevice {
    pub(super) fn linear_op(&self, _args: LinearArgs<'_, '_>) -> Result<(), DeviceError> {
        panic!("not written yet")
    }

    pub(super) fn gated_linear_op(&self, _args: GatedLinearArgs<'_>) -> Result<(), DeviceError> {
        panic!("not written yet")
    }
}
