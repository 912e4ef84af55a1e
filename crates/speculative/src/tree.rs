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

/// Tokens of a position tried for a node, of which none may follow, before it has no more children.
pub const MAX_TRIES: usize = 16;

/// Where in a tree a node may stand, and from which rank of its position on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    depth: usize,
    rank: usize,
    parent: usize,
    parent_log_prob: f64,
    /// Probability of the tokens of lower ranks that may not come.
    refused: f64,
}

impl Place {
    fn first(depth: usize, parent: usize, parent_log_prob: f64) -> Self {
        Self {
            depth,
            rank: 0,
            parent,
            parent_log_prob,
            refused: 0.0,
        }
    }
}

/// A node that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    log_prob: f64,
    place: Place,
    token: u32,
}

impl Candidate {
    /// The likeliest node for a place.
    fn find(
        tree: &DraftTree,
        proposal: &Proposal,
        mut place: Place,
        may_follow: &mut impl FnMut(&DraftTree, usize, u32) -> bool,
    ) -> Option<Self> {
        for _ in 0..MAX_TRIES {
            let (token, log_prob) = proposal.entry(place.depth, place.rank)?;
            if may_follow(tree, place.parent, token) {
                let log_prob = if place.refused > 0.0 {
                    // Of what is left when the others are gone; rounding must not make it likelier than certain.
                    (log_prob - (1.0 - place.refused).max(f64::MIN_POSITIVE).ln()).min(0.0)
                } else {
                    log_prob
                };
                return Some(Self {
                    log_prob: place.parent_log_prob + log_prob,
                    place,
                    token,
                });
            }
            place.refused += log_prob.exp();
            place.rank += 1;
        }
        None
    }

    /// Where the next likeliest token of its position may stand.
    fn sibling(&self) -> Place {
        Place {
            rank: self.place.rank + 1,
            ..self.place
        }
    }
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let later = |candidate: &Self| {
            let Place {
                depth,
                parent,
                rank,
                ..
            } = candidate.place;
            (depth, parent, rank)
        };
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
        Self::grow_where(proposal, options, |_, _, _| true)
    }

    /// As [`DraftTree::grow`], of the tokens only for which `may_follow(tree, parent, token)` says that they may stand behind the
    /// node `parent` of the tree so far. What may not come makes the rest likelier.
    #[must_use]
    pub fn grow_where(
        proposal: &Proposal,
        options: TreeOptions,
        mut may_follow: impl FnMut(&Self, usize, u32) -> bool,
    ) -> Self {
        let mut tree = Self::root();
        let mut heap = BinaryHeap::new();
        let mut candidate =
            |tree: &Self, place| Candidate::find(tree, proposal, place, &mut may_follow);
        if options.chain_seed {
            for depth in 1..=proposal.depth().min(options.budget) {
                let (parent, log_prob) = (tree.num_nodes(), tree.last_log_prob());
                let Some(node) = candidate(&tree, Place::first(depth, parent, log_prob)) else {
                    break;
                };
                tree.push(&node);
                heap.extend(candidate(&tree, node.sibling()));
            }
            let (parent, log_prob) = (tree.num_nodes(), tree.last_log_prob());
            heap.extend(candidate(&tree, Place::first(parent + 1, parent, log_prob)));
        } else {
            heap.extend(candidate(&tree, Place::first(1, 0, 0.0)));
        }
        while tree.num_nodes() < options.budget {
            let Some(best) = heap.pop() else { break };
            tree.push(&best);
            heap.extend(candidate(&tree, best.sibling()));
            let child = Place::first(best.place.depth + 1, tree.num_nodes(), best.log_prob);
            heap.extend(candidate(&tree, child));
        }
        tree
    }

    /// The likeliest token of each position: a block drafted as DFlash itself does.
    #[must_use]
    pub fn chain(proposal: &Proposal) -> Self {
        Self::chain_where(proposal, proposal.depth(), |_, _, _| true)
    }

    /// As [`DraftTree::chain`], with `max_nodes` nodes at most, of the tokens only for which `may_follow` says that they may
    /// follow the chain so far.
    #[must_use]
    pub fn chain_where(
        proposal: &Proposal,
        max_nodes: usize,
        mut may_follow: impl FnMut(&Self, usize, u32) -> bool,
    ) -> Self {
        let mut chain = Self::root();
        while chain.num_nodes() < max_nodes {
            let (parent, log_prob) = (chain.num_nodes(), chain.last_log_prob());
            let place = Place::first(parent + 1, parent, log_prob);
            let Some(node) = Candidate::find(&chain, proposal, place, &mut may_follow) else {
                break;
            };
            chain.push(&node);
        }
        chain
    }

    fn root() -> Self {
        Self {
            parents: vec![-1],
            ..Self::default()
        }
    }

    fn push(&mut self, node: &Candidate) {
        self.tokens.push(node.token);
        self.depths.push(node.place.depth);
        self.log_probs.push(node.log_prob);
        // A budget fits an i32: the batch that verifies a tree counts its rows so.
        self.parents
            .push(i32::try_from(node.place.parent).unwrap_or(-1));
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

    /// The tokens on the way from the root to `node`, that of `node` last.
    #[must_use]
    pub fn path(&self, mut node: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        while node > 0 {
            tokens.push(self.tokens[node - 1]);
            node = usize::try_from(self.parents[node]).unwrap_or(0);
        }
        tokens.reverse();
        tokens
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
