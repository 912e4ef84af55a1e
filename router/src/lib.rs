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
mod compression;
mod config;
mod conversation;
mod drafts;
mod error;
mod history;
mod http;
mod logprob;
mod metrics;
mod plan;
mod progress;
mod random;
mod record;
mod server;
mod settings;
mod state;
mod status;
mod target;

pub use compression::{CompressionConfig, Prefill};
pub use config::{AnswerDefaults, RouterConfig};
pub use drafts::Drafts;
pub use server::run;
pub use settings::Settings;
pub use target::Target;
