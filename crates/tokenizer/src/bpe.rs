//! Byte pair merging of one piece.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::error::TokenizerError;
use vocabulary::alphabet;

/// End of the linked list.
const NIL: usize = usize::MAX;

/// Merge rules over interned symbols. Symbols below the vocabulary's size are token ids; the others are
/// spellings that merges or bytes need but that are no tokens.
#[derive(Debug)]
pub(crate) struct Bpe {
    vocab: usize,
    /// Rank and result by left and right symbol.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// The symbol of every byte.
    bytes: [u32; 256],
}

/// A symbol of the piece being merged; dead ones have length 0.
#[derive(Clone, Copy)]
struct Node {
    symbol: u32,
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
}

/// A possible merge: rank, left node, and the symbols it was found for.
type Candidate = Reverse<(u32, usize, u32, u32)>;

impl Bpe {
    /// Interns `merges` against the token ids in `ids`.
    pub(crate) fn new(
        vocab: usize,
        ids: &HashMap<&str, u32>,
        merges: &[String],
    ) -> Result<Self, TokenizerError> {
        let mut extra: HashMap<String, u32> = HashMap::new();
        let mut intern = |text: &str| -> u32 {
            if let Some(&id) = ids.get(text).or_else(|| extra.get(text)) {
                return id;
            }
            let symbol = (vocab + extra.len()) as u32;
            extra.insert(text.to_owned(), symbol);
            symbol
        };
        let mut bytes = [0; 256];
        for (byte, symbol) in (0..=255u8).zip(bytes.iter_mut()) {
            *symbol = intern(alphabet::byte_to_char(byte).encode_utf8(&mut [0; 4]));
        }
        let mut table = HashMap::with_capacity(merges.len());
        for (index, merge) in merges.iter().enumerate() {
            let Some((left, right)) = merge
                .split_once(' ')
                .filter(|(l, r)| !l.is_empty() && !r.is_empty())
            else {
                return Err(TokenizerError::MalformedMerge {
                    index,
                    merge: merge.clone(),
                });
            };
            let pair = (intern(left), intern(right));
            let result = intern(&format!("{left}{right}"));
            table.entry(pair).or_insert((index as u32, result));
        }
        Ok(Self {
            vocab,
            merges: table,
            bytes,
        })
    }

    /// Appends the ids of `piece` to `out`. A symbol that is no token falls back to its bytes; bytes
    /// without a token are dropped.
    pub(crate) fn encode(&self, piece: &[u8], out: &mut Vec<u32>) {
        let mut nodes: Vec<Node> = piece
            .iter()
            .enumerate()
            .map(|(i, &byte)| Node {
                symbol: self.bytes[usize::from(byte)],
                start: i,
                len: 1,
                prev: i.checked_sub(1).unwrap_or(NIL),
                next: if i + 1 < piece.len() { i + 1 } else { NIL },
            })
            .collect();
        let mut heap: BinaryHeap<Candidate> = BinaryHeap::new();
        for left in 0..nodes.len() {
            self.propose(&nodes, left, &mut heap);
        }
        while let Some(Reverse((_, left, a, b))) = heap.pop() {
            let node = nodes[left];
            if node.len == 0 || node.symbol != a || node.next == NIL {
                continue;
            }
            let right = nodes[node.next];
            let Some(&(_, result)) = self.merges.get(&(a, b)).filter(|_| right.symbol == b) else {
                continue;
            };
            nodes[node.next].len = 0;
            nodes[left] = Node {
                symbol: result,
                len: node.len + right.len,
                next: right.next,
                ..node
            };
            if right.next != NIL {
                nodes[right.next].prev = left;
            }
            if node.prev != NIL {
                self.propose(&nodes, node.prev, &mut heap);
            }
            self.propose(&nodes, left, &mut heap);
        }
        for node in nodes.iter().filter(|node| node.len > 0) {
            if self.is_token(node.symbol) {
                out.push(node.symbol);
            } else {
                let bytes = &piece[node.start..node.start + node.len];
                let symbols = bytes.iter().map(|&byte| self.bytes[usize::from(byte)]);
                out.extend(symbols.filter(|&symbol| self.is_token(symbol)));
            }
        }
    }

