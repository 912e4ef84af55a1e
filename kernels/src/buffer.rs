//! A run of values owned by a device.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use tensor_channel::{MemoryError, Place, Sink, Source};

use crate::device::KvType;
use crate::error::DeviceError;
use crate::gpu::GpuValues;
use crate::memory::Memory;

/// A bug of a caller that holds two devices.
const OTHER_DEVICE: &str = "a buffer of another device";

/// Device memory for `len` values, zeroed when made: f32, except for keys and values kept in f16.
#[derive(Debug, Default)]
pub struct Buffer {
    values: Values,
}

#[derive(Debug)]
enum Values {
    F32(Memory<f32>),
    F16(Memory<f16>),
    Gpu(GpuValues),
}

impl Default for Values {
    fn default() -> Self {
        Self::F32(Memory::default())
    }
}

/// The values of a buffer of keys or values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KvValues<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
}

impl Buffer {
    /// Maps `len` zeros, resident page by page when they are first used.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where the address range cannot be had.
    pub(crate) fn zeros(len: usize) -> Result<Self, DeviceError> {
        Self::kv_zeros(len, KvType::F32)
    }

    /// As [`Buffer::zeros`], with the type asked for.
    pub(crate) fn kv_zeros(len: usize, kv_type: KvType) -> Result<Self, DeviceError> {
        let values = match kv_type {
            KvType::F32 => Values::F32(Memory::zeros(len)?),
            KvType::F16 => Values::F16(Memory::zeros(len)?),
        };
        Ok(Self { values })
    }

    /// Values on a GPU.
    pub(crate) fn gpu(values: GpuValues) -> Self {
        Self {
            values: Values::Gpu(values),
        }
    }

