//! What neighbouring stages of a split model say to each other over tensor channels, message by message.
//!
//! The earlier stage offers a link ([`link_spec`]), the later one attaches. Commands go back ([`LaterEnd`], which is the port
//! [`models::EarlierLayers`]), what the layers made of a batch comes forward ([`EarlierEnd`]). Only a batch is answered:
//! what fails of the other commands is told in the place of the next answer. A message of the peer is foreign input: every
//! field is checked before it is used, and what cannot be is an error that ends the link.

#![forbid(unsafe_code)]

mod earlier_end;
mod error;
mod later_end;
mod message;
mod shape;
mod words;

pub use earlier_end::EarlierEnd;
pub use error::LinkError;
pub use later_end::LaterEnd;
pub use shape::{LinkShape, link_spec};
