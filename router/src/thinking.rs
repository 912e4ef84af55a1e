//! How long answers and their reasoning may be: from settings, the model's card and its family to what one request gets.

mod marks;

use api_types::{Effort, ThinkingOptions};

pub(crate) use marks::Marks;

use crate::card::Card;
use crate::config::LengthLimits;

/// Where neither the configuration nor a card says it: what models of a family are known to take. Answer, reasoning among it.
const FAMILIES: [(&str, u32); 6] = [
    ("qwen35", 32_768),
    ("qwen35moe", 32_768),
    ("qwen3", 32_768),
    ("qwen3moe", 32_768),
    ("gemma4", 16_384),
    ("laguna", 32_768),
];
/// The same of all others.
const MAX_TOKENS: u32 = 16_000;
const REPLY_BUDGET: u32 = 4096;

/// What holds for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThinkingRules {
    /// Tokens of an answer to a request that does not say.
    pub default_max_tokens: u32,
    /// Tokens of any answer at most.
    pub max_tokens_cap: Option<u32>,
    /// Reasoning tokens of a request that wants some at most, where no tier says more.
    pub think_max_tokens: u32,
    /// Tokens kept free for what is said behind the reasoning; 0: no close is forced.
    pub reply_budget: u32,
    /// Reasoning tokens by effort, from the least.
    tiers: [u32; Effort::ALL.len()],
    /// Where the values are from that the configuration leaves open.
    pub source: Source,
}

/// Where values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Card,
    Family,
    Fixed,
}

impl Source {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Family => "family",
            Self::Fixed => "fixed",
        }
    }
}

/// What one request gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// New tokens at most.
    pub max_tokens: u32,
    /// Reasoning tokens at most; `None`: as many as come.
    pub budget: Option<u32>,
}

impl ThinkingRules {
    pub fn new(limits: &LengthLimits, card: Option<&Card>, architecture: Option<&str>) -> Self {
        let family = FAMILIES
            .iter()
            .find(|(family, _)| Some(*family) == architecture);
        let (recommended, source) = match (card, family) {
            (Some(card), _) => (card.max_tokens, Source::Card),
            (None, Some((_, tokens))) => (*tokens, Source::Family),
            (None, None) => (MAX_TOKENS, Source::Fixed),
        };
        let think_max_tokens = limits.think_max_tokens.unwrap_or(recommended);
        let reply_budget = limits
            .reply_budget
            .or(card.and_then(|card| card.hard_limit_reply_budget))
            .unwrap_or(REPLY_BUDGET);
        let mut rules = Self {
            default_max_tokens: limits.default_max_tokens.unwrap_or(recommended),
            max_tokens_cap: limits.default_max_tokens,
            think_max_tokens,
            reply_budget,
            tiers: [0; Effort::ALL.len()],
            source,
        };
        rules.set_tiers(limits, card);
        rules
    }

    fn set_tiers(&mut self, limits: &LengthLimits, card: Option<&Card>) {
        let said = |effort: Effort| {
            let card = card.and_then(|card| card.reasoning_effort_tiers.get(effort));
            limits.efforts.get(effort).or(card)
        };
        let most = self.think_max_tokens;
        let high = said(Effort::High).unwrap_or(most);
        let complex = card.and_then(|card| card.complex_problem_max_tokens);
        let complex = complex.map(|tokens| tokens.saturating_sub(self.reply_budget));
        let max = said(Effort::Max).or(complex).unwrap_or(high);
        self.tiers = [
            said(Effort::Low).unwrap_or(most / 8).max(1),
            said(Effort::Medium).unwrap_or(most / 2),
            high,
            said(Effort::XHigh).unwrap_or(high.midpoint(max)),
            max,
        ];
        for place in 1..self.tiers.len() {
            self.tiers[place] = self.tiers[place].max(self.tiers[place - 1]);
        }
        // Who says how much reasoning there may be at most means all of it.
        if limits.think_max_tokens.is_some() {
            self.tiers = self.tiers.map(|tier| tier.min(most));
        }
    }

    /// Reasoning tokens that `effort` allows in a context of so many tokens.
    pub fn tier(&self, effort: Effort, context_length: u32) -> u32 {
        let room = context_length.saturating_sub(self.reply_budget);
        self.tiers[effort as usize].min(room)
    }

    /// Reasoning tokens that any request can get.
    pub fn most(&self) -> u32 {
        let [.., max] = self.tiers;
        self.think_max_tokens.max(max)
    }

    /// What a request gets that leaves `room` tokens in the context.
    pub fn allow(
        &self,
        thinking: &ThinkingOptions,
        max_tokens: Option<u32>,
        room: u32,
    ) -> Allowance {
        let asked = thinking
            .budget_tokens
            .map(|tokens| tokens.min(self.most()))
            .or(thinking.effort.map(|effort| self.tiers[effort as usize]));
        let asked = asked.filter(|_| self.reply_budget > 0);
        let reply = thinking.reply_budget.unwrap_or(self.reply_budget);
        // A budget that the default has no room for makes the answer longer, not the reasoning shorter.
        let default = asked.map_or(0, |budget| budget.saturating_add(reply));
        let wanted = max_tokens.unwrap_or(self.default_max_tokens.max(default));
        let max_tokens = wanted
            .min(self.max_tokens_cap.unwrap_or(u32::MAX))
            .min(room);
        if max_tokens < wanted {
            let cap = self.max_tokens_cap;
            tracing::debug!(wanted, max_tokens, room, cap, "an answer's length is cut");
        }
        // Where there is little room, half of it is for the answer.
        let kept = reply.min(max_tokens / 2);
        Allowance {
            max_tokens,
            budget: asked.map(|budget| budget.min(max_tokens - kept)),
        }
    }
}

#[cfg(test)]
mod tests;
