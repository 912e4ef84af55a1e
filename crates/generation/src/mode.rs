//! How drafts are used.

use std::str::FromStr;

/// How drafts are used. Nothing of it changes a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculationConfig {
    /// What is verified.
    pub mode: SpeculationMode,
    /// Draft tokens verified at a time, of a tree; the most there may be in [`SpeculationMode::Auto`]. A chain has the
    /// length of the draft's proposals.
    pub budget: usize,
}

/// What is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpeculationMode {
    /// Nothing: plain decoding.
    #[default]
    Off,
    /// The likeliest token of each position.
    Chain,
    /// The likeliest beginnings, as many as the budget says, every time.
    Tree,
    /// As many of the likeliest beginnings as pay on this device with this text, down to none.
    Auto,
}

impl SpeculationConfig {
    /// Plain decoding.
    pub const OFF: Self = Self {
        mode: SpeculationMode::Off,
        budget: 0,
    };

    /// Draft tokens that a step can verify for a sequence.
    #[must_use]
    pub const fn max_rows(&self) -> usize {
        match self.mode {
            SpeculationMode::Off => 0,
            SpeculationMode::Chain => MAX_CHAIN,
            SpeculationMode::Tree | SpeculationMode::Auto if self.budget < MAX_TREE => self.budget,
            SpeculationMode::Tree | SpeculationMode::Auto => MAX_TREE,
        }
    }
}

/// Largest tree verified; larger budgets are cut. What a worker holds for a step does not grow beyond this.
const MAX_TREE: usize = 256;

/// Longest chain verified; drafts of longer blocks are cut.
const MAX_CHAIN: usize = 32;

impl FromStr for SpeculationMode {
    type Err = UnknownSpeculationMode;

    /// Reads `off`, `chain`, `tree` or `auto`.
    fn from_str(text: &str) -> Result<Self, UnknownSpeculationMode> {
        match text {
            "off" => Ok(Self::Off),
            "chain" => Ok(Self::Chain),
            "tree" => Ok(Self::Tree),
            "auto" => Ok(Self::Auto),
            _ => Err(UnknownSpeculationMode {
                got: text.to_owned(),
            }),
        }
    }
}

impl SpeculationMode {
    /// Its name, as it is read.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Chain => "chain",
            Self::Tree => "tree",
            Self::Auto => "auto",
        }
    }
}

/// No way to use drafts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("speculation is `{got}`, expected off, chain, tree or auto")]
pub struct UnknownSpeculationMode {
    /// What it is.
    pub got: String,
}
