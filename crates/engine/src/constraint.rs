//! What holds an answer to its grammar.

use generation::GenerateRequest;
use grammar::{Branch, GrammarError, Matcher};

/// How far an answer has come in its grammar, which begins behind the reasoning.
#[derive(Debug)]
pub(crate) struct Constraint {
    matcher: Matcher,
}

/// What becomes of a row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Masked<'a> {
    /// A token can be chosen.
    Row(&'a [f32]),
    /// There is nothing to choose: the answer is complete.
    End,
}

impl Constraint {
    pub fn new(matcher: Matcher) -> Self {
        Self { matcher }
    }

    /// Another one at the same place that shares nothing with it.
    pub fn independent(&self) -> Self {
        Self::new(self.matcher.independent())
    }

    /// Copies `logits` (\[vocab\]) to `masked` with everything made impossible that may not come next. Stop tokens may where the
    /// answer may end and `may_stop`.
    ///
    /// # Errors
    /// Nothing may come next, or that cannot be told.
    pub fn mask<'a>(
        &mut self,
        request: &GenerateRequest,
        may_stop: bool,
        logits: &[f32],
        masked: &'a mut Vec<f32>,
    ) -> Result<Masked<'a>, GrammarError> {
        let may_end = self.matcher.may_end();
        let allowed = match self.matcher.allowed() {
            Ok(allowed) => allowed,
            Err(GrammarError::DeadEnd) if may_end => return Ok(Masked::End),
            Err(error) => return Err(error),
        };
        allowed.mask(logits, masked);
        for &stop in request.stop_ids.iter().filter(|_| may_end && may_stop) {
            if let Some(logit) = masked.get_mut(stop as usize) {
                *logit = logits[stop as usize];
            }
        }
        Ok(Masked::Row(masked))
    }

    /// Takes in a token that is no stop token; whether the answer is complete with it.
    ///
    /// # Errors
    /// It is not allowed, or what it leads to is too complex.
    pub fn advance(&mut self, token: u32) -> Result<bool, GrammarError> {
        self.matcher.advance(token)?;
        Ok(self.can_only_end())
    }

    /// Whether nothing may come next.
    pub fn can_only_end(&self) -> bool {
        self.matcher.can_only_end()
    }

    /// A way to try out what a draft proposes.
    pub fn branch(&self) -> Branch {
        self.matcher.branch()
    }
}
