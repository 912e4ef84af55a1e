//! Zeroed memory straight from the system: page by page resident when first used, given back when dropped.
//!
//! The general allocator clears recycled memory, which makes all of it resident, and keeps what is freed.

use std::marker::PhantomData;

use memmap2::MmapMut;

use crate::error::DeviceError;

/// A plain value whose zero is all zero bits.
///
/// # Safety
/// All bytes are valid values, there is no padding, and pages are aligned for it.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: a float without padding; its alignment divides a page.
unsafe impl Plain for f32 {}
// SAFETY: a word without padding; its alignment divides a page.
unsafe impl Plain for u16 {}
// SAFETY: a byte.
unsafe impl Plain for u8 {}

/// `len` values.
#[derive(Debug)]
pub(crate) struct Memory<T> {
    /// `None`: no values.
    map: Option<MmapMut>,
    len: usize,
    of: PhantomData<T>,
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self {
            map: None,
            len: 0,
            of: PhantomData,
        }
    }
}

impl<T: Plain> Memory<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where the address range cannot be had.
    pub(crate) fn zeros(len: usize) -> Result<Self, DeviceError> {
        if len == 0 {
            return Ok(Self::default());
        }
        let bytes = len.saturating_mul(size_of::<T>());
        let map = Some(bytes)
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .and_then(|bytes| MmapMut::map_anon(bytes).ok())
            .ok_or(DeviceError::OutOfMemory { bytes })?;
        Ok(Self {
            map: Some(map),
            len,
            of: PhantomData,
        })
    }
}

impl<T: Plain> std::ops::Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.map {
            // SAFETY: `zeros` mapped `len` values at a page's start, and any bytes are values (`Plain`).
            Some(map) => unsafe { std::slice::from_raw_parts(map.as_ptr().cast(), self.len) },
            None => &[],
        }
    }
}

impl<T: Plain> std::ops::DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.map {
            // SAFETY: as in `deref`; the map is borrowed exclusively.
            Some(map) => unsafe {
                std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), self.len)
            },
            None => &mut [],
        }
    }
}
