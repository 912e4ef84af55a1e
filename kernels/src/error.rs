//! What a device refuses.

use tensor::DType;

use crate::kv::KvType;

/// An operation or an allocation that the device could not do.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The bytes given do not make a matrix of the stated shape.
    #[error("matrix {rows} x {cols} of {dtype} needs {expected} bytes, got {got}")]
    MatrixBytes {
        /// Output rows.
        rows: usize,
        /// Input columns.
        cols: usize,
        /// Element type of the file.
        dtype: DType,
        /// Bytes that the shape asks for.
        expected: usize,
        /// Bytes that were there.
        got: usize,
    },
    /// The row length is no multiple of what this element type is stored in.
    #[error("a row of {cols} elements cannot be held in quant blocks of {dtype}")]
    RowLength {
        /// Input columns.
        cols: usize,
        /// Element type of the file.
        dtype: DType,
    },
    /// Two sides of an operation have different shapes.
    #[error("{op}: {what} is {got}, expected {expected}")]
    Shape {
        /// Operation.
        op: &'static str,
        /// Dimension or operand.
        what: &'static str,
        /// Size needed.
        expected: usize,
        /// Size given.
        got: usize,
    },
    /// Memory could not be had.
    #[error("{bytes} bytes of device memory could not be allocated")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The device has not even the memory that a call of its runtime needs.
    #[error("the device's memory is full: {call}")]
    MemoryFull {
        /// The call, and the runtime's words.
        call: String,
    },
    /// What cannot be a limit of memory.
    #[error("{got} GiB of device memory: expected more than 0")]
    MemoryLimit {
        /// What was asked for.
        got: f64,
    },
    /// The instruction set asked for is not on this machine.
    #[error("instruction set {tier} is not available on this machine")]
    TierUnavailable {
        /// Name of the tier.
        tier: &'static str,
    },
    /// A type that keys and values cannot be kept in.
    #[error("keys and values cannot be kept as \"{got}\", only as {}", KvType::ALL.map(KvType::name).join(", "))]
    UnknownKvType {
        /// What was asked for.
        got: String,
    },
    /// No device has a name like this.
    #[error("there is no device \"{got}\": expected cpu, cuda:N, hip:N or emulated")]
    UnknownDevice {
        /// What was asked for.
        got: String,
    },
    /// No way to launch steps has a name like this.
    #[error("there is no decode path \"{got}\": expected auto, graph or megakernel")]
    UnknownDecodePath {
        /// What was asked for.
        got: String,
    },
    /// A number that is too large.
    #[error("there is no {name}: {} here", devices(*there, kind))]
    NoSuchDevice {
        /// The device asked for.
        name: String,
        /// Whose devices.
        kind: &'static str,
        /// How many there are.
        there: usize,
    },
    /// A GPU's runtime refused or failed.
    #[error("{what}")]
    Driver {
        /// Its words, and what was asked of it.
        what: String,
    },
    /// A kernel could not be compiled for the device.
    #[error("{name} does not compile for this device: {log}")]
    Compile {
        /// File.
        name: &'static str,
        /// The compiler's words.
        log: String,
    },
}

impl DeviceError {
    /// Whether it may go well when others have given memory back.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::MemoryFull { .. })
    }
}

fn devices(count: usize, kind: &str) -> String {
    match count {
        0 => format!("no {kind} device is"),
        1 => format!("only one {kind} device, number 0, is"),
        count => format!("{count} {kind} devices, numbers 0 to {}, are", count - 1),
    }
}
