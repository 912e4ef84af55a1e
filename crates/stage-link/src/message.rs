//! Messages, and the words of a slot's tag and payload that they become.
//!
//! Word 0 of a tag tells the kind. Sequences are numbered by the later side, and no number is used twice.

use models::{Batch, BatchSegment, LogitsWanted, SequenceId};
use tensor_channel::Tag;

use crate::error::{LinkError, foreign};
use crate::shape::{LinkShape, MAX_CAPTURES};
use crate::words::Words;

const CREATE: u64 = 1;
const FREE: u64 = 2;
const COMMIT: u64 = 3;
const FORWARD: u64 = 4;
const FORK: u64 = 5;
const HIDDEN: u64 = 6;
const FEATURES: u64 = 7;
const FAILED: u64 = 8;

/// Of a segment: its nodes are accepted already; they are a chain, and no parents are told.
const ADVANCE: u32 = 1;
const CHAIN: u32 = 2;

/// What the later stage has the earlier one do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Create {
        sequence: u64,
    },
    /// The new sequence `fork` has the state of the other.
    Fork {
        sequence: u64,
        fork: u64,
    },
    Free {
        sequence: u64,
    },
    /// The payload is the path.
    Commit {
        sequence: u64,
    },
    /// The payload is the batch.
    Forward {
        step: u64,
        captures: u32,
        segments: u32,
    },
}

impl Command {
    pub fn encode(&self) -> Tag {
        Tag(match *self {
            Self::Create { sequence } => [CREATE, sequence, 0, 0],
            Self::Fork { sequence, fork } => [FORK, sequence, fork, 0],
            Self::Free { sequence } => [FREE, sequence, 0, 0],
            Self::Commit { sequence } => [COMMIT, sequence, 0, 0],
            Self::Forward {
                step,
                captures,
                segments,
            } => [FORWARD, step, captures.into(), segments.into()],
        })
    }

    pub fn decode(tag: Tag) -> Result<Self, LinkError> {
        let [kind, first, second, third] = tag.0;
        let count = |field, got: u64| {
            u32::try_from(got).map_err(|_| foreign("batch", field, got, "at most 4294967295"))
        };
        match kind {
            CREATE => Ok(Self::Create { sequence: first }),
            FORK => Ok(Self::Fork {
                sequence: first,
                fork: second,
            }),
            FREE => Ok(Self::Free { sequence: first }),
            COMMIT => Ok(Self::Commit { sequence: first }),
            FORWARD => Ok(Self::Forward {
                step: first,
                captures: count("number of captured layers", second)?,
                segments: count("number of segments", third)?,
            }),
            kind => Err(foreign("command", "kind", kind, "1 to 5")),
        }
    }
}

/// Which rows an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    Hidden,
    Features,
}

/// What the earlier stage answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Rows from `first` on.
    Rows { rows: Rows, step: u64, first: u64 },
    /// The payload begins with so many bytes of words that say why.
    Failed { len: u64 },
}

impl Answer {
    pub fn encode(&self) -> Tag {
        Tag(match *self {
            Self::Rows { rows, step, first } => {
                let kind = match rows {
                    Rows::Hidden => HIDDEN,
                    Rows::Features => FEATURES,
                };
                [kind, step, first, 0]
            }
            Self::Failed { len } => [FAILED, len, 0, 0],
        })
    }

    pub fn decode(tag: Tag) -> Result<Self, LinkError> {
        let [kind, first, second, _] = tag.0;
        let rows = |rows| Self::Rows {
            rows,
            step: first,
            first: second,
        };
        match kind {
            HIDDEN => Ok(rows(Rows::Hidden)),
            FEATURES => Ok(rows(Rows::Features)),
            FAILED => Ok(Self::Failed { len: first }),
            kind => Err(foreign("answer", "kind", kind, "6 to 8")),
        }
    }
}

/// Writes a batch to `words`; `number` tells what a sequence is called on the link.
pub(crate) fn encode_batch(
    batch: &Batch,
    words: &mut Vec<u32>,
    number: impl Fn(SequenceId) -> Option<u64>,
) -> Result<(), LinkError> {
    words.clear();
    for &layer in &batch.capture_layers {
        words.push(word("captured layer", layer)?);
    }
    for segment in &batch.segments {
        let number = number(segment.sequence).ok_or_else(unnumbered)?;
        let is_chain = segment.parents.is_empty();
        let flags = u32::from(segment.advance) * ADVANCE + u32::from(is_chain) * CHAIN;
        let nodes = word("nodes of a segment", segment.tokens.len())?;
        words.extend([number as u32, (number >> 32) as u32, flags, nodes]);
        words.extend(&segment.tokens);
        words.extend(segment.parents.iter().map(|&parent| parent.cast_unsigned()));
    }
    Ok(())
}

