//! The role that owns the draft model: takes features of accepted tokens, proposes the tokens that follow.

#![forbid(unsafe_code)]
