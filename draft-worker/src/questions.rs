//! Questions of several targets, gathered for one pass.

use std::collections::HashSet;
use std::time::Instant;

use draft_link::Question;
use speculative::Proposal;

use crate::contexts::Key;

/// A question and where it came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub session: u64,
    pub question: Question,
}

/// What was read in one go.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub asked: Vec<Asked>,
    /// When the first message was there: what an answer takes counts from then.
    pub since: Option<Instant>,
}

impl Asked {
    pub fn key(&self) -> Key {
        Key {
            session: self.session,
            sequence: self.question.sequence,
        }
    }
}

/// The last question of each sequence: those before it were given up.
pub(crate) fn latest(mut asked: Vec<Asked>) -> Vec<Asked> {
    let mut seen = HashSet::new();
    asked.reverse();
    asked.retain(|asked| seen.insert(asked.key()));
    asked.reverse();
    asked
}

/// The first `top_k` tokens of each position.
pub(crate) fn narrowed(proposal: Proposal, top_k: usize) -> Proposal {
    if proposal.top_k <= top_k {
        return proposal;
    }
    let positions = |len: usize| (0..len / proposal.top_k).map(|at| at * proposal.top_k);
    let ids = positions(proposal.ids.len()).flat_map(|at| &proposal.ids[at..at + top_k]);
    let log_probs =
        positions(proposal.log_probs.len()).flat_map(|at| &proposal.log_probs[at..at + top_k]);
    Proposal {
        top_k,
        ids: ids.copied().collect(),
        log_probs: log_probs.copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use draft_link::{Ask, Question};
    use speculative::Proposal;

    use super::{Asked, latest, narrowed};

    fn asked(session: u64, sequence: u64, request: u64) -> Asked {
        let ask = Ask {
            anchor: 0,
            position: 0,
            depth: 1,
            top_k: 1,
        };
        Asked {
            session,
            question: Question {
                sequence,
                request,
                ask,
            },
        }
    }

    #[test]
    fn of_several_questions_of_a_sequence_the_last_stands() {
        let all = vec![
            asked(1, 7, 0),
            asked(2, 7, 0),
            asked(1, 8, 1),
            asked(1, 7, 2),
        ];
        let left: Vec<_> = latest(all)
            .iter()
            .map(|asked| {
                (
                    asked.session,
                    asked.question.sequence,
                    asked.question.request,
                )
            })
            .collect();
        assert_eq!(left, [(2, 7, 0), (1, 8, 1), (1, 7, 2)]);
    }

    #[test]
    fn a_proposal_narrows_to_the_likeliest_of_each_position() {
        let wide = Proposal {
            top_k: 3,
            ids: vec![1, 2, 3, 4, 5, 6],
            log_probs: vec![-1.0, -2.0, -3.0, -4.0, -5.0, -6.0],
        };
        let narrow = Proposal {
            top_k: 2,
            ids: vec![1, 2, 4, 5],
            log_probs: vec![-1.0, -2.0, -4.0, -5.0],
        };
        assert_eq!(narrowed(wide.clone(), 2), narrow);
        assert_eq!(narrowed(wide.clone(), 3), wide);
    }
}
