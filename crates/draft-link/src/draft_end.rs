//! The draft's side: features and questions in, answers out.

use std::time::Duration;

use speculative::Proposal;
use tensor_channel::{Ends, Sink};

use crate::error::LinkError;
use crate::message::{AnswerContent, AnswerTag, Question, Refusal, Request, RequestTag, foreign};
use crate::shape::{LinkShape, check_spec, link_spec};

/// The draft's side of a link.
#[derive(Debug)]
pub struct DraftEnd {
    ends: Ends,
    shape: LinkShape,
    /// A proposal as it is sent.
    payload: Vec<u8>,
}

impl DraftEnd {
    /// # Errors
    /// [`LinkError::Shape`]; [`LinkError::Foreign`] where the channels are of another shape.
    pub fn new(ends: Ends, shape: LinkShape) -> Result<Self, LinkError> {
        shape.check()?;
        let spec = link_spec(&shape);
        check_spec("features", ends.receiver.spec(), spec.inbound)?;
        check_spec("proposals", ends.sender.spec(), spec.outbound)?;
        Ok(Self {
            ends,
            shape,
            payload: Vec::with_capacity(spec.outbound.slot_bytes()),
        })
    }

    /// What the target says next; waits at most `patience` for it. Features go to `landing`, which has room for a slot of
    /// [`link_spec`]'s inbound channel.
    ///
    /// # Errors
    /// The target is gone, or said what cannot be; `landing` is too small, or its device cannot copy.
    pub fn receive(
        &mut self,
        landing: &mut dyn Sink,
        patience: Duration,
    ) -> Result<Option<Request>, LinkError> {
        let Some((tag, len)) = self.ends.receiver.receive_into(landing, patience)? else {
            return Ok(None);
        };
        Ok(Some(match RequestTag::decode(tag)? {
            RequestTag::Features {
                sequence,
                first_position,
            } => Request::Features {
                sequence,
                first_position,
                num_rows: self.rows(len, landing.seen())?,
            },
            RequestTag::Propose(question) => {
                self.check(&question)?;
                check_empty("question", len)?;
                Request::Propose(question)
            }
            RequestTag::Forget { sequence } => {
                check_empty("end of a sequence", len)?;
                Request::Forget { sequence }
            }
        }))
    }

    /// Whole rows, at least one, of numbers, as far as they can be `seen`.
    fn rows(&self, len: usize, seen: Option<&[u8]>) -> Result<usize, LinkError> {
        let row_bytes = self.shape.feature_len * size_of::<f32>();
        if len == 0 || !len.is_multiple_of(row_bytes) {
            let expected = format!("rows of {row_bytes} bytes");
            return Err(foreign("features", "length", len, expected));
        }
        let (elements, _) = seen.unwrap_or_default().as_chunks();
        let mut features = elements[..elements.len().min(len / size_of::<f32>())]
            .iter()
            .map(|&bytes| f32::from_ne_bytes(bytes));
        match features.find(|feature| !feature.is_finite()) {
            None => Ok(len / row_bytes),
            Some(feature) => Err(foreign("features", "element", feature, "a number")),
        }
    }

    fn check(&self, question: &Question) -> Result<(), LinkError> {
        let ask = &question.ask;
        for (field, got, limit) in [
            ("depth", ask.depth, self.shape.depth),
            ("top_k", ask.top_k, self.shape.max_top_k),
        ] {
            if got == 0 || got > limit {
                let expected = format!("1 to {limit}");
                return Err(foreign("question", field, got, expected));
            }
        }
        if ask.anchor >= self.shape.vocab_size {
            let expected = format!("below {}", self.shape.vocab_size);
            return Err(foreign("question", "anchor", ask.anchor, expected));
        }
        Ok(())
    }

    /// Answers a question.
    ///
    /// # Errors
    /// The target is gone, or has not read its answers in `patience`; a proposal that the link does not carry.
    pub fn reply(
        &mut self,
        question: &Question,
        proposal: &Proposal,
        draft_time: Duration,
        patience: Duration,
    ) -> Result<(), LinkError> {
        let (depth, top_k) = (proposal.depth(), proposal.top_k);
        let lists = [proposal.ids.len(), proposal.log_probs.len()];
        for (field, got, expected) in [
            ("ids of a proposal", lists[0], depth * top_k),
            ("log-probabilities of a proposal", lists[1], depth * top_k),
            (
                "depth of a proposal",
                depth,
                depth.clamp(1, self.shape.depth),
            ),
            (
                "top_k of a proposal",
                top_k,
                top_k.clamp(1, self.shape.max_top_k),
            ),
        ] {
            if got != expected {
                let expected = expected.to_string();
                return Err(LinkError::Unsendable {
                    field,
                    got,
                    expected,
                });
            }
        }
        self.payload.clear();
        self.payload
            .extend_from_slice(bytemuck::cast_slice(&proposal.ids));
        self.payload
            .extend_from_slice(bytemuck::cast_slice(&proposal.log_probs));
        let content = AnswerContent::Proposal {
            depth,
            top_k,
            draft_us: u32::try_from(draft_time.as_micros()).unwrap_or(u32::MAX),
        };
        self.send(question, content, patience)
    }

    /// Answers that there is no proposal.
    ///
    /// # Errors
    /// As [`DraftEnd::reply`].
    pub fn refuse(
        &mut self,
        question: &Question,
        refusal: Refusal,
        patience: Duration,
    ) -> Result<(), LinkError> {
        self.payload.clear();
        self.send(question, AnswerContent::Refused(refusal), patience)
    }

    fn send(
        &mut self,
        question: &Question,
        content: AnswerContent,
        patience: Duration,
    ) -> Result<(), LinkError> {
        let tag = AnswerTag {
            sequence: question.sequence,
            request: question.request,
            position: question.ask.position,
            content,
        };
        // The question's own numbers came in a tag, and the shape bounds the others.
        let tag = tag.encode().expect("the numbers fit a tag");
        Ok(self.ends.sender.send(tag, &self.payload, patience)?)
    }
}

fn check_empty(message: &'static str, len: usize) -> Result<(), LinkError> {
    if len == 0 {
        return Ok(());
    }
    Err(foreign(message, "length", len, "0"))
}
