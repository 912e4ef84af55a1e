//! Which tokens may come next, so that an answer matches its grammar.
//!
//! [`Grammars`] reads grammars against the vocabulary of one model. A [`Matcher`] follows one sequence: it says which tokens are
//! [`Allowed`], takes in the one that was chosen, and knows where the answer may end and where it can only end. Knows bytes and
//! token ids, no logits and no stop tokens.

#![forbid(unsafe_code)]

mod allowed;
mod branch;
mod cache;
mod error;
mod grammars;
mod matcher;
mod schema;

pub use allowed::Allowed;
pub use branch::Branch;
pub use error::GrammarError;
pub use grammars::Grammars;
pub use matcher::Matcher;
