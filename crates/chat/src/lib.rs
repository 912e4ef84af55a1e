//! Conversations rendered through Jinja chat templates, byte for byte as transformers renders them, and the
//! reasoning split out of the answers.
#![forbid(unsafe_code)]

mod clock;
mod error;
mod json;
mod reasoning;
mod source;
mod template;
mod values;

pub use error::ChatError;
pub use reasoning::{ReasoningSplitter, ReasoningStart, SplitText};
pub use template::{ChatTemplate, RenderInput};
