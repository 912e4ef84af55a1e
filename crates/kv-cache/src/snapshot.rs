//! A sequence's state on the host, at one committed position.

use kernels::{Buffer, Device, KvLayer, PAGE_TOKENS};

use crate::cache::{Cache, Layer};
use crate::error::CacheError;
use crate::pool::SequenceId;
use crate::shape::LayerState;

/// State of one layer, independent of pages.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerSnapshot {
    /// Keys and values, each \[len, Hkv, D\].
    Attention {
        /// Rotated keys.
        k: Vec<f32>,
        /// Values.
        v: Vec<f32>,
    },
    /// Recurrent state \[Hv, dk, dv\] and convolution state \[taps - 1, channels\].
    DeltaNet {
        /// Recurrent state.
        recurrent: Vec<f32>,
        /// Convolution state, oldest row first.
        conv: Vec<f32>,
    },
}

/// State of one sequence. Restores exactly at its position, never at an earlier one.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Committed tokens.
    pub len: usize,
    /// One entry a layer.
    pub layers: Vec<LayerSnapshot>,
}

impl Snapshot {
    /// Host bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let values: usize = self
            .layers
            .iter()
            .map(|layer| match layer {
                LayerSnapshot::Attention { k, v } => k.len() + v.len(),
                LayerSnapshot::DeltaNet { recurrent, conv } => recurrent.len() + conv.len(),
            })
            .sum();
        values * size_of::<f32>()
    }
}

/// Sizes of an attention layer's page.
#[derive(Clone, Copy)]
struct PageShape {
    heads: usize,
    dim: usize,
}

impl PageShape {
    fn row(self) -> usize {
        self.heads * self.dim
    }

    fn page(self) -> usize {
        self.row() * PAGE_TOKENS
    }

    /// Place of (slot, head, dim) in a page of keys, \[Hkv, D, PAGE_TOKENS\].
    fn key(self, slot: usize, head: usize, dim: usize) -> usize {
        (head * self.dim + dim) * PAGE_TOKENS + slot
    }

    /// Place of (slot, head, dim) in a page of values, \[Hkv, PAGE_TOKENS, D\].
    fn value(self, slot: usize, head: usize, dim: usize) -> usize {
        (head * PAGE_TOKENS + slot) * self.dim + dim
    }
}

type Place = fn(PageShape, usize, usize, usize) -> usize;

/// Pages to rows \[len, Hkv, D\].
fn read_rows(
    device: &dyn Device,
    buffer: &Buffer,
    shape: PageShape,
    pages: &[u32],
    len: usize,
    place: Place,
) -> Vec<f32> {
    let mut page = vec![0.0; shape.page()];
    let mut rows = Vec::with_capacity(len * shape.row());
    for (number, &id) in pages.iter().enumerate().take(len.div_ceil(PAGE_TOKENS)) {
        device.read(buffer, id as usize * shape.page(), &mut page);
        for slot in 0..PAGE_TOKENS.min(len - number * PAGE_TOKENS) {
            for head in 0..shape.heads {
                rows.extend((0..shape.dim).map(|dim| page[place(shape, slot, head, dim)]));
            }
        }
    }
    rows
}

/// Rows \[len, Hkv, D\] to pages; the rest of the last page becomes zero.
fn write_rows(
    device: &dyn Device,
    buffer: &mut Buffer,
    shape: PageShape,
    pages: &[u32],
    rows: &[f32],
    place: Place,
) {
    let mut page = vec![0.0; shape.page()];
    for (chunk, &id) in rows.chunks(shape.page()).zip(pages) {
        page.fill(0.0);
        for (slot, row) in chunk.chunks(shape.row()).enumerate() {
            for (head, values) in row.chunks(shape.dim).enumerate() {
                for (dim, &value) in values.iter().enumerate() {
                    page[place(shape, slot, head, dim)] = value;
                }
            }
        }
        device.write(buffer, id as usize * shape.page(), &page);
    }
}

