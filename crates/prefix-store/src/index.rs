//! Which cuts there are.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use crate::key::{Chain, Key};

/// Cuts by their length.
#[derive(Debug, Default)]
pub(crate) struct Index {
    cuts: BTreeMap<usize, HashSet<Key>>,
}

impl Index {
    pub fn add(&mut self, len: usize, key: Key) {
        self.cuts.entry(len).or_default().insert(key);
    }

    pub fn remove(&mut self, len: usize, key: Key) {
        if let Some(keys) = self.cuts.get_mut(&len) {
            keys.remove(&key);
            if keys.is_empty() {
                self.cuts.remove(&len);
            }
        }
    }

    pub fn has(&self, len: usize, key: Key) -> bool {
        self.cuts.get(&len).is_some_and(|keys| keys.contains(&key))
    }

    /// The longest cut of a text whose length is in a range.
    pub fn longest(&self, text: &Chain<'_>, lens: Range<usize>) -> Option<usize> {
        if lens.is_empty() {
            return None;
        }
        let mut longest_first = self.cuts.range(lens).rev();
        longest_first.find_map(|(len, keys)| {
            let key = text.cut(*len)?;
            keys.contains(&key).then_some(*len)
        })
    }

    pub fn len(&self) -> usize {
        self.cuts.values().map(HashSet::len).sum()
    }
}
