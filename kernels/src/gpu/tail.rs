//! How much the last rows of a prompt attend to each of its tokens.

use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::prompt::{TailProductsArgs, TailWeightsArgs};

fn not_yet() -> DeviceError {
    DeviceError::Driver {
        what: "prompts cannot be scored on GPUs yet".to_owned(),
    }
}

impl GpuDevice {
    pub(super) fn tail_products_op(&self, _: TailProductsArgs<'_>) -> Result<(), DeviceError> {
        Err(not_yet())
    }

    pub(super) fn tail_weights_op(&self, _: TailWeightsArgs<'_>) -> Result<(), DeviceError> {
        Err(not_yet())
    }
}
