//! What stands inside a call: its arguments.

pub(crate) mod json;
pub(crate) mod params;
