//! A model gives its weights up and takes them again; the states of its sequences stay where they are.

use gguf::GgufFile;

use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::load::{LoadOptions, load_decoder};
use crate::memory::need;
use crate::model::Model;
use crate::weights::{LoadProgress, WeightLoader};

/// What a decoder had made beside its weights.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    /// What a commit replays from.
    rows: bool,
    /// Layers that there was room for the features of.
    feature_layers: usize,
}

impl Model {
    /// Keeps the file that the model was loaded from, to read weights from it again: only such a model can be parked.
    pub fn keep_file(&mut self, file: GgufFile) {
        self.file = Some(file);
    }

    /// Whether [`Model::park`] is of use: the file is kept, and the model is not split.
    #[must_use]
    pub fn can_park(&self) -> bool {
        self.file.is_some() && self.has_parts()
    }

    /// Whether the weights are away.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.decoder.is_none()
    }

    /// Gives back all of the device's memory but that of sequences: weights, activations, and what steps were recorded with. A
    /// segment that waits for its commit is forgotten. Nothing can be computed until [`Model::unpark`].
    ///
    /// # Errors
    /// [`ModelError::CannotPark`]; the device failed. Then all is as before.
    pub fn park(&mut self) -> Result<(), ModelError> {
        if !self.can_park() {
            return Err(ModelError::CannotPark);
        }
        self.device.finish()?;
        if let Some(decoder) = self.decoder.take() {
            self.made = Made {
                rows: decoder.keeps_rows(),
                feature_layers: decoder.num_feature_layers(&self.config),
            };
            self.pending.clear();
            self.captured.clear();
        }
        self.device.release_working_memory();
        Ok(())
    }

    /// Takes the weights again, and all else that was given back: whoever takes what is left of the device's memory afterwards
    /// takes nothing that a step needs. What follows is what it would have been.
    ///
    /// # Errors
    /// There is no room, told before anything is read where the device says so; the device or the file failed. The model is as
    /// parked as before.
    pub fn unpark(&mut self) -> Result<(), ModelError> {
        if self.decoder.is_some() {
            return Ok(());
        }
        match self.reload() {
            Ok(decoder) => self.decoder = Some(decoder),
            Err(error) => {
                self.device.release_working_memory();
                return Err(error);
            }
        }
        Ok(())
    }

    fn reload(&self) -> Result<Decoder, ModelError> {
        let file = self.file.as_ref().ok_or(ModelError::CannotPark)?;
        let (device, rows) = (self.device.as_ref(), self.max_batch_rows);
        let without_cache = LoadOptions {
            max_tokens: 0,
            max_sequences: 0,
            max_batch_rows: rows,
            kv_type: None,
        };
        let need = need(file, &self.config, &self.stage, &without_cache).on(device);
        need.check()?;
        device.restore_working_memory()?;
        let state = LoadProgress {
            bytes_done: 0,
            bytes_total: need.weights,
        };
        let mut nobody_looks = |_| {};
        let mut weights = WeightLoader::new(file, device, &mut nobody_looks, state);
        let mut decoder = load_decoder(&mut weights, device, &self.config, &self.stage, rows)?;
        if self.made.rows {
            decoder.keep_rows(device)?;
        }
        decoder.keep_features(device, &self.config, self.made.feature_layers)?;
        device.finish()?;
        Ok(decoder)
    }
}
