//! The router over real HTTP, before a target that plays a script.

// What a test cannot go on without ends it.
#![allow(clippy::unwrap_used)]

mod chat;
mod client;
mod completions;
mod compression;
mod drafts;
mod endings;
mod endpoints;
mod follow;
mod formats;
mod keys;
mod limits;
mod messages;
mod openapi;
mod page;
mod prefill;
mod progress;
mod refusals;
mod responses;
mod script;
mod server;
mod status;
mod thinking;
mod tools;
mod transport;
mod turns;
