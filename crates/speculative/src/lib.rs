//! Draft trees, acceptance, and how much to draft. Knows no device and does no I/O.
//!
//! A draft says which tokens are likely at each position after the anchor ([`Proposal`]). A [`DraftTree`] holds the
//! likeliest beginnings of that; the target computes them in one pass, and [`accepted_path`] follows the tokens that the
//! target itself draws for as long as the tree has them. A [`Planner`] decides how much of that pays.

#![forbid(unsafe_code)]

mod costs;
mod planner;
mod proposal;
mod tree;
mod walk;

pub use planner::{Acceptance, Planner, RoundOutcome};
pub use proposal::Proposal;
pub use tree::{DraftTree, MAX_TRIES, TreeOptions};
pub use walk::accepted_path;
