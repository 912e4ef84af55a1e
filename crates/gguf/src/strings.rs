//! Many short strings in little memory: vocabularies have hundreds of thousands.

use sha2::{Digest as _, Sha256};

/// A list of strings in one allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    /// Where each string ends in `text`.
    ends: Vec<usize>,
}

impl Strings {
    pub(crate) fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<&str> {
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.text.get(start..*self.ends.get(index)?)
    }

    /// Tells lists apart: SHA-256 of each string's length (8 bytes, little-endian) and its bytes, one after another.
    pub fn sha256(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        for string in self.iter() {
            hasher.update((string.len() as u64).to_le_bytes());
            hasher.update(string);
        }
        hasher.finalize().into()
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends
            .iter()
            .map(move |&end| &self.text[std::mem::replace(&mut start, end)..end])
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut list = Self::default();
        for string in strings {
            list.push(string.as_ref());
        }
        list.shrink_to_fit();
        list
    }
}

#[cfg(test)]
mod tests {
    use super::Strings;

    #[test]
    fn strings_come_back_as_they_went_in() {
        let given = ["a", "", "ß", "word"];
        let list: Strings = given.iter().collect();
        assert_eq!(list.len(), 4);
        assert_eq!(list.iter().collect::<Vec<_>>(), given);
        assert_eq!(list.get(2), Some("ß"));
        assert_eq!(list.get(4), None);
        assert!(Strings::default().is_empty());
    }

    #[test]
    fn lists_that_differ_in_text_order_or_bounds_have_other_digests() {
        let digest = |strings: &[&str]| strings.iter().collect::<Strings>().sha256();
        let lists: [&[&str]; 5] = [&["ab", "c"], &["a", "bc"], &["c", "ab"], &["abc"], &[]];
        for (index, list) in lists.iter().enumerate() {
            assert_eq!(digest(list), digest(list));
            assert!(
                lists[..index]
                    .iter()
                    .all(|other| digest(other) != digest(list))
            );
        }
    }
}
