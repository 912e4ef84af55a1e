//! The role that speaks HTTP: text in, text out.
//!
//! A request is parsed and checked (`api-types`), rendered (`chat`), encoded (`tokenizer`) and given to a [`Target`],
//! which knows token ids only; its events become text again in `answer.rs` and JSON in `http`.

#![forbid(unsafe_code)]

mod active;
mod answer;
mod answers;
mod back_off;
mod calling;
mod card;
mod compression;
mod config;
mod connections;
mod conversation;
mod deadlines;
mod drafts;
mod error;
mod history;
mod http;
mod keys;
mod logprob;
mod metrics;
mod plan;
mod policy;
mod progress;
mod random;
mod record;
mod secret;
mod server;
mod settings;
mod state;
mod status;
mod target;
mod thinking;
mod tiers;

pub use compression::{CompressionConfig, Prefill, TargetResidency};
pub use config::{AnswerDefaults, Cors, DefaultThinking, LengthLimits, RouterConfig, TimeLimits};
pub use drafts::Drafts;
pub use keys::ApiKeys;
pub use secret::Secret;
pub use server::run;
pub use settings::Settings;
pub use target::Target;
pub use tiers::EffortTiers;
