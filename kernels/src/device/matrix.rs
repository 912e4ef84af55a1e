//! Weight matrices: as they stand in a file, and as a device has them.

use tensor::DType;

use crate::cpu::PackedMatrix;
use crate::gpu::GpuMatrix;

/// A weight matrix as it stands in a file: `rows` outputs of `cols` contiguous inputs.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSource<'a> {
    /// Element type.
    pub dtype: DType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The file's bytes.
    pub bytes: &'a [u8],
}

/// A weight matrix in the device's own layout: y\[r\] = sum over c of W\[r, c\] x\[c\].
#[derive(Debug)]
pub struct Matrix {
    weights: Weights,
}

#[derive(Debug)]
enum Weights {
    Host(PackedMatrix),
    Gpu(GpuMatrix),
}

impl Matrix {
    pub(crate) fn host(packed: PackedMatrix) -> Self {
        Self {
            weights: Weights::Host(packed),
        }
    }

    pub(crate) fn gpu(matrix: GpuMatrix) -> Self {
        Self {
            weights: Weights::Gpu(matrix),
        }
    }

    /// The weights of a matrix of the CPU.
    pub(crate) fn packed(&self) -> &PackedMatrix {
        match &self.weights {
            Weights::Host(packed) => packed,
            Weights::Gpu(_) => panic!("a matrix of another device"),
        }
    }

    /// The weights of a matrix of a GPU.
    pub(crate) fn on_gpu(&self) -> &GpuMatrix {
        match &self.weights {
            Weights::Gpu(matrix) => matrix,
            Weights::Host(_) => panic!("a matrix of another device"),
        }
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        match &self.weights {
            Weights::Host(packed) => packed.rows,
            Weights::Gpu(matrix) => matrix.rows,
        }
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        match &self.weights {
            Weights::Host(packed) => packed.cols,
            Weights::Gpu(matrix) => matrix.cols,
        }
    }

    /// Bytes held on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.weights {
            Weights::Host(packed) => packed.bytes.len(),
            Weights::Gpu(matrix) => matrix.memory.bytes(),
        }
    }
}
