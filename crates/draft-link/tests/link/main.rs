//! Both ends of a link: what one says the other understands, and what cannot be is refused.

// What a test cannot go on without ends it.
#![allow(clippy::unwrap_used)]

mod hostile;
mod memory;
mod talk;
mod transports;

use std::time::Duration;

use draft_link::{Ask, LinkShape};

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(10);

const SHAPE: LinkShape = LinkShape {
    feature_len: 6,
    vocab_size: 100,
    depth: 3,
    max_top_k: 2,
};

const ASK: Ask = Ask {
    anchor: 42,
    position: 9,
    depth: 3,
    top_k: 2,
};
