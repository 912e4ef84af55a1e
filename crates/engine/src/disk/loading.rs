//! From files to memory.

use models::{Model, ModelError, SequenceId};
use prefix_store::{Arrived, FeatureShape, Load, Part};

use crate::disk::{DiskTier, Progress, ROUND_BYTES, state_part};
use crate::prefixes::Prefixes;
use crate::speculation::KeptFeatures;

/// A prefix on its way from the files, into a sequence that nobody has yet.
#[derive(Debug)]
pub(crate) struct Loading {
    load: Load,
    sequence: SequenceId,
    tokens: Vec<u32>,
    features: Option<KeptFeatures>,
}

impl DiskTier {
    /// Begins to read a prefix. `None`: there is no room for it.
    ///
    /// # Errors
    /// The model is gone.
    pub fn begin_load(
        &self,
        model: &mut Model,
        prefixes: &mut Prefixes,
        tokens: &[u32],
    ) -> Result<Option<Loading>, ModelError> {
        let pages = model.cache().pages_for(tokens.len());
        prefixes.make_room(model, pages)?;
        let sequence = match model.create_for_parts(tokens.len()) {
            Ok(sequence) => sequence,
            Err(ModelError::Cache(error)) => {
                tracing::debug!(%error, "no room for a prefix in files");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Ok(Some(Loading {
            load: self.store.load(tokens),
            sequence,
            tokens: tokens.to_vec(),
            features: None,
        }))
    }
}

impl Loading {
    /// Takes in what has come. Once it has ended, [`Loading::finish`] or [`Loading::give_up`] says what becomes of it.
    ///
    /// # Errors
    /// What has come does not fit.
    pub fn take_some(&mut self, model: &mut Model) -> Result<(Progress, bool), ModelError> {
        let mut bytes = 0;
        while bytes < ROUND_BYTES {
            match self.load.next() {
                None => return Ok((Progress::Waits, false)),
                Some(Arrived::Refused) => return Ok((Progress::Ended, false)),
                Some(Arrived::End) => return Ok((Progress::Ended, true)),
                Some(Arrived::Features(shape)) => {
                    let room = |shape| self.room_for_features(model, shape);
                    self.features = shape.and_then(room);
                }
                Some(Arrived::Part(part, values)) => {
                    bytes += values.len();
                    self.put(model, part, &values)?;
                }
            }
        }
        Ok((Progress::Some, false))
    }

    /// `None`: they are not what this model's are, or there is no memory; then a draft begins without.
    fn room_for_features(&self, model: &Model, shape: FeatureShape) -> Option<KeptFeatures> {
        let room = KeptFeatures::with_room(model, &shape);
        if room.is_none() {
            tracing::debug!(?shape, "the features of a prefix are not used");
        }
        room
    }

    fn put(&mut self, model: &mut Model, part: Part, values: &[u8]) -> Result<(), ModelError> {
        match (part, state_part(part), &mut self.features) {
            (_, Some(part), _) => model.write_part(self.sequence, part, values)?,
            (Part::Features { row, .. }, _, Some(features)) => features.write(model, row, values),
            _ => {}
        }
        Ok(())
    }

    /// Makes it a prefix in memory.
    ///
    /// # Errors
    /// The model is gone.
    pub fn finish(self, model: &mut Model, prefixes: &mut Prefixes) -> Result<(), ModelError> {
        prefixes.adopt(model, self.sequence, self.tokens, self.features)
    }

    /// Gives back what it holds.
    ///
    /// # Errors
    /// The model is gone.
    pub fn give_up(self, model: &mut Model) -> Result<(), ModelError> {
        model.free_sequence(self.sequence)
    }
}
