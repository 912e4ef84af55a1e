//! A set of tokens, and what it does to a row of logits.

use llguidance::toktrie::SimpleVob;

/// Tokens of a word of the set.
const WORD: usize = u32::BITS as usize;

/// The tokens that may come next.
#[derive(Clone, Debug)]
pub struct Allowed(pub(crate) SimpleVob);

impl Allowed {
    /// Whether `token` is one of them.
    #[must_use]
    pub fn contains(&self, token: u32) -> bool {
        (token as usize) < self.0.len() && self.0.is_allowed(token)
    }

    /// How many there are.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.0.num_set()
    }

    /// Copies `logits` (\[vocab\]) to `masked`, with those of all other tokens made impossible.
    pub fn mask(&self, logits: &[f32], masked: &mut Vec<f32>) {
        masked.clear();
        masked.reserve(logits.len());
        let words = self.0.as_slice().iter().chain(std::iter::repeat(&0));
        for (logits, &word) in logits.chunks(WORD).zip(words) {
            match word {
                u32::MAX => masked.extend_from_slice(logits),
                0 => masked.resize(masked.len() + logits.len(), f32::NEG_INFINITY),
                _ => masked.extend(logits.iter().enumerate().map(|(bit, &logit)| {
                    let is_allowed = word & (1 << bit) != 0;
                    if is_allowed { logit } else { f32::NEG_INFINITY }
                })),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_leaves_the_logits_of_allowed_tokens_and_no_others() {
        let vocab = 1000;
        let mut random = fastrand::Rng::with_seed(1);
        for share in [0.0, 0.01, 0.5, 0.99, 1.0] {
            let mut set = SimpleVob::alloc(vocab);
            let chosen: Vec<bool> = (0..vocab).map(|_| random.f64() < share).collect();
            for (token, _) in chosen.iter().enumerate().filter(|(_, is_in)| **is_in) {
                set.allow_token(token as u32);
            }
            let allowed = Allowed(set);
            // A row longer than the set, as where a model has more rows than tokens.
            let logits: Vec<f32> = (0..vocab + 50).map(|_| random.f32()).collect();
            let mut masked = vec![7.0];
            allowed.mask(&logits, &mut masked);
            assert_eq!(masked.len(), logits.len());
            for (token, (&logit, &left)) in logits.iter().zip(&masked).enumerate() {
                let is_in = chosen.get(token) == Some(&true);
                assert_eq!(allowed.contains(token as u32), is_in);
                assert_eq!(left, if is_in { logit } else { f32::NEG_INFINITY });
            }
            assert_eq!(allowed.num_tokens(), chosen.iter().filter(|c| **c).count());
        }
    }
}
