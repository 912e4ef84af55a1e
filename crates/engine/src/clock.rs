//! How long a request takes.

use std::time::{Duration, Instant};

/// When a sequence started and when its tokens came.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    first_token: Instant,
    last_token: Instant,
    any_token: bool,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            first_token: now,
            last_token: now,
            any_token: false,
        }
    }

    /// A token has come.
    pub(crate) fn token(&mut self) {
        self.last_token = Instant::now();
        if !self.any_token {
            self.first_token = self.last_token;
            self.any_token = true;
        }
    }

    /// From the start to the first token; 0 before it.
    pub(crate) fn prompt_ms(&self) -> f64 {
        ms(self.first_token - self.start)
    }

    /// From the first token to the last.
    pub(crate) fn generated_ms(&self) -> f64 {
        ms(self.last_token - self.first_token)
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
