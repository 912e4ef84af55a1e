//! A run of values owned by a device.

use std::ops::Range;

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use tensor_channel::{MemoryError, Place, Sink, Source};

use crate::error::DeviceError;
use crate::gpu::GpuValues;
use crate::kv::{Format, KvType};
use crate::memory::Memory;

/// A bug of a caller that holds two devices.
const OTHER_DEVICE: &str = "a buffer of another device";

/// Device memory for `len` values, zeroed when made: f32, except for keys and values of other types.
#[derive(Debug, Default)]
pub struct Buffer {
    values: Values,
}

#[derive(Debug)]
enum Values {
    F32(Memory<f32>),
    /// Keys or values: see `kv/rows.rs`.
    Kept(Kept),
    Gpu(GpuValues),
}

/// Keys or values that are not f32.
#[derive(Debug)]
struct Kept {
    kv_type: KvType,
    len: usize,
    units: Memory<u16>,
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
    Units(KvType, &'a [u16]),
}

impl KvValues<'_> {
    pub fn kv_type(self) -> KvType {
        match self {
            Self::F32(_) => KvType::F32,
            Self::Units(kv_type, _) => kv_type,
        }
    }
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
            _ => Values::Kept(Kept {
                kv_type,
                len,
                units: Memory::zeros(kv_type.bytes(len) / size_of::<u16>())?,
            }),
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
            Values::F32(_) | Values::Kept(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.values {
            Values::F32(values) => values.len(),
            Values::Kept(kept) => kept.len,
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
            Values::Kept(kept) => size_of_val::<[u16]>(&kept.units),
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
            Values::Kept(kept) => bytemuck::cast_slice(&kept.units),
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
            Values::Kept(kept) => bytemuck::cast_slice_mut(&mut kept.units),
            Values::Gpu(values) => return values.memory.write(offset, from),
        };
        to[offset..][..from.len()].copy_from_slice(from);
    }

    /// Whether the values are f32.
    pub(crate) fn is_f32(&self) -> bool {
        match &self.values {
            Values::F32(_) => true,
            Values::Kept(_) => false,
            Values::Gpu(values) => values.kv_type == KvType::F32,
        }
    }

    /// The f32 values, where the host has them.
    pub(crate) fn on_host(&self) -> Option<&[f32]> {
        match &self.values {
            Values::F32(values) => Some(values),
            Values::Kept(_) | Values::Gpu(_) => None,
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
            Values::Kept(_) => panic!("only attention reads keys and values"),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    pub(crate) fn host_mut(&mut self) -> &mut [f32] {
        match &mut self.values {
            Values::F32(values) => values,
            Values::Kept(_) => panic!("only attention writes keys and values"),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    pub(crate) fn kv(&self) -> KvValues<'_> {
        match &self.values {
            Values::F32(values) => KvValues::F32(values),
            Values::Kept(kept) => KvValues::Units(kept.kv_type, &kept.units),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    /// How its values are kept.
    pub(crate) fn kv_type(&self) -> KvType {
        match &self.values {
            Values::Gpu(values) => values.kv_type,
            _ => self.kv().kv_type(),
        }
    }

    /// Copies f32 values to `offset..`, rounded to nearest even where they are kept in f16.
    pub(crate) fn write(&mut self, offset: usize, from: &[f32]) {
        match &mut self.values {
            Values::F32(values) => values[offset..][..from.len()].copy_from_slice(from),
            Values::Kept(kept) => kept.halves_mut()[offset..][..from.len()]
                .reinterpret_cast_mut::<f16>()
                .convert_from_f32_slice(from),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    /// Copies `offset..` to f32 values.
    pub(crate) fn read(&self, offset: usize, to: &mut [f32]) {
        match &self.values {
            Values::F32(values) => to.copy_from_slice(&values[offset..][..to.len()]),
            Values::Kept(kept) => kept.halves()[offset..][..to.len()]
                .reinterpret_cast::<f16>()
                .convert_to_f32_slice(to),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    /// Keeps a row of one head at a token of a page that begins at unit `base`.
    pub(crate) fn store_row(&mut self, format: Format, base: usize, token: usize, row: &[f32]) {
        match &mut self.values {
            Values::F32(values) => {
                for (unit, value) in row.iter().enumerate() {
                    values[base + format.index(unit, token)] = *value;
                }
            }
            Values::Kept(kept) => {
                for (unit, word) in format.encode(row).into_iter().enumerate() {
                    kept.units[base + format.index(unit, token)] = word;
                }
            }
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }

    /// Copies units from places to places.
    pub(crate) fn move_units(&mut self, places: impl Iterator<Item = [usize; 2]>) {
        match &mut self.values {
            Values::F32(values) => places.for_each(|[from, to]| values[to] = values[from]),
            Values::Kept(kept) => places.for_each(|[from, to]| kept.units[to] = kept.units[from]),
            Values::Gpu(_) => panic!("{OTHER_DEVICE}"),
        }
    }
}

/// A bug of a caller: other types have no value that stands by itself.
pub(crate) const NOT_F16: &str = "only f32 and f16 are copied value by value";

impl Kept {
    fn halves(&self) -> &[u16] {
        assert_eq!(self.kv_type, KvType::F16, "{NOT_F16}");
        &self.units
    }

    fn halves_mut(&mut self) -> &mut [u16] {
        assert_eq!(self.kv_type, KvType::F16, "{NOT_F16}");
        &mut self.units
    }
}