/// Reads a batch; `sequence` tells which sequence has a number. What the model itself checks of a batch is left to it.
pub(crate) fn decode_batch(
    words: &[u32],
    captures: u32,
    segments: u32,
    shape: &LinkShape,
    sequence: impl Fn(u64) -> Option<SequenceId>,
) -> Result<Batch, LinkError> {
    for (field, got, limit) in [
        ("number of captured layers", captures, MAX_CAPTURES),
        ("number of segments", segments, shape.max_sequences),
    ] {
        if got as usize > limit {
            return Err(foreign("batch", field, got, format!("at most {limit}")));
        }
    }
    let mut words = Words::new(words);
    let capture_layers = words.take(captures as usize)?;
    let mut batch = Batch {
        segments: Vec::with_capacity(segments as usize),
        capture_layers: capture_layers.iter().map(|&layer| layer as usize).collect(),
    };
    for _ in 0..segments {
        let number = u64::from(words.next()?) | u64::from(words.next()?) << 32;
        let (flags, nodes) = (words.next()?, words.next()? as usize);
        if flags > ADVANCE | CHAIN {
            return Err(foreign("batch", "flags of a segment", flags, "0 to 3"));
        }
        let tokens = words.take(nodes)?.to_vec();
        let parents = words.take(if flags & CHAIN == 0 { nodes } else { 0 })?;
        batch.segments.push(BatchSegment {
            sequence: sequence(number).ok_or_else(|| unknown(number))?,
            tokens,
            parents: parents.iter().map(|parent| parent.cast_signed()).collect(),
            advance: flags & ADVANCE != 0,
            logits: LogitsWanted::None,
        });
    }
    words.finish()?;
    Ok(batch)
}

/// A number that the peer gave no sequence.
pub(crate) fn unknown(number: u64) -> LinkError {
    foreign("command", "sequence", number, "one that was created")
}

/// A sequence of this side that the peer was not told of.
pub(crate) fn unnumbered() -> LinkError {
    LinkError::Unsendable {
        field: "a sequence",
        got: 0,
        expected: "sequences that it was told of".to_owned(),
    }
}

pub(crate) fn word(field: &'static str, value: usize) -> Result<u32, LinkError> {
    u32::try_from(value).map_err(|_| LinkError::Unsendable {
        field,
        got: value,
        expected: "numbers of 32 bits".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_come_back_as_they_went() {
        for command in [
            Command::Create { sequence: u64::MAX },
            Command::Fork {
                sequence: 3,
                fork: u64::MAX,
            },
            Command::Free { sequence: 0 },
            Command::Commit { sequence: 1 << 40 },
            Command::Forward {
                step: u64::MAX,
                captures: u32::MAX,
                segments: 3,
            },
        ] {
            assert_eq!(Command::decode(command.encode()).unwrap(), command);
        }
        for answer in [
            Answer::Rows {
                rows: Rows::Hidden,
                step: 7,
                first: 1,
            },
            Answer::Rows {
                rows: Rows::Features,
                step: 0,
                first: u64::MAX,
            },
            Answer::Failed { len: 9 },
        ] {
            assert_eq!(Answer::decode(answer.encode()).unwrap(), answer);
        }
    }

    #[test]
    fn foreign_tags_and_batches_are_errors_that_name_the_field() {
        let check = |error: LinkError, words: &str| {
            assert!(error.to_string().contains(words), "{error}");
        };
        for kind in [0, 6, u64::MAX] {
            check(Command::decode(Tag([kind, 0, 0, 0])).unwrap_err(), "kind");
        }
        let many = Command::decode(Tag([FORWARD, 0, 1 << 32, 0])).unwrap_err();
        check(many, "captured layers");
        check(Answer::decode(Tag([1, 0, 0, 0])).unwrap_err(), "kind");
        let shape = LinkShape {
            hidden_size: 8,
            max_batch_rows: 16,
            max_sequences: 2,
        };
        let decode = |words: &[u32], captures, segments| {
            decode_batch(words, captures, segments, &shape, |_| None).unwrap_err()
        };
        check(decode(&[], 257, 0), "captured layers");
        check(decode(&[], 0, 3), "segments");
        check(decode(&[1], 2, 0), "length");
        check(decode(&[1, 2], 1, 0), "length");
        check(decode(&[0, 0, 4, 0], 0, 1), "flags");
        check(decode(&[0, 0, CHAIN, u32::MAX], 0, 1), "length");
        check(decode(&[7, 0, CHAIN, 1, 5], 0, 1), "sequence is 7");
    }
}
