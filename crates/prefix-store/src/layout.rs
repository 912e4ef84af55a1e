//! Sizes of what is kept.

use crate::key::{Fingerprint, Fingerprinter};

/// Bytes of features that go into one part.
const FEATURE_PART_BYTES: usize = 4 << 20;
/// Numbers that the shape of features has at most; no model has so many layers.
pub(crate) const MAX_FEATURE_LAYERS: usize = 4096;

/// Sizes of a model's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Bytes of a page's keys and values, of all layers.
    pub page_bytes: usize,
    /// Bytes of each state that belongs to one position.
    pub state_bytes: Vec<usize>,
}

/// Rows of features before a cut, for a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureShape {
    /// Layers that they are of.
    pub layers: Vec<usize>,
    /// Position of the first row.
    pub first: usize,
    /// Rows, the last of which is before the cut.
    pub num_rows: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
}

/// A piece of what is kept of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Keys and values of a page.
    Page(usize),
    /// A state of the position.
    State(usize),
    /// Rows of features, from one on.
    Features {
        /// The first, counted from the first one kept.
        row: usize,
        /// How many.
        num_rows: usize,
    },
}

impl Layout {
    /// The fingerprint of states that lie like this.
    pub(crate) fn fingerprint(&self, of: &Fingerprint) -> Fingerprint {
        let mut maker = Fingerprinter::default();
        maker.add(of.bytes());
        let sizes = [self.page_tokens, self.page_bytes];
        for size in sizes.iter().chain(&self.state_bytes) {
            maker.add((*size as u64).to_le_bytes());
        }
        maker.finish()
    }

    /// Pages that are full before a cut.
    pub(crate) fn full_pages(&self, len: usize) -> usize {
        len / self.page_tokens
    }

    /// What a cut's own file holds, in its order.
    pub(crate) fn cut_parts(&self, len: usize, features: Option<&FeatureShape>) -> Vec<Part> {
        let full = self.full_pages(len);
        let tail = (!len.is_multiple_of(self.page_tokens)).then_some(Part::Page(full));
        let states = (0..self.state_bytes.len()).map(Part::State);
        let features = features.into_iter().flat_map(FeatureShape::parts);
        tail.into_iter().chain(states).chain(features).collect()
    }

    /// Bytes of a part; `None` where there is no such part.
    pub(crate) fn bytes(&self, part: Part, features: Option<&FeatureShape>) -> Option<usize> {
        match part {
            Part::Page(_) => Some(self.page_bytes),
            Part::State(number) => self.state_bytes.get(number).copied(),
            Part::Features { num_rows, .. } => num_rows.checked_mul(features?.row_bytes),
        }
    }
}

impl FeatureShape {
    fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let num_rows = self.num_rows;
        let step = (FEATURE_PART_BYTES / self.row_bytes.max(1)).max(1);
        (0..num_rows).step_by(step).map(move |row| Part::Features {
            row,
            num_rows: step.min(num_rows - row),
        })
    }

    /// Whether its rows are those before a cut, and can be counted.
    pub(crate) fn ends_at(&self, len: usize) -> bool {
        self.row_bytes > 0 && self.first.checked_add(self.num_rows) == Some(len)
    }

    pub(crate) fn encode(shape: Option<&Self>) -> Vec<u8> {
        let Some(shape) = shape else {
            return Vec::new();
        };
        let sizes = [shape.first, shape.num_rows, shape.row_bytes];
        let numbers = sizes.iter().chain(&shape.layers);
        numbers.flat_map(|n| (*n as u64).to_le_bytes()).collect()
    }

    /// `None`: these bytes are no shape. `Some(None)`: there are no features.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Option<Self>> {
        if bytes.is_empty() {
            return Some(None);
        }
        let (numbers, rest) = bytes.as_chunks::<8>();
        let numbers = numbers.iter().map(|n| u64::from_le_bytes(*n));
        let numbers: Option<Vec<usize>> = numbers.map(|n| usize::try_from(n).ok()).collect();
        match numbers?.as_slice() {
            [first, num_rows, row_bytes, layers @ ..] if rest.is_empty() => Some(Some(Self {
                layers: layers.to_vec(),
                first: *first,
                num_rows: *num_rows,
                row_bytes: *row_bytes,
            })),
            _ => None,
        }
    }
}
