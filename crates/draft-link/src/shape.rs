//! What both sides of a link agree on, and how large its channels are.

use tensor_channel::{ChannelSpec, ElementType, LinkSpec};

use crate::error::LinkError;
use crate::message::foreign;

/// Rows of a features slot at most: half a prefill step of the default size.
const MAX_FEATURE_ROWS: usize = 64;
/// Bytes of a features slot at most; one row may be longer. Rows of the 27B reference model have 100 KiB, five of which
/// are about what a round accepts.
const MAX_FEATURE_BYTES: usize = 512 << 10;
/// Features slots: a round takes two or three for each sequence, features and a question, and all of them are there at
/// once. 16 MiB at most, so that a session and its successor fit the 64 MiB of shared memory that a container has by
/// default.
const FEATURE_SLOTS: usize = 32;
/// Proposals on their way: more than a target asks for at a time, as it asks once for each sequence.
const PROPOSAL_SLOTS: usize = 64;
/// An id and a log-probability.
pub(crate) const CANDIDATE_BYTES: usize = 8;

/// Largest sizes that a peer may name, well above any model's: they bound what is allocated for it.
const MAX_FEATURE_LEN: usize = 1 << 20;
const MAX_DEPTH: usize = 255;
const MAX_TOP_K: usize = 256;

/// What both sides of a link agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShape {
    /// Elements of a row of features: captured layers times hidden size.
    pub feature_len: usize,
    /// Tokens there are.
    pub vocab_size: u32,
    /// Positions that a proposal has at most.
    pub depth: usize,
    /// Tokens that a proposal has per position at most.
    pub max_top_k: usize,
}

impl LinkShape {
    /// Says whether a link can have this shape.
    ///
    /// # Errors
    /// [`LinkError::Shape`].
    pub fn check(&self) -> Result<(), LinkError> {
        for (field, got, limit) in [
            ("feature_len", self.feature_len, MAX_FEATURE_LEN),
            ("vocab_size", self.vocab_size as usize, u32::MAX as usize),
            ("depth", self.depth, MAX_DEPTH),
            ("max_top_k", self.max_top_k, MAX_TOP_K),
        ] {
            if got == 0 || got > limit {
                let expected = format!("1 to {limit}");
                return Err(LinkError::Shape {
                    field,
                    got,
                    expected,
                });
            }
        }
        Ok(())
    }
}

/// The channels of a link, as the draft offers it. Inbound: rows of features \[feature_len\] f32; outbound: candidates of
/// 8 bytes (an id and a log-probability), so that a proposal of any depth and top-k is whole rows.
#[must_use]
pub fn link_spec(shape: &LinkShape) -> LinkSpec {
    let row_bytes = shape.feature_len.max(1) * ElementType::F32.bytes();
    LinkSpec {
        inbound: ChannelSpec {
            element: ElementType::F32,
            row_len: shape.feature_len,
            slot_rows: (MAX_FEATURE_BYTES / row_bytes).clamp(1, MAX_FEATURE_ROWS),
            slots: FEATURE_SLOTS,
        },
        outbound: ChannelSpec {
            element: ElementType::U8,
            row_len: CANDIDATE_BYTES,
            slot_rows: shape.depth * shape.max_top_k,
            slots: PROPOSAL_SLOTS,
        },
    }
}

/// The two processes are of one program, but a session may name any segment.
pub(crate) fn check_spec(
    channel: &'static str,
    got: ChannelSpec,
    expected: ChannelSpec,
) -> Result<(), LinkError> {
    if got == expected {
        return Ok(());
    }
    let (got, expected) = (format!("{got:?}"), format!("{expected:?}"));
    Err(foreign(channel, "shape of the channel", got, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(feature_len: usize) -> LinkShape {
        LinkShape {
            feature_len,
            vocab_size: 8192,
            depth: 15,
            max_top_k: 32,
        }
    }

    #[test]
    fn a_features_slot_has_64_rows_or_half_a_mebibyte_and_one_row_always() {
        for (feature_len, rows) in [(3 * 512, 64), (5 * 5120, 5), (1 << 19, 1), (1, 64)] {
            assert_eq!(link_spec(&shape(feature_len)).inbound.slot_rows, rows);
        }
    }

    #[test]
    fn a_proposals_slot_holds_the_deepest_and_widest() {
        let spec = link_spec(&shape(512)).outbound;
        assert_eq!(spec.slot_bytes(), 15 * 32 * (4 + 4));
    }

    #[test]
    fn shapes_that_cannot_be_are_refused_by_field() {
        assert!(shape(1536).check().is_ok());
        let bad = [
            (
                LinkShape {
                    depth: 0,
                    ..shape(1)
                },
                "depth",
            ),
            (
                LinkShape {
                    depth: 256,
                    ..shape(1)
                },
                "depth",
            ),
            (
                LinkShape {
                    max_top_k: 257,
                    ..shape(1)
                },
                "max_top_k",
            ),
            (
                LinkShape {
                    vocab_size: 0,
                    ..shape(1)
                },
                "vocab_size",
            ),
            (shape(0), "feature_len"),
            (shape(usize::MAX), "feature_len"),
        ];
        for (shape, field) in bad {
            let error = shape.check().unwrap_err().to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