impl Cache {
    /// Copies a sequence's committed state to the host.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn snapshot(&self, device: &dyn Device, id: SequenceId) -> Result<Snapshot, CacheError> {
        let len = self.len(id)?;
        let pages = self.pages(id)?;
        let index = self.state_index(id)?;
        let mut layers = Vec::with_capacity(self.layers.len());
        for (layer, state) in self.layers.iter().zip(&self.shape.layers) {
            match (layer, *state) {
                (
                    Layer::Attention(KvLayer { k, v }),
                    LayerState::Attention {
                        num_kv_heads,
                        head_dim,
                    },
                ) => {
                    let shape = PageShape {
                        heads: num_kv_heads,
                        dim: head_dim,
                    };
                    layers.push(LayerSnapshot::Attention {
                        k: read_rows(device, k, shape, pages, len, PageShape::key),
                        v: read_rows(device, v, shape, pages, len, PageShape::value),
                    });
                }
                (Layer::DeltaNet(buffers), LayerState::DeltaNet(shape)) => {
                    let mut recurrent = vec![0.0; shape.state_len()];
                    let mut conv = vec![0.0; shape.conv_len()];
                    device.read(&buffers.recurrent, index * recurrent.len(), &mut recurrent);
                    device.read(&buffers.conv, index * conv.len(), &mut conv);
                    layers.push(LayerSnapshot::DeltaNet { recurrent, conv });
                }
                // Layers are made from the shape, so the two kinds agree.
                _ => {}
            }
        }
        Ok(Snapshot { len, layers })
    }

    /// A new sequence with the state of `snapshot`.
    ///
    /// # Errors
    /// [`CacheError::SnapshotShape`] for a snapshot of another model, [`CacheError::OutOfPages`],
    /// [`CacheError::NoFreeSequence`].
    pub fn restore(
        &mut self,
        device: &dyn Device,
        snapshot: &Snapshot,
    ) -> Result<SequenceId, CacheError> {
        self.check_snapshot(snapshot)?;
        let id = self.create(device)?;
        if let Err(error) = self.reserve(id, snapshot.len) {
            self.free(id)?;
            return Err(error);
        }
        self.advance(id, snapshot.len)?;
        let pages = self.pages(id)?.to_vec();
        let index = self.state_index(id)?;
        for ((layer, state), saved) in self
            .layers
            .iter_mut()
            .zip(&self.shape.layers)
            .zip(&snapshot.layers)
        {
            match (layer, state, saved) {
                (
                    Layer::Attention(kv),
                    &LayerState::Attention {
                        num_kv_heads,
                        head_dim,
                    },
                    LayerSnapshot::Attention { k, v },
                ) => {
                    let shape = PageShape {
                        heads: num_kv_heads,
                        dim: head_dim,
                    };
                    write_rows(device, &mut kv.k, shape, &pages, k, PageShape::key);
                    write_rows(device, &mut kv.v, shape, &pages, v, PageShape::value);
                }
                (Layer::DeltaNet(buffers), _, LayerSnapshot::DeltaNet { recurrent, conv }) => {
                    device.write(&mut buffers.recurrent, index * recurrent.len(), recurrent);
                    device.write(&mut buffers.conv, index * conv.len(), conv);
                }
                // Ruled out by check_snapshot.
                _ => {}
            }
        }
        Ok(id)
    }

    fn check_snapshot(&self, snapshot: &Snapshot) -> Result<(), CacheError> {
        let check = |what, expected: usize, got: usize| {
            if expected == got {
                Ok(())
            } else {
                Err(CacheError::SnapshotShape {
                    what,
                    expected,
                    got,
                })
            }
        };
        check(
            "number of layers",
            self.shape.layers.len(),
            snapshot.layers.len(),
        )?;
        for (state, saved) in self.shape.layers.iter().zip(&snapshot.layers) {
            match (state, saved) {
                (
                    LayerState::Attention {
                        num_kv_heads,
                        head_dim,
                    },
                    LayerSnapshot::Attention { k, v },
                ) => {
                    let expected = snapshot.len.saturating_mul(num_kv_heads * head_dim);
                    check("key values", expected, k.len())?;
                    check("value values", expected, v.len())?;
                }
                (LayerState::DeltaNet(shape), LayerSnapshot::DeltaNet { recurrent, conv }) => {
                    check("recurrent state", shape.state_len(), recurrent.len())?;
                    check("convolution state", shape.conv_len(), conv.len())?;
                }
                (LayerState::Attention { .. }, _) => check("attention layers", 1, 0)?,
                (LayerState::DeltaNet(_), _) => check("recurrent layers", 1, 0)?,
            }
        }
        Ok(())
    }
}
