//! The target's side: features and questions out, answers in.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytemuck::AnyBitPattern;
use speculative::Proposal;
use tensor_channel::{ChannelError, Ends, Source, Tag};

use crate::error::LinkError;
use crate::message::{Answer, AnswerContent, AnswerTag, Ask, Question, RequestTag, foreign};
use crate::shape::{CANDIDATE_BYTES, LinkShape, check_spec, link_spec};

/// Rounding may lift the logarithm of a probability of one above zero.
const LOG_PROB_ROUNDING: f32 = 1e-3;

/// The payload of a message that is all tag.
const NOTHING: &[u8] = &[];

/// The target's side of a link. No call but [`TargetEnd::receive`] waits for the draft.
#[derive(Debug)]
pub struct TargetEnd {
    ends: Ends,
    shape: LinkShape,
    /// Rows that a slot of features has room for.
    slot_rows: usize,
    payload: Vec<u8>,
    next_request: u64,
    /// The unanswered question of each sequence. An answer to any other comes too late and is passed over.
    asked: HashMap<u64, (u64, Ask)>,
}

impl TargetEnd {
    /// # Errors
    /// [`LinkError::Shape`]; [`LinkError::Foreign`] where the channels are of another shape.
    pub fn new(ends: Ends, shape: LinkShape) -> Result<Self, LinkError> {
        shape.check()?;
        let spec = link_spec(&shape);
        check_spec("features", ends.sender.spec(), spec.inbound)?;
        check_spec("proposals", ends.receiver.spec(), spec.outbound)?;
        Ok(Self {
            ends,
            shape,
            slot_rows: spec.inbound.slot_rows,
            payload: vec![0; spec.outbound.slot_bytes()],
            next_request: 0,
            asked: HashMap::new(),
        })
    }

    /// Gives the features of `num_rows` positions from `first_position` on, and says how many of the rows the channel had
    /// room for. `rows` gives some of them, \[n, feature_len\] f32, wherever they lie. Never waits for the draft.
    ///
    /// # Errors
    /// The draft is gone; rows that are not whole, or positions beyond what a link carries; a device cannot copy.
    pub fn feed<S: Source>(
        &mut self,
        sequence: u64,
        first_position: usize,
        num_rows: usize,
        rows: impl Fn(Range<usize>) -> S,
    ) -> Result<usize, LinkError> {
        let mut taken = 0;
        while taken < num_rows {
            let slot = taken..num_rows.min(taken + self.slot_rows);
            let tag = RequestTag::Features {
                sequence,
                first_position: first_position + taken,
            };
            let payload = rows(slot.clone());
            let row_bytes = self.shape.feature_len * size_of::<f32>();
            if payload.bytes() != slot.len() * row_bytes {
                return Err(LinkError::Unsendable {
                    field: "bytes of features",
                    got: payload.bytes(),
                    expected: format!("{} rows of {row_bytes}", slot.len()),
                });
            }
            if !self.send(&tag, &payload)? {
                break;
            }
            taken = slot.end;
        }
        Ok(taken)
    }

    /// Asks for what follows. An unanswered question of the same sequence is given up. `false`: no room now.
    ///
    /// # Errors
    /// The draft is gone; more is asked for than the link carries.
    pub fn ask(&mut self, sequence: u64, ask: Ask) -> Result<bool, LinkError> {
        for (field, got, limit) in [
            ("depth", ask.depth, self.shape.depth),
            ("top_k", ask.top_k, self.shape.max_top_k),
        ] {
            if got == 0 || got > limit {
                let expected = format!("1 to {limit}");
                return Err(LinkError::Unsendable {
                    field,
                    got,
                    expected,
                });
            }
        }
        let request = self.next_request;
        let question = Question {
            sequence,
            request,
            ask,
        };
        if !self.send(&RequestTag::Propose(question), &NOTHING)? {
            return Ok(false);
        }
        self.next_request += 1;
        self.asked.insert(sequence, (request, ask));
        Ok(true)
    }

    /// Says that a sequence has ended. `false`: no room now.
    ///
    /// # Errors
    /// The draft is gone.
    pub fn forget(&mut self, sequence: u64) -> Result<bool, LinkError> {
        self.asked.remove(&sequence);
        self.send(&RequestTag::Forget { sequence }, &NOTHING)
    }

