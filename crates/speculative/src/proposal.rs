//! What a draft proposes.

/// The most likely tokens of each position after the anchor, independent of each other: what one draft block says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// Tokens per position, K.
    pub top_k: usize,
    /// \[depth, K\], the likeliest first.
    pub ids: Vec<u32>,
    /// \[depth, K\]: log-probabilities over the whole vocabulary.
    pub log_probs: Vec<f32>,
}

impl Proposal {
    /// Reads a proposal off `logits` (\[depth, vocab_size\]), with at most `top_k` tokens per position; of equal logits
    /// the lower id comes first.
    ///
    /// # Panics
    /// `logits` are not whole rows.
    #[must_use]
    pub fn from_logits(logits: &[f32], vocab_size: usize, top_k: usize) -> Self {
        assert!(
            vocab_size > 0 && logits.len().is_multiple_of(vocab_size),
            "logits come in rows of the vocabulary"
        );
        let top_k = top_k.min(vocab_size);
        let mut proposal = Self {
            top_k,
            ..Self::default()
        };
        for row in logits.chunks_exact(vocab_size) {
            let mut ids: Vec<u32> = (0..).take(row.len()).collect();
            let logit = |id: &u32| row[*id as usize];
            ids.sort_by(|a, b| logit(b).total_cmp(&logit(a)).then(a.cmp(b)));
            ids.truncate(top_k);
            let max = f64::from(logit(&ids[0]));
            let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
            let log_sum = max + sum.ln();
            let log_probs = ids.iter().map(|id| (f64::from(logit(id)) - log_sum) as f32);
            proposal.log_probs.extend(log_probs);
            proposal.ids.extend(ids);
        }
        proposal
    }

    /// Positions after the anchor.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.ids.len().checked_div(self.top_k).unwrap_or(0)
    }

    /// Token of rank `rank` (0 is the likeliest) at `depth` (1 follows the anchor) and its log-probability, where it
    /// is possible at all.
    pub(crate) fn entry(&self, depth: usize, rank: usize) -> Option<(u32, f64)> {
        if rank >= self.top_k {
            return None;
        }
        let place = depth.checked_sub(1)? * self.top_k + rank;
        let log_prob = f64::from(*self.log_probs.get(place)?);
        (log_prob > f64::NEG_INFINITY).then_some((*self.ids.get(place)?, log_prob))
    }
}

#[cfg(test)]
mod tests {
    use super::Proposal;

    #[test]
    fn equal_logits_come_in_order_of_their_ids() {
        let proposal = Proposal::from_logits(&[1.0, 3.0, 3.0, 0.0], 4, 3);
        assert_eq!(proposal.ids, [1, 2, 0]);
        assert_eq!(proposal.depth(), 1);
        let total: f32 = proposal.log_probs.iter().map(|p| p.exp()).sum();
        assert!(
            (total - (1.0 - (0.0_f32).exp() / (1.0_f32.exp() + 2.0 * 3.0_f32.exp() + 1.0))).abs()
                < 1e-6
        );
    }

    #[test]
    fn there_are_no_more_tokens_than_the_vocabulary_has() {
        let proposal = Proposal::from_logits(&[0.0; 6], 3, 100);
        assert_eq!((proposal.top_k, proposal.depth()), (3, 2));
        assert_eq!(Proposal::default().depth(), 0);
    }
}
