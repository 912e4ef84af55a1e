//! A run of f32 values owned by a device.

use crate::error::DeviceError;

/// Device memory for `len` f32 values, zeroed when made.
#[derive(Debug, Default)]
pub struct Buffer {
    values: Vec<f32>,
}

impl Buffer {
    /// Allocates `len` zeros. Pages are touched by the kernel only when used.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where the address range cannot be had.
    pub(crate) fn zeros(len: usize) -> Result<Self, DeviceError> {
        let mut probe: Vec<f32> = Vec::new();
        probe
            .try_reserve_exact(len)
            .map_err(|_| DeviceError::OutOfMemory {
                bytes: len.saturating_mul(4),
            })?;
        drop(probe);
        Ok(Self {
            values: vec![0.0; len],
        })
    }

    /// Number of f32 values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(crate) fn host(&self) -> &[f32] {
        &self.values
    }

    pub(crate) fn host_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}
