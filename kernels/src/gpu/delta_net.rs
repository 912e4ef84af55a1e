//! Gated DeltaNet layers.

use crate::device::{DeltaNetArgs, DeltaNetCommitArgs};
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;

impl GpuDevice {
    pub(super) fn delta_net_op(&self, _args: DeltaNetArgs<'_>) -> Result<(), DeviceError> {
        panic!("not written yet")
    }

    pub(super) fn delta_net_commit_op(
        &self,
        _args: DeltaNetCommitArgs<'_>,
    ) -> Result<(), DeviceError> {
        panic!("not written yet")
    }
}
