//! Conversations rendered through Jinja chat templates, byte for byte as transformers renders them.
#![forbid(unsafe_code)]

mod clock;
mod error;
mod json;
mod source;
mod template;
mod values;

pub use error::ChatError;
pub use template::{ChatTemplate, RenderInput};
