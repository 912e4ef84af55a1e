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

/// Tokens of what stands before and after a gram's first token that say what the gram is about.
const BEFORE: usize = 8;
const AFTER: usize = 24;

/// Chunks with what the end repeats.
pub(crate) struct Anchors {
    /// Where it stands, and those beside it, in order.
    pub all: Vec<usize>,
    /// Where it stands with the words around it, the most telling ones first: those with many grams that are found nowhere else.
    pub ranked: Vec<usize>,
}

/// The anchors of a prompt of `num_chunks` chunks.
pub(crate) fn find(tokens: &[u32], num_chunks: usize) -> Anchors {
    let reach = Reach::of(num_chunks);
    let mut is_hit = vec![false; num_chunks];
    let mut weights = vec![0.0; num_chunks];
    for places in places(tokens, reach.max_hits) {
        for &place in &places {
            is_hit[place / CHUNK_TOKENS] = true;
            let last = (place + AFTER - 1).min(tokens.len() - 1);
            let near = place.saturating_sub(BEFORE) / CHUNK_TOKENS..=last / CHUNK_TOKENS;
            // What is found once says most, and the place itself more than the words around it.
            let weight = 0.5 / places.len() as f64;
            weights[place / CHUNK_TOKENS] += weight;
            near.for_each(|chunk| weights[chunk] += weight);
        }
    }
    let near = |chunk: &usize| {
        let end = num_chunks.min(chunk + reach.radius + 1);
        is_hit[chunk.saturating_sub(reach.radius)..end].contains(&true)
    };
    let all: Vec<usize> = (0..num_chunks).filter(near).collect();
    let mut ranked: Vec<usize> = (0..num_chunks)
        .filter(|&chunk| weights[chunk] > 0.0)
        .collect();
    // Stable, so that ties stay in order.
    ranked.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
    Anchors { all, ranked }
}

/// Where each gram of the query begins before it, of those that do so at up to `max_hits` places; in the query's order.
fn places(tokens: &[u32], max_hits: usize) -> Vec<Vec<usize>> {
    let Some(body_tokens) = tokens.len().checked_sub(QUERY_TOKENS) else {
        return Vec::new();
    };
    let (body, query) = tokens.split_at(body_tokens);
    let mut found: Vec<Vec<usize>> = Vec::new();
    let mut numbers: HashMap<&[u32], usize> = HashMap::new();
    for gram in query.windows(GRAM_TOKENS) {
        numbers.entry(gram).or_insert_with(|| {
            found.push(Vec::new());
            found.len() - 1
        });
    }
    for (place, gram) in body.windows(GRAM_TOKENS).enumerate() {
        if let Some(&number) = numbers.get(gram)
            && found[number].len() <= max_hits
        {
            found[number].push(place);
        }
    }
    found.retain(|places| places.len() <= max_hits);
    found
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
        assert_eq!(anchors.all, [0, 1, 2, 8, 9, 10, 11, 12]);
        // The gram at 334 stands in the words of two chunks.
        assert_eq!(anchors.ranked, [0, 10, 11]);
    }

    #[test]
    fn what_is_too_common_says_nothing() {
        let places = |count: usize| (0..count).map(|at| at * 40).collect::<Vec<_>>();
        let anchors = |count| find(&prompt(1024, [7; 4], &places(count)), 32);
        assert!(anchors(8).ranked.len() >= 8);
        assert!(anchors(9).ranked.is_empty() && anchors(9).all.is_empty());
    }

    #[test]
    fn a_gram_belongs_to_the_query_or_to_what_stands_before_as_a_whole() {
        let check = |place: usize, expected: &[usize]| {
            let tokens = prompt(200, [1, 2, 3, 4], &[place]);
            assert_eq!(find(&tokens, 7).ranked, expected, "{place}");
        };
        check(100, &[3, 2]);
        check(101, &[]);
        check(104, &[]);
        assert!(find(&[5; 99], 4).all.is_empty());
        assert_eq!(find(&[5; 100], 4).ranked, [0]);
    }

    #[test]
    fn what_stands_in_one_place_tells_more_than_what_stands_in_some() {
        // The end repeats one gram that is at three places, and six in a row that are at one.
        let mut tokens = prompt(1024, [1, 2, 3, 4], &[40, 200, 400]);
        let passage: Vec<u32> = (5000..5009).collect();
        for place in [610, 980] {
            tokens[place..place + 9].copy_from_slice(&passage);
        }
        let anchors = find(&tokens, 32);
        assert_eq!(anchors.ranked[..2], [19, 18]);
    }

    #[test]
    fn longer_prompts_reach_farther() {
        let check = |num_chunks: usize, radius: usize| {
            let at = num_chunks / 2;
            let tokens = prompt(num_chunks * 32, [1, 2, 3, 4], &[at * 32]);
            assert_eq!(find(&tokens, num_chunks).all.len(), 2 * radius + 1);
        };
        check(1023, 2);
        check(1024, 4);
        check(2047, 4);
        check(2048, 8);
    }
}
