//! A file of tensors, whatever its format.

use std::path::Path;

use gguf::{GgufFile, TensorView};

use crate::error::ModelError;

/// What loading weights asks of a file.
pub(crate) trait TensorFile {
    /// For messages.
    fn path(&self) -> &Path;
    /// The tensor called `name`.
    fn tensor(&self, name: &str) -> Option<TensorView<'_>>;
    /// Every tensor.
    fn tensors(&self) -> Box<dyn Iterator<Item = TensorView<'_>> + '_>;
    /// Drops the resident pages of a tensor whose bytes are elsewhere now.
    fn release(&self, name: &str) -> Result<(), ModelError>;
}

impl TensorFile for GgufFile {
    fn path(&self) -> &Path {
        self.path()
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.tensor(name)
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = TensorView<'_>> + '_> {
        Box::new(self.tensors())
    }

    fn release(&self, name: &str) -> Result<(), ModelError> {
        Ok(self.release(name)?)
    }
}
