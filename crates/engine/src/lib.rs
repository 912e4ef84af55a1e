//! Sequences to steps: schedules prefill and decode, owns the model thread.

#![forbid(unsafe_code)]