    fn is_token(&self, symbol: u32) -> bool {
        (symbol as usize) < self.vocab
    }

    /// Queues the merge of `left` with its right neighbour, if there is a rule for it.
    fn propose(&self, nodes: &[Node], left: usize, heap: &mut BinaryHeap<Candidate>) {
        let node = nodes[left];
        if node.next == NIL {
            return;
        }
        let (a, b) = (node.symbol, nodes[node.next].symbol);
        if let Some(&(rank, _)) = self.merges.get(&(a, b)) {
            heap.push(Reverse((rank, left, a, b)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bpe(tokens: &[&str], merges: &[&str]) -> Bpe {
        let ids = tokens.iter().zip(0..).map(|(t, i)| (*t, i)).collect();
        let merges: Vec<String> = merges.iter().map(|m| (*m).to_owned()).collect();
        Bpe::new(tokens.len(), &ids, &merges).unwrap()
    }

    fn run(bpe: &Bpe, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        bpe.encode(text.as_bytes(), &mut out);
        out
    }

    /// The definition, step by step.
    fn naive(bpe: &Bpe, text: &[u8]) -> Vec<u32> {
        let mut parts: Vec<u32> = text.iter().map(|&b| bpe.bytes[usize::from(b)]).collect();
        loop {
            let best = parts
                .windows(2)
                .enumerate()
                .filter_map(|(i, w)| bpe.merges.get(&(w[0], w[1])).map(|m| (m.0, i, m.1)))
                .min();
            let Some((_, i, result)) = best else {
                return parts;
            };
            parts.splice(i..i + 2, [result]);
        }
    }

    #[test]
    fn merges_lowest_rank_then_leftmost() {
        let b = bpe(&["a", "b", "aa", "ab", "aab"], &["a b", "a a", "a ab"]);
        assert_eq!(run(&b, "aab"), [4]);
        assert_eq!(run(&b, "aaa"), [2, 0]);
        assert_eq!(run(&b, "aaaab"), [2, 4]);
        assert_eq!(run(&b, ""), [] as [u32; 0]);
    }

    #[test]
    fn agrees_with_the_definition() {
        let b = bpe(
            &[
                "a", "b", "c", "ab", "bc", "abc", "aa", "aaaa", "ca", "cab", "bb",
            ],
            &[
                "b c", "a a", "a b", "ab c", "c a", "aa aa", "c ab", "b b", "a bc",
            ],
        );
        let mut state = 7u64;
        for _ in 0..2000 {
            let text: Vec<u8> = (0..(state >> 60))
                .map(|_| {
                    state = state
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    b"abc"[(state >> 40) as usize % 3]
                })
                .collect();
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            let mut out = Vec::new();
            b.encode(&text, &mut out);
            assert_eq!(out, naive(&b, &text), "{text:?}");
        }
    }

    #[test]
    fn falls_back_to_bytes() {
        // "ab" is a merge result without a token; "z" has no token at all.
        let b = bpe(&["a", "b"], &["a b"]);
        assert_eq!(run(&b, "zabz"), [0, 1]);
    }

    #[test]
    fn long_piece_is_not_quadratic() {
        let b = bpe(&["a", "aa", "aaaa"], &["a a", "aa aa"]);
        assert_eq!(run(&b, &"a".repeat(400_000)), vec![2; 100_000]);
    }

    #[test]
    fn malformed_merges_are_refused() {
        for bad in ["ab", " a", "a ", ""] {
            let result = Bpe::new(0, &HashMap::new(), &["a b".to_owned(), bad.to_owned()]);
            assert!(
                matches!(result, Err(TokenizerError::MalformedMerge { index: 1, .. })),
                "{bad}"
            );
        }
    }
}
