//! The whole stack as its users meet it: the real program, its processes, real HTTP, the demo model.

// What a test cannot go on without ends it.
#![allow(clippy::unwrap_used)]

mod answers;
mod commands;
mod company;
mod compression;
mod deaths;
mod deploy;
mod devices;
mod drafts;
mod formats;
mod http;
mod prefill;
mod prefixes;
mod processes;
mod refusals;
mod set;
mod split;
mod starting;
mod thinking;
