//! DDTree: the likeliest beginnings of a draft block.
//!
//! Source: DDTree, arXiv 2604.12989, and its reference code (liranringel/ddtree, `ddtree.py`). Positions are drafted
//! independently, so a beginning is as likely as the product of its tokens; a child is never likelier than its parent,
//! so taking the likeliest first gives a tree whose first n nodes are the best n there are. Ties, which the reference
//! leaves to its heap, go by depth, parent and rank.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::proposal::Proposal;

/// How a tree is grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeOptions {
    /// Nodes at most, the root not counted.
    pub budget: usize,
    /// Begin with the likeliest token of each position (Lucebox does), whatever that costs in breadth.
    pub chain_seed: bool,
}

/// Draft tokens as a tree. Node 0 is the root: the anchor, which is accepted already and stands nowhere here; node n has
/// the token `tokens[n - 1]`. A parent comes before its child.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftTree {
    tokens: Vec<u32>,
    depths: Vec<usize>,
    parents: Vec<i32>,
    log_probs: Vec<f64>,
}

/// A node that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    log_prob: f64,
    /// Log-probability of its parent, to which a sibling's own is added.
    parent_log_prob: f64,
    depth: usize,
    rank: usize,
    parent: usize,
    token: u32,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let later = |candidate: &Self| (candidate.depth, candidate.parent, candidate.rank);
        self.log_prob
            .total_cmp(&other.log_prob)
            .then_with(|| later(other).cmp(&later(self)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl DraftTree {
    /// The likeliest `budget` beginnings of `proposal`.
    #[must_use]
    pub fn grow(proposal: &Proposal, options: TreeOptions) -> Self {
        let mut tree = Self::root();
        let mut heap = BinaryHeap::new();
        let candidate = |depth, rank, parent, parent_log_prob| {
            let (token, log_prob) = proposal.entry(depth, rank)?;
            Some(Candidate {
                log_prob: parent_log_prob + log_prob,
                parent_log_prob,
                depth,
                rank,
                parent,
                token,
            })
        };
        if options.chain_seed {
            for depth in 1..=proposal.depth().min(options.budget) {
                let (parent, parent_log_prob) = (tree.num_nodes(), tree.last_log_prob());
                let Some(node) = candidate(depth, 0, parent, parent_log_prob) else {
                    break;
                };
                tree.push(&node);
                heap.extend(candidate(depth, 1, parent, parent_log_prob));
            }
            let depth = tree.num_nodes();
            heap.extend(candidate(depth + 1, 0, depth, tree.last_log_prob()));
        } else {
            heap.extend(candidate(1, 0, 0, 0.0));
        }
        while tree.num_nodes() < options.budget {
            let Some(best) = heap.pop() else { break };
            tree.push(&best);
            let sibling = candidate(best.depth, best.rank + 1, best.parent, best.parent_log_prob);
            let child = candidate(best.depth + 1, 0, tree.num_nodes(), best.log_prob);
            heap.extend(sibling);
            heap.extend(child);
        }
        tree
    }

    /// The likeliest token of each position: a block drafted as DFlash itself does.
    #[must_use]
    pub fn chain(proposal: &Proposal) -> Self {
        let options = TreeOptions {
            budget: proposal.depth(),
            chain_seed: true,
        };
        Self::grow(proposal, options)
    }

    fn root() -> Self {
        Self {
            parents: vec![-1],
            ..Self::default()
        }
    }

    fn push(&mut self, node: &Candidate) {
        self.tokens.push(node.token);
        self.depths.push(node.depth);
        self.log_probs.push(node.log_prob);
        // A budget fits an i32: the batch that verifies a tree counts its rows so.
        self.parents.push(i32::try_from(node.parent).unwrap_or(-1));
    }

    fn last_log_prob(&self) -> f64 {
        self.log_probs.last().copied().unwrap_or(0.0)
    }

    /// Forgets all nodes behind the first `nodes`.
    pub fn truncate(&mut self, nodes: usize) {
        self.tokens.truncate(nodes);
        self.depths.truncate(nodes);
        self.log_probs.truncate(nodes);
        self.parents.truncate(nodes + 1);
    }

    /// Nodes, the root not counted.
    #[must_use]
    pub fn num_nodes(&self) -> usize {
        self.tokens.len()
    }

    /// \[nodes\]: token of each node but the root.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// \[nodes\]: distance from the root, from 1 on.
    #[must_use]
    pub fn depths(&self) -> &[usize] {
        &self.depths
    }

    /// \[nodes + 1\]: parent of each node, -1 for the root.
    #[must_use]
    pub fn parents(&self) -> &[i32] {
        &self.parents
    }

    /// \[nodes\]: log-probability that the draft gives the path to each node.
    #[must_use]
    pub fn log_probs(&self) -> &[f64] {
        &self.log_probs
    }

    /// The child of `node` that holds `token`.
    #[must_use]
    pub fn child(&self, node: usize, token: u32) -> Option<usize> {
        // Children stand behind their parents.
        (node + 1..self.parents.len()).find(|&child| {
            self.tokens[child - 1] == token && usize::try_from(self.parents[child]) == Ok(node)
        })
    }

    /// Which nodes a node sees: itself and its ancestors. Row and column 0 are the root.
    #[must_use]
    pub fn visibility(&self) -> Vec<Vec<bool>> {
        let mut rows: Vec<Vec<bool>> = Vec::with_capacity(self.parents.len());
        for (node, &parent) in self.parents.iter().enumerate() {
            let mut row = match usize::try_from(parent) {
                Ok(parent) => rows[parent].clone(),
                Err(_) => vec![false; self.parents.len()],
            };
            row[node] = true;
            rows.push(row);
        }
        rows
    }
}
