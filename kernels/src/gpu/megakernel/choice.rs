//! Which way a step goes, where it may go both: found out on the device by the steps themselves, which come out the same.

use std::time::Duration;

use crate::decode_path::DecodePath;

/// Steps that each way is timed for, the first of which does not count.
const TRIALS: usize = 9;

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Graph,
    Megakernel,
}

impl Way {
    /// As `--decode-path` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Graph => "graph",
            Self::Megakernel => "megakernel",
        }
    }
}

/// What is known of the two.
#[derive(Clone, Debug)]
pub(crate) enum Choice {
    /// Times of either.
    Trying([Vec<Duration>; 2]),
    Made(Way),
}

impl Choice {
    /// `known`: which way is faster, from an earlier start.
    pub fn new(path: DecodePath, known: impl FnOnce() -> Option<Way>) -> Self {
        match path {
            DecodePath::Auto => known().map_or(Self::Trying([Vec::new(), Vec::new()]), Self::Made),
            DecodePath::Graph => Self::Made(Way::Graph),
            DecodePath::Megakernel => Self::Made(Way::Megakernel),
        }
    }

    /// The way of the next step, and whether it is to be timed.
    pub fn next(&self) -> (Way, bool) {
        match self {
            Self::Made(way) => (*way, false),
            Self::Trying([graph, _]) if graph.len() < TRIALS => (Way::Graph, true),
            Self::Trying(_) => (Way::Megakernel, true),
        }
    }

    /// Takes a step's time. The faster way and the medians of both, when the choice is made by it.
    pub fn tell(&mut self, way: Way, time: Duration) -> Option<(Way, [Duration; 2])> {
        let Self::Trying(times) = self else {
            return None;
        };
        times[way as usize].push(time);
        if times.iter().any(|times| times.len() < TRIALS) {
            return None;
        }
        let medians = times.each_mut().map(|times| {
            let counted = &mut times[1..];
            counted.sort_unstable();
            counted[counted.len() / 2]
        });
        let way = match medians[1] < medians[0] {
            true => Way::Megakernel,
            false => Way::Graph,
        };
        *self = Self::Made(way);
        Some((way, medians))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_way_is_taken_after_both_were_tried_as_often() {
        for (graph, megakernel, faster) in [(5, 4, Way::Megakernel), (4, 5, Way::Graph)] {
            let mut choice = Choice::new(DecodePath::Auto, || None);
            let mut tried = [0, 0];
            let found = loop {
                let (way, is_timed) = choice.next();
                assert!(is_timed);
                tried[way as usize] += 1;
                // The first one is slow, and does not count.
                let slow = if tried[way as usize] == 1 { 100 } else { 0 };
                let time = [graph, megakernel][way as usize] + slow;
                if let Some(found) = choice.tell(way, Duration::from_micros(time)) {
                    break found;
                }
            };
            assert_eq!(tried, [TRIALS, TRIALS]);
            let medians = [graph, megakernel].map(Duration::from_micros);
            assert_eq!(found, (faster, medians));
            assert_eq!(choice.next(), (faster, false));
        }
    }

    #[test]
    fn what_is_known_is_not_tried_and_what_is_asked_for_goes_first() {
        for known in [Way::Graph, Way::Megakernel] {
            let of = |path| Choice::new(path, || Some(known)).next();
            assert_eq!(of(DecodePath::Auto), (known, false));
            assert_eq!(of(DecodePath::Graph), (Way::Graph, false));
            assert_eq!(of(DecodePath::Megakernel), (Way::Megakernel, false));
        }
    }
}
