//! Weight matrices in the order in which kernels read them.

use crate::device::MatrixSource;
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::memory::DeviceMemory;

/// A matrix on a GPU.
#[derive(Debug)]
pub(crate) struct GpuMatrix {
    pub dtype: tensor::DType,
    pub rows: usize,
    pub cols: usize,
    pub memory: DeviceMemory,
}

impl GpuDevice {
    pub(super) fn load_gpu_matrix(
        &self,
        _source: MatrixSource<'_>,
    ) -> Result<GpuMatrix, DeviceError> {
        panic!("not written yet")
    }
}
