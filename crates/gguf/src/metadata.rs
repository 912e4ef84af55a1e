//! The key/value table with typed getters whose errors name the file and the key.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::GgufError;
use crate::strings::Strings;
use crate::value::{Array, Value};

/// A file's metadata, in file order.
#[derive(Debug, Clone)]
pub struct Metadata {
    path: PathBuf,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

macro_rules! required {
    ($($(#[$doc:meta])* $name:ident = $getter:ident -> $ty:ty, $expected:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(&self, key: &str) -> Result<$ty, GgufError> {
            self.$getter(key)?.ok_or_else(|| self.missing(key, $expected))
        }
    )*};
}

impl Metadata {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            entries: Vec::new(),
            index: HashMap::new(),
        }
    }

    pub(crate) fn insert(&mut self, key: String, value: Value) -> Result<(), GgufError> {
        if self.index.contains_key(&key) {
            return Err(GgufError::DuplicateKey {
                path: self.path.clone(),
                key,
            });
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        Ok(())
    }

    /// The value stored under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index
            .get(key)
            .and_then(|&i| self.entries.get(i))
            .map(|(_, v)| v)
    }

    /// Every key and value, in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    required! {
        /// [`Self::u32`], or an error when the key is missing.
        required_u32 = u32 -> u32, "an integer";
        /// [`Self::u64`], or an error when the key is missing.
        required_u64 = u64 -> u64, "an integer";
        /// [`Self::f32`], or an error when the key is missing.
        required_f32 = f32 -> f32, "a number";
        /// [`Self::bool`], or an error when the key is missing.
        required_bool = bool -> bool, "a bool";
        /// [`Self::str`], or an error when the key is missing.
        required_str = str -> &str, "a string";
        /// [`Self::str_array`], or an error when the key is missing.
        required_str_array = str_array -> &Strings, "an array of strings";
    }

    /// An integer of any stored width that fits `u32`.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.get(key)
            .map(|v| self.int(key, v, "an integer that fits u32"))
            .transpose()
    }

    /// An integer of any stored width that fits `u64`.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.get(key)
            .map(|v| self.int(key, v, "an integer that fits u64"))
            .transpose()
    }

    /// A number: `f32`, or any other number converted to it.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.get(key).map(|v| self.float(key, v)).transpose()
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(v) => Err(self.wrong_type(key, "a bool", v)),
        }
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(v)) => Ok(Some(v)),
            Some(v) => Err(self.wrong_type(key, "a string", v)),
        }
    }

    /// An array of strings.
    pub fn str_array(&self, key: &str) -> Result<Option<&Strings>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::String(v))) => Ok(Some(v)),
            Some(v) => Err(self.wrong_type(key, "an array of strings", v)),
        }
    }

    /// An array of integers of any stored width that fit `i32`.
    pub fn i32_array(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.array(key, "an array of integers", |v| {
            self.int(key, v, "an array of integers that fit i32")
        })
    }

    /// An array of integers of any stored width that fit `u32`.
    pub fn u32_array(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.array(key, "an array of integers", |v| {
            self.int(key, v, "an array of integers that fit u32")
        })
    }

    /// An array of numbers, each converted to `f32`.
    pub fn f32_array(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.array(key, "an array of numbers", |v| self.float(key, v))
    }

    /// An array of booleans.
    pub fn bool_array(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Bool(v))) => Ok(Some(v.clone())),
            Some(v) => Err(self.wrong_type(key, "an array of bools", v)),
        }
    }

    /// One integer per layer: a scalar is repeated `n` times, an array must hold exactly `n`.
    pub fn u32_per_layer(&self, key: &str, n: usize) -> Result<Option<Vec<u32>>, GgufError> {
        match self.get(key) {
            Some(Value::Array(_)) => {}
            _ => return Ok(self.u32(key)?.map(|v| vec![v; n])),
        }
        match self.u32_array(key)? {
            Some(v) if v.len() != n => Err(GgufError::WrongLength {
                path: self.path.clone(),
                key: key.to_owned(),
                expected: n,
                got: v.len(),
            }),
            v => Ok(v),
        }
    }

    fn array<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&Value) -> Result<T, GgufError>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(a)) => {
                if matches!(a, Array::String(_) | Array::Bool(_)) {
                    return Err(self.wrong_type(key, expected, &Value::Array(a.clone())));
                }
                a.iter()
                    .map(|v| convert(&v))
                    .collect::<Result<_, _>>()
                    .map(Some)
            }
            Some(v) => Err(self.wrong_type(key, expected, v)),
        }
    }

    fn int<T: TryFrom<i128>>(
        &self,
        key: &str,
        value: &Value,
        expected: &'static str,
    ) -> Result<T, GgufError> {
        let wide = value
            .as_int()
            .ok_or_else(|| self.wrong_type(key, expected, value))?;
        T::try_from(wide).map_err(|_| self.out_of_range(key, expected, wide.to_string()))
    }

    fn float(&self, key: &str, value: &Value) -> Result<f32, GgufError> {
        let wide = value
            .as_float()
            .ok_or_else(|| self.wrong_type(key, "a number", value))?;
        let narrow = wide as f32;
        if wide.is_finite() && !narrow.is_finite() {
            return Err(self.out_of_range(key, "a number that fits f32", wide.to_string()));
        }
        Ok(narrow)
    }

    fn missing(&self, key: &str, expected: &'static str) -> GgufError {
        GgufError::MissingKey {
            path: self.path.clone(),
            key: key.to_owned(),
            expected,
        }
    }

    fn out_of_range(&self, key: &str, expected: &'static str, got: String) -> GgufError {
        GgufError::OutOfRange {
            path: self.path.clone(),
            key: key.to_owned(),
            expected,
            got,
        }
    }

    fn wrong_type(&self, key: &str, expected: &'static str, got: &Value) -> GgufError {
        let (path, key, got) = (self.path.clone(), key.to_owned(), got.type_name());
        GgufError::WrongType {
            path,
            key,
            expected,
            got,
        }
    }
}
