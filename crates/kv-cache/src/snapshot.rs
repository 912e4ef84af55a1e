//! A sequence's state on the host, at one committed position.

use kernels::{Buffer, Device, KvLayer, KvType, KvTypes, PAGE_TOKENS, Side, clear_slots};

use crate::cache::{Cache, Layer};
use crate::error::CacheError;
use crate::pool::SequenceId;
use crate::shape::LayerState;

/// State of one layer, independent of pages.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerSnapshot {
    /// Whole pages of keys and values, as they are kept: \[pages, Hkv, page of a head\]. What lies after the last token is zero.
    Attention {
        /// Keys.
        k: Vec<u8>,
        /// Values.
        v: Vec<u8>,
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
        let bytes = |layer: &LayerSnapshot| match layer {
            LayerSnapshot::Attention { k, v } => k.len() + v.len(),
            LayerSnapshot::DeltaNet { recurrent, conv } => {
                (recurrent.len() + conv.len()) * size_of::<f32>()
            }
        };
        self.layers.iter().map(bytes).sum()
    }
}

/// Keys or values of an attention layer.
#[derive(Clone, Copy)]
struct Pages<'a> {
    kv_type: KvType,
    side: Side,
    heads: usize,
    head_dim: usize,
    /// Of the sequence.
    numbers: &'a [u32],
}

impl Pages<'_> {
    fn page_bytes(self) -> usize {
        self.kv_type.bytes(self.heads * self.head_dim) * PAGE_TOKENS
    }

    /// The pages that hold `len` tokens.
    fn read(self, buffer: &Buffer, len: usize) -> Vec<u8> {
        let page_bytes = self.page_bytes();
        let mut pages = vec![0; len.div_ceil(PAGE_TOKENS) * page_bytes];
        for (page, &number) in pages.chunks_exact_mut(page_bytes).zip(self.numbers) {
            buffer.read_bytes(number as usize * page_bytes, page);
        }
        if let Some(last) = pages.chunks_exact_mut(page_bytes).nth(len / PAGE_TOKENS) {
            let from = len % PAGE_TOKENS;
            clear_slots(self.kv_type, self.side, self.head_dim, last, from);
        }
        pages
    }

    fn write(self, buffer: &mut Buffer, pages: &[u8]) {
        let page_bytes = self.page_bytes();
        for (page, &number) in pages.chunks_exact(page_bytes).zip(self.numbers) {
            buffer.write_bytes(number as usize * page_bytes, page);
        }
    }
}

/// Keys and values of a layer.
fn sides(types: KvTypes, heads: usize, head_dim: usize, numbers: &[u32]) -> [Pages<'_>; 2] {
    [(Side::Keys, types.k), (Side::Values, types.v)].map(|(side, kv_type)| Pages {
        kv_type,
        side,
        heads,
        head_dim,
        numbers,
    })
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
                    let [keys, values] = sides(self.shape.kv_type, num_kv_heads, head_dim, pages);
                    layers.push(LayerSnapshot::Attention {
                        k: keys.read(k, len),
                        v: values.read(v, len),
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
        let types = self.shape.kv_type;
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
                    let [keys, values] = sides(types, num_kv_heads, head_dim, &pages);
                    keys.write(&mut kv.k, k);
                    values.write(&mut kv.v, v);
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
                    let [keys, values] = sides(self.shape.kv_type, *num_kv_heads, *head_dim, &[]);
                    let pages = snapshot.len.div_ceil(PAGE_TOKENS);
                    let expected = |side: Pages<'_>| pages.saturating_mul(side.page_bytes());
                    check("bytes of keys", expected(keys), k.len())?;
                    check("bytes of values", expected(values), v.len())?;
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
