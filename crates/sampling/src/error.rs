//! What can be wrong with sampling parameters.

use thiserror::Error;

/// A parameter that no draw can be made with.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SamplingError {
    /// A number outside its range, or not a number.
    #[error("{field} is {value}, expected {expected}")]
    OutOfRange {
        /// Name of the field as requests spell it.
        field: &'static str,
        /// The value that was given.
        value: f32,
        /// The range in words.
        expected: &'static str,
    },
    /// A logit bias outside -100 to 100, or not a number.
    #[error("logit_bias of token {token} is {bias}, expected -100 to 100")]
    Bias {
        /// The token that carries it.
        token: u32,
        /// The bias that was given.
        bias: f32,
    },
}
