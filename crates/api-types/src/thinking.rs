//! What a request says about reasoning, in the words of all the APIs there are.

use serde_json::{Map, Value};

use crate::error::RequestError;
use crate::fields::{Above, Fields};

/// Other servers' names for `thinking.budget_tokens`.
const BUDGETS: [&str; 3] = [
    "thinking_budget_tokens",
    "reasoning_budget_tokens",
    "thinking_budget",
];

/// What a request says about reasoning. Where it says nothing, the server decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThinkingOptions {
    /// Whether the answer is to begin with reasoning.
    pub wanted: Option<bool>,
    /// How much of it, in a word.
    pub effort: Option<Effort>,
    /// How much of it, in tokens; beats the word.
    pub budget_tokens: Option<u32>,
    /// Tokens kept free for what is said behind it.
    pub reply_budget: Option<u32>,
}

/// How much reasoning, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Also what "minimal" means.
    Low,
    /// The middle.
    Medium,
    /// As much as the model's maker recommends.
    High,
    /// Between the two.
    XHigh,
    /// As much as the hardest problems take.
    Max,
}

impl Effort {
    /// All of them, from the least.
    pub const ALL: [Self; 5] = [Self::Low, Self::Medium, Self::High, Self::XHigh, Self::Max];

    /// Its name, as templates and settings have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::XHigh => "x-high",
            Self::Max => "max",
        }
    }
}

impl ThinkingOptions {
    /// Takes an effort's word in. "none" switches reasoning off; a word that nobody knows means as much as usual.
    #[must_use]
    pub fn with_effort(self, word: &str) -> Self {
        let effort = match word {
            "none" => {
                return Self {
                    wanted: Some(false),
                    effort: None,
                    ..self
                };
            }
            "minimal" | "low" => Effort::Low,
            "medium" => Effort::Medium,
            "x-high" | "xhigh" | "x_high" => Effort::XHigh,
            "max" => Effort::Max,
            _ => Effort::High,
        };
        Self {
            wanted: Some(true),
            effort: Some(effort),
            ..self
        }
    }

    /// Whether the request says anything.
    #[must_use]
    pub fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// The variables of templates that all this comes to.
    #[must_use]
    pub fn template_kwargs(&self) -> Map<String, Value> {
        let mut kwargs = Map::new();
        if let Some(wanted) = self.wanted {
            kwargs.insert("enable_thinking".to_owned(), wanted.into());
        }
        if let Some(effort) = self.effort {
            kwargs.insert("reasoning_effort".to_owned(), effort.name().into());
        }
        kwargs
    }

