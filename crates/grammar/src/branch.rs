//! Trying tokens out that may or may not come.

use std::fmt;

/// Goes back and forth over continuations of an answer. What it finds out changes nothing of the answer.
pub struct Branch {
    matcher: llguidance::Matcher,
    /// Tokens from where it began to where it is.
    path: Vec<u32>,
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Branch")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Branch {
    pub(crate) fn new(matcher: llguidance::Matcher) -> Self {
        let path = Vec::new();
        Self { matcher, path }
    }

    /// Whether `token` may follow `path`, which may follow where the branch began. `false` where that cannot be told.
    pub fn allows(&mut self, path: &[u32], token: u32) -> bool {
        self.go_to(path)
            && self.has_bytes(token)
            && self
                .matcher
                .validate_tokens(&[token])
                .is_ok_and(|valid| valid == 1)
    }

    /// Goes back to what `path` and the present place have in common, and forward from there.
    fn go_to(&mut self, path: &[u32]) -> bool {
        let pairs = self.path.iter().zip(path);
        let common = pairs.take_while(|(here, there)| here == there).count();
        let behind = self.path.len() - common;
        if behind > 0 && self.matcher.rollback(behind).is_err() {
            return false;
        }
        self.path.truncate(common);
        for &token in &path[common..] {
            if self.matcher.consume_token(token).is_err() {
                return false;
            }
            self.path.push(token);
        }
        !self.matcher.is_stopped()
    }

    /// A token of no bytes leaves llguidance where it is, which it takes for valid.
    fn has_bytes(&self, token: u32) -> bool {
        let env = self.matcher.tok_env();
        env.is_ok_and(|env| {
            let trie = env.tok_trie();
            (token as usize) < trie.vocab_size() && trie.token_len(token) > 0
        })
    }
}
