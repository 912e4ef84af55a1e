//! The Messages API: its requests become the one form that all chats have, and its answers have shapes of their own.

pub(crate) mod answer;
mod content;
mod request;
mod tools;
