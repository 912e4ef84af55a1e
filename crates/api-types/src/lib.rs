//! The JSON of the OpenAI API, checked.

#![forbid(unsafe_code)]
