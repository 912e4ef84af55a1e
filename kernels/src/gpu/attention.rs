//! Attention and its cache of keys and values.

use crate::device::{AttentionArgs, KvAppendArgs, KvCommitArgs};
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;

impl GpuDevice {
    pub(super) fn attention_op(&self, _args: AttentionArgs<'_>) -> Result<(), DeviceError> {
        panic!("not written yet")
    }

    pub(super) fn kv_append_op(&self, _args: KvAppendArgs<'_>) -> Result<(), DeviceError> {
        panic!("not written yet")
    }

    pub(super) fn kv_commit_op(&self, _args: KvCommitArgs<'_>) -> Result<(), DeviceError> {
        panic!("not written yet")
    }
}
