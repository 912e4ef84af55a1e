//! What the bodies of requests look like, for the OpenAPI document. Only their schemas are used: the requests themselves are read
//! field by field, so that every complaint names its field. That both say the same is tested where both are there.

mod chat;
mod completion;
mod messages;
mod options;
mod responses;

pub use chat::ChatBody;
pub use completion::{CompletionBody, DetokenizeBody, TokenizeBody};
pub use messages::MessagesBody;
pub use responses::ResponsesBody;
