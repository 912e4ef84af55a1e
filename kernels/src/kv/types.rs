//! Types of keys and values.

use std::fmt;
use std::str::FromStr;

use crate::error::DeviceError;

/// Values that share a scale, where a type has scales.
pub(crate) const BLOCK: usize = 32;

/// How keys or values are kept. The forward pass computes in f32 whatever it is; all but f32 lose something. Those of less
/// than 16 bits have a scale of f16 for each 32 dims of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvType {
    /// 4 bytes, exact.
    #[default]
    F32,
    /// 2 bytes, rounded to nearest even when stored.
    F16,
    /// The upper 2 bytes of f32, rounded to nearest even; within the range of f16, which matrix units take.
    Bf16,
    /// Codes of 8 bits.
    Q8_0,
    /// Codes of 5 bits, scale and least value.
    Q5_1,
    /// Codes of 5 bits.
    Q5_0,
    /// Codes of 4 bits, scale and least value.
    Q4_1,
    /// Codes of 4 bits.
    Q4_0,
    /// Codes of 3 bits for one of eight levels that suit what a rotation makes of any values.
    Tq3_0,
}

impl KvType {
    /// All of them, the largest first.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q5_1,
        Self::Q5_0,
        Self::Q4_1,
        Self::Q4_0,
        Self::Tq3_0,
    ];

    /// As it is read and printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q5_1 => "q5_1",
            Self::Q5_0 => "q5_0",
            Self::Q4_1 => "q4_1",
            Self::Q4_0 => "q4_0",
            Self::Tq3_0 => "tq3_0",
        }
    }

    /// Bytes of 32 values.
    const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 128,
            Self::F16 | Self::Bf16 => 64,
            Self::Q8_0 => 34,
            Self::Q5_1 => 24,
            Self::Q5_0 => 22,
            Self::Q4_1 => 20,
            Self::Q4_0 => 18,
            Self::Tq3_0 => 14,
        }
    }

    /// Bytes of a row of values, whole blocks of 32 where the type has scales.
    #[must_use]
    pub const fn bytes(self, values: usize) -> usize {
        values.saturating_mul(self.block_bytes()) / BLOCK
    }

    /// Bits of one value, with its part of the scales.
    #[must_use]
    pub fn bits(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / BLOCK as f64
    }

    /// Whether values are kept as codes with scales.
    #[must_use]
    pub const fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Whether heads of that size can be kept so.
    #[must_use]
    pub const fn takes(self, head_dim: usize) -> bool {
        !self.is_quantised() || head_dim.is_multiple_of(BLOCK)
    }
}

impl FromStr for KvType {
    type Err = DeviceError;

    /// Reads a name.
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let mut all = Self::ALL.into_iter();
        all.find(|kv_type| kv_type.name() == text)
            .ok_or_else(|| DeviceError::UnknownKvType {
                got: text.to_owned(),
            })
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How keys are kept, and how values: any two types go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct KvTypes {
    /// Keys.
    pub k: KvType,
    /// Values.
    pub v: KvType,
}

impl KvTypes {
    /// One type for both.
    #[must_use]
    pub const fn both(kv_type: KvType) -> Self {
        Self {
            k: kv_type,
            v: kv_type,
        }
    }

    /// Whether keys are rotated, and queries with them.
    pub(crate) const fn rotates_keys(self) -> bool {
        self.k.is_quantised()
    }

    /// Whether values are rotated, and the answers back.
    pub(crate) const fn rotates_values(self) -> bool {
        matches!(self.v, KvType::Tq3_0)
    }

    /// Bytes of the keys and values of a head of one token.
    #[must_use]
    pub const fn bytes(self, head_dim: usize) -> usize {
        self.k.bytes(head_dim) + self.v.bytes(head_dim)
    }
}

impl fmt::Display for KvTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.k == self.v {
            true => write!(f, "{}", self.k),
            false => write!(f, "{} keys, {} values", self.k, self.v),
        }
    }
}
