//! Log-probabilities as chats have them.

use api_types::{ChatLogprob, ChatTopLogprob};

use crate::logprob::TokenLogprob;

pub(super) fn chat_logprobs(entries: &[TokenLogprob]) -> Vec<ChatLogprob> {
    let top = |entry: &TokenLogprob| {
        let tops = entry.top.iter().map(|token| ChatTopLogprob {
            token: token.text(),
            logprob: token.logprob,
            bytes: token.bytes.clone(),
        });
        tops.collect()
    };
    let entries = entries.iter().map(|entry| ChatLogprob {
        token: entry.chosen.text(),
        logprob: entry.chosen.logprob,
        bytes: entry.chosen.bytes.clone(),
        top_logprobs: top(entry),
    });
    entries.collect()
}
