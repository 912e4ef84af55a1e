//! Whole steps as graphs: the second time that a step of one shape comes, its launches are recorded; from then on one call
//! repeats them all. What differs from step to step lies in the tables and the list of ids, which are uploaded before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::device::{Step, Visibility};
use crate::gpu::driver::{Driver, Graph};
use crate::gpu::megakernel::{Choice, Program};
use crate::gpu::top_k::Sought;

/// Steps of more rows take so long that their launches do not show.
pub(super) const MAX_ROWS: usize = 160;
/// Recordings kept; a step in each bucket of context length and tree size, and room for company.
const MAX_RECORDINGS: usize = 96;

/// What decides about launches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    variant: String,
    /// Rows of each segment, and whether states move along.
    segments: Vec<(usize, bool)>,
    sees_all: bool,
    /// Bucket of the context length.
    most_seen: usize,
}

impl Shape {
    /// `None` for a step that is not worth a recording.
    pub(super) fn of(step: &Step<'_>, most_seen: usize) -> Option<Self> {
        let rows = |s: &crate::device::Segment<'_>| s.parents.len();
        (step.segments.iter().map(rows).sum::<usize>() <= MAX_ROWS).then(|| Self {
            variant: format!("{:?}", step.variant),
            segments: step.segments.iter().map(|s| (rows(s), s.advance)).collect(),
            sees_all: step.visibility == Visibility::All,
            most_seen: seen_bucket(most_seen),
        })
    }
}

/// Places that launches are made for where rows see `most_seen`: the next power of two, so that a recording lasts for as many
/// steps as came before it.
pub(super) fn seen_bucket(most_seen: usize) -> usize {
    most_seen.next_power_of_two().max(1024)
}

/// What to do about a step.
#[derive(Clone, Debug)]
pub(super) enum Next {
    /// Its first time: memory that it needs is allocated on the way.
    Run,
    Record,
    Replay(Recording),
}

/// A step that may also go as one launch.
#[derive(Debug)]
pub(super) struct OneLaunch {
    pub program: Program,
    pub choice: Mutex<Choice>,
}

/// A step's launches.
#[derive(Clone, Debug)]
pub(super) struct Recording {
    pub graph: Graph,
    /// The last of them look for this.
    pub sought: Option<Sought>,
    pub launch: Option<Arc<OneLaunch>>,
}

/// What there is of a step that came before.
#[derive(Clone, Debug)]
pub(super) enum Recorded {
    NotYet,
    Graph(Recording),
    /// The driver refused: it is run as the first time.
    Never,
}

#[derive(Debug)]
struct Known {
    recorded: Recorded,
    /// State of memory that it was made in.
    memory: u64,
    last_used: u64,
}

/// Recordings of a device.
#[derive(Debug)]
pub(super) struct Steps {
    driver: Arc<dyn Driver>,
    known: HashMap<Shape, Known>,
    clock: u64,
}

impl Steps {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Self {
        Self {
            driver,
            known: HashMap::new(),
            clock: 0,
        }
    }

    /// What to do; `memory` changes when something moved that launches point to.
    pub(super) fn next(&mut self, shape: &Shape, memory: u64) -> Next {
        self.clock += 1;
        let now = self.clock;
        match self.known.get_mut(shape) {
            Some(known) if known.memory == memory => {
                known.last_used = now;
                match &known.recorded {
                    Recorded::NotYet => Next::Record,
                    Recorded::Graph(recording) => Next::Replay(recording.clone()),
                    Recorded::Never => Next::Run,
                }
            }
            _ => {
                self.put(shape, memory, Recorded::NotYet);
                Next::Run
            }
        }
    }

    /// Keeps what there is of a step, and lets the one go that was used longest ago.
    pub(super) fn put(&mut self, shape: &Shape, memory: u64, recorded: Recorded) {
        let known = Known {
            recorded,
            memory,
            last_used: self.clock,
        };
        let old = self.known.insert(shape.clone(), known);
        self.forget(old);
        if self.known.len() > MAX_RECORDINGS {
            let oldest = self
                .known
                .iter()
                .min_by_key(|(_, known)| known.last_used)
                .map(|(shape, _)| shape.clone());
            let oldest = oldest.and_then(|shape| self.known.remove(&shape));
            self.forget(oldest);
        }
    }

    /// Forgets all recordings.
    pub(super) fn clear(&mut self) {
        for (_, known) in std::mem::take(&mut self.known) {
            self.forget(Some(known));
        }
    }

    fn forget(&self, known: Option<Known>) {
        if let Some(Recorded::Graph(recording)) = known.map(|known| known.recorded) {
            self.driver.drop_graph(recording.graph);
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.clear();
    }
}
