//! What is known of a sequence's draft.

use std::time::Duration;

use generation::{SpeculationConfig, SpeculationMode, SpeculationStats, SpeculationTimings};
use grammar::Branch;
use speculative::{Acceptance, DraftTree, MAX_TRIES, Proposal, TreeOptions};

use super::features::FeatureTail;

/// The draft's side of one sequence.
#[derive(Debug)]
pub(crate) struct Drafting {
    /// Names the sequence to the draft; never used again.
    pub id: u64,
    /// How its drafts are used.
    pub config: SpeculationConfig,
    /// Draft tokens verified at a time: what it asks for, and what the engine has room for.
    pub max_nodes: usize,
    pub text: Acceptance,
    /// `None` until something is captured.
    pub tail: Option<FeatureTail>,
    /// Position up to which the draft has features.
    pub fed_to: usize,
    /// Position of the anchor that the draft was asked with, until it answers.
    pub asked_at: Option<usize>,
    /// What the draft says follows the newest token.
    pub proposal: Option<Proposal>,
    /// What the next step verifies.
    pub tree: Option<DraftTree>,
    pub timings: SpeculationTimings,
    /// What the newest tree took.
    pub tree_times: TreeTimes,
}

/// What it takes to come by a tree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TreeTimes {
    pub draft: Duration,
    pub channel: Duration,
    pub tree: Duration,
}

impl Drafting {
    pub fn new(id: u64, config: SpeculationConfig, max_nodes: usize, text: Acceptance) -> Self {
        Self {
            id,
            config,
            max_nodes,
            text,
            tail: None,
            fed_to: 0,
            asked_at: None,
            proposal: None,
            tree: None,
            timings: SpeculationTimings::default(),
            tree_times: TreeTimes::default(),
        }
    }

    /// Whether as much of a draft is used as pays.
    pub fn is_adaptive(&self) -> bool {
        self.config.mode == SpeculationMode::Auto
    }

    /// Tokens wanted per position. A chain has one of them, and under a grammar the likeliest may not be the one.
    pub fn top_k(&self, is_constrained: bool) -> usize {
        match self.config.mode {
            SpeculationMode::Chain if is_constrained => MAX_TRIES,
            SpeculationMode::Chain => 1,
            _ => self.max_nodes,
        }
    }

    /// What a proposal becomes; with `branch` of the tokens only that may come.
    pub fn grow(&self, proposal: &Proposal, branch: Option<Branch>) -> DraftTree {
        let Some(mut branch) = branch else {
            return self.grow_where(proposal, |_, _, _| true);
        };
        self.grow_where(proposal, |tree, parent, token| {
            branch.allows(&tree.path(parent), token)
        })
    }

    fn grow_where(
        &self,
        proposal: &Proposal,
        may_follow: impl FnMut(&DraftTree, usize, u32) -> bool,
    ) -> DraftTree {
        if self.config.mode == SpeculationMode::Chain {
            return DraftTree::chain_where(proposal, self.max_nodes, may_follow);
        }
        let options = TreeOptions {
            budget: self.max_nodes,
            chain_seed: false,
        };
        DraftTree::grow_where(proposal, options, may_follow)
    }

    /// Rows that its next step computes for the draft.
    pub fn nodes(&self) -> usize {
        self.tree.as_ref().map_or(0, DraftTree::num_nodes)
    }

    /// The draft has been replaced or lost: what it was told and asked is void.
    pub fn start_anew(&mut self) {
        self.fed_to = 0;
        self.asked_at = None;
        self.proposal = None;
    }

    /// Adds the draft's part of a round to the timings.
    pub fn note_draft(&mut self, draft: Duration, channel: Duration) {
        self.timings.draft_ms += ms(draft);
        self.timings.channel_ms += ms(channel);
        self.tree_times.draft = draft;
        self.tree_times.channel = channel;
    }

    /// Takes the tree that the next step verifies, if any node of it is worth that.
    pub fn note_tree(&mut self, tree: DraftTree, time: Duration) {
        self.timings.tree_ms += ms(time);
        self.tree_times.tree = time;
        self.tree = (tree.num_nodes() > 0).then_some(tree);
    }
}

/// What a verified draft came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub draft_tokens: usize,
    pub accepted: usize,
    pub verify_time: Duration,
    pub commit_time: Duration,
}

impl Round {
    pub fn add_to(&self, timings: &mut SpeculationTimings) {
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        timings.rounds += 1;
        timings.draft_tokens += count(self.draft_tokens);
        timings.accepted_tokens += count(self.accepted);
        timings.verify_ms += ms(self.verify_time);
        timings.commit_ms += ms(self.commit_time);
    }

    pub fn count(&self, stats: &mut SpeculationStats) {
        stats.rounds += 1;
        stats.draft_tokens += self.draft_tokens as u64;
        stats.accepted_tokens += self.accepted as u64;
        if stats.rounds_by_accepted.len() <= self.accepted {
            stats.rounds_by_accepted.resize(self.accepted + 1, 0);
        }
        stats.rounds_by_accepted[self.accepted] += 1;
        stats.verify_us += us(self.verify_time);
        stats.commit_us += us(self.commit_time);
    }
}

/// Milliseconds, as the timings hold them.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Microseconds, as the counters hold them.
pub(crate) fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
