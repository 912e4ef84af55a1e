//! A sequence's state in parts, as the bytes that the device has. What they mean is the kernels' concern alone.

use std::ops::Range;

use kernels::{Buffer, Device};

use crate::cache::{Cache, Layer};
use crate::error::CacheError;
use crate::pool::SequenceId;

/// A part of a sequence's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// Keys and values of its page with this number, of all layers.
    Page(usize),
    /// Recurrent and convolution state of the recurrent layer with this number, counted among those.
    Recurrent(usize),
}

/// Bytes of a sequence's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartBytes {
    /// Of a page.
    pub page: usize,
    /// Of each recurrent layer.
    pub recurrent: Vec<usize>,
}

/// Where a part lies: in these layers, at this place of so many equal ones in each of their buffers.
struct Place {
    layers: Vec<usize>,
    number: usize,
    of: usize,
}

impl Place {
    fn bytes(&self, buffer: &Buffer) -> Range<usize> {
        let len = buffer.bytes() / self.of;
        self.number * len..(self.number + 1) * len
    }
}

impl Cache {
    /// Bytes of each part.
    #[must_use]
    pub fn part_bytes(&self) -> PartBytes {
        let (pages, slots) = (self.pool.num_pages(), self.pool.num_slots());
        let mut bytes = PartBytes {
            page: 0,
            recurrent: Vec::new(),
        };
        for layer in &self.layers {
            let both: usize = layer.buffers().map(Buffer::bytes).iter().sum();
            match layer {
                Layer::Attention(_) => bytes.page += both / pages.max(1),
                Layer::DeltaNet(_) => bytes.recurrent.push(both / slots.max(1)),
            }
        }
        bytes
    }

    /// A sequence of `len` tokens whose state is still to come, part by part; until then it is of no use.
    ///
    /// # Errors
    /// [`CacheError::NoFreeSequence`], [`CacheError::OutOfPages`].
    pub fn create_for_parts(
        &mut self,
        device: &dyn Device,
        len: usize,
    ) -> Result<SequenceId, CacheError> {
        let id = self.create(device)?;
        if let Err(error) = self.reserve(id, len).and_then(|()| self.advance(id, len)) {
            self.free(id)?;
            return Err(error);
        }
        Ok(id)
    }

    /// Copies a part to the host. What lies past the sequence's end in its last page comes along.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`], [`CacheError::UnknownPart`].
    pub fn read_part(&self, id: SequenceId, part: StatePart) -> Result<Vec<u8>, CacheError> {
        let place = self.place(id, part)?;
        let mut bytes = Vec::new();
        for layer in &place.layers {
            for buffer in self.layers[*layer].buffers() {
                let (from, start) = (place.bytes(buffer), bytes.len());
                bytes.resize(start + from.len(), 0);
                buffer.read_bytes(from.start, &mut bytes[start..]);
            }
        }
        Ok(bytes)
    }

    /// Copies a part, as [`Cache::read_part`] gave it, to a sequence whose page it is alone.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`], [`CacheError::UnknownPart`], [`CacheError::PartBytes`].
    pub fn write_part(
        &mut self,
        id: SequenceId,
        part: StatePart,
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        let place = self.place(id, part)?;
        let buffers = place.layers.iter();
        let buffers = buffers.flat_map(|layer| self.layers[*layer].buffers());
        let expected = buffers.map(|buffer| place.bytes(buffer).len()).sum();
        if bytes.len() != expected {
            let got = bytes.len();
            return Err(CacheError::PartBytes { expected, got });
        }
        let mut rest = bytes;
        for layer in &place.layers {
            for buffer in self.layers[*layer].buffers_mut() {
                let to = place.bytes(buffer);
                let (own, others) = rest.split_at(to.len());
                buffer.write_bytes(to.start, own);
                rest = others;
            }
        }
        Ok(())
    }

    fn place(&self, id: SequenceId, part: StatePart) -> Result<Place, CacheError> {
        let layers = self.layers.iter().enumerate();
        let is_attention = |layer: &Layer| matches!(layer, Layer::Attention(_));
        let (layers, number, of): (Vec<_>, _, _) = match part {
            StatePart::Page(number) => {
                let layers = layers.filter(|(_, layer)| is_attention(layer));
                let page = self.pages(id)?.get(number).map(|page| *page as usize);
                (layers.collect(), page, self.pool.num_pages())
            }
            StatePart::Recurrent(number) => {
                let layers = layers.filter(|(_, layer)| !is_attention(layer));
                let layers: Vec<_> = layers.skip(number).take(1).collect();
                let slot = (!layers.is_empty()).then_some(self.state_index(id)?);
                (layers, slot, self.pool.num_slots())
            }
        };
        Ok(Place {
            layers: layers.into_iter().map(|(index, _)| index).collect(),
            number: number.ok_or(CacheError::UnknownPart { part })?,
            of,
        })
    }
}
