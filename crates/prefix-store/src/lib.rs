//! States of prompts in files, found again by their tokens after a restart.
//!
//! A [`Store`] knows tokens and bytes, and no model. What it keeps of a prompt is a *cut*: a file with all the tokens before one
//! position, the states that belong to that position alone, and the keys and values of the last page where that is not full. Full
//! pages are files of their own, named by all tokens up to their end, so that the turns of a conversation share them and each is
//! written once. Files never change: they appear whole, by a rename, and go. So several processes may use one folder.
//!
//! Nothing read is believed: what is not what its name, its place and its checksums say is refused, set aside and counted.

#![forbid(unsafe_code)]

mod error;
mod file;
mod folder;
mod format;
mod index;
mod key;
mod layout;
mod load;
mod save;
mod store;

pub use error::OpenError;
pub use key::{Fingerprint, Fingerprinter};
pub use layout::{FeatureShape, Layout, Part};
pub use load::{Arrived, Load};
pub use save::{Save, Wanted};
pub use store::{Counters, Store, StoreConfig};