    /// Where the values are on a GPU.
    pub(crate) fn on_gpu(&self) -> &GpuValues {
        match &self.values {
            Values::Gpu(values) => values,
            Values::F32(_) | Values::F16(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.values {
            Values::F32(values) => values.len(),
            Values::F16(values) => values.len(),
            Values::Gpu(values) => values.len,
        }
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the values take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.values {
            Values::F32(values) => size_of_val::<[f32]>(values),
            Values::F16(values) => size_of_val::<[f16]>(values),
            Values::Gpu(values) => values.memory.bytes(),
        }
    }

    /// Copies bytes from `offset` on to the host, as the device has them: after what was asked of it before.
    ///
    /// # Panics
    /// They are not there.
    pub fn read_bytes(&self, offset: usize, to: &mut [u8]) {
        let from: &[u8] = match &self.values {
            Values::F32(values) => bytemuck::cast_slice(values),
            Values::F16(values) => bytemuck::cast_slice(values),
            Values::Gpu(values) => return values.memory.read(offset, to),
        };
        to.copy_from_slice(&from[offset..][..to.len()]);
    }

    /// Copies bytes that [`Buffer::read_bytes`] gave to `offset` and after.
    ///
    /// # Panics
    /// There is no room.
    pub fn write_bytes(&mut self, offset: usize, from: &[u8]) {
        let to: &mut [u8] = match &mut self.values {
            Values::F32(values) => bytemuck::cast_slice_mut(values),
            Values::F16(values) => bytemuck::cast_slice_mut(values),
            Values::Gpu(values) => return values.memory.write(offset, from),
        };
        to[offset..][..from.len()].copy_from_slice(from);
    }

    /// Whether the values are f32.
    pub(crate) fn is_f32(&self) -> bool {
        match &self.values {
            Values::F32(_) => true,
            Values::F16(_) => false,
            Values::Gpu(values) => values.kv_type == KvType::F32,
        }
    }

    /// The f32 values, where the host has them.
    pub(crate) fn on_host(&self) -> Option<&[f32]> {
        match &self.values {
            Values::F32(values) => Some(values),
            Values::F16(_) | Values::Gpu(_) => None,
        }
    }

    /// Copies f32 values to a slot of a channel.
    pub(crate) fn send(
        &self,
        offset: usize,
        len: usize,
        slot: Place<'_>,
    ) -> Result<(), MemoryError> {
        match &self.values {
            Values::Gpu(values) => values.memory.send(offset * size_of::<f32>(), slot),
            _ => bytemuck::cast_slice::<f32, u8>(&self.host()[offset..][..len]).copy_to(slot),
        }
    }

    /// Copies a slot's payload to f32 values from `offset` on.
    pub(crate) fn receive(&mut self, offset: usize, slot: Place<'_>) -> Result<(), MemoryError> {
        match &self.values {
            Values::Gpu(values) => values.memory.receive(offset * size_of::<f32>(), slot),
            _ => {
                bytemuck::cast_slice_mut::<f32, u8>(&mut self.host_mut()[offset..]).copy_from(slot)
            }
        }
    }

    /// Copies f32 values of another buffer of the same device.
    pub(crate) fn copy_f32(&mut self, offset: usize, from: &Self, from_offset: usize, len: usize) {
        match (&self.values, &from.values) {
            (Values::Gpu(to), Values::Gpu(from)) => {
                let bytes = |len| len * size_of::<f32>();
                to.memory
                    .copy_from(bytes(offset), &from.memory, bytes(from_offset), bytes(len));
            }
            _ => {
                self.host_mut()[offset..][..len].copy_from_slice(&from.host()[from_offset..][..len])
            }
        }
    }

    /// Copies f32 values of this buffer to another place of it; the two are apart.
    pub(crate) fn copy_own_f32(&mut self, from: Range<usize>, to: usize) {
        match &self.values {
            Values::Gpu(values) => {
                let [from, to, len] = [from.start, to, from.len()].map(|n| n * size_of::<f32>());
                values.memory.copy_from(to, &values.memory, from, len);
            }
            _ => self.host_mut().copy_within(from, to),
        }
    }

    /// Copies f32 values to the host.
    pub(crate) fn read_f32(&self, offset: usize, to: &mut [f32]) {
        match &self.values {
            Values::Gpu(values) => {
                let offset = offset * size_of::<f32>();
                values.memory.read(offset, bytemuck::cast_slice_mut(to));
            }
            _ => to.copy_from_slice(&self.host()[offset..][..to.len()]),
        }
    }

    pub(crate) fn host(&self) -> &[f32] {
        match &self.values {
            Values::F32(values) => values,
            Values::F16(_) => panic!("only attention reads buffers of f16"),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    pub(crate) fn host_mut(&mut self) -> &mut [f32] {
        match &mut self.values {
            Values::F32(values) => values,
            Values::F16(_) => panic!("only attention writes buffers of f16"),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    pub(crate) fn kv(&self) -> KvValues<'_> {
        match &self.values {
            Values::F32(values) => KvValues::F32(values),
            Values::F16(values) => KvValues::F16(values),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    /// Copies f32 values to `offset..`, rounded to nearest even where they are kept in f16.
    pub(crate) fn write(&mut self, offset: usize, from: &[f32]) {
        match &mut self.values {
            Values::F32(values) => values[offset..][..from.len()].copy_from_slice(from),
            Values::F16(values) => values[offset..][..from.len()].convert_from_f32_slice(from),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    /// Copies `offset..` to f32 values.
    pub(crate) fn read(&self, offset: usize, to: &mut [f32]) {
        match &self.values {
            Values::F32(values) => to.copy_from_slice(&values[offset..][..to.len()]),
            Values::F16(values) => values[offset..][..to.len()].convert_to_f32_slice(to),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    /// Copies f32 values to `offset`, `offset + stride` and so on.
    pub(crate) fn scatter(&mut self, offset: usize, stride: usize, from: &[f32]) {
        match &mut self.values {
            Values::F32(values) => {
                for (to, from) in values[offset..].iter_mut().step_by(stride).zip(from) {
                    *to = *from;
                }
            }
            Values::F16(values) => {
                for (to, from) in values[offset..].iter_mut().step_by(stride).zip(from) {
                    *to = f16::from_f32(*from);
                }
            }
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    /// Copies `count` values, `stride` apart, from one place to another.
    pub(crate) fn copy_within(&mut self, from: usize, to: usize, stride: usize, count: usize) {
        match &mut self.values {
            Values::F32(values) => (0..count).for_each(|i| {
                values[to + i * stride] = values[from + i * stride];
            }),
            Values::F16(values) => (0..count).for_each(|i| {
                values[to + i * stride] = values[from + i * stride];
            }),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }
}
