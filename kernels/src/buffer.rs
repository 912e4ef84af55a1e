//! A run of f32 values owned by a device.

use std::alloc::{Layout, alloc_zeroed};

use crate::error::DeviceError;

/// Device memory for `len` f32 values, zeroed when made.
#[derive(Debug, Default)]
pub struct Buffer {
    values: Vec<f32>,
}

impl Buffer {
    /// Allocates `len` zeros. Large ones become resident page by page, when they are first used.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where the address range cannot be had.
    pub(crate) fn zeros(len: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            values: zeroed(len)?,
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

/// `len` zeros straight from the allocator. Reserving first and filling then would touch every page; so would asking
/// twice, as `calloc` clears what it has handed out before.
fn zeroed(len: usize) -> Result<Vec<f32>, DeviceError> {
    let out_of_memory = DeviceError::OutOfMemory {
        bytes: len.saturating_mul(size_of::<f32>()),
    };
    if len == 0 {
        return Ok(Vec::new());
    }
    let Ok(layout) = Layout::array::<f32>(len) else {
        return Err(out_of_memory);
    };
    // SAFETY: the layout has a size above zero: `len` is not 0.
    let values = unsafe { alloc_zeroed(layout) }.cast::<f32>();
    if values.is_null() {
        return Err(out_of_memory);
    }
    // SAFETY: the global allocator gave `values` for this very layout, and zero bits are the f32 0.
    Ok(unsafe { Vec::from_raw_parts(values, len, len) })
}
