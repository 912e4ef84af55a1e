//! Which parts of a prompt may be cut, and what is left of it.
//!
//! Everything is protected except the bodies of long messages that stand verbatim in the rendered prompt: markup, system
//! text, tool definitions and calls are never cut, whatever the template. Texts and positions only: who scores them, and
//! what a token is, is not known here.
#![forbid(unsafe_code)]

mod bodies;
mod keep;
mod memory;
mod plan;
mod question;
mod spans;

pub use bodies::{Body, find};
pub use keep::{Keep, KeepError};
pub use memory::{Key, Memory};
pub use plan::{MIN_CUT_TOKENS, Part, Plan, Rules, plan};
pub use spans::{complement, inside, intersect, outside, remaining, widen};
