//! Attention of a prompt's rows to the key blocks that weigh most.

use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::prompt::SparseAttentionArgs;

impl GpuDevice {
    pub(super) fn sparse_attention_op(
        &self,
        _: SparseAttentionArgs<'_>,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::Driver {
            what: "not yet".to_owned(),
        })
    }
}
