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

/// What is known of the two.
#[derive(Clone, Debug)]
pub(crate) enum Choice {
    /// Times of either.
    Trying([Vec<Duration>; 2]),
    Made(Way),
}

impl Choice {
    pub fn new(path: DecodePath) -> Self {
        match path {
            DecodePath::Auto => Self::Trying([Vec::new(), Vec::new()]),
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

    /// Takes a step's time. The medians of both, when the choice is made by it.
    pub fn tell(&mut self, way: Way, time: Duration) -> Option<[Duration; 2]> {
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
        Some(medians)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_way_is_taken_after_both_were_tried_as_often() {
        for (graph, megakernel, faster) in [(5, 4, Way::Megakernel), (4, 5, Way::Graph)] {
            let mut choice = Choice::new(DecodePath::Auto);
            let mut tried = [0, 0];
            let medians = loop {
                let (way, is_timed) = choice.next();
                assert!(is_timed);
                tried[way as usize] += 1;
                // The first one is slow, and does not count.
                let slow = if tried[way as usize] == 1 { 100 } else { 0 };
                let time = [graph, megakernel][way as usize] + slow;
                if let Some(medians) = choice.tell(way, Duration::from_micros(time)) {
                    break medians;
                }
            };
            assert_eq!(tried, [TRIALS, TRIALS]);
            assert_eq!(medians, [graph, megakernel].map(Duration::from_micros));
            assert_eq!(choice.next(), (faster, false));
        }
    }
}