    /// The next answer to a question that stands, of any sequence; waits at most `patience` for it.
    ///
    /// # Errors
    /// The draft is gone, or said what cannot be.
    pub fn receive(&mut self, patience: Duration) -> Result<Option<Answer>, LinkError> {
        let started = Instant::now();
        loop {
            let left = patience.saturating_sub(started.elapsed());
            let Some((tag, len)) = self.ends.receiver.receive(&mut self.payload, left)? else {
                return Ok(None);
            };
            if let Some(answer) = self.read(tag, len)? {
                return Ok(Some(answer));
            }
        }
    }

    /// `None` where the question was given up.
    fn read(&mut self, tag: Tag, len: usize) -> Result<Option<Answer>, LinkError> {
        let tag = AnswerTag::decode(tag)?;
        if tag.request >= self.next_request {
            let expected = format!("below {}", self.next_request);
            return Err(foreign("answer", "request", tag.request, expected));
        }
        let ask = match self.asked.get(&tag.sequence) {
            Some(&(request, ask)) if request == tag.request => ask,
            _ => return Ok(None),
        };
        self.asked.remove(&tag.sequence);
        check_field("position", tag.position, ask.position..=ask.position)?;
        let (proposal, draft_time) = match tag.content {
            AnswerContent::Refused(refusal) => (Err(refusal), Duration::ZERO),
            AnswerContent::Proposal {
                depth,
                top_k,
                draft_us,
            } => {
                check_field("depth", depth, 1..=ask.depth)?;
                check_field("top_k", top_k, 1..=ask.top_k)?;
                let proposal = self.proposal(len, depth, top_k)?;
                (Ok(proposal), Duration::from_micros(draft_us.into()))
            }
        };
        Ok(Some(Answer {
            sequence: tag.sequence,
            position: tag.position,
            proposal,
            draft_time,
        }))
    }

    /// Reads ids \[depth, K\] u32 and log-probabilities \[depth, K\] f32.
    fn proposal(&self, len: usize, depth: usize, top_k: usize) -> Result<Proposal, LinkError> {
        let expected_len = depth * top_k * CANDIDATE_BYTES;
        check_field("length", len, expected_len..=expected_len)?;
        let (ids, log_probs) = self.payload[..len].split_at(len / 2);
        let ids: Vec<u32> = elements(ids);
        let log_probs: Vec<f32> = elements(log_probs);
        if let Some(id) = ids.iter().find(|&&id| id >= self.shape.vocab_size) {
            let expected = format!("below {}", self.shape.vocab_size);
            return Err(foreign("proposal", "token id", id, expected));
        }
        for position in log_probs.chunks(top_k) {
            check_log_probs(position)?;
        }
        Ok(Proposal {
            top_k,
            ids,
            log_probs,
        })
    }

    /// `false`: no room.
    fn send(&mut self, tag: &RequestTag, payload: &dyn Source) -> Result<bool, LinkError> {
        let tag = tag.encode().ok_or(LinkError::Unsendable {
            field: "position",
            got: usize::MAX,
            expected: "positions of 32 bits".to_owned(),
        })?;
        match self.ends.sender.send_from(tag, payload, Duration::ZERO) {
            Ok(()) => Ok(true),
            Err(ChannelError::Full { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The payload need not be aligned for its elements.
fn elements<T: AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    let elements = bytes.chunks_exact(size_of::<T>());
    elements.map(bytemuck::pod_read_unaligned).collect()
}

/// Likeliest first; impossible ones are -inf.
fn check_log_probs(position: &[f32]) -> Result<(), LinkError> {
    let mut last = LOG_PROB_ROUNDING;
    for &log_prob in position {
        if log_prob.is_nan() || log_prob > last {
            let expected = format!("a number of at most {last}");
            return Err(foreign("proposal", "log-probability", log_prob, expected));
        }
        last = log_prob;
    }
    Ok(())
}

fn check_field(
    field: &'static str,
    got: usize,
    expected: std::ops::RangeInclusive<usize>,
) -> Result<(), LinkError> {
    if expected.contains(&got) {
        return Ok(());
    }
    let expected = format!("{} to {}", expected.start(), expected.end());
    Err(foreign("proposal", field, got, expected))
}
