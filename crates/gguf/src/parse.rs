//! Parses one file: header, metadata, tensor table; checks where every tensor lies.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use tensor::DType;

use crate::cursor::{Cursor, Item};
use crate::error::GgufError;
use crate::geometry::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_NAME, align_up, byte_size, checked_alignment,
};
use crate::metadata::Metadata;
use crate::strings::Strings;
use crate::value::{Array, Value};

/// The fewest bytes a key/value entry takes: key length, type, a value of one byte.
const MIN_KV_BYTES: u64 = 8 + 4 + 1;
/// The fewest bytes a tensor entry takes: name length, dim count, one dim, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// What one file says.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) version: u32,
    pub(crate) alignment: u64,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

/// One checked row of the tensor table; `range` lies inside the file.
#[derive(Debug)]
pub(crate) struct TensorInfo {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) range: Range<usize>,
}

/// A tensor row as read, before its place is checked.
struct RawTensor {
    name: String,
    dtype: DType,
    dims: Vec<u64>,
    size: u64,
    offset: u64,
}

/// Parses and checks `bytes`, which `path` names in errors.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed, GgufError> {
    let mut cur = Cursor::new(path, bytes);
    let version = read_version(path, &mut cur)?;
    let n_tensors = cur.count(MIN_TENSOR_BYTES, Item::Header, "n_tensors")?;
    let n_kv = cur.count(MIN_KV_BYTES, Item::Header, "n_kv")?;
    let mut metadata = Metadata::new(path);
    for i in 0..n_kv {
        let key = cur.str(MAX_NAME, Item::KeyAt(i), "name")?.to_owned();
        let value = read_value(path, &mut cur, &key)?;
        metadata.insert(key, value)?;
    }
    let alignment = match metadata.u64(ALIGNMENT_KEY)? {
        Some(got) => checked_alignment(path, got)?,
        None => DEFAULT_ALIGNMENT,
    };
    let mut raw = Vec::new();
    let mut names = HashSet::new();
    for i in 0..n_tensors {
        let tensor = read_tensor(path, &mut cur, i)?;
        if !names.insert(tensor.name.clone()) {
            let tensor = tensor.name;
            return Err(GgufError::DuplicateTensor {
                path: path.to_owned(),
                tensor,
            });
        }
        raw.push(tensor);
    }
    let data_start = align_up(cur.pos(), alignment).unwrap_or(u64::MAX);
    let tensors = place(path, raw, alignment, data_start, bytes.len() as u64)?;
    Ok(Parsed {
        version,
        alignment,
        metadata,
        tensors,
    })
}

fn read_version(path: &Path, cur: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic: [u8; 4] = cur.array(Item::Header, "magic")?;
    if &magic != b"GGUF" {
        return Err(GgufError::BadMagic {
            path: path.to_owned(),
            got: magic,
        });
    }
    match cur.u32(Item::Header, "version")? {
        version @ (2 | 3) => Ok(version),
        got if got != 0 && got & 0xffff == 0 => Err(GgufError::BigEndian {
            path: path.to_owned(),
            version: got.swap_bytes(),
        }),
        got => Err(GgufError::UnsupportedVersion {
            path: path.to_owned(),
            got,
        }),
    }
}

/// Reads `$n` fixed-size elements as a vector of `$ty`.
macro_rules! fixed {
    ($cur:expr, $key:expr, $n:expr, $ty:ty) => {{
        const SIZE: usize = size_of::<$ty>();
        // The count is capped against the remaining bytes, so the product cannot saturate.
        let bytes = $cur.take($n.saturating_mul(SIZE as u64), Item::Key($key), "value")?;
        let (chunks, _) = bytes.as_chunks::<SIZE>();
        chunks
            .iter()
            .map(|c| <$ty>::from_le_bytes(*c))
            .collect::<Vec<$ty>>()
    }};
}

/// Reads one scalar of `$ty`.
macro_rules! scalar {
    ($cur:expr, $key:expr, $ty:ty) => {
        <$ty>::from_le_bytes($cur.array(Item::Key($key), "value")?)
    };
}

fn read_value(path: &Path, cur: &mut Cursor<'_>, key: &str) -> Result<Value, GgufError> {
    Ok(match cur.u32(Item::Key(key), "type")? {
        0 => Value::U8(scalar!(cur, key, u8)),
        1 => Value::I8(scalar!(cur, key, i8)),
        2 => Value::U16(scalar!(cur, key, u16)),
        3 => Value::I16(scalar!(cur, key, i16)),
        4 => Value::U32(scalar!(cur, key, u32)),
        5 => Value::I32(scalar!(cur, key, i32)),
        6 => Value::F32(scalar!(cur, key, f32)),
        7 => Value::Bool(read_bool(path, key, scalar!(cur, key, u8))?),
        8 => Value::String(cur.str(u64::MAX, Item::Key(key), "value")?.to_owned()),
        9 => Value::Array(read_array(path, cur, key)?),
        10 => Value::U64(scalar!(cur, key, u64)),
        11 => Value::I64(scalar!(cur, key, i64)),
        12 => Value::F64(scalar!(cur, key, f64)),
        got => return Err(unknown_type(path, key, "type", got)),
    })
}

