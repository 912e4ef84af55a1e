//! What a target and a draft say to each other over tensor channels, message by message.
//!
//! The draft offers a link ([`link_spec`]), the target attaches. The target gives features of accepted tokens and asks
//! for proposals ([`TargetEnd`]); the draft answers ([`DraftEnd`]). A message of the peer is foreign input: every field
//! is checked before it is used, and what cannot be is an error that ends the link.

#![forbid(unsafe_code)]

mod draft_end;
mod error;
mod message;
mod shape;
mod target_end;

pub use draft_end::DraftEnd;
pub use error::LinkError;
pub use message::{Answer, Ask, Question, Refusal, Request};
pub use shape::{LinkShape, link_spec};
pub use target_end::TargetEnd;
