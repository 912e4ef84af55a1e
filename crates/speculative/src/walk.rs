//! Which part of a draft the target agrees with.

use crate::tree::DraftTree;

/// Follows the tokens that the target chooses through the tree. `choose(node)` gives the target's own token after
/// `node`, given everything on the way there, or `None` where the answer has ended; it is called for the nodes of the
/// path only, in order, so that randomness and penalties are those of plain decoding.
///
/// The path begins with the root; the token chosen last is not in the tree (or ended the answer): the bonus token.
pub fn accepted_path(tree: &DraftTree, mut choose: impl FnMut(usize) -> Option<u32>) -> Vec<usize> {
    let mut path = vec![0];
    let mut node = 0;
    while let Some(token) = choose(node) {
        let Some(child) = tree.child(node, token) else {
            break;
        };
        path.push(child);
        node = child;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::accepted_path;
    use crate::{DraftTree, Proposal, TreeOptions};

    /// Two positions with two tokens each: 1 or 2, then 3 or 4.
    fn tree() -> DraftTree {
        let proposal = Proposal {
            top_k: 2,
            ids: vec![1, 2, 3, 4],
            log_probs: vec![-0.5, -1.0, -0.4, -1.2],
        };
        let options = TreeOptions {
            budget: 6,
            chain_seed: false,
        };
        DraftTree::grow(&proposal, options)
    }

    fn tokens_on(path: &[usize]) -> Vec<u32> {
        path[1..]
            .iter()
            .map(|node| tree().tokens()[node - 1])
            .collect()
    }

    #[test]
    fn the_path_is_as_long_as_the_target_agrees() {
        for (chosen, expected) in [
            (vec![1, 3, 9], vec![1, 3]),
            (vec![2, 4, 1], vec![2, 4]),
            (vec![2, 5], vec![2]),
            (vec![7], vec![]),
        ] {
            let mut tokens = chosen.iter();
            let path = accepted_path(&tree(), |_| tokens.next().copied());
            assert_eq!(tokens_on(&path), expected, "{chosen:?}");
            assert_eq!(tokens.len(), 0, "one token is drawn per node of the path");
        }
    }

    #[test]
    fn an_answer_that_ends_ends_the_path() {
        let mut asked = Vec::new();
        let path = accepted_path(&tree(), |node| {
            asked.push(node);
            (asked.len() < 2).then_some(1)
        });
        assert_eq!(tokens_on(&path), [1]);
        assert_eq!(asked, path);
    }
}
