//! Safetensors as a file of tensors.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gguf::{Mapping, TensorView};
use safetensors::{Dtype, SafeTensors};
use tensor::DType;

use crate::error::ModelError;
use crate::tensor_file::TensorFile;

/// One tensor: its type, its shape with the contiguous axis first, and where its bytes lie.
#[derive(Debug)]
struct Entry {
    name: String,
    dtype: DType,
    dims: Vec<u64>,
    range: Range<usize>,
}

/// An open file; its table has been checked against its length.
#[derive(Debug)]
pub(crate) struct SafetensorsFile {
    path: PathBuf,
    mapping: Mapping,
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
}

impl SafetensorsFile {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let mapping = Mapping::open(path).map_err(|source| ModelError::Read {
            path: path.to_owned(),
            source,
        })?;
        let bytes = mapping.bytes();
        let refuse = |source| ModelError::Safetensors {
            path: path.to_owned(),
            source,
        };
        let (header_len, metadata) = SafeTensors::read_metadata(bytes).map_err(refuse)?;
        let data_start = header_len + size_of::<u64>();
        let mut entries = Vec::new();
        for (name, info) in metadata.tensors() {
            let dtype = match info.dtype {
                Dtype::F32 => DType::F32,
                Dtype::F16 => DType::F16,
                Dtype::BF16 => DType::BF16,
                other => {
                    return Err(ModelError::TensorType {
                        path: path.to_owned(),
                        tensor: name,
                        got: format!("{other:?}"),
                    });
                }
            };
            let (start, end) = info.data_offsets;
            entries.push(Entry {
                name,
                dtype,
                dims: info.shape.iter().rev().map(|&d| d as u64).collect(),
                range: data_start + start..data_start + end,
            });
        }
        entries.sort_by_key(|entry| entry.range.start);
        let index = entries
            .iter()
            .enumerate()
            .map(|(i, entry)| (entry.name.clone(), i))
            .collect();
        let path = path.to_owned();
        Ok(Self {
            path,
            mapping,
            entries,
            index,
        })
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(*self.index.get(name)?)
    }

    fn view<'a>(&'a self, entry: &'a Entry) -> TensorView<'a> {
        TensorView {
            name: &entry.name,
            dtype: entry.dtype,
            dims: &entry.dims,
            // The table's ranges end inside the file; the fallback is never taken.
            data: self
                .mapping
                .bytes()
                .get(entry.range.clone())
                .unwrap_or_default(),
        }
    }
}

impl TensorFile for SafetensorsFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.entry(name).map(|entry| self.view(entry))
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = TensorView<'_>> + '_> {
        Box::new(self.entries.iter().map(|entry| self.view(entry)))
    }

    fn release(&self, name: &str) -> Result<(), ModelError> {
        let Some(entry) = self.entry(name) else {
            return Ok(());
        };
        self.mapping
            .release(entry.range.clone())
            .map_err(|source| ModelError::Read {
                path: self.path.clone(),
                source,
            })
    }
}
