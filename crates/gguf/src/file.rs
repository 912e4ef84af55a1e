//! An open model: one or more checked files behind one list of tensors.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use tensor::DType;

use crate::error::GgufError;
use crate::metadata::Metadata;
use crate::mmap::Mapping;
use crate::parse::{Parsed, TensorInfo, parse};
use crate::split::{self, PartName};

/// The bytes of one file.
#[derive(Debug)]
enum Backing {
    Mapped(Mapping),
    Owned(Vec<u8>),
}

impl Backing {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map.bytes(),
            Self::Owned(bytes) => bytes,
        }
    }
}

/// One file of the model.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    backing: Backing,
    parsed: Parsed,
}

impl Part {
    fn open(path: &Path) -> Result<Self, GgufError> {
        let map = Mapping::open(path).map_err(io_error(path, "open and map the file"))?;
        let part = Self::new(path.to_owned(), Backing::Mapped(map))?;
        if let Backing::Mapped(map) = &part.backing {
            // All that is needed of the header has been copied out of it.
            let first_tensor = part.parsed.tensors.iter().map(|t| t.range.start).min();
            map.release(0..first_tensor.unwrap_or(0))
                .map_err(io_error(path, "release the pages of the header"))?;
        }
        Ok(part)
    }

    fn new(path: PathBuf, backing: Backing) -> Result<Self, GgufError> {
        let parsed = parse(&path, backing.bytes())?;
        Ok(Self {
            path,
            backing,
            parsed,
        })
    }
}

/// A GGUF model, open for reading; all parts when it is split.
#[derive(Debug)]
pub struct GgufFile {
    first: Part,
    rest: Vec<Part>,
    /// Tensor name to part (0 is `first`) and row of that part's table.
    index: HashMap<String, (usize, usize)>,
}

/// A tensor's description and its bytes in the file.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// The element or block type.
    pub dtype: DType,
    /// Elements per axis, the contiguous axis (ne0) first; 1 to 4 axes, none of them 0.
    pub dims: &'a [u64],
    /// The encoded elements, exactly as many bytes as type and shape ask for.
    pub data: &'a [u8],
}

impl TensorView<'_> {
    /// Elements per row: the contiguous axis (ne0).
    pub fn cols(&self) -> usize {
        // The size in bytes was checked to fit `usize`; no axis can exceed it by more than the
        // packing of a block, so this saturates only where the data could not be mapped anyway.
        self.dims
            .first()
            .map_or(0, |&d| usize::try_from(d).unwrap_or(usize::MAX))
    }

    /// Rows: the product of all axes but the contiguous one.
    pub fn rows(&self) -> usize {
        let rows = self
            .dims
            .iter()
            .skip(1)
            .fold(1u64, |n, &d| n.saturating_mul(d));
        usize::try_from(rows).unwrap_or(usize::MAX)
    }
}

