//! Stop strings in a stream of text.

/// What one push gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStep {
    /// Text that may be passed on.
    pub emit: String,
    /// A stop string was found; nothing more will be emitted.
    pub stopped: bool,
}

/// Finds the first stop string to be completed in a text that arrives in chunks (of several completed by
/// the same character, the longest). The result does not depend on the chunking.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    include_stop: bool,
    held: String,
    /// The stop string that was found, by its place in the list.
    found: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops` (empty strings are ignored); `include_stop` emits the stop string itself.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>, include_stop: bool) -> Self {
        let stops = stops
            .into_iter()
            .map(Into::into)
            .filter(|s: &String| !s.is_empty())
            .collect();
        Self {
            stops,
            include_stop,
            held: String::new(),
            found: None,
        }
    }

    /// Takes `chunk` and gives the text that can no longer be part of a stop string.
    pub fn push(&mut self, chunk: &str) -> StopStep {
        if self.stopped() {
            return StopStep {
                emit: String::new(),
                stopped: true,
            };
        }
        self.held.push_str(chunk);
        let first = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| {
                self.held
                    .find(stop.as_str())
                    .map(|at| (at + stop.len(), at, index))
            })
            .min();
        if let Some((end, start, index)) = first {
            self.held
                .truncate(if self.include_stop { end } else { start });
            self.found = Some(index);
            return StopStep {
                emit: std::mem::take(&mut self.held),
                stopped: true,
            };
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopStep {
            emit: std::mem::replace(&mut self.held, rest),
            stopped: false,
        }
    }

    /// Ends the text: what was held back and turned out to be no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Whether a stop string was found.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.found.is_some()
    }

    /// The stop string that was found.
    #[must_use]
    pub fn found(&self) -> Option<&str> {
        self.found.map(|index| self.stops[index].as_str())
    }
}

/// Length of the longest proper prefix of `stop` that ends `text`.
fn overlap(text: &str, stop: &str) -> usize {
    let mut prefixes = stop.char_indices().map(|(at, _)| at).rev();
    prefixes
        .find(|&at| text.ends_with(&stop[..at]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: grow the text character by character until some stop string ends it.
    fn naive(text: &str, stops: &[&str], include: bool) -> (String, Option<String>) {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        for end in ends {
            let hits = stops
                .iter()
                .filter(|s| !s.is_empty() && text[..end].ends_with(**s));
            if let Some(hit) = hits.max_by_key(|s| s.len()) {
                let kept = if include { end } else { end - hit.len() };
                return (text[..kept].to_owned(), Some((*hit).to_owned()));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn equals_naive_search_over_all_chunkings() {
        let alphabet = ['a', 'b', 'é'];
        let mut state = 3u64;
        let mut next = |n: usize| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        for round in 0..1500 {
            let mut word = |max: usize| -> Vec<char> {
                (0..next(max + 1)).map(|_| alphabet[next(3)]).collect()
            };
            let text = word(9);
            let stops: Vec<String> = (0..round % 4)
                .map(|_| word(4).into_iter().collect())
                .collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let whole: String = text.iter().collect();
            for include in [false, true] {
                let want = naive(&whole, &stops, include);
                for cuts in 0..1u32 << text.len().saturating_sub(1) {
                    let mut matcher = StopMatcher::new(stops.iter().copied(), include);
                    let (mut got, mut chunk, mut fed) =
                        (String::new(), String::new(), String::new());
                    for (i, &c) in text.iter().enumerate() {
                        chunk.push(c);
                        if i + 1 < text.len() && cuts >> i & 1 == 0 {
                            continue;
                        }
                        fed.push_str(&chunk);
                        got.push_str(&matcher.push(&std::mem::take(&mut chunk)).emit);
                        if !matcher.stopped() {
                            // Held back only what can still become a stop string.
                            let held = &fed[got.len()..];
                            assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(held)));
                        }
                    }
                    got.push_str(&matcher.finish());
                    assert_eq!(
                        (got, matcher.found().map(str::to_owned)),
                        want,
                        "{whole:?} {stops:?} {cuts:b}"
                    );
                }
            }
        }
    }

    #[test]
    fn cuts_the_match_and_all_after_it() {
        let mut matcher = StopMatcher::new(["", "END"], false);
        assert_eq!(
            matcher.push("one E"),
            StopStep {
                emit: "one ".into(),
                stopped: false
            }
        );
        assert_eq!(
            matcher.push("Nx E"),
            StopStep {
                emit: "ENx ".into(),
                stopped: false
            }
        );
        assert_eq!(
            matcher.push("ND two"),
            StopStep {
                emit: String::new(),
                stopped: true
            }
        );
        assert_eq!(
            matcher.push("three"),
            StopStep {
                emit: String::new(),
                stopped: true
            }
        );
        assert_eq!(matcher.finish(), "");
        let mut matcher = StopMatcher::new(["END"], true);
        assert_eq!(matcher.push("one EN").emit, "one ");
        assert_eq!(matcher.push("D two").emit, "END");
        let mut matcher = StopMatcher::new(["END"], false);
        assert_eq!(matcher.push("one EN").emit, "one ");
        assert_eq!(matcher.finish(), "EN");
    }
}
