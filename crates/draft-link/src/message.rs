//! Messages, and the words of a slot's tag that they become.
//!
//! Word 0 tells the kind in its lowest byte; depth and top-k, or the refusal, stand above it. Word 1 is the sequence.

use std::time::Duration;

use speculative::Proposal;
use tensor_channel::Tag;

use crate::error::LinkError;

const FEATURES: u64 = 1;
const PROPOSE: u64 = 2;
const FORGET: u64 = 3;
const PROPOSAL: u64 = 4;
const REFUSED: u64 = 5;

/// What a target asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The last accepted token, whose features are not known yet.
    pub anchor: u32,
    /// Its position, which is where the features of its sequence end.
    pub position: usize,
    /// Positions wanted.
    pub depth: usize,
    /// Tokens wanted per position.
    pub top_k: usize,
}

/// An [`Ask`] on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The sequence, as the target numbers it.
    pub sequence: u64,
    /// Number of the question on its link.
    pub request: u64,
    /// What is asked for.
    pub ask: Ask,
}

/// What a draft is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Features of accepted tokens, which have landed where the caller said.
    Features {
        /// The sequence.
        sequence: u64,
        /// Position of the first row.
        first_position: usize,
        /// Rows of `feature_len` numbers, at least one. All are finite where this process can look at them.
        num_rows: usize,
    },
    /// A proposal is wanted.
    Propose(Question),
    /// The sequence has ended.
    Forget {
        /// The sequence.
        sequence: u64,
    },
}

/// Why a draft has no proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The draft has no features of the sequence, or they end elsewhere.
    Context,
    /// The draft model could not compute it.
    Model,
}

/// What a target is answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The sequence.
    pub sequence: u64,
    /// Position of the anchor that it follows.
    pub position: usize,
    /// What may follow, or why nothing is known to.
    pub proposal: Result<Proposal, Refusal>,
    /// Time the draft took, with that of the sequences computed beside it; zero for a refusal.
    pub draft_time: Duration,
}

/// Tag of a message to the draft, before its payload is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestTag {
    Features {
        sequence: u64,
        first_position: usize,
    },
    Propose(Question),
    Forget {
        sequence: u64,
    },
}

/// Tag of a message to the target, before its payload is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerTag {
    pub sequence: u64,
    pub request: u64,
    pub position: usize,
    pub content: AnswerContent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerContent {
    Proposal {
        depth: usize,
        top_k: usize,
        draft_us: u32,
    },
    Refused(Refusal),
}

impl RequestTag {
    /// `None` where a number is larger than a tag carries.
    pub fn encode(&self) -> Option<Tag> {
        Some(Tag(match *self {
            Self::Features {
                sequence,
                first_position,
            } => [
                FEATURES,
                sequence,
                u32::try_from(first_position).ok()?.into(),
                0,
            ],
            Self::Propose(Question {
                sequence,
                request,
                ask,
            }) => [
                PROPOSE | sizes(ask.depth, ask.top_k)?,
                sequence,
                pair(ask.position, ask.anchor)?,
                request,
            ],
            Self::Forget { sequence } => [FORGET, sequence, 0, 0],
        }))
    }

    pub fn decode(tag: Tag) -> Result<Self, LinkError> {
        let [head, sequence, second, third] = tag.0;
        match head & 0xff {
            FEATURES => {
                let first_position = u32::try_from(second);
                let first_position = first_position
                    .map_err(|_| foreign("features", "position", second, "at most 4294967295"))?;
                Ok(Self::Features {
                    sequence,
                    first_position: first_position as usize,
                })
            }
            PROPOSE => {
                let (depth, top_k) = split_sizes(head);
                Ok(Self::Propose(Question {
                    sequence,
                    request: third,
                    ask: Ask {
                        anchor: low(second),
                        position: high(second) as usize,
                        depth,
                        top_k,
                    },
                }))
            }
            FORGET => Ok(Self::Forget { sequence }),
            kind => Err(foreign("request", "kind", kind, "1 to 3")),
        }
    }
}

