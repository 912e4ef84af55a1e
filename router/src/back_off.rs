//! How long to wait before the next attempt.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);
/// A session that lasted this long was a good one.
const GOOD: Duration = Duration::from_secs(1);

/// Doubles with every attempt, and begins anew after a good session.
#[derive(Debug)]
pub(crate) struct BackOff {
    next: Duration,
}

impl Default for BackOff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl BackOff {
    /// The wait before the next attempt.
    pub fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LONGEST);
        wait
    }

    /// A session has ended.
    pub fn note_session(&mut self, lasted: Duration) {
        if lasted >= GOOD {
            self.next = FIRST;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_begin_anew_after_a_good_session() {
        let mut back_off = BackOff::default();
        let mut ms = || back_off.next().as_millis();
        let waits: Vec<_> = (0..7).map(|_| ms()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000]);
        back_off.note_session(Duration::from_millis(10));
        assert_eq!(back_off.next(), LONGEST);
        back_off.note_session(GOOD);
        assert_eq!(back_off.next(), FIRST);
    }
}
