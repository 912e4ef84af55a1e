//! Logits to tokens: penalties, filters and position-keyed draws.
//!
//! A draw depends only on the logits, the generated history, the parameters and the output position.
//! Plain decoding, chains, trees and restarted requests therefore give the same stream, which is what
//! makes speculation lossless: sample the target at each node and follow the child equal to the sample.
#![forbid(unsafe_code)]

mod candidates;
mod edits;
mod error;
mod params;
mod rng;
mod row;
mod sampler;
mod weights;

pub use error::SamplingError;
pub use params::SamplingParams;
pub use rng::uniform;
pub use row::{argmax, logprob, top_logprobs};
pub use sampler::{Draw, Sampler, Scratch};