impl AnswerTag {
    /// `None` where a number is larger than a tag carries.
    pub fn encode(&self) -> Option<Tag> {
        let (head, last) = match self.content {
            AnswerContent::Proposal {
                depth,
                top_k,
                draft_us,
            } => (PROPOSAL | sizes(depth, top_k)?, draft_us),
            AnswerContent::Refused(Refusal::Context) => (REFUSED | (1 << 16), 0),
            AnswerContent::Refused(Refusal::Model) => (REFUSED | (2 << 16), 0),
        };
        let last = pair(self.position, last)?;
        Some(Tag([head, self.sequence, self.request, last]))
    }

    pub fn decode(tag: Tag) -> Result<Self, LinkError> {
        let [head, sequence, request, last] = tag.0;
        let content = match head & 0xff {
            PROPOSAL => {
                let (depth, top_k) = split_sizes(head);
                AnswerContent::Proposal {
                    depth,
                    top_k,
                    draft_us: low(last),
                }
            }
            REFUSED => AnswerContent::Refused(match head >> 16 {
                1 => Refusal::Context,
                2 => Refusal::Model,
                reason => return Err(foreign("refusal", "reason", reason, "1 or 2")),
            }),
            kind => return Err(foreign("answer", "kind", kind, "4 or 5")),
        };
        Ok(Self {
            sequence,
            request,
            position: high(last) as usize,
            content,
        })
    }
}

/// Says what a peer got wrong.
pub(crate) fn foreign(
    message: &'static str,
    field: &'static str,
    got: impl ToString,
    expected: impl Into<String>,
) -> LinkError {
    LinkError::Foreign {
        message,
        field,
        got: got.to_string(),
        expected: expected.into(),
    }
}

fn sizes(depth: usize, top_k: usize) -> Option<u64> {
    let (depth, top_k) = (u16::try_from(depth).ok()?, u16::try_from(top_k).ok()?);
    Some(u64::from(depth) << 16 | u64::from(top_k) << 32)
}

fn split_sizes(head: u64) -> (usize, usize) {
    let size = |shift: u32| usize::from((head >> shift) as u16);
    (size(16), size(32))
}

fn pair(position: usize, low: u32) -> Option<u64> {
    Some(u64::from(u32::try_from(position).ok()?) << 32 | u64::from(low))
}

fn low(word: u64) -> u32 {
    word as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_come_back_as_they_went() {
        let ask = Ask {
            anchor: u32::MAX,
            position: u32::MAX as usize - 1,
            depth: 15,
            top_k: 32,
        };
        for tag in [
            RequestTag::Features {
                sequence: u64::MAX,
                first_position: 7,
            },
            RequestTag::Propose(Question {
                sequence: 3,
                request: u64::MAX,
                ask,
            }),
            RequestTag::Forget { sequence: 9 },
        ] {
            assert_eq!(RequestTag::decode(tag.encode().unwrap()).unwrap(), tag);
        }
        for content in [
            AnswerContent::Proposal {
                depth: 255,
                top_k: 256,
                draft_us: u32::MAX,
            },
            AnswerContent::Refused(Refusal::Context),
            AnswerContent::Refused(Refusal::Model),
        ] {
            let tag = AnswerTag {
                sequence: 1,
                request: 2,
                position: 3,
                content,
            };
            assert_eq!(AnswerTag::decode(tag.encode().unwrap()).unwrap(), tag);
        }
    }

    #[test]
    fn what_a_tag_cannot_carry_is_not_sent() {
        let too_far = RequestTag::Features {
            sequence: 0,
            first_position: 1 << 32,
        };
        assert_eq!(too_far.encode(), None);
        assert_eq!(sizes(1 << 16, 1), None);
    }

    #[test]
    fn foreign_tags_are_errors_that_name_the_field() {
        let check = |error: LinkError, words: &str| {
            assert!(error.to_string().contains(words), "{error}");
        };
        for kind in [0, 4, 255] {
            let error = RequestTag::decode(Tag([kind, 0, 0, 0])).unwrap_err();
            check(error, "kind");
        }
        let far = RequestTag::decode(Tag([FEATURES, 0, 1 << 32, 0])).unwrap_err();
        check(far, "position");
        check(AnswerTag::decode(Tag([1, 0, 0, 0])).unwrap_err(), "kind");
        let odd = AnswerTag::decode(Tag([REFUSED | 9 << 16, 0, 0, 0])).unwrap_err();
        check(odd, "reason");
    }
}
