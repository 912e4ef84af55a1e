//! Tensors of the file to matrices and buffers of the device.

use std::collections::HashSet;

use gguf::{GgufError, TensorView};
use kernels::{Buffer, Device, Matrix, MatrixSource};
use tensor::{DType, decode_row};

use crate::error::ModelError;
use crate::tensor_file::TensorFile;

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Tensor bytes on the device.
    pub bytes_done: u64,
    /// Tensor bytes to load.
    pub bytes_total: u64,
}

/// Called after every tensor.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(LoadProgress);

/// Takes tensors out of a file, each once, and checks their shapes.
pub(crate) struct WeightLoader<'a> {
    file: &'a dyn TensorFile,
    device: &'a dyn Device,
    /// `None` in a rehearsal.
    progress: Option<Progress<'a>>,
    taken: HashSet<String>,
    state: LoadProgress,
    /// Matrices become f32.
    expands: bool,
}

impl<'a> WeightLoader<'a> {
    /// Progress goes on from `state`, over the files of a model.
    pub(crate) fn new(
        file: &'a dyn TensorFile,
        device: &'a dyn Device,
        progress: Progress<'a>,
        state: LoadProgress,
    ) -> Self {
        Self {
            file,
            device,
            progress: Some(progress),
            taken: HashSet::new(),
            state,
            expands: false,
        }
    }

    /// Checks everything that [`WeightLoader::new`] would, but loads matrices without rows: what a file has too much,
    /// too little or in another shape is known before the long part begins.
    pub(crate) fn rehearsal(file: &'a dyn TensorFile, device: &'a dyn Device) -> Self {
        Self {
            file,
            device,
            progress: None,
            taken: HashSet::new(),
            state: LoadProgress {
                bytes_done: 0,
                bytes_total: 0,
            },
            expands: false,
        }
    }

    /// Loads matrices as f32, whatever the file has, so that no product rounds what it multiplies.
    pub(crate) fn expanding(self, expands: bool) -> Self {
        Self { expands, ..self }
    }

    /// How far loading has come.
    pub(crate) fn state(&self) -> LoadProgress {
        self.state
    }

    /// Whether the file has such a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// A matrix \[rows, cols\].
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, ModelError> {
        let view = self.view(name, &[cols, rows])?;
        let rows = match self.progress {
            Some(_) => rows,
            None => 0,
        };
        let expanded = match self.expands {
            true => self.decoded(name, &view, rows * cols)?,
            false => Vec::new(),
        };
        let bytes: Vec<u8> = expanded.iter().flat_map(|v| v.to_le_bytes()).collect();
        let (dtype, bytes) = match (self.expands, rows) {
            (true, _) => (DType::F32, bytes.as_slice()),
            (false, 0) => (view.dtype, &[][..]),
            (false, _) => (view.dtype, view.data),
        };
        let source = MatrixSource {
            dtype,
            rows,
            cols,
            bytes,
        };
        let matrix =
            self.device
                .load_matrix(source)
                .map_err(|source| ModelError::TensorDevice {
                    path: self.file.path().to_owned(),
                    tensor: name.to_owned(),
                    source,
                })?;
        self.took(name, view.data.len())?;
        Ok(matrix)
    }

    /// Decoded values of a tensor of shape `dims`, ne0 first.
    pub(crate) fn values(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f32>, ModelError> {
        let view = self.view(name, dims)?;
        let values = self.decoded(name, &view, dims.iter().product())?;
        self.took(name, view.data.len())?;
        Ok(values)
    }

    /// All values of a tensor, or none where `len` is 0.
    fn decoded(
        &self,
        name: &str,
        view: &TensorView<'_>,
        len: usize,
    ) -> Result<Vec<f32>, ModelError> {
        let mut values = vec![0.0; len];
        if len > 0 {
            decode_row(view.dtype, view.data, &mut values).map_err(|source| {
                ModelError::TensorData {
                    path: self.file.path().to_owned(),
                    tensor: name.to_owned(),
                    source,
                }
            })?;
        }
        Ok(values)
    }

    /// A decoded tensor of shape `dims` (ne0 first) as a buffer.
    pub(crate) fn buffer(&mut self, name: &str, dims: &[usize]) -> Result<Buffer, ModelError> {
        let values = self.values(name, dims)?;
        let mut buffer = self.device.zeros(values.len())?;
        self.device.write(&mut buffer, 0, &values);
        Ok(buffer)
    }

    /// Refuses tensors that nobody took and `ignored` does not name.
    pub(crate) fn finish(
        self,
        architecture: &'static str,
        ignored: impl Fn(&str) -> bool,
    ) -> Result<(), ModelError> {
        match self
            .file
            .tensors()
            .find(|t| !self.taken.contains(t.name) && !ignored(t.name))
        {
            None => Ok(()),
            Some(tensor) => Err(ModelError::UnknownTensor {
                path: self.file.path().to_owned(),
                tensor: tensor.name.to_owned(),
                architecture,
            }),
        }
    }

    fn view(&self, name: &str, dims: &[usize]) -> Result<TensorView<'a>, ModelError> {
        let Some(view) = self.file.tensor(name) else {
            return Err(GgufError::MissingTensor {
                path: self.file.path().to_owned(),
                tensor: name.to_owned(),
            }
            .into());
        };
        let expected: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
        // A trailing axis of 1 says nothing.
        let trimmed = |dims: &[u64]| {
            dims.iter()
                .rposition(|&d| d != 1)
                .map_or(0, |last| last + 1)
        };
        if view.dims[..trimmed(view.dims)] != expected[..trimmed(&expected)] {
            return Err(ModelError::TensorShape {
                path: self.file.path().to_owned(),
                tensor: name.to_owned(),
                expected,
                got: view.dims.to_vec(),
            });
        }
        Ok(view)
    }

    fn took(&mut self, name: &str, bytes: usize) -> Result<(), ModelError> {
        self.file.release(name)?;
        self.taken.insert(name.to_owned());
        self.state.bytes_done += bytes as u64;
        if let Some(progress) = &mut self.progress {
            progress(self.state);
        }
        Ok(())
    }
}
