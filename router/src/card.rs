//! Model cards: what a model's maker recommends, as files with a schema (`model-cards/card.schema.json`).

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use api_types::Effort;
use serde::{Deserialize, Serialize};

use crate::tiers::EffortTiers;

/// The text that closes reasoning; cards may name no other, for nothing here understands one.
pub(crate) const MARKER: &str = "</think>";
/// Fewer tokens are no room for an answer.
const MIN_REPLY_BUDGET: u32 = 256;

/// How sources and addresses begin.
const SCHEMES: [&str; 3] = ["https:", "http:", "file:"];

/// Cards inside the program, by file name.
const SHIPPED: [(&str, &str); 4] = [
    (
        "demo-python-target.json",
        include_str!("../model-cards/demo-python-target.json"),
    ),
    (
        "qwen3.5-0.8b.json",
        include_str!("../model-cards/qwen3.5-0.8b.json"),
    ),
    (
        "qwen3.5-27b.json",
        include_str!("../model-cards/qwen3.5-27b.json"),
    ),
    (
        "qwen3.6-27b.json",
        include_str!("../model-cards/qwen3.6-27b.json"),
    ),
];

/// A model card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Card {
    /// The model, as its maker calls it.
    pub name: String,
    /// Where the values are from.
    source: String,
    /// The day on which they were held against the source.
    verified_at: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    download_urls: Vec<String>,
    /// Tokens of an answer, reasoning among them.
    pub max_tokens: u32,
    /// The same for the hardest problems.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complex_problem_max_tokens: Option<u32>,
    /// Tokens kept free for what is said behind the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard_limit_reply_budget: Option<u32>,
    /// The text that closes the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_marker: Option<String>,
    /// What the model is made to say when its budget is used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking_terminator_hint: Option<String>,
    #[serde(default)]
    pub sampling: CardSampling,
    #[serde(default)]
    pub reasoning_effort_tiers: EffortTiers,
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<String>,
}

/// How tokens are chosen where nobody says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CardSampling {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
}

impl Card {
    /// The card of the model that calls itself `name`: the one in `folder`, or the one inside the program.
    ///
    /// # Errors
    /// A card that cannot be read, or says what no card may.
    pub fn find(name: &str, folder: Option<&Path>) -> Result<Option<Self>> {
        let file_name = file_name(name);
        if let Some(folder) = folder {
            ensure!(
                folder.is_dir(),
                "model-cards is {}, which is no folder",
                folder.display()
            );
            let path = folder.join(&file_name);
            match fs::read_to_string(&path) {
                Ok(text) => {
                    let card = Self::parse(&text);
                    return card
                        .with_context(|| format!("model card {}", path.display()))
                        .map(Some);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("reading the model card {}", path.display()));
                }
            }
        }
        let shipped = SHIPPED.iter().find(|(name, _)| *name == file_name);
        shipped
            .map(|(name, text)| Self::parse(text).with_context(|| format!("model card {name}")))
            .transpose()
    }

    fn parse(text: &str) -> Result<Self> {
        let card: Self = serde_json::from_str(text)?;
        card.check()?;
        Ok(card)
    }

    /// What the types do not say. The schema says the same, which a test holds against each other.
    fn check(&self) -> Result<()> {
        let said = [("name", &self.name), ("source", &self.source)];
        for (key, value) in said {
            ensure!(!value.is_empty(), "{key} is empty");
        }
        let urls = std::iter::once(&self.source).chain(&self.download_urls);
        for url in urls {
            ensure!(
                SCHEMES.iter().any(|scheme| url.starts_with(scheme)),
                "`{url}` is in source or download_urls; expected https:, http: or file:"
            );
        }
        ensure!(
            is_date(&self.verified_at),
            "verified_at is `{}`; expected a date such as 2026-11-22",
            self.verified_at
        );
        let counts = [
            ("max_tokens", Some(self.max_tokens)),
            (
                "complex_problem_max_tokens",
                self.complex_problem_max_tokens,
            ),
        ];
        let tiers = Effort::ALL.map(|e| (e.name(), self.reasoning_effort_tiers.get(e)));
        for (key, value) in counts.into_iter().chain(tiers) {
            ensure!(value != Some(0), "{key} is 0; expected 1 or more");
        }
        if let Some(reply) = self.hard_limit_reply_budget {
            ensure!(
                reply >= MIN_REPLY_BUDGET,
                "hard_limit_reply_budget is {reply}; expected {MIN_REPLY_BUDGET} or more"
            );
        }
        if let Some(marker) = &self.thinking_marker {
            ensure!(
                marker == MARKER,
                "thinking_marker is `{marker}`; only `{MARKER}` is understood"
            );
        }
        ensure!(
            self.thinking_terminator_hint.as_deref() != Some(""),
            "thinking_terminator_hint is empty"
        );
        self.sampling.check().context("sampling")
    }
}

impl CardSampling {
    fn check(&self) -> Result<()> {
        let default = sampling::SamplingParams::default();
        let params = sampling::SamplingParams {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repetition_penalty: self
                .repetition_penalty
                .unwrap_or(default.repetition_penalty),
            ..default
        };
        params.validate()?;
        let presence = self.presence_penalty.unwrap_or(0.0);
        ensure!(
            (-2.0..=2.0).contains(&presence),
            "presence_penalty is {presence}, expected -2 to 2"
        );
        Ok(())
    }
}

/// The file of the card of the model that calls itself `name`.
pub(crate) fn file_name(name: &str) -> String {
    let letters = name.trim().chars().filter_map(|letter| match letter {
        ' ' | '\t' | '_' | '-' => Some('-'),
        '.' => Some('.'),
        letter if letter.is_alphanumeric() => Some(letter),
        _ => None,
    });
    let letters: String = letters.flat_map(char::to_lowercase).collect();
    format!("{letters}.json")
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let number = |part: &str, digits: usize| {
        let fits = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        fits.then(|| part.parse::<u32>().ok()).flatten()
    };
    let [year, month, day] = parts[..] else {
        return false;
    };
    number(year, 4).is_some()
        && number(month, 2).is_some_and(|month| (1..=12).contains(&month))
        && number(day, 2).is_some_and(|day| (1..=31).contains(&day))
}

#[cfg(test)]
mod tests;