    /// The fields of a chat completion. What is said in more ways than one is taken from the most exact of them.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, RequestError> {
        let mut options = Self::default();
        if let Some(value) = fields.value("reasoning") {
            options.take_reasoning(&mut Fields::at("reasoning", value)?)?;
        }
        if let Some(word) = fields.string("reasoning_effort")? {
            options = options.with_effort(&word);
        }
        options.wanted = fields.bool("enable_thinking")?.or(options.wanted);
        options.take_budget(fields, &BUDGETS)?;
        if let Some(thinking) = fields.value("thinking") {
            options.take_thinking(thinking)?;
        }
        Ok(options)
    }

    /// The object `thinking`, which chat completions and messages share: its type, budget, and what is kept free behind it.
    pub(crate) fn take_thinking(&mut self, thinking: Value) -> Result<(), RequestError> {
        let mut thinking = Fields::at("thinking", thinking)?;
        match thinking.string("type")?.as_deref() {
            None => {}
            Some("enabled" | "adaptive") => self.want(),
            // Between tools are notes, and those are not of the reasoning.
            Some("disabled" | "between_tools") => self.unwant(),
            Some(other) => {
                let expected = "\"enabled\", \"adaptive\", \"between_tools\" or \"disabled\"";
                return Err(thinking.wrong("type", &other.into(), expected));
            }
        }
        self.take_budget(&mut thinking, &["budget_tokens"])?;
        let reply = thinking.integer(&["reply_budget"], 0..=u32::MAX, Above::Clamped)?;
        self.reply_budget = reply.or(self.reply_budget);
        // What else may be there, such as how thoughts are to be shown, changes nothing.
        Ok(())
    }

    /// The object `reasoning` as some clients send it to chat completions.
    fn take_reasoning(&mut self, reasoning: &mut Fields) -> Result<(), RequestError> {
        if let Some(word) = reasoning.string("effort")? {
            *self = self.with_effort(&word);
        }
        match reasoning.bool("enabled")? {
            Some(true) => self.want(),
            Some(false) => self.unwant(),
            None => {}
        }
        self.take_budget(reasoning, &["max_tokens"])
    }

    /// Says that reasoning is wanted, as much as usual unless something else is said.
    fn want(&mut self) {
        self.wanted = Some(true);
        self.effort = self.effort.or(Some(Effort::High));
    }

    fn unwant(&mut self) {
        self.wanted = Some(false);
        self.effort = None;
    }

    /// 0 switches reasoning off; -1 is what other servers take for "as much as there is".
    fn take_budget(&mut self, fields: &mut Fields, names: &[&str]) -> Result<(), RequestError> {
        let mut is_first = true;
        for name in names {
            let Some(value) = fields.value(name) else {
                continue;
            };
            let budget = match (value.as_u64(), value.as_i64()) {
                (Some(tokens), _) => Some(tokens),
                (None, Some(-1)) => None,
                _ => return Err(fields.wrong(name, &value, "a whole number from 0, or -1")),
            };
            // Each name has to be right, and the first of them counts.
            if !std::mem::take(&mut is_first) {
                continue;
            }
            if budget == Some(0) {
                self.unwant();
                continue;
            }
            self.wanted = self.wanted.or(Some(true));
            let tokens = budget.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
            self.budget_tokens = tokens.or(self.budget_tokens);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Effort, ThinkingOptions};
    use crate::fields::Fields;

    fn taken(body: Value) -> Result<ThinkingOptions, String> {
        let mut fields = Fields::of_body(body.to_string().as_bytes()).unwrap();
        let options = ThinkingOptions::take(&mut fields).map_err(|error| error.to_string())?;
        fields.finish().map_err(|error| error.to_string())?;
        Ok(options)
    }

    fn says(wanted: bool, effort: Option<Effort>, budget: Option<u32>) -> ThinkingOptions {
        ThinkingOptions {
            wanted: Some(wanted),
            effort,
            budget_tokens: budget,
            reply_budget: None,
        }
    }

    #[test]
    fn all_the_words_there_are() {
        let high = Some(Effort::High);
        for (body, expected) in [
            (json!({}), ThinkingOptions::default()),
            (
                json!({ "reasoning_effort": null }),
                ThinkingOptions::default(),
            ),
            (
                json!({ "reasoning_effort": "none" }),
                says(false, None, None),
            ),
            (
                json!({ "reasoning_effort": "minimal" }),
                says(true, Some(Effort::Low), None),
            ),
            (
                json!({ "reasoning_effort": "low" }),
                says(true, Some(Effort::Low), None),
            ),
            (
                json!({ "reasoning_effort": "medium" }),
                says(true, Some(Effort::Medium), None),
            ),
            (
                json!({ "reasoning_effort": "x-high" }),
                says(true, Some(Effort::XHigh), None),
            ),
            (
                json!({ "reasoning_effort": "xhigh" }),
                says(true, Some(Effort::XHigh), None),
            ),
            (
                json!({ "reasoning_effort": "max" }),
                says(true, Some(Effort::Max), None),
            ),
            (
                json!({ "reasoning_effort": "enormous" }),
                says(true, high, None),
            ),
            (
                json!({ "reasoning": { "effort": "low" } }),
                says(true, Some(Effort::Low), None),
            ),
            (
                json!({ "reasoning": { "enabled": false } }),
                says(false, None, None),
            ),
            (
                json!({ "reasoning": { "max_tokens": 9 } }),
                says(true, None, Some(9)),
            ),
            (
                json!({ "thinking": { "type": "enabled" } }),
                says(true, high, None),
            ),
            (
                json!({ "thinking": { "type": "adaptive" } }),
                says(true, high, None),
            ),
            (
                json!({ "thinking": { "type": "disabled" }, "reasoning_effort": "low" }),
                says(false, None, None),
            ),
            (
                json!({ "thinking": { "budget_tokens": 7 } }),
                says(true, None, Some(7)),
            ),
            (
                json!({ "thinking": { "type": "enabled", "budget_tokens": 7 } }),
                says(true, high, Some(7)),
            ),
            (
                json!({ "thinking_budget_tokens": 5 }),
                says(true, None, Some(5)),
            ),
            (
                json!({ "reasoning_budget_tokens": 5 }),
                says(true, None, Some(5)),
            ),
            (
                json!({ "thinking_budget_tokens": 5_000_000_000_u64 }),
                says(true, None, Some(u32::MAX)),
            ),
            (
                json!({ "thinking_budget_tokens": 0 }),
                says(false, None, None),
            ),
            (
                json!({ "thinking_budget_tokens": -1 }),
                says(true, None, None),
            ),
            (json!({ "enable_thinking": true }), says(true, None, None)),
            (json!({ "enable_thinking": false }), says(false, None, None)),
            (
                json!({ "thinking_budget_tokens": 5, "thinking": { "budget_tokens": 6 } }),
                says(true, None, Some(6)),
            ),
        ] {
            assert_eq!(taken(body.clone()), Ok(expected), "{body}");
        }
        let reply = taken(json!({ "thinking": { "reply_budget": 3 } })).unwrap();
        assert_eq!((reply.reply_budget, reply.wanted), (Some(3), None));
        assert!(reply.is_given() && !ThinkingOptions::default().is_given());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (body, parts) in [
            (
                json!({ "reasoning_effort": 3 }),
                ["reasoning_effort", "a string"],
            ),
            (json!({ "thinking": true }), ["thinking", "an object"]),
            (
                json!({ "thinking": { "type": "sometimes" } }),
                ["thinking.type", "adaptive"],
            ),
            (
                json!({ "thinking": { "budget_tokens": -2 } }),
                ["thinking.budget_tokens", "from 0"],
            ),
            (
                json!({ "thinking": { "reply_budget": "x" } }),
                ["thinking.reply_budget", "whole number"],
            ),
            (
                json!({ "thinking_budget_tokens": 1.5 }),
                ["thinking_budget_tokens", "1.5"],
            ),
            (
                json!({ "enable_thinking": "yes" }),
                ["enable_thinking", "true or false"],
            ),
        ] {
            let error = taken(body).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn templates_have_their_own_words_for_it() {
        let kwargs = |body| Value::Object(taken(body).unwrap().template_kwargs());
        assert_eq!(kwargs(json!({})), json!({}));
        assert_eq!(
            kwargs(json!({ "reasoning_effort": "minimal" })),
            json!({ "enable_thinking": true, "reasoning_effort": "low" })
        );
        assert_eq!(
            kwargs(json!({ "thinking": { "budget_tokens": 0 } })),
            json!({ "enable_thinking": false })
        );
    }
}
