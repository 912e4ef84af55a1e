//! Rounds that are watched.

use generation::{RoundReport, RoundStages};
use proto::target::v1 as wire;

use crate::error::WorkerError;

/// A round as it goes over the wire.
#[must_use]
pub fn round_to_proto(round: RoundReport) -> wire::Round {
    wire::Round {
        sequence: round.sequence,
        position: round.position,
        anchor: round.anchor,
        tokens: round.tokens,
        parents: round.parents,
        log_probs: round.log_probs,
        accepted: round.accepted,
        chosen: round.chosen,
        step_sequences: round.step_sequences,
        draft_us: round.stages.draft_us,
        channel_us: round.stages.channel_us,
        tree_us: round.stages.tree_us,
        verify_us: round.stages.verify_us,
        commit_us: round.stages.commit_us,
    }
}

/// Who draws the tree must not meet a node without a place in it.
pub(crate) fn round_from_proto(round: wire::Round) -> Result<RoundReport, WorkerError> {
    let nodes = round.tokens.len();
    let invalid = |what: String| Err(WorkerError::Internal(format!("Round.{what}")));
    for (field, found) in [
        ("parents", round.parents.len()),
        ("log_probs", round.log_probs.len()),
    ] {
        if found != nodes {
            return invalid(format!("{field}: {found} for {nodes} tokens"));
        }
    }
    // Parent of node n + 1.
    let orphan = |(n, parent): (usize, &u32)| *parent as usize > n;
    if let Some(n) = round.parents.iter().enumerate().position(orphan) {
        return invalid(format!(
            "parents: {} comes before its parent {}",
            n + 1,
            round.parents[n]
        ));
    }
    let is_node = |node: &u32| (1..=nodes).contains(&(*node as usize));
    if let Some(node) = round.accepted.iter().find(|node| !is_node(node)) {
        return invalid(format!("accepted: no node {node} among {nodes}"));
    }
    Ok(RoundReport {
        sequence: round.sequence,
        position: round.position,
        anchor: round.anchor,
        tokens: round.tokens,
        parents: round.parents,
        log_probs: round.log_probs,
        accepted: round.accepted,
        chosen: round.chosen,
        step_sequences: round.step_sequences,
        stages: RoundStages {
            draft_us: round.draft_us,
            channel_us: round.channel_us,
            tree_us: round.tree_us,
            verify_us: round.verify_us,
            commit_us: round.commit_us,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> RoundReport {
        RoundReport {
            sequence: 1,
            position: 2,
            anchor: 3,
            tokens: vec![4, 5, 6],
            parents: vec![0, 0, 2],
            log_probs: vec![-0.5, -1.5, -2.0],
            accepted: vec![2, 3],
            chosen: vec![5, 6, 7],
            step_sequences: 8,
            stages: RoundStages {
                draft_us: 9,
                channel_us: 10,
                tree_us: 11,
                verify_us: 12,
                commit_us: 13,
            },
        }
    }

    #[test]
    fn a_round_comes_back_as_it_went() {
        let back = round_from_proto(round_to_proto(report()));
        assert_eq!(back.expect("a whole round"), report());
    }

    #[test]
    fn a_tree_that_is_none_is_refused() {
        let refused = |change: fn(&mut RoundReport), words: &str| {
            let mut round = report();
            change(&mut round);
            let error = round_from_proto(round_to_proto(round)).expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        };
        refused(|r| r.parents.truncate(2), "parents: 2 for 3 tokens");
        refused(|r| r.log_probs.push(0.0), "log_probs: 4 for 3 tokens");
        refused(|r| r.parents[1] = 2, "2 comes before its parent 2");
        refused(|r| r.accepted.push(4), "no node 4 among 3");
        refused(|r| r.accepted[0] = 0, "no node 0 among 3");
    }
}