impl GgufFile {
    /// Opens and checks a model. Any part of a split model opens all of it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let opened = Part::open(path)?;
        let count = split::count(&opened.parsed.metadata)?;
        if count <= 1 {
            return Self::join(opened, Vec::new());
        }
        let Some(name) = PartName::parse(path) else {
            return Err(GgufError::SplitName {
                path: path.to_owned(),
                count,
            });
        };
        split::check_part(path, &opened.parsed.metadata, &name)?;
        let mut opened = Some(opened);
        let mut load = |part: u64| -> Result<Part, GgufError> {
            if part == name.part
                && let Some(opened) = opened.take()
            {
                return Ok(opened);
            }
            let path = name.sibling(part);
            let loaded = Part::open(&path).map_err(|e| match e {
                GgufError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                    GgufError::MissingPart {
                        path: path.clone(),
                        part,
                        count,
                    }
                }
                other => other,
            })?;
            let expected = PartName::parse(&path);
            if let Some(expected) = expected {
                split::check_part(&path, &loaded.parsed.metadata, &expected)?;
            }
            Ok(loaded)
        };
        let first = load(1)?;
        let mut rest = Vec::new();
        for part in 2..=count {
            rest.push(load(part)?);
        }
        Self::join(first, rest)
    }

    /// Reads a model from memory; `name` stands for the path in errors.
    pub fn from_bytes(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Result<Self, GgufError> {
        let part = Part::new(name.into(), Backing::Owned(bytes))?;
        let count = split::count(&part.parsed.metadata)?;
        if count > 1 {
            let missing = if part.parsed.metadata.u64("split.no")? == Some(0) {
                2
            } else {
                1
            };
            return Err(GgufError::MissingPart {
                path: part.path,
                part: missing,
                count,
            });
        }
        Self::join(part, Vec::new())
    }

    fn join(first: Part, rest: Vec<Part>) -> Result<Self, GgufError> {
        let mut index = HashMap::new();
        for (p, part) in std::iter::once(&first).chain(&rest).enumerate() {
            for (row, tensor) in part.parsed.tensors.iter().enumerate() {
                if index.insert(tensor.name.clone(), (p, row)).is_some() {
                    let (path, tensor) = (part.path.clone(), tensor.name.clone());
                    return Err(GgufError::DuplicateTensor { path, tensor });
                }
            }
        }
        if !rest.is_empty() {
            split::check_total(&first.path, &first.parsed.metadata, index.len() as u64)?;
        }
        Ok(Self { first, rest, index })
    }

    /// The metadata; of a split model that of part 1.
    pub fn metadata(&self) -> &Metadata {
        &self.first.parsed.metadata
    }

    /// `general.architecture`, the prefix of the model's own keys.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.metadata().required_str("general.architecture")
    }

    /// Every tensor, in table order, part after part.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.parts()
            .flat_map(|part| part.parsed.tensors.iter().map(|t| view(part, t)))
    }

    /// How many tensors there are.
    pub fn tensor_count(&self) -> usize {
        self.index.len()
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.find(name).map(|(part, info)| view(part, info))
    }

    /// The tensor called `name`, or an error when it is missing.
    pub fn required_tensor(&self, name: &str) -> Result<TensorView<'_>, GgufError> {
        self.tensor(name).ok_or_else(|| self.missing(name))
    }

    /// Drops the resident pages wholly inside a tensor, once its bytes are elsewhere. The data
    /// stays valid: it is read from the file again when touched.
    pub fn release(&self, name: &str) -> Result<(), GgufError> {
        let (part, info) = self.find(name).ok_or_else(|| self.missing(name))?;
        match &part.backing {
            Backing::Mapped(map) => map
                .release(info.range.clone())
                .map_err(io_error(&part.path, "release the pages of a tensor")),
            Backing::Owned(_) => Ok(()),
        }
    }

    /// Tells the kernel that the files will be read front to back.
    pub fn advise_sequential(&self) -> Result<(), GgufError> {
        for part in self.parts() {
            if let Backing::Mapped(map) = &part.backing {
                map.advise_sequential()
                    .map_err(io_error(&part.path, "announce sequential reading"))?;
            }
        }
        Ok(())
    }

    /// The bytes of all files together.
    pub fn file_len(&self) -> u64 {
        self.parts()
            .map(|part| part.backing.bytes().len() as u64)
            .sum()
    }

    /// The file's path; of a split model that of part 1.
    pub fn path(&self) -> &Path {
        &self.first.path
    }

    /// The format version, 2 or 3; of a split model that of part 1.
    pub fn version(&self) -> u32 {
        self.first.parsed.version
    }

    /// The alignment of tensor data; of a split model that of part 1.
    pub fn alignment(&self) -> u64 {
        self.first.parsed.alignment
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    fn find(&self, name: &str) -> Option<(&Part, &TensorInfo)> {
        let &(p, row) = self.index.get(name)?;
        let part = match p {
            0 => &self.first,
            p => self.rest.get(p - 1)?,
        };
        Some((part, part.parsed.tensors.get(row)?))
    }

    fn missing(&self, name: &str) -> GgufError {
        GgufError::MissingTensor {
            path: self.path().to_owned(),
            tensor: name.to_owned(),
        }
    }
}

fn view<'a>(part: &'a Part, info: &'a TensorInfo) -> TensorView<'a> {
    // The parser checked the range against these very bytes; the fallback is never taken.
    let data = part
        .backing
        .bytes()
        .get(info.range.clone())
        .unwrap_or_default();
    TensorView {
        name: &info.name,
        dtype: info.dtype,
        dims: &info.dims,
        data,
    }
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> GgufError {
    let path = path.to_owned();
    move |source| GgufError::Io {
        path,
        action,
        source,
    }
}
