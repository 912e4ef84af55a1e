//! How far back rows after a prompt see.

use std::collections::HashMap;

use kv_cache::SequenceId;

/// A window of attention that begins where the prompt of a sequence ends.
#[derive(Debug, Default)]
pub(crate) struct DecodeWindow {
    /// Positions that a row sees; `None`: all.
    tokens: Option<usize>,
    /// Prompts' tokens. A sequence without an entry is all prompt.
    prompts: HashMap<SequenceId, usize>,
}

impl DecodeWindow {
    pub(crate) fn set(&mut self, tokens: Option<usize>) {
        self.tokens = tokens;
    }

    pub(crate) fn tokens(&self) -> Option<usize> {
        self.tokens
    }

    pub(crate) fn begin(&mut self, sequence: SequenceId, prompt_len: usize) {
        self.prompts.insert(sequence, prompt_len);
    }

    pub(crate) fn forget(&mut self, sequence: SequenceId) {
        self.prompts.remove(&sequence);
    }

    /// Of rows that follow so many committed tokens.
    pub(crate) fn of(&self, sequence: SequenceId, committed_len: usize) -> Option<usize> {
        let prompt_len = *self.prompts.get(&sequence)?;
        self.tokens.filter(|_| committed_len >= prompt_len)
    }
}
