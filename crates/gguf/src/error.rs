//! The one error of this crate; every variant names the file and what in it is wrong.

use std::io;
use std::path::PathBuf;

/// Why a GGUF file could not be read, understood or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are the words of the message.
pub enum GgufError {
    /// The operating system refused.
    #[error("{}: cannot {action}", path.display())]
    Io {
        path: PathBuf,
        action: &'static str,
        source: io::Error,
    },
    /// The first four bytes are not `GGUF`.
    #[error("{}: magic: expected \"GGUF\", got \"{}\"", path.display(), got.escape_ascii())]
    BadMagic { path: PathBuf, got: [u8; 4] },
    /// The version field only makes sense with its bytes swapped.
    #[error(
        "{}: version: the file is big-endian (version {version} with its bytes swapped), \
         only little-endian files are read", path.display()
    )]
    BigEndian { path: PathBuf, version: u32 },
    /// A version this reader does not know.
    #[error("{}: version: expected 2 or 3, got {got}", path.display())]
    UnsupportedVersion { path: PathBuf, got: u32 },
    /// The file ends inside a field.
    #[error(
        "{}: {item}: {field}: the file ends early, {needed} bytes needed but {remaining} remain",
        path.display()
    )]
    Truncated {
        path: PathBuf,
        item: String,
        field: &'static str,
        needed: u64,
        remaining: u64,
    },
    /// A count or length exceeds what the rest of the file could hold.
    #[error("{}: {item}: {field}: {got} is more than the file can hold, at most {limit}", path.display())]
    TooMany {
        path: PathBuf,
        item: String,
        field: &'static str,
        got: u64,
        limit: u64,
    },
    /// Bytes that should be text are not UTF-8.
    #[error("{}: {item}: {field}: invalid utf-8 at byte {at}", path.display())]
    InvalidUtf8 {
        path: PathBuf,
        item: String,
        field: &'static str,
        at: usize,
    },
    /// A value type id outside the table.
    #[error("{}: key \"{key}\": {field}: expected a type id 0 to 12, got {got}", path.display())]
    UnknownValueType {
        path: PathBuf,
        key: String,
        field: &'static str,
        got: u32,
    },
    /// An array of arrays.
    #[error("{}: key \"{key}\": element type: nested arrays are not supported", path.display())]
    NestedArray { path: PathBuf, key: String },
    /// A boolean byte other than 0 and 1.
    #[error("{}: key \"{key}\": value: expected a bool of 0 or 1, got {got}", path.display())]
    BadBool { path: PathBuf, key: String, got: u8 },
    /// The same key twice.
    #[error("{}: key \"{key}\": name: appears more than once", path.display())]
    DuplicateKey { path: PathBuf, key: String },
    /// The same tensor name twice.
    #[error("{}: tensor \"{tensor}\": name: appears more than once", path.display())]
    DuplicateTensor { path: PathBuf, tensor: String },
    /// The alignment is not a usable power of two.
    #[error(
        "{}: key \"general.alignment\": value: expected a power of two up to {max}, got {got}",
        path.display()
    )]
    BadAlignment { path: PathBuf, got: u64, max: u64 },
    /// Not 1 to 4 dimensions.
    #[error("{}: tensor \"{tensor}\": n_dims: expected 1 to 4, got {got}", path.display())]
    BadDimCount {
        path: PathBuf,
        tensor: String,
        got: u64,
    },
    /// A dimension of zero elements.
    #[error("{}: tensor \"{tensor}\": dims[{axis}]: expected at least 1, got 0", path.display())]
    ZeroDim {
        path: PathBuf,
        tensor: String,
        axis: usize,
    },
    /// The dimensions multiply to more than can be counted.
    #[error("{}: tensor \"{tensor}\": dims: the size of {dims:?} overflows", path.display())]
    DimsOverflow {
        path: PathBuf,
        tensor: String,
        dims: Vec<u64>,
    },
    /// A row is not a whole number of quantisation blocks.
    #[error(
        "{}: tensor \"{tensor}\": dims[0]: expected a multiple of the {dtype} block length {block}, \
         got {got}", path.display()
    )]
    PartialBlock {
        path: PathBuf,
        tensor: String,
        dtype: &'static str,
        block: u64,
        got: u64,
    },
    /// A tensor type this service does not decode.
    #[error("{}: tensor \"{tensor}\": type: {} (id {id}) is not supported", path.display(), name.unwrap_or("unknown type"))]
    UnsupportedType {
        path: PathBuf,
        tensor: String,
        id: u32,
        name: Option<&'static str>,
    },
    /// An offset that ignores the alignment.
    #[error(
        "{}: tensor \"{tensor}\": offset: expected a multiple of {alignment}, got {offset}",
        path.display()
    )]
    UnalignedOffset {
        path: PathBuf,
        tensor: String,
        offset: u64,
        alignment: u64,
    },
    /// A tensor whose bytes are not all in the file.
    #[error(
        "{}: tensor \"{tensor}\": offset: {size} bytes at offset {offset} end outside the data \
         section of {available} bytes", path.display()
    )]
    OutsideFile {
        path: PathBuf,
        tensor: String,
        offset: u64,
        size: u64,
        available: u64,
    },
    /// Two tensors share bytes.
    #[error("{}: tensor \"{tensor}\": offset: {offset} overlaps tensor \"{other}\"", path.display())]
    Overlap {
        path: PathBuf,
        tensor: String,
        offset: u64,
        other: String,
    },
    /// A key the caller needs is absent.
    #[error("{}: key \"{key}\": missing, expected {expected}", path.display())]
    MissingKey {
        path: PathBuf,
        key: String,
        expected: &'static str,
    },
    /// A key holds another type than the caller needs.
    #[error("{}: key \"{key}\": type: expected {expected}, got {got}", path.display())]
    WrongType {
        path: PathBuf,
        key: String,
        expected: &'static str,
        got: String,
    },
    /// A number does not fit the type the caller needs.
    #[error("{}: key \"{key}\": value: expected {expected}, got {got}", path.display())]
    OutOfRange {
        path: PathBuf,
        key: String,
        expected: &'static str,
        got: String,
    },
    /// An array of another length than the caller needs.
    #[error("{}: key \"{key}\": length: expected {expected}, got {got}", path.display())]
    WrongLength {
        path: PathBuf,
        key: String,
        expected: usize,
        got: usize,
    },
    /// A tensor the caller needs is absent.
    #[error("{}: tensor \"{tensor}\": missing", path.display())]
    MissingTensor { path: PathBuf, tensor: String },
    /// A part of a split model is absent.
    #[error("{}: part {part} of {count}: missing", path.display())]
    MissingPart {
        path: PathBuf,
        part: u64,
        count: u64,
    },
    /// A split file's name and keys disagree.
    #[error("{}: key \"{key}\": value: expected {expected}, got {got}", path.display())]
    SplitMismatch {
        path: PathBuf,
        key: &'static str,
        expected: u64,
        got: u64,
    },
    /// A split file whose name does not say which part it is.
    #[error(
        "{}: key \"split.count\": the file is one of {count} parts but its name does not end in \
         \"-00001-of-{count:05}.gguf\"", path.display()
    )]
    SplitName { path: PathBuf, count: u64 },
    /// The bytes handed to the writer do not match the shape.
    #[error("{}: tensor \"{tensor}\": data: expected {expected} bytes, got {got}", path.display())]
    WrongSize {
        path: PathBuf,
        tensor: String,
        expected: u64,
        got: u64,
    },
}
