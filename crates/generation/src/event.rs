//! What comes back.

use crate::speculation::SpeculationTimings;

/// One step of an answer: `Started`, `Progress` while the prompt is computed, then tokens, then `Finished`.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerateEvent {
    /// The sequence left the queue.
    Started {
        /// Length of the prompt.
        prompt_tokens: u32,
        /// Prompt tokens whose state was cached.
        cached_tokens: u32,
    },
    /// A part of the prompt was computed, and more of it is left.
    Progress {
        /// Prompt tokens whose state there is, cached or computed.
        prompt_tokens: u32,
    },
    /// The next token.
    Token(Token),
    /// The answer is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        timings: Timings,
    },
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its log-probability under the raw distribution; 0 unless wanted.
    pub logprob: f32,
    /// The most likely tokens, best first; as many as wanted.
    pub top: Vec<TopToken>,
}

/// One of the most likely tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopToken {
    /// Its id.
    pub id: u32,
    /// Its log-probability under the raw distribution.
    pub logprob: f32,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token, which is the last token of the answer.
    Stop,
    /// `max_tokens` or the context is used up.
    Length,
}

/// Time spent on a request, without waiting in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Prompt tokens computed.
    pub prompt_tokens: u32,
    /// Milliseconds from the start to the first token.
    pub prompt_ms: f64,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Milliseconds from the first token to the last.
    pub generated_ms: f64,
    /// What speculation did for it.
    pub speculation: SpeculationTimings,
}
