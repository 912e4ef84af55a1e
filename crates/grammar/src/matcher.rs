//! A grammar's view of one sequence.

use std::fmt;

use llguidance::TokenParser;
use llguidance::api::StopReason;

use crate::allowed::Allowed;
use crate::branch::Branch;
use crate::error::{GrammarError, words};

/// How far an answer has come in its grammar.
pub struct Matcher(llguidance::Matcher);

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Matcher")
            .field(&self.0.stop_reason())
            .finish()
    }
}

impl Matcher {
    pub(crate) fn new(parser: TokenParser) -> Result<Self, GrammarError> {
        let mut matcher = Self(llguidance::Matcher::new(Ok(parser)));
        // It finds out here whether nothing at all may follow.
        let begun = matcher.0.consume_tokens(&[]);
        begun.map_err(|error| GrammarError::Refused(words(&error)))?;
        Ok(matcher)
    }

    /// Another one at the same place that shares nothing with it.
    #[must_use]
    pub fn independent(&self) -> Self {
        Self(self.0.deep_clone())
    }

    /// The tokens that may follow.
    ///
    /// # Errors
    /// There are none, or they cannot be told within the bounds of a step.
    pub fn allowed(&mut self) -> Result<Allowed, GrammarError> {
        if self.can_only_end() {
            return Err(GrammarError::DeadEnd);
        }
        self.0.compute_mask().map(Allowed).map_err(|error| {
            // The failed matcher has forgotten why it stopped; its words are left.
            match words(&error) {
                reason if reason == StopReason::NoExtensionBias.to_string() => {
                    GrammarError::DeadEnd
                }
                reason => GrammarError::TooComplex(reason),
            }
        })
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        self.can_only_end() || self.0.is_accepting().unwrap_or(false)
    }

    /// Whether the answer is complete, and nothing may follow.
    #[must_use]
    pub fn can_only_end(&self) -> bool {
        matches!(
            self.0.stop_reason(),
            StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence
        )
    }

    /// Takes in the token that follows, which has to be one of those that are allowed.
    ///
    /// # Errors
    /// It is not, or what it leads to is too complex.
    pub fn advance(&mut self, token: u32) -> Result<(), GrammarError> {
        let advanced = self.0.consume_token(token);
        advanced.map_err(|error| GrammarError::TooComplex(words(&error)))
    }

    /// A way to try tokens out from here.
    #[must_use]
    pub fn branch(&self) -> Branch {
        Branch::new(self.0.clone())
    }
}
