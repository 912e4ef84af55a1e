//! Buffers of every layer, and the sequences in them.

use kernels::{Buffer, DeltaNetState, Device, KvCommitArgs, KvCommitLayer, KvLayer, PAGE_TOKENS};

use crate::error::CacheError;
use crate::pool::{Pool, SequenceId};
use crate::shape::{CacheShape, LayerState, pages_for};

/// State of one layer for all sequences.
#[derive(Debug)]
pub(crate) enum Layer {
    Attention(KvLayer),
    DeltaNet(DeltaNetState),
}

impl Layer {
    pub(crate) fn buffers(&self) -> [&Buffer; 2] {
        match self {
            Self::Attention(KvLayer { k, v }) => [k, v],
            Self::DeltaNet(DeltaNetState { recurrent, conv }) => [recurrent, conv],
        }
    }

    pub(crate) fn buffers_mut(&mut self) -> [&mut Buffer; 2] {
        match self {
            Self::Attention(KvLayer { k, v }) => [k, v],
            Self::DeltaNet(DeltaNetState { recurrent, conv }) => [recurrent, conv],
        }
    }
}

/// One layer's buffers, to hand to the device.
#[derive(Debug)]
pub enum LayerMut<'a> {
    /// Paged keys and values.
    Attention(&'a mut KvLayer),
    /// Recurrent and convolution states.
    DeltaNet(&'a mut DeltaNetState),
}

impl<'a> LayerMut<'a> {
    fn of(layer: &'a mut Layer) -> Self {
        match layer {
            Layer::Attention(kv) => Self::Attention(kv),
            Layer::DeltaNet(state) => Self::DeltaNet(state),
        }
    }
}

/// State of all layers for all sequences.
#[derive(Debug)]
pub struct Cache {
    pub(crate) shape: CacheShape,
    pub(crate) layers: Vec<Layer>,
    pub(crate) pool: Pool,
}

impl Cache {
    /// Allocates room for `max_tokens` tokens (rounded up to whole pages) shared by at most `max_sequences` sequences.
    ///
    /// # Errors
    /// [`CacheError::Device`] where memory is short.
    pub fn new(
        device: &dyn Device,
        shape: CacheShape,
        max_tokens: usize,
        max_sequences: usize,
    ) -> Result<Self, CacheError> {
        let num_pages = pages_for(max_tokens);
        let mut layers = Vec::with_capacity(shape.layers.len());
        for layer in &shape.layers {
            layers.push(match *layer {
                LayerState::Attention {
                    num_kv_heads,
                    head_dim,
                } => {
                    let len = num_pages * num_kv_heads * head_dim * PAGE_TOKENS;
                    Layer::Attention(KvLayer {
                        k: device.kv_zeros(len, shape.kv_type.k)?,
                        v: device.kv_zeros(len, shape.kv_type.v)?,
                    })
                }
                LayerState::DeltaNet(sizes) => Layer::DeltaNet(DeltaNetState {
                    recurrent: device.zeros(max_sequences * sizes.state_len())?,
                    conv: device.zeros(max_sequences * sizes.conv_len())?,
                }),
            });
        }
        Ok(Self {
            shape,
            layers,
            pool: Pool::new(num_pages, max_sequences),
        })
    }

    /// Shape of the cache.
    #[must_use]
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Pages of the pool.
    #[must_use]
    pub fn num_pages(&self) -> usize {
        self.pool.num_pages()
    }

    /// Pages that no sequence holds.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.pool.free_pages()
    }

    /// Pages that a sequence of `tokens` tokens holds.
    #[must_use]
    pub fn pages_for(&self, tokens: usize) -> usize {
        pages_for(tokens)
    }

    /// Sequences that could still be created.
    #[must_use]
    pub fn free_sequences(&self) -> usize {
        self.pool.free_slots()
    }

    /// An empty sequence with zeroed recurrent states.
    ///
    /// # Errors
    /// [`CacheError::NoFreeSequence`].
    pub fn create(&mut self, device: &dyn Device) -> Result<SequenceId, CacheError> {
        let id = self.pool.create()?;
        self.zero_states(device, id)?;
        Ok(id)
    }

    fn zero_states(&mut self, device: &dyn Device, id: SequenceId) -> Result<(), CacheError> {
        let index = self.pool.state_index(id)?;
        for (layer, state) in self.layers.iter_mut().zip(&self.shape.layers) {
            if let (Layer::DeltaNet(buffers), LayerState::DeltaNet(sizes)) = (layer, state) {
                clear(device, &mut buffers.recurrent, index, sizes.state_len());
                clear(device, &mut buffers.conv, index, sizes.conv_len());
            }
        }
        Ok(())
    }

    /// A new sequence with the state of another, from where both go their own ways. Full pages are shared; recurrent states and
    /// the last page, where it is not full, are copied.
    ///
    /// # Errors
    /// [`CacheError::NoFreeSequence`]; [`CacheError::OutOfPages`] where there is none for the last page;
    /// [`CacheError::UnknownSequence`].
    pub fn fork(&mut self, device: &dyn Device, id: SequenceId) -> Result<SequenceId, CacheError> {
        let fork = self.pool.fork(id)?;
        let len = self.pool.len(id)?;
        let states = [self.pool.state_index(id)?, self.pool.state_index(fork)?];
        // The sequences' last pages as if one had both, the copy's first: rows move to the front as those of a path do.
        let pages = |id| self.pool.pages(id);
        let last = |id| pages(id).map(|pages| pages.get(len / PAGE_TOKENS).copied());
        let pages: Vec<u32> = [last(fork)?, last(id)?].into_iter().flatten().collect();
        let path: Vec<usize> = (PAGE_TOKENS..).take(len % PAGE_TOKENS).collect();
        for (layer, state) in self.layers.iter_mut().zip(&self.shape.layers) {
            match (layer, *state) {
                (
                    Layer::Attention(cache),
                    LayerState::Attention {
                        num_kv_heads,
                        head_dim,
                    },
                ) if !path.is_empty() => device.kv_commit(KvCommitArgs {
                    head_dim,
                    layers: vec![KvCommitLayer {
                        num_kv_heads,
                        cache,
                    }],
                    pages: &pages,
                    committed_len: 0,
                    path: &path,
                }),
                (Layer::DeltaNet(buffers), LayerState::DeltaNet(sizes)) => {
                    copy(&mut buffers.recurrent, states, sizes.state_len());
                    copy(&mut buffers.conv, states, sizes.conv_len());
                }
                _ => {}
            }
        }
        Ok(fork)
    }

    /// Makes a sequence as empty as a new one; its id stays.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn clear(&mut self, device: &dyn Device, id: SequenceId) -> Result<(), CacheError> {
        self.pool.clear(id)?;
        self.zero_states(device, id)
    }

    /// Forgets the keys and values of the oldest `pages` pages, which must be full. Slots count from the first page that
    /// is left; what a recurrent state has seen it keeps.
    ///
    /// # Errors
    /// [`CacheError::NotFilled`], [`CacheError::UnknownSequence`].
    pub fn drop_oldest(&mut self, id: SequenceId, pages: usize) -> Result<(), CacheError> {
        self.pool.drop_oldest(id, pages)
    }

    /// Gives a sequence's pages and slot back.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn free(&mut self, id: SequenceId) -> Result<(), CacheError> {
        self.pool.free(id)
    }

    /// Committed tokens.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn len(&self, id: SequenceId) -> Result<usize, CacheError> {
        self.pool.len(id)
    }

    /// Pages that [`Cache::reserve`] would take from the pool.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn pages_to_add(&self, id: SequenceId, extra_tokens: usize) -> Result<usize, CacheError> {
        self.pool.pages_to_add(id, extra_tokens)
    }

    /// Makes the sequence's pages hold `extra_tokens` past its length.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`], [`CacheError::UnknownSequence`].
    pub fn reserve(&mut self, id: SequenceId, extra_tokens: usize) -> Result<(), CacheError> {
        self.pool.reserve(id, extra_tokens)
    }

    /// Pages of a sequence; token slot `s` lies in `pages[s / PAGE_TOKENS]`.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn pages(&self, id: SequenceId) -> Result<&[u32], CacheError> {
        self.pool.pages(id)
    }

    /// Sequences that hold a page.
    #[must_use]
    pub fn page_holders(&self, page: u32) -> usize {
        self.pool.holders(page)
    }

    /// Where the sequence's recurrent states lie.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn state_index(&self, id: SequenceId) -> Result<usize, CacheError> {
        self.pool.state_index(id)
    }

    /// Makes the next `tokens` slots part of the sequence.
    ///
    /// # Errors
    /// [`CacheError::NotReserved`], [`CacheError::UnknownSequence`].
    pub fn advance(&mut self, id: SequenceId, tokens: usize) -> Result<(), CacheError> {
        self.pool.advance(id, tokens)
    }

    /// Buffers of layer `index`, or `None` past the last layer.
    pub fn layer_mut(&mut self, index: usize) -> Option<LayerMut<'_>> {
        self.layers.get_mut(index).map(LayerMut::of)
    }

    /// Buffers of all layers.
    pub fn layers_mut(&mut self) -> impl Iterator<Item = LayerMut<'_>> {
        self.layers.iter_mut().map(LayerMut::of)
    }
}

fn clear(device: &dyn Device, buffer: &mut Buffer, index: usize, len: usize) {
    device.write(buffer, index * len, &vec![0.0; len]);
}

fn copy(buffer: &mut Buffer, [from, to]: [usize; 2], len: usize) {
    buffer.copy_own(from * len..(from + 1) * len, to * len);
}
