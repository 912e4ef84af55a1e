//! Passages of a prompt that its end names: a question repeats the words that stand around the answer.

use std::collections::HashMap;

use crate::select::CHUNK_TOKENS;

/// Tokens at the end of the prompt that are looked up in what stands before them.
const QUERY_TOKENS: usize = 96;
/// Tokens that have to be equal.
const GRAM_TOKENS: usize = 4;

/// How far a passage reaches around what was found, and what is too common to say anything.
struct Reach {
    /// Chunks to either side.
    radius: usize,
    /// Places at most.
    max_hits: usize,
}

impl Reach {
    fn of(num_chunks: usize) -> Self {
        let (radius, max_hits) = match num_chunks {
            ..1024 => (2, 8),
            1024..2048 => (4, 16),
            _ => (8, 32),
        };
        Self { radius, max_hits }
    }
}

/// Chunks with what the end repeats, in order.
pub(crate) struct Anchors {
    /// Where it stands.
    pub hits: Vec<usize>,
    /// Those beside it.
    pub around: Vec<usize>,
}

/// The anchors of a prompt of `num_chunks` chunks.
pub(crate) fn find(tokens: &[u32], num_chunks: usize) -> Anchors {
    let reach = Reach::of(num_chunks);
    let mut is_hit = vec![false; num_chunks];
    for place in places(tokens, reach.max_hits) {
        is_hit[place / CHUNK_TOKENS] = true;
    }
    let near = |chunk: usize| {
        let end = num_chunks.min(chunk + reach.radius + 1);
        is_hit[chunk.saturating_sub(reach.radius)..end].contains(&true)
    };
    let (hits, others): (Vec<usize>, Vec<usize>) =
        (0..num_chunks).partition(|&chunk| is_hit[chunk]);
    let around = others.into_iter().filter(|&chunk| near(chunk)).collect();
    Anchors { hits, around }
}

/// Where the grams of the query begin before it, of those that do so at up to `max_hits` places.
fn places(tokens: &[u32], max_hits: usize) -> Vec<usize> {
    let Some(body_tokens) = tokens.len().checked_sub(QUERY_TOKENS) else {
        return Vec::new();
    };
    let (body, query) = tokens.split_at(body_tokens);
    let grams = query.windows(GRAM_TOKENS).map(|gram| (gram, Vec::new()));
    let mut found: HashMap<&[u32], Vec<usize>> = grams.collect();
    for (place, gram) in body.windows(GRAM_TOKENS).enumerate() {
        if let Some(places) = found.get_mut(gram)
            && places.len() <= max_hits
        {
            places.push(place);
        }
    }
    let rare = found
        .into_values()
        .filter(|places| places.len() <= max_hits);
    rare.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens that differ, with `gram` at `places`, and at the end.
    fn prompt(len: usize, gram: [u32; 4], places: &[usize]) -> Vec<u32> {
        let mut tokens: Vec<u32> = (1000..).take(len).collect();
        for &place in places.iter().chain(&[len - 20]) {
            tokens[place..place + 4].copy_from_slice(&gram);
        }
        tokens
    }

    #[test]
    fn what_the_end_repeats_is_found_with_what_stands_beside_it() {
        let tokens = prompt(1024, [1, 2, 3, 4], &[0, 334]);
        let anchors = find(&tokens, 32);
        assert_eq!(anchors.hits, [0, 10]);
        assert_eq!(anchors.around, [1, 2, 8, 9, 11, 12]);
    }

    #[test]
    fn what_is_too_common_says_nothing() {
        let places = |count: usize| (0..count).map(|at| at * 40).collect::<Vec<_>>();
        let hits = |count| find(&prompt(1024, [7; 4], &places(count)), 32).hits.len();
        assert_eq!(hits(8), 8);
        assert_eq!(hits(9), 0);
    }

    #[test]
    fn a_gram_belongs_to_the_query_or_to_what_stands_before_as_a_whole() {
        let check = |place: usize, expected: &[usize]| {
            let tokens = prompt(200, [1, 2, 3, 4], &[place]);
            assert_eq!(find(&tokens, 7).hits, expected, "{place}");
        };
        check(100, &[3]);
        check(101, &[]);
        check(104, &[]);
        assert!(find(&[5; 99], 4).hits.is_empty());
        assert_eq!(find(&[5; 100], 4).hits, [0]);
    }

    #[test]
    fn longer_prompts_reach_farther() {
        let check = |num_chunks: usize, radius: usize| {
            let at = num_chunks / 2;
            let tokens = prompt(num_chunks * 32, [1, 2, 3, 4], &[at * 32]);
            assert_eq!(find(&tokens, num_chunks).around.len(), 2 * radius);
        };
        check(1023, 2);
        check(1024, 4);
        check(2047, 4);
        check(2048, 8);
    }
}
