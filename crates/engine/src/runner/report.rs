//! What those who watch are told of a round.

use generation::{RoundReport, RoundStages};
use speculative::DraftTree;

use crate::sequence::Sequence;
use crate::speculation::{Round, us};

/// The round whose `path` through `tree` has just become part of the sequence.
pub(super) fn report(
    sequence: &Sequence,
    tree: &DraftTree,
    path: &[usize],
    round: &Round,
    step_sequences: usize,
) -> RoundReport {
    let (tokens, times) = (sequence.tokens(), sequence.drafting.tree_times);
    let position = sequence.fed() - path.len();
    RoundReport {
        sequence: sequence.drafting.id,
        position: count(position),
        anchor: tokens[position],
        tokens: tree.tokens().to_vec(),
        // The root's own is none.
        parents: tree.parents()[1..]
            .iter()
            .map(|parent| parent.cast_unsigned())
            .collect(),
        log_probs: tree.log_probs().iter().map(|p| *p as f32).collect(),
        accepted: path[1..].iter().map(|node| count(*node)).collect(),
        chosen: tokens[position + 1..].to_vec(),
        step_sequences: count(step_sequences),
        stages: RoundStages {
            draft_us: us(times.draft),
            channel_us: us(times.channel),
            tree_us: us(times.tree),
            verify_us: us(round.verify_time),
            commit_us: us(round.commit_time),
        },
    }
}

/// Positions and nodes are bounded by the context, which is a `u32`.
fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
