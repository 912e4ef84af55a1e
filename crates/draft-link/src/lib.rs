//! What a target and a draft say to each other over tensor channels, message by message.

#![forbid(unsafe_code)]
