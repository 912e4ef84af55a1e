//! What was kept of bodies, so that the next turn begins as this one did.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use crate::plan::opening;

/// Names a body and the way it was cut. Two hashes with keys that nobody knows, and the length: no two bodies share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    hashes: [u64; 2],
    bytes: usize,
    /// Bits of the share that a request asked for.
    keep: Option<u64>,
}

/// What was kept of bodies: so many at most, then the one not used for longest makes room.
#[derive(Debug)]
pub struct Memory {
    hashers: [RandomState; 2],
    entries: HashMap<Key, Entry>,
    capacity: usize,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    kept: Arc<[Range<usize>]>,
    used: u64,
}

impl Memory {
    /// Room for `capacity` bodies, one at least.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            hashers: [RandomState::new(), RandomState::new()],
            entries: HashMap::new(),
            capacity: capacity.max(1),
            clock: 0,
        }
    }

    /// The name of a body that is weighed by itself. `keep` is the share that the request asks for, if it does.
    #[must_use]
    pub fn body_key(&self, body: &str, keep: Option<f64>) -> Key {
        self.key(&(body, 0), body.len(), keep)
    }

    /// The name of the body of message `index`, which is weighed by all that stands before the first answer: the same words
    /// before another question are another body.
    #[must_use]
    pub fn opening_key(
        &self,
        messages: &[Value],
        index: usize,
        body: &str,
        keep: Option<f64>,
    ) -> Key {
        let opening: Vec<String> = messages[..opening(messages)]
            .iter()
            .map(Value::to_string)
            .collect();
        self.key(&(opening, body, index + 1), body.len(), keep)
    }

    fn key(&self, named: &impl std::hash::Hash, bytes: usize, keep: Option<f64>) -> Key {
        Key {
            hashes: [0, 1].map(|n: usize| self.hashers[n].hash_one(named)),
            bytes,
            keep: keep.map(f64::to_bits),
        }
    }

    /// What was kept, in bytes of the body.
    pub fn get(&mut self, key: &Key) -> Option<Arc<[Range<usize>]>> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(Arc::clone(&entry.kept))
    }

    /// Remembers what was kept.
    pub fn insert(&mut self, key: Key, kept: Arc<[Range<usize>]>) {
        self.clock += 1;
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let oldest = oldest.map(|(key, _)| *key);
            oldest.and_then(|key| self.entries.remove(&key));
        }
        let used = self.clock;
        self.entries.insert(key, Entry { kept, used });
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "sets of one range")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_body_not_used_for_longest_makes_room() {
        let mut memory = Memory::new(2);
        let keys = ["a", "b", "c"].map(|body| memory.body_key(body, None));
        let kept = |at: usize| Arc::from(vec![at..at + 1]);
        memory.insert(keys[0], kept(0));
        memory.insert(keys[1], kept(1));
        assert_eq!(memory.get(&keys[0]).as_deref(), Some(&[0..1][..]));
        memory.insert(keys[2], kept(2));
        assert!(memory.get(&keys[1]).is_none());
        assert!(memory.get(&keys[0]).is_some() && memory.get(&keys[2]).is_some());
    }

    #[test]
    fn what_shapes_a_cut_is_in_its_name() {
        let memory = Memory::new(2);
        let turn = |question: &str, answers: usize| {
            let mut messages = vec![
                json!({ "role": "user", "content": "text" }),
                json!({ "role": "user", "content": question }),
            ];
            for _ in 0..answers {
                messages.push(json!({ "role": "assistant", "content": "yes" }));
                messages.push(json!({ "role": "user", "content": "more" }));
            }
            memory.opening_key(&messages, 0, "text", None)
        };
        assert_eq!(turn("one?", 0), turn("one?", 2));
        assert_ne!(turn("one?", 0), turn("two?", 0));
        assert_ne!(turn("one?", 0), memory.body_key("text", None));
        let shares = [None, Some(0.1), Some(0.2)].map(|keep| memory.body_key("text", keep));
        assert!(shares[0] != shares[1] && shares[1] != shares[2]);
        assert_ne!(
            memory.body_key("text", None),
            memory.body_key("texts", None)
        );
    }
}
