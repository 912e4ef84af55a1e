//! Sequences of a model come and go, here and in its earlier layers.

use kv_cache::{PartBytes, SequenceId, Snapshot, StatePart};

use crate::error::ModelError;
use crate::model::Model;

impl Model {
    /// An empty sequence.
    ///
    /// # Errors
    /// All sequences are in use; [`ModelError::EarlierLayers`].
    pub fn create_sequence(&mut self) -> Result<SequenceId, ModelError> {
        let sequence = self.cache.create(self.device.as_ref())?;
        if let Some(earlier) = &mut self.earlier {
            earlier.create_sequence(sequence)?;
        }
        Ok(sequence)
    }

    /// A new sequence with the committed state of `sequence`, from where both go their own ways. It takes a page at most: full
    /// pages are shared.
    ///
    /// # Errors
    /// All sequences are in use, there is no page, or the sequence does not exist; [`ModelError::EarlierLayers`].
    pub fn fork_sequence(&mut self, sequence: SequenceId) -> Result<SequenceId, ModelError> {
        let fork = self.cache.fork(self.device.as_ref(), sequence)?;
        if let Some(earlier) = &mut self.earlier {
            earlier.fork_sequence(sequence, fork)?;
        }
        Ok(fork)
    }

    /// Lets rows after a prompt attend to no more than so many positions, the last of them their own: quicker in a long
    /// context, and another model's answers. `None`: to all.
    ///
    /// # Errors
    /// The model is split: earlier layers would not know.
    pub fn set_decode_window(&mut self, tokens: Option<usize>) -> Result<(), ModelError> {
        if tokens.is_some() && self.earlier.is_some() {
            return Err(ModelError::SplitWindow);
        }
        self.window.set(tokens);
        Ok(())
    }

    /// What was said to [`Model::set_decode_window`].
    #[must_use]
    pub fn decode_window(&self) -> Option<usize> {
        self.window.tokens()
    }

    /// Says how many tokens of a sequence are its prompt, behind which the window of [`Model::set_decode_window`] begins. A
    /// sequence of which nothing is said is all prompt.
    pub fn begin_decoding(&mut self, sequence: SequenceId, prompt_len: usize) {
        self.window.begin(sequence, prompt_len);
    }

    /// Gives a sequence back.
    ///
    /// # Errors
    /// The sequence does not exist; [`ModelError::EarlierLayers`].
    pub fn free_sequence(&mut self, sequence: SequenceId) -> Result<(), ModelError> {
        self.cache.free(sequence)?;
        self.pending.remove(&sequence);
        self.window.forget(sequence);
        if let Some(earlier) = &mut self.earlier {
            earlier.free_sequence(sequence)?;
        }
        Ok(())
    }

    /// Committed tokens.
    ///
    /// # Errors
    /// The sequence does not exist.
    pub fn sequence_len(&self, sequence: SequenceId) -> Result<usize, ModelError> {
        Ok(self.cache.len(sequence)?)
    }

    /// Copies a sequence's committed state to the host.
    ///
    /// # Errors
    /// The sequence does not exist, the device failed, or the model is split.
    pub fn snapshot(&self, sequence: SequenceId) -> Result<Snapshot, ModelError> {
        if self.earlier.is_some() {
            return Err(ModelError::SplitSnapshot);
        }
        let snapshot = self.cache.snapshot(self.device.as_ref(), sequence)?;
        self.device.finish()?;
        Ok(snapshot)
    }

    /// A new sequence that continues where `snapshot` was taken.
    ///
    /// # Errors
    /// The snapshot is of another model, there is no room, or the model is split.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId, ModelError> {
        if self.earlier.is_some() {
            return Err(ModelError::SplitSnapshot);
        }
        Ok(self.cache.restore(self.device.as_ref(), snapshot)?)
    }

    /// Whether a sequence's state can be read and written in parts: not where the model is split.
    #[must_use]
    pub fn has_parts(&self) -> bool {
        self.earlier.is_none() && self.stage.len() == self.config.num_layers
    }

    /// Bytes of the parts of a sequence's state.
    #[must_use]
    pub fn part_bytes(&self) -> PartBytes {
        self.cache.part_bytes()
    }

    /// Copies a part of a sequence's committed state to the host.
    ///
    /// # Errors
    /// There is no such sequence or part; the device failed.
    pub fn read_part(&self, sequence: SequenceId, part: StatePart) -> Result<Vec<u8>, ModelError> {
        let bytes = self.cache.read_part(sequence, part)?;
        // What a device that failed gives is not to outlive it.
        self.device.finish()?;
        Ok(bytes)
    }

    /// A sequence of `len` tokens, for [`Model::write_part`]; until all parts are there it is of no use.
    ///
    /// # Errors
    /// There is no room, or the model is split.
    pub fn create_for_parts(&mut self, len: usize) -> Result<SequenceId, ModelError> {
        if !self.has_parts() {
            return Err(ModelError::SplitSnapshot);
        }
        Ok(self.cache.create_for_parts(self.device.as_ref(), len)?)
    }

    /// Copies a part, as [`Model::read_part`] gave it, to a sequence.
    ///
    /// # Errors
    /// There is no such sequence or part, or the part is of another model.
    pub fn write_part(
        &mut self,
        sequence: SequenceId,
        part: StatePart,
        bytes: &[u8],
    ) -> Result<(), ModelError> {
        Ok(self.cache.write_part(sequence, part, bytes)?)
    }
}
