//! Writes version 3 files.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tensor::DType;

use crate::error::GgufError;
use crate::geometry::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_NAME, align_up, byte_size, checked_alignment,
};
use crate::value::{Array, Value};

/// What stands for the path in errors while there is none.
const NO_PATH: &str = "(gguf writer)";

/// A tensor waiting to be written.
#[derive(Debug)]
struct Pending<'a> {
    name: String,
    dtype: DType,
    dims: Vec<u64>,
    data: Cow<'a, [u8]>,
}

/// Collects metadata and tensors, then writes them as one little-endian version 3 file.
#[derive(Debug, Default)]
pub struct GgufWriter<'a> {
    entries: Vec<(String, Value)>,
    tensors: Vec<Pending<'a>>,
    names: HashSet<String>,
}

impl<'a> GgufWriter<'a> {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a metadata key; a key set before keeps its place and takes the new value.
    pub fn set(&mut self, key: impl Into<String>, value: Value) -> &mut Self {
        let key = key.into();
        match self.entries.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value,
            None => self.entries.push((key, value)),
        }
        self
    }

    /// Adds a tensor, `dims` with the contiguous axis first; tensors are stored in this order.
    pub fn add_tensor(
        &mut self,
        name: impl Into<String>,
        dtype: DType,
        dims: &[u64],
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, GgufError> {
        let (path, name, data) = (Path::new(NO_PATH), name.into(), data.into());
        let (expected, got) = (byte_size(path, &name, dtype, dims)?, data.len() as u64);
        if expected != got {
            let path = path.to_owned();
            return Err(GgufError::WrongSize {
                path,
                tensor: name,
                expected,
                got,
            });
        }
        check_name(&name, "tensor")?;
        if !self.names.insert(name.clone()) {
            return Err(GgufError::DuplicateTensor {
                path: path.to_owned(),
                tensor: name,
            });
        }
        self.tensors.push(Pending {
            name,
            dtype,
            dims: dims.to_vec(),
            data,
        });
        Ok(self)
    }

    /// Writes the file, replacing one that is there.
    pub fn write_to(&self, path: impl AsRef<Path>) -> Result<(), GgufError> {
        let path = path.as_ref();
        let (header, alignment) = self.header()?;
        let write = || -> io::Result<()> {
            let mut out = BufWriter::new(File::create(path)?);
            self.emit(&mut out, &header, alignment)?;
            out.flush()
        };
        write().map_err(io_error(path))
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, GgufError> {
        let (header, alignment) = self.header()?;
        let mut out = Vec::new();
        self.emit(&mut out, &header, alignment)
            .map_err(io_error(Path::new(NO_PATH)))?;
        Ok(out)
    }

    fn alignment(&self) -> Result<u64, GgufError> {
        let path = Path::new(NO_PATH);
        match self.entries.iter().find(|(k, _)| k == ALIGNMENT_KEY) {
            None => Ok(DEFAULT_ALIGNMENT),
            Some((_, value)) => match value.as_int().map(u64::try_from) {
                Some(Ok(got)) => checked_alignment(path, got),
                _ => Err(GgufError::WrongType {
                    path: path.to_owned(),
                    key: ALIGNMENT_KEY.to_owned(),
                    expected: "an unsigned integer",
                    got: value.type_name(),
                }),
            },
        }
    }

    /// Everything before the tensor data, unpadded, and the alignment.
    fn header(&self) -> Result<(Vec<u8>, u64), GgufError> {
        let alignment = self.alignment()?;
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            check_name(key, "key")?;
            put_string(&mut out, key);
            out.extend(value.type_id().to_le_bytes());
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            put_string(&mut out, &t.name);
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.dtype.ggml_id().to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = offset
                .checked_add(t.data.len() as u64)
                .and_then(|end| align_up(end, alignment))
                .ok_or_else(|| GgufError::DimsOverflow {
                    path: NO_PATH.into(),
                    tensor: t.name.clone(),
                    dims: t.dims.clone(),
                })?;
        }
        Ok((out, alignment))
    }

    fn emit(&self, out: &mut impl Write, header: &[u8], alignment: u64) -> io::Result<()> {
        out.write_all(header)?;
        pad(out, header.len(), alignment)?;
        for t in &self.tensors {
            out.write_all(&t.data)?;
            pad(out, t.data.len(), alignment)?;
        }
        Ok(())
    }
}

/// Writes the zeros that follow `len` bytes up to the next multiple of `alignment`.
fn pad(out: &mut impl Write, len: usize, alignment: u64) -> io::Result<()> {
    let used = len as u64 % alignment;
    let zeros = if used == 0 { 0 } else { alignment - used };
    io::copy(&mut io::Read::take(io::repeat(0), zeros), out).map(drop)
}

fn check_name(name: &str, what: &str) -> Result<(), GgufError> {
    let got = name.len() as u64;
    if got > MAX_NAME {
        let shown: String = name.chars().take(32).collect();
        return Err(GgufError::TooMany {
            path: NO_PATH.into(),
            item: format!("{what} \"{shown}...\""),
            field: "name",
            got,
            limit: MAX_NAME,
        });
    }
    Ok(())
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => put_string(out, v),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.elem_type_id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    array.iter().for_each(|v| put_value(out, &v));
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> GgufError {
    let path = path.to_owned();
    move |source| GgufError::Io {
        path,
        action: "write the file",
        source,
    }
}
