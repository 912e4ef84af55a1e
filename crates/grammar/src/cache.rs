//! Grammars that were read lately.

use std::collections::VecDeque;

use generation::Grammar;

use crate::matcher::Matcher;

/// Grammars remembered. Clients send the same few again and again.
const MAX_GRAMMARS: usize = 32;

/// The latest grammars, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    grammars: VecDeque<(Grammar, Matcher)>,
}

impl Cache {
    /// A grammar that is remembered, at its beginning.
    pub fn get(&mut self, grammar: &Grammar) -> Option<&Matcher> {
        let place = self
            .grammars
            .iter()
            .position(|(known, _)| known == grammar)?;
        let found = self.grammars.remove(place)?;
        self.grammars.push_back(found);
        self.grammars.back().map(|(_, matcher)| matcher)
    }

    /// Remembers a grammar, at its beginning.
    pub fn put(&mut self, grammar: Grammar, fresh: Matcher) {
        self.grammars.retain(|(known, _)| *known != grammar);
        if self.grammars.len() == MAX_GRAMMARS {
            self.grammars.pop_front();
        }
        self.grammars.push_back((grammar, fresh));
    }
}
