//! Weight matrices in the order in which kernels read them: see gpu/weights.h.
//!
//! A file's bytes go to the device as they are, some rows at a time, and a kernel puts them in order there.

use tensor::DType;

use crate::device::MatrixSource;
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::memory::DeviceMemory;

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 16;
/// Bytes of a file that are on the device beside their matrix while it is put in order.
const STAGING_BYTES: usize = 64 << 20;
const PACK_THREADS: u32 = 128;

/// A matrix on a GPU.
#[derive(Debug)]
pub(crate) struct GpuMatrix {
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
    pub memory: DeviceMemory,
}

impl GpuMatrix {
    pub(super) fn tiles_per_row(&self) -> usize {
        self.cols.div_ceil(tile_cols(self.dtype))
    }
}

/// The form of activations that products with a type read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    By256,
    By32,
    Floats,
}

impl Form {
    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Self::Floats,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 | DType::Iq4Nl => {
                Self::By32
            }
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K | DType::Iq4Xs => {
                Self::By256
            }
        }
    }

    /// Inputs of a tile of weights, and of a block of activations.
    pub(super) fn cols(self) -> usize {
        match self {
            Self::By256 => 256,
            Self::By32 | Self::Floats => 64,
        }
    }
}

pub(super) fn tile_cols(dtype: DType) -> usize {
    Form::of(dtype).cols()
}

/// Bytes of a tile: a file's own, but that Q3_K's and IQ4_XS' sub-scales have a byte each.
pub(super) const fn tile_bytes(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 4096,
        DType::F16 | DType::BF16 => 2048,
        DType::Q4_0 | DType::Iq4Nl => 512 + 64,
        DType::Q4_1 => 512 + 128,
        DType::Q5_0 => 512 + 128 + 64,
        DType::Q5_1 => 512 + 128 + 128,
        DType::Q8_0 => 1024 + 64,
        DType::Q2K => 1024 + 256 + 64,
        DType::Q3K => 1024 + 512 + 256 + 32,
        DType::Q4K => 2048 + 256,
        DType::Q5K => 2048 + 512 + 256,
        DType::Q6K => 2048 + 1024 + 256 + 32,
        DType::Iq4Xs => 2048 + 128 + 32,
    }
}

/// See gpu/pack.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct PackArgs {
    source: DevicePtr,
    tiles: DevicePtr,
    row_bytes: u64,
    dtype: u32,
    rows: u32,
    cols: u32,
    tiles_per_row: u32,
}

pub(super) fn pack_source() -> Source {
    Source {
        name: "pack.cu",
        text: include_str!("../../gpu/pack.cu"),
        defines: Vec::new(),
    }
}

impl GpuDevice {
    pub(super) fn load_gpu_matrix(
        &self,
        source: MatrixSource<'_>,
    ) -> Result<GpuMatrix, DeviceError> {
        let MatrixSource {
            dtype,
            rows,
            cols,
            bytes,
        } = source;
        let row_bytes = dtype
            .row_bytes(cols)
            .filter(|_| cols > 0 && u32::try_from(cols).is_ok())
            .ok_or(DeviceError::RowLength { cols, dtype })?;
        let too_large = DeviceError::OutOfMemory { bytes: usize::MAX };
        let Some(expected) = row_bytes
            .checked_mul(rows)
            .filter(|_| u32::try_from(rows).is_ok())
        else {
            return Err(too_large);
        };
        if bytes.len() != expected {
            return Err(DeviceError::MatrixBytes {
                rows,
                cols,
                dtype,
                expected,
                got: bytes.len(),
            });
        }
        let tiles_per_row = cols.div_ceil(tile_cols(dtype));
        let stride = tiles_per_row * tile_bytes(dtype);
        let Some(packed) = rows.div_ceil(TILE_ROWS).checked_mul(stride) else {
            return Err(too_large);
        };
        let memory = DeviceMemory::new(&self.driver, packed)?;
        let rows_at_once = (STAGING_BYTES / (row_bytes * TILE_ROWS)).max(1) * TILE_ROWS;
        let staging = DeviceMemory::new(&self.driver, rows_at_once.min(rows) * row_bytes)?;
        for first in (0..rows).step_by(rows_at_once) {
            let count = rows_at_once.min(rows - first);
            staging.write(0, &bytes[first * row_bytes..][..count * row_bytes]);
            let args = PackArgs {
                source: staging.ptr(),
                tiles: memory.ptr().add(first / TILE_ROWS * stride),
                row_bytes: row_bytes as u64,
                dtype: dtype.ggml_id(),
                rows: count as u32,
                cols: cols as u32,
                tiles_per_row: tiles_per_row as u32,
            };
            let launch = Launch {
                grid: [(count.div_ceil(TILE_ROWS) * tiles_per_row) as u32, 1, 1],
                threads: PACK_THREADS,
                shared_bytes: 0,
            };
            self.launch(&pack_source(), "pack", launch, &args)?;
        }
        Ok(GpuMatrix {
            dtype,
            rows,
            cols,
            memory,
        })
    }
}
