//! Ways to launch a step.

use std::fmt;
use std::str::FromStr;

use crate::error::DeviceError;

/// How a step of one row of one sequence is launched, where a device has more than one way. The bits are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecodePath {
    /// The way that is faster, by the time that the first steps take.
    #[default]
    Auto,
    /// Operation by operation, as a recorded graph.
    Graph,
    /// All in one launch; what that does not know goes operation by operation.
    Megakernel,
}

impl DecodePath {
    /// All, by name.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Auto, "auto"),
        (Self::Graph, "graph"),
        (Self::Megakernel, "megakernel"),
    ];
}

impl fmt::Display for DecodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].1)
    }
}

impl FromStr for DecodePath {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let known = Self::ALL.into_iter().find(|(_, name)| *name == text);
        let unknown = || DeviceError::UnknownDecodePath {
            got: text.to_owned(),
        };
        known.map(|(path, _)| path).ok_or_else(unknown)
    }
}
