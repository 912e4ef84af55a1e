//! A draft that says what a test wants it to say.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::{Ask, DraftShape, Drafted, Drafter, DrafterError};
use models::FeatureRows;
use speculative::Proposal;

/// Positions that proposals have.
pub const DEPTH: usize = 15;

/// What a draft does when it is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Behaviour {
    /// Answers at once. Of ten tokens this many are those that the sequence will really have.
    Answers { right: u64 },
    /// Never answers.
    Hangs,
    /// Answers an ask when the next one or the one after that has been waited for in vain.
    IsLate,
    /// Fails when asked for the n-th time.
    FailsAt(usize),
    /// Has no room for features or asks every other time.
    IsBehind,
    /// Proposes what cannot be.
    TalksNonsense,
}

/// What a test can see of a draft.
#[derive(Debug, Default)]
pub struct Seen {
    /// Feature rows by sequence: first position and values.
    pub fed: HashMap<u64, (usize, Vec<f32>)>,
    pub asked: usize,
    pub forgotten: Vec<u64>,
}

#[derive(Debug)]
pub struct Scripted {
    shape: DraftShape,
    behaviour: Behaviour,
    /// Tokens that sequence n + 1 has and will have.
    texts: Vec<Vec<u32>>,
    seen: Arc<Mutex<Seen>>,
    answers: VecDeque<Drafted>,
    calls: usize,
}

impl Scripted {
    pub fn new(behaviour: Behaviour, texts: Vec<Vec<u32>>) -> (Self, Arc<Mutex<Seen>>) {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let scripted = Self {
            shape: DraftShape {
                capture_layers: vec![1, 3, 5],
                depth: DEPTH,
                max_top_k: 64,
            },
            behaviour,
            texts,
            seen: Arc::clone(&seen),
            answers: VecDeque::new(),
            calls: 0,
        };
        (scripted, seen)
    }

    fn proposal(&self, sequence: u64, ask: Ask) -> Proposal {
        let text = self.texts.get(sequence as usize - 1);
        let mut proposal = Proposal {
            top_k: ask.top_k,
            ..Proposal::default()
        };
        for depth in 1..=ask.depth {
            let real = text.and_then(|text| text.get(ask.position + depth));
            for rank in 0..ask.top_k {
                let noise = mix(sequence, (ask.position + depth) as u64, rank as u64);
                // The real token stands at one of the first ranks.
                let is_real = Behaviour::Answers {
                    right: noise % 10 + 1,
                };
                let real = real.filter(|_| match (self.behaviour, is_real) {
                    (Behaviour::Answers { right }, Behaviour::Answers { right: needed }) => {
                        rank as u64 == noise % 3 % ask.top_k as u64 && needed <= right
                    }
                    _ => rank == 0,
                });
                let nonsense = self.behaviour == Behaviour::TalksNonsense;
                let other = if nonsense {
                    u32::MAX
                } else {
                    300 + (noise % 7000) as u32
                };
                proposal.ids.push(real.copied().unwrap_or(other));
                proposal.log_probs.push(-0.4 - rank as f32 * 0.7);
            }
        }
        proposal
    }
}

/// Noise that is the same every time.
fn mix(a: u64, b: u64, c: u64) -> u64 {
    let x = (a << 40 ^ b << 8 ^ c).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
}

impl Drafter for Scripted {
    fn shape(&self) -> &DraftShape {
        &self.shape
    }

    fn feed(
        &mut self,
        sequence: u64,
        first_position: usize,
        rows: FeatureRows<'_>,
    ) -> Result<usize, DrafterError> {
        self.calls += 1;
        let row_len = 3 * 512;
        assert_eq!(rows.row_len(), row_len);
        let mut taken = rows.num_rows();
        if self.behaviour == Behaviour::IsBehind && self.calls.is_multiple_of(2) {
            taken /= 2;
        }
        let mut seen = self.seen.lock().unwrap();
        let (first, values) = seen.fed.entry(sequence).or_default();
        if first_position != *first + values.len() / row_len {
            (*first, *values) = (first_position, Vec::new());
        }
        values.extend(rows.slice(0..taken).to_vec());
        Ok(taken)
    }

    fn ask(&mut self, sequence: u64, ask: Ask) -> Result<bool, DrafterError> {
        self.calls += 1;
        let mut seen = self.seen.lock().unwrap();
        seen.asked += 1;
        let (first, values) = &seen.fed[&sequence];
        assert_eq!(
            ask.position,
            first + values.len() / (3 * 512),
            "features end at the anchor"
        );
        assert!((1..=DEPTH).contains(&ask.depth));
        let asked = seen.asked;
        drop(seen);
        match self.behaviour {
            Behaviour::FailsAt(n) if n == asked => {
                return Err(DrafterError("as the test says".to_owned()));
            }
            Behaviour::Hangs => return Ok(true),
            Behaviour::IsBehind if self.calls.is_multiple_of(3) => return Ok(false),
            _ => {}
        }
        self.answers.push_back(Drafted {
            sequence,
            position: ask.position,
            proposal: self.proposal(sequence, ask),
            draft_time: Duration::ZERO,
        });
        Ok(true)
    }

    fn receive(&mut self, patience: Duration) -> Result<Option<Drafted>, DrafterError> {
        self.calls += 1;
        match self.behaviour {
            Behaviour::Hangs => {
                std::thread::sleep(patience.min(Duration::from_millis(2)));
                Ok(None)
            }
            Behaviour::IsLate if !self.calls.is_multiple_of(5) => Ok(None),
            _ => Ok(self.answers.pop_front()),
        }
    }

    fn forget(&mut self, sequence: u64) -> Result<bool, DrafterError> {
        self.seen.lock().unwrap().forgotten.push(sequence);
        Ok(true)
    }
}
