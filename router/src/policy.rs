//! What holds for the model that is served: from the configuration, its card, its family, and its vocabulary.

use anyhow::{Context as _, Result};
use gguf::Metadata;
use sampling::SamplingParams;
use tokenizer::Tokenizer;
use tracing::{info, warn};

use crate::card::{Card, CardSampling, file_name};
use crate::config::{AnswerDefaults, RouterConfig};
use crate::thinking::{Marks, ThinkingRules};

/// What holds for the model that is served.
#[derive(Debug)]
pub(crate) struct Policy {
    pub card: Option<Card>,
    pub rules: ThinkingRules,
    /// How tokens are chosen where a request says nothing.
    pub sampling: SamplingParams,
    /// `None`: the vocabulary has no token that closes reasoning, so that none can be bounded.
    pub marks: Option<Marks>,
}

impl Policy {
    /// `file_stem` names a model that does not name itself.
    pub fn new(
        config: &RouterConfig,
        model: &Metadata,
        file_stem: &str,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let own_name = model.str("general.name")?.filter(|name| !name.is_empty());
        let name = own_name.unwrap_or(file_stem);
        let card = Card::find(name, config.model_cards.as_deref())?;
        let architecture = model.str("general.architecture")?;
        let rules = ThinkingRules::new(&config.lengths, card.as_ref(), architecture);
        let of_card = card.as_ref().map(|card| &card.sampling);
        let sampling = sampling(&config.defaults, of_card);
        sampling.validate().context("router.defaults")?;
        let hint = card.as_ref();
        let hint = hint.and_then(|card| card.thinking_terminator_hint.as_deref());
        let policy = Self {
            marks: Marks::new(tokenizer, hint),
            card,
            rules,
            sampling,
        };
        policy.tell(name);
        Ok(policy)
    }

    fn tell(&self, name: &str) {
        let rules = &self.rules;
        let (default_max_tokens, think_max_tokens, reply_budget) = (
            rules.default_max_tokens,
            rules.think_max_tokens,
            rules.reply_budget,
        );
        let source = rules.source.name();
        match &self.card {
            Some(card) => info!(
                card = card.name,
                default_max_tokens, think_max_tokens, reply_budget, "a model card"
            ),
            None => info!(
                model = name,
                looked_for = file_name(name),
                source,
                default_max_tokens,
                think_max_tokens,
                reply_budget,
                temperature = self.sampling.temperature,
                "no model card; these values hold"
            ),
        }
        if self.marks.is_none() {
            warn!("the vocabulary has no </think>: budgets for reasoning cannot be kept");
        }
    }
}

/// The configuration's word, then the card's, then greedy decoding.
fn sampling(said: &AnswerDefaults, card: Option<&CardSampling>) -> SamplingParams {
    let fixed = SamplingParams::default();
    let nothing = CardSampling::default();
    let card = card.unwrap_or(&nothing);
    let or = |said: Option<f32>, card: Option<f32>, fixed| said.or(card).unwrap_or(fixed);
    SamplingParams {
        temperature: or(said.temperature, card.temperature, fixed.temperature),
        top_p: or(said.top_p, card.top_p, fixed.top_p),
        top_k: said.top_k.or(card.top_k).unwrap_or(fixed.top_k),
        min_p: or(said.min_p, card.min_p, fixed.min_p),
        presence_penalty: or(
            said.presence_penalty,
            card.presence_penalty,
            fixed.presence_penalty,
        ),
        repetition_penalty: or(
            said.repetition_penalty,
            card.repetition_penalty,
            fixed.repetition_penalty,
        ),
        repetition_window: said
            .repetition_window
            .map_or(fixed.repetition_window, |window| window as usize),
        ..fixed
    }
}

#[cfg(test)]
mod tests {
    use super::sampling;
    use crate::card::CardSampling;
    use crate::config::AnswerDefaults;

    #[test]
    fn the_configuration_beats_the_card_and_the_card_what_is_fixed() {
        let said = AnswerDefaults {
            temperature: Some(0.25),
            repetition_window: Some(8),
            ..AnswerDefaults::default()
        };
        let card = CardSampling {
            temperature: Some(1.0),
            top_k: Some(20),
            presence_penalty: Some(1.5),
            ..CardSampling::default()
        };
        let both = sampling(&said, Some(&card));
        assert_eq!((both.temperature, both.top_k), (0.25, 20));
        assert_eq!((both.presence_penalty, both.repetition_window), (1.5, 8));
        let neither = sampling(&AnswerDefaults::default(), None);
        assert_eq!(neither, sampling::SamplingParams::default());
    }
}