fn read_array(path: &Path, cur: &mut Cursor<'_>, key: &str) -> Result<Array, GgufError> {
    let elem = cur.u32(Item::Key(key), "element type")?;
    let size = match elem {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => {
            return Err(GgufError::NestedArray {
                path: path.to_owned(),
                key: key.to_owned(),
            });
        }
        got => return Err(unknown_type(path, key, "element type", got)),
    };
    let n = cur.count(size, Item::Key(key), "array length")?;
    Ok(match elem {
        0 => Array::U8(fixed!(cur, key, n, u8)),
        1 => Array::I8(fixed!(cur, key, n, i8)),
        2 => Array::U16(fixed!(cur, key, n, u16)),
        3 => Array::I16(fixed!(cur, key, n, i16)),
        4 => Array::U32(fixed!(cur, key, n, u32)),
        5 => Array::I32(fixed!(cur, key, n, i32)),
        6 => Array::F32(fixed!(cur, key, n, f32)),
        7 => {
            let bytes = cur.take(n, Item::Key(key), "value")?;
            Array::Bool(
                bytes
                    .iter()
                    .map(|&b| read_bool(path, key, b))
                    .collect::<Result<_, _>>()?,
            )
        }
        8 => {
            // Grown as strings arrive: a lying count allocates nothing.
            let mut strings = Strings::default();
            for _ in 0..n {
                strings.push(cur.str(u64::MAX, Item::Key(key), "array element")?);
            }
            strings.shrink_to_fit();
            Array::String(strings)
        }
        10 => Array::U64(fixed!(cur, key, n, u64)),
        11 => Array::I64(fixed!(cur, key, n, i64)),
        _ => Array::F64(fixed!(cur, key, n, f64)),
    })
}

fn read_bool(path: &Path, key: &str, got: u8) -> Result<bool, GgufError> {
    match got {
        0 => Ok(false),
        1 => Ok(true),
        got => Err(GgufError::BadBool {
            path: path.to_owned(),
            key: key.to_owned(),
            got,
        }),
    }
}

fn unknown_type(path: &Path, key: &str, field: &'static str, got: u32) -> GgufError {
    GgufError::UnknownValueType {
        path: path.to_owned(),
        key: key.to_owned(),
        field,
        got,
    }
}

fn read_tensor(path: &Path, cur: &mut Cursor<'_>, i: u64) -> Result<RawTensor, GgufError> {
    let name = cur.str(MAX_NAME, Item::TensorAt(i), "name")?.to_owned();
    let item = Item::Tensor(&name);
    let n_dims = cur.u32(item, "n_dims")?;
    if !(1..=4).contains(&n_dims) {
        let (path, got) = (path.to_owned(), n_dims.into());
        return Err(GgufError::BadDimCount {
            path,
            tensor: name,
            got,
        });
    }
    let mut dims = Vec::new();
    for _ in 0..n_dims {
        dims.push(cur.u64(item, "dims")?);
    }
    let id = cur.u32(item, "type")?;
    let offset = cur.u64(item, "offset")?;
    let Some(dtype) = DType::from_ggml_id(id) else {
        let (path, name_of) = (path.to_owned(), tensor::ggml_type_name(id));
        return Err(GgufError::UnsupportedType {
            path,
            tensor: name,
            id,
            name: name_of,
        });
    };
    let size = byte_size(path, &name, dtype, &dims)?;
    Ok(RawTensor {
        name,
        dtype,
        dims,
        size,
        offset,
    })
}

/// Turns offsets into ranges of the file: aligned, inside, and disjoint.
fn place(
    path: &Path,
    raw: Vec<RawTensor>,
    alignment: u64,
    data_start: u64,
    file_len: u64,
) -> Result<Vec<TensorInfo>, GgufError> {
    let mut tensors = Vec::with_capacity(raw.len());
    for RawTensor {
        name,
        dtype,
        dims,
        size,
        offset,
    } in raw
    {
        if !offset.is_multiple_of(alignment) {
            let path = path.to_owned();
            return Err(GgufError::UnalignedOffset {
                path,
                tensor: name,
                offset,
                alignment,
            });
        }
        let start = data_start.checked_add(offset);
        let end = start
            .and_then(|s| s.checked_add(size))
            .filter(|&e| e <= file_len);
        let range = start
            .zip(end)
            .and_then(|(s, e)| Some(usize::try_from(s).ok()?..usize::try_from(e).ok()?));
        let Some(range) = range else {
            let (path, available) = (path.to_owned(), file_len.saturating_sub(data_start));
            return Err(GgufError::OutsideFile {
                path,
                tensor: name,
                offset,
                size,
                available,
            });
        };
        tensors.push(TensorInfo {
            name,
            dtype,
            dims,
            range,
        });
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.range.start);
    for pair in order.windows(2) {
        if let [first, second] = pair
            && second.range.start < first.range.end
        {
            return Err(GgufError::Overlap {
                path: path.to_owned(),
                tensor: second.name.clone(),
                offset: second.range.start as u64 - data_start,
                other: first.name.clone(),
            });
        }
    }
    Ok(tensors)
}
