//! Element types: their GGUF ids, names and block geometry.

use std::fmt;

/// How the elements of a tensor are stored.
///
/// The quantised types pack a fixed number of elements ([`DType::block_len`])
/// into a fixed number of bytes ([`DType::block_bytes`]); the plain types are
/// described the same way, as blocks of one element.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// Upper half of a 32-bit IEEE float.
    BF16,
    /// 4 bits, 32 elements, scale.
    Q4_0,
    /// 4 bits, 32 elements, scale and offset.
    Q4_1,
    /// 5 bits, 32 elements, scale.
    Q5_0,
    /// 5 bits, 32 elements, scale and offset.
    Q5_1,
    /// 8 bits, 32 elements, scale.
    Q8_0,
    /// 2 bits, 256 elements in groups of 16 with 4-bit scales and minima.
    Q2K,
    /// 3 bits, 256 elements in groups of 16 with 6-bit scales.
    Q3K,
    /// 4 bits, 256 elements in groups of 32 with 6-bit scales and minima.
    Q4K,
    /// 5 bits, 256 elements in groups of 32 with 6-bit scales and minima.
    Q5K,
    /// 6 bits, 256 elements in groups of 16 with 8-bit scales.
    Q6K,
    /// 4 bits indexing a non-linear table, 32 elements, scale.
    Iq4Nl,
    /// 4 bits indexing a non-linear table, 256 elements in groups of 32 with 6-bit scales.
    Iq4Xs,
}

impl DType {
    /// Every element type, in the order of declaration.
    pub const ALL: &[DType] = &[
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2K,
        DType::Q3K,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
        DType::Iq4Nl,
        DType::Iq4Xs,
    ];

    /// The id of this type in a GGUF file.
    pub const fn ggml_id(self) -> u32 {
        match self {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Q4_0 => 2,
            DType::Q4_1 => 3,
            DType::Q5_0 => 6,
            DType::Q5_1 => 7,
            DType::Q8_0 => 8,
            DType::Q2K => 10,
            DType::Q3K => 11,
            DType::Q4K => 12,
            DType::Q5K => 13,
            DType::Q6K => 14,
            DType::Iq4Nl => 20,
            DType::Iq4Xs => 23,
            DType::BF16 => 30,
        }
    }

    /// The type with this GGUF id; `None` when the id is unknown or not
    /// supported ([`ggml_type_name`] may still name it).
    pub fn from_ggml_id(id: u32) -> Option<DType> {
        DType::ALL.iter().copied().find(|d| d.ggml_id() == id)
    }

    /// The customary name, such as `Q4_K` or `IQ4_XS`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::Q4_0 => "Q4_0",
            DType::Q4_1 => "Q4_1",
            DType::Q5_0 => "Q5_0",
            DType::Q5_1 => "Q5_1",
            DType::Q8_0 => "Q8_0",
            DType::Q2K => "Q2_K",
            DType::Q3K => "Q3_K",
            DType::Q4K => "Q4_K",
            DType::Q5K => "Q5_K",
            DType::Q6K => "Q6_K",
            DType::Iq4Nl => "IQ4_NL",
            DType::Iq4Xs => "IQ4_XS",
        }
    }

    /// Elements in one block; 1 for the plain types.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => 1,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 | DType::Iq4Nl => {
                32
            }
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K | DType::Iq4Xs => 256,
        }
    }

    /// Bytes in one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q4_0 | DType::Iq4Nl => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
            DType::Q8_0 => 34,
            DType::Q2K => 84,
            DType::Q3K => 110,
            DType::Q4K => 144,
            DType::Q5K => 176,
            DType::Q6K => 210,
            DType::Iq4Xs => 136,
        }
    }

    /// Whether elements share a block with others, so that one cannot be
    /// addressed alone.
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes taken by a row of `n` elements; `None` when `n` is not a whole
    /// number of blocks or the count overflows.
    pub const fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of a GGUF type id, supported here or not, for messages that refuse
/// a file; `None` for ids that no name is agreed on.
///
/// Ids from 41 up mean different types in different forks and stay unnamed.
pub fn ggml_type_name(id: u32) -> Option<&'static str> {
    if let Some(dtype) = DType::from_ggml_id(id) {
        return Some(dtype.name());
    }
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        39 => "MXFP4",
        40 => "NVFP4",
        _ => return None,
    })
}
