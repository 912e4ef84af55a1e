//! What an answer has to be where tools are called: which grammar that comes to.

use api_types::ToolChoice;
use generation::Grammar;
use tool_calls::{CallGrammar, Dialect, Tools};

use crate::state::Words;

/// What a request says of the calls in its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calling<'c> {
    pub tools: &'c Tools,
    pub choice: &'c ToolChoice,
    pub is_parallel: bool,
}

impl Calling<'_> {
    /// Whether the answer has to call.
    pub fn is_forced(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// The grammar of the answer, if there is anything to hold it to.
    pub fn grammar(&self, words: &Words) -> Option<Grammar> {
        let named = match self.choice {
            ToolChoice::Named(name) => Some(self.tools.only(name)),
            _ => None,
        };
        let marks_are_control = words
            .tokenizer
            .token_id("<tool_call>")
            .is_some_and(|id| words.tokenizer.is_special(id));
        let grammar = CallGrammar {
            // Who names a tool wants one call of it.
            is_parallel: self.is_parallel && named.is_none(),
            tools: named.as_ref().unwrap_or(self.tools),
            dialect: words.dialect.unwrap_or(Dialect::Elements),
            is_forced: self.is_forced(),
            said: None,
            marks_are_control,
        };
        grammar.lark().map(Grammar::Lark)
    }
}
