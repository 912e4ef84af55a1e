//! Plain decoding beside sequences that speculate, to hold every token against it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

use models::{Batch, BatchSegment, LogitsWanted, Model, ModelError, SequenceId};

use crate::choice::Chooser;
use crate::counters::SpeculationCounters;
use crate::sequence::Sequence;

/// A second sequence in the model for each one that runs, fed one token at a time.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    /// By the sequence that they follow.
    sequences: HashMap<SequenceId, Shadow>,
    chooser: Chooser,
}

#[derive(Clone, Copy, Debug)]
struct Shadow {
    id: SequenceId,
    /// Leading tokens fed.
    fed: usize,
}

impl Shadows {
    /// Feeds the shadow what is new of `sequence`, and counts the tokens that it would have chosen otherwise, or
    /// from other logits.
    ///
    /// # Errors
    /// The model could not compute a step.
    pub fn check(
        &mut self,
        model: &mut Model,
        sequence: &mut Sequence,
        counters: &SpeculationCounters,
    ) -> Result<(), ModelError> {
        if sequence.tokens().len() == sequence.prompt_len() {
            // Nothing has been chosen yet.
            return Ok(());
        }
        let mut shadow = match self.sequences.get(&sequence.place.id) {
            Some(shadow) => *shadow,
            None => {
                let id = model.create_sequence()?;
                model.begin_decoding(id, sequence.prompt_len());
                Shadow { id, fed: 0 }
            }
        };
        // Before it is fed: a step that fails must not lose it.
        self.sequences.insert(sequence.place.id, shadow);
        // All but the newest token, which has not been fed to the sequence either.
        while shadow.fed + 1 < sequence.tokens().len() {
            let in_prompt = sequence.prompt_len().saturating_sub(shadow.fed);
            let rows = in_prompt.clamp(1, model.max_batch_rows());
            let known = shadow.fed + rows < sequence.prompt_len();
            let end = shadow.fed + rows;
            let output = model.forward(&Batch {
                segments: vec![BatchSegment {
                    sequence: shadow.id,
                    tokens: sequence.tokens()[shadow.fed..end].to_vec(),
                    parents: Vec::new(),
                    advance: true,
                    logits: if known {
                        LogitsWanted::None
                    } else {
                        LogitsWanted::Last
                    },
                }],
                capture_layers: Vec::new(),
            })?;
            shadow.fed = end;
            self.sequences.insert(sequence.place.id, shadow);
            let chosen = sequence.tokens().get(end).copied();
            if let Some(chosen) = chosen.filter(|_| !known) {
                let plain = sequence.chosen_plainly(end, &output.logits, &mut self.chooser);
                let same_logits = sequence.fingerprint(end) == Some(fingerprint(&output.logits));
                let differs = plain != Some(chosen) || !same_logits;
                if differs {
                    tracing::error!(
                        position = end,
                        chosen,
                        plain,
                        same_logits,
                        "speculation changed a token or its logits; please report this"
                    );
                }
                counters.update(|stats| {
                    stats.checked_tokens += 1;
                    stats.mismatched_tokens += u64::from(differs);
                });
            }
        }
        Ok(())
    }

    /// The sequence has ended.
    pub fn free(&mut self, model: &mut Model, sequence: &Sequence) {
        if let Some(shadow) = self.sequences.remove(&sequence.place.id)
            && let Err(error) = model.free_sequence(shadow.id)
        {
            tracing::error!(%error, "a shadow could not be freed");
        }
    }
}

/// A number that tells two rows of logits apart if a single bit of them differs (but for one chance in 2^64).
pub(crate) fn fingerprint(logits: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for logit in logits {
        hasher.write_u32(logit.to_bits());
    }
    hasher.finish()
}
