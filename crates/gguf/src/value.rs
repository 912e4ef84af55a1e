//! Metadata values as the file stores them.

use crate::strings::Strings;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // Each variant is the type its name says.
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value; GGUF arrays have one element type and do not nest.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // Each variant is the element type its name says.
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// The type id the file format gives this value.
    pub fn type_id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::String(_) => 8,
            Self::Array(_) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    /// The type in words, for messages.
    pub fn type_name(&self) -> String {
        match self {
            Self::Array(a) => format!("array of {}", type_name(a.elem_type_id())),
            other => type_name(other.type_id()).to_owned(),
        }
    }

    /// The value as a wide integer, when it is an integer of any width.
    pub fn as_int(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    /// The value as a float, when it is a float or an integer.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => self.as_int().map(|v| v as f64),
        }
    }
}

impl Array {
    /// The type id the file format gives the elements.
    pub fn elem_type_id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::String(_) => 8,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i` as a value of its own, when there is one.
    pub fn get(&self, i: usize) -> Option<Value> {
        Some(match self {
            Self::U8(v) => Value::U8(*v.get(i)?),
            Self::I8(v) => Value::I8(*v.get(i)?),
            Self::U16(v) => Value::U16(*v.get(i)?),
            Self::I16(v) => Value::I16(*v.get(i)?),
            Self::U32(v) => Value::U32(*v.get(i)?),
            Self::I32(v) => Value::I32(*v.get(i)?),
            Self::F32(v) => Value::F32(*v.get(i)?),
            Self::Bool(v) => Value::Bool(*v.get(i)?),
            Self::String(v) => Value::String(v.get(i)?.to_owned()),
            Self::U64(v) => Value::U64(*v.get(i)?),
            Self::I64(v) => Value::I64(*v.get(i)?),
            Self::F64(v) => Value::F64(*v.get(i)?),
        })
    }

    /// The elements one by one.
    pub fn iter(&self) -> impl Iterator<Item = Value> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

/// What a value type id is called in messages.
fn type_name(id: u32) -> &'static str {
    const NAMES: [&str; 13] = [
        "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64",
        "f64",
    ];
    usize::try_from(id)
        .ok()
        .and_then(|i| NAMES.get(i))
        .copied()
        .unwrap_or("unknown type")
}
