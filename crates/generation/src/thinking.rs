//! How an answer's reasoning is marked, and how long it may be.

use std::ops::Range;

use crate::error::GenerateError;
use crate::worker::ModelDescription;

/// Tokens of a terminator at most: it is a sentence, not a text.
const MAX_TERMINATOR: usize = 1024;
/// Tokens that may stand before the opening mark at most.
const MAX_BLANK_IDS: usize = 64;

/// The marks around the reasoning of an answer, and a bound on what stands between them.
///
/// What is forced depends on nothing but the tokens generated so far, so that speculation and plain decoding agree on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThinkingLimit {
    /// Reasoning tokens before the close is forced; `None`: as many as come.
    pub budget: Option<u32>,
    /// Whether the prompt has opened the reasoning already.
    pub starts_inside: bool,
    /// Token that opens it, as the first of an answer or behind `blank_ids`.
    pub open_id: Option<u32>,
    /// Token that closes it.
    pub close_id: u32,
    /// What is forced when the budget is used up; `close_id` is among it.
    pub terminator: Vec<u32>,
    /// Tokens that may stand before `open_id`.
    pub blank_ids: Vec<u32>,
}

/// Who closed the reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseKind {
    /// The model.
    Natural,
    /// The budget.
    Hard,
}

impl ThinkingLimit {
    /// Tokens that are forced at most. They do not count against `max_tokens`.
    #[must_use]
    pub fn forced_tokens(&self) -> usize {
        self.budget.map_or(0, |_| self.terminator.len())
    }

    pub(crate) fn check(&self, model: &ModelDescription) -> Result<(), GenerateError> {
        let marks = [Some(self.close_id), self.open_id].into_iter().flatten();
        let lists = self.terminator.iter().chain(&self.blank_ids).copied();
        if let Some(token) = marks.chain(lists).find(|&id| id >= model.vocab_size) {
            return Err(GenerateError::UnknownToken {
                field: "thinking",
                token,
                vocab_size: model.vocab_size,
            });
        }
        let problem = if self.budget.is_some() && !self.terminator.contains(&self.close_id) {
            "there is a budget, and the terminator does not hold the token that closes the reasoning"
        } else if self.terminator.len() > MAX_TERMINATOR {
            "the terminator is longer than 1024 tokens"
        } else if self.blank_ids.len() > MAX_BLANK_IDS {
            "more than 64 tokens may stand before the opening mark"
        } else {
            return Ok(());
        };
        Err(GenerateError::Thinking(problem))
    }
}

/// Where an answer stands with its reasoning, read off the tokens generated so far.
#[derive(Clone, Debug)]
pub struct ThinkingTracker {
    limit: ThinkingLimit,
    phase: Phase,
    /// Tokens generated.
    generated: usize,
    /// Those that were forced.
    forced: Range<usize>,
    close: Option<CloseKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The answer may still open its reasoning.
    Before,
    /// Inside, with as many tokens of it so far.
    Inside { used: u32 },
    /// Inside the forced terminator, with this one next.
    Closing { next: usize },
    /// Behind it, or there is none.
    Content,
}

impl ThinkingTracker {
    /// Before the first token.
    #[must_use]
    pub fn new(limit: ThinkingLimit) -> Self {
        let phase = match (limit.starts_inside, limit.open_id) {
            (true, _) => Phase::Inside { used: 0 },
            (false, Some(_)) => Phase::Before,
            (false, None) => Phase::Content,
        };
        Self {
            limit,
            phase,
            generated: 0,
            forced: 0..0,
            close: None,
        }
    }

    /// The token that has to come next, whatever the model says.
    #[must_use]
    pub fn forced(&self) -> Option<u32> {
        match self.phase {
            Phase::Inside { used } if Some(used) == self.limit.budget => {
                self.limit.terminator.first().copied()
            }
            Phase::Closing { next } => self.limit.terminator.get(next).copied(),
            _ => None,
        }
    }

    /// The token that closes the reasoning.
    #[must_use]
    pub fn close_id(&self) -> u32 {
        self.limit.close_id
    }

    /// The token that was forced as the `index`-th of the answer.
    #[must_use]
    pub fn forced_at(&self, index: usize) -> Option<u32> {
        let place = index.checked_sub(self.forced.start)?;
        let is_forced = self.forced.contains(&index);
        is_forced.then(|| self.limit.terminator.get(place).copied())?
    }

    /// Tokens that the model chooses before the next one that is forced; `None`: none is in sight.
    #[must_use]
    pub fn free_tokens(&self) -> Option<usize> {
        match self.phase {
            Phase::Inside { used } => {
                let budget = self.limit.budget?;
                Some(budget.saturating_sub(used) as usize)
            }
            Phase::Closing { .. } => Some(0),
            Phase::Before | Phase::Content => None,
        }
    }

    /// Takes the next token in; whether it was forced.
    pub fn push(&mut self, token: u32) -> bool {
        let is_forced = self.forced().is_some();
        let index = self.generated;
        self.generated += 1;
        self.phase = match self.phase {
            Phase::Inside { .. } | Phase::Closing { .. } if is_forced => {
                if self.forced.is_empty() {
                    self.forced.start = index;
                }
                self.forced.end = self.generated;
                let next = self.forced.len();
                if next == self.limit.terminator.len() {
                    self.close = Some(CloseKind::Hard);
                    Phase::Content
                } else {
                    Phase::Closing { next }
                }
            }
            Phase::Inside { .. } if token == self.limit.close_id => {
                self.close = Some(CloseKind::Natural);
                Phase::Content
            }
            Phase::Inside { used } => Phase::Inside { used: used + 1 },
            Phase::Before if Some(token) == self.limit.open_id => Phase::Inside { used: 0 },
            Phase::Before if self.limit.blank_ids.contains(&token) => Phase::Before,
            Phase::Before | Phase::Closing { .. } | Phase::Content => Phase::Content,
        };
        is_forced
    }

    /// Whether the next token is inside the reasoning, or may yet open it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase != Phase::Content
    }

    /// Whether the answer ran into a loop behind a forced close: it stays there, and the reader learns nothing more.
    /// `generated`: the tokens of the answer.
    #[must_use]
    pub fn is_degenerate(&self, generated: &[u32]) -> bool {
        self.close == Some(CloseKind::Hard) && generated.get(self.forced.end..).is_some_and(is_loop)
    }

    /// Who closed the reasoning, once it is.
    #[must_use]
    pub fn close(&self) -> Option<CloseKind> {
        self.close
    }
}

/// Tokens that repeat, at least and at most; shorter loops are loops of several turns.
const PERIODS: Range<usize> = 12..81;
/// Turns from which it is a loop. Tables and listings have lines that come twice or three times.
const TURNS: usize = 4;

/// Whether `tokens` ends in a loop.
fn is_loop(tokens: &[u32]) -> bool {
    PERIODS.into_iter().any(|period| {
        let Some(start) = tokens.len().checked_sub(period * TURNS) else {
            return false;
        };
        // The last token differs from the one a turn before in all but a few texts, which ends the look at once.
        let tail = &tokens[start..];
        (period..tail.len())
            .rev()
            .all(|place| tail[place] == tail[place - period])
    })
}

#[cfg(test)]
mod tests;
