//! Tool calls found in the text of an answer as it grows, whichever way the model writes them, and how a model is made
//! to write them. Text in, text out: knows no tokens, no template engine and no transport.
#![forbid(unsafe_code)]

mod body;
mod cursor;
mod dialect;
mod envelope;
mod grammar;
mod head;
mod json_head;
mod parser;
mod tools;
mod value;

pub use dialect::{Dialect, instructions, response_text};
pub use envelope::is_mark;
pub use grammar::CallGrammar;
pub use parser::{CallEvent, CallParser, Ending};
pub use tools::{Tool, Tools};
