//! From the importance of tokens to spans that are kept.

use std::ops::Range;

use crate::anchors::{self, Anchors};
use crate::protection::Protection;

/// Tokens of a chunk; the last one may have fewer.
pub const CHUNK_TOKENS: usize = 32;
/// Shorter prompts are kept as they are.
pub const MIN_TOKENS: usize = 9;
/// Chunks kept at the start of a prompt.
const HEAD_CHUNKS: usize = 8;
/// Chunks kept at its end, where the question stands.
const TAIL_CHUNKS: usize = 24;

/// How much of a prompt is kept, and what in any case.
#[derive(Clone, Copy, Debug)]
pub struct SelectOptions<'a> {
    /// Share of the chunks to keep, above 0 and up to 1. Chunks that are protected as a whole are not counted: what the
    /// caller protects does not use up what is left for the rest.
    pub keep_ratio: f64,
    /// Kept token by token, in any order.
    pub protected: &'a [Range<usize>],
    /// No more chunks are kept than the budget says: head and tail have half of it, the most telling anchors half of the
    /// rest. Otherwise head and tail have all but one chunk of a small budget, and anchors come on top of it.
    pub within_budget: bool,
}

/// What is kept of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Chunks kept as a whole, in order.
    pub chunks: Vec<usize>,
    /// Positions kept, of chunks and what is protected: in order, with a gap between any two.
    pub spans: Vec<Range<usize>>,
}

impl Selection {
    fn all(num_tokens: usize) -> Self {
        Self {
            chunks: (0..num_tokens.div_ceil(CHUNK_TOKENS)).collect(),
            spans: Some(0..num_tokens)
                .filter(|all| !all.is_empty())
                .into_iter()
                .collect(),
        }
    }
}

/// Mean importance of each chunk.
#[must_use]
pub fn chunk_scores(importance: &[f32]) -> Vec<f32> {
    let chunks = importance.chunks(CHUNK_TOKENS);
    chunks.map(|chunk| mean(chunk.iter().copied())).collect()
}

/// What to keep of `tokens`. `importance` has a value for each; for fewer than [`MIN_TOKENS`] it is not looked at.
///
/// # Panics
/// `importance` has another length.
#[must_use]
pub fn select(tokens: &[u32], importance: &[f32], options: &SelectOptions<'_>) -> Selection {
    if tokens.len() < MIN_TOKENS {
        return Selection::all(tokens.len());
    }
    assert_eq!(importance.len(), tokens.len(), "one value per token");
    let protection = Protection::new(options.protected, tokens.len());
    let num_chunks = tokens.len().div_ceil(CHUNK_TOKENS);
    let mut choice = Choice {
        is_kept: (0..num_chunks)
            .map(|chunk| protection.has_all(chunk_range(chunk, tokens.len())))
            .collect(),
        values: values(importance, &protection),
        left: 0,
    };
    let num_open = choice.is_kept.iter().filter(|&&is_kept| !is_kept).count();
    // Truncation is the floor that is meant, and neither is negative.
    choice.left = ((num_open as f64 * options.keep_ratio) as usize).max(1);
    let (head, tail) = match options.within_budget {
        true => head_and_tail(choice.left / 2 + 1),
        false => head_and_tail(choice.left),
    };
    (0..head).for_each(|chunk| choice.keep(chunk));
    (num_chunks - tail..num_chunks).for_each(|chunk| choice.keep(chunk));
    let Anchors { all, ranked } = anchors::find(tokens, num_chunks);
    if options.within_budget {
        choice.keep_first(&ranked, choice.left.div_ceil(2));
    } else {
        all.into_iter().for_each(|chunk| choice.keep(chunk));
    }
    choice.keep_best((0..num_chunks).collect());
    selection(&choice.is_kept, &protection, tokens.len())
}

/// The chunks kept at both ends where `budget` are kept: never all.
fn head_and_tail(budget: usize) -> (usize, usize) {
    if HEAD_CHUNKS + TAIL_CHUNKS < budget {
        return (HEAD_CHUNKS, TAIL_CHUNKS);
    }
    let both = (budget - 1).max(1);
    let head = HEAD_CHUNKS * both / (HEAD_CHUNKS + TAIL_CHUNKS);
    (head, both - head)
}

/// A selection that grows.
struct Choice {
    is_kept: Vec<bool>,
    values: Vec<f32>,
    /// Chunks that the budget has left; what is kept beyond it leaves none.
    left: usize,
}

impl Choice {
    fn keep(&mut self, chunk: usize) {
        if !std::mem::replace(&mut self.is_kept[chunk], true) {
            self.left = self.left.saturating_sub(1);
        }
    }

    /// The first of `chunks` that are not kept yet, at most `most`.
    fn keep_first(&mut self, chunks: &[usize], most: usize) {
        let news: Vec<usize> = chunks
            .iter()
            .copied()
            .filter(|&chunk| !self.is_kept[chunk])
            .take(most.min(self.left))
            .collect();
        news.into_iter().for_each(|chunk| self.keep(chunk));
    }

    /// The best of `chunks`, up to the budget; of equal ones the first.
    fn keep_best(&mut self, mut chunks: Vec<usize>) {
        chunks.retain(|&chunk| !self.is_kept[chunk]);
        // Stable, so that ties stay in order.
        chunks.sort_by(|&a, &b| self.values[b].total_cmp(&self.values[a]));
        chunks.truncate(self.left);
        chunks.into_iter().for_each(|chunk| self.keep(chunk));
    }
}

/// What keeping a chunk is worth: the mean importance of those of its tokens that are not kept anyway.
fn values(importance: &[f32], protection: &Protection) -> Vec<f32> {
    let chunks = importance.chunks(CHUNK_TOKENS).enumerate();
    chunks
        .map(|(chunk, values)| {
            let first = chunk * CHUNK_TOKENS;
            let values = values.iter().enumerate();
            mean(values.filter_map(|(at, &value)| (!protection.has(first + at)).then_some(value)))
        })
        .collect()
}

/// 0 for none.
fn mean(values: impl Iterator<Item = f32>) -> f32 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| {
        (sum + f64::from(value), count + 1)
    });
    (sum / f64::from(count.max(1))) as f32
}

fn chunk_range(chunk: usize, num_tokens: usize) -> Range<usize> {
    chunk * CHUNK_TOKENS..num_tokens.min((chunk + 1) * CHUNK_TOKENS)
}

fn selection(is_kept: &[bool], protection: &Protection, num_tokens: usize) -> Selection {
    let mut spans: Vec<Range<usize>> = Vec::new();
    for token in
        (0..num_tokens).filter(|&token| is_kept[token / CHUNK_TOKENS] || protection.has(token))
    {
        match spans.last_mut() {
            Some(last) if last.end == token => last.end += 1,
            _ => spans.push(token..token + 1),
        }
    }
    Selection {
        chunks: (0..is_kept.len()).filter(|&chunk| is_kept[chunk]).collect(),
        spans,
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of one span")]
mod tests;
