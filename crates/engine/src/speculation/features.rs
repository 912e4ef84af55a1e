//! Feature rows of one sequence, kept for the draft.

/// Bytes of rows kept for a sequence.
const MAX_BYTES: usize = 32 << 20;
/// Rows kept at most: what drafts look back.
const MAX_ROWS: usize = 4096;
/// Rows kept at least, however wide they are.
const MIN_ROWS: usize = 64;

/// The latest rows, so that a draft that comes late, or comes back, begins with a context.
#[derive(Debug)]
pub(crate) struct FeatureTail {
    /// Values of a row: one hidden state per captured layer.
    row_len: usize,
    /// Position of the first row kept.
    first_position: usize,
    /// \[rows, row_len\].
    values: Vec<f32>,
}

impl FeatureTail {
    /// Rows of `row_len` values; the first will be of `position`.
    pub fn new(row_len: usize, position: usize) -> Self {
        Self {
            row_len,
            first_position: position,
            values: Vec::new(),
        }
    }

    /// Position after the last row.
    pub fn end(&self) -> usize {
        self.first_position + self.values.len() / self.row_len
    }

    /// Takes the rows \[n, row_len\] of the next positions.
    pub fn extend(&mut self, rows: &[f32]) {
        self.values.extend_from_slice(rows);
        let row_bytes = self.row_len * size_of::<f32>();
        let most = (MAX_BYTES / row_bytes).clamp(MIN_ROWS, MAX_ROWS);
        // Twice as many before the older half goes, so that moving the rest costs little per row.
        let rows = self.values.len() / self.row_len;
        if rows >= 2 * most {
            self.values.drain(..(rows - most) * self.row_len);
            self.first_position += rows - most;
        }
    }

    /// The rows of `position` and later, as far as they are kept, and the position of their first.
    pub fn since(&self, position: usize) -> (usize, &[f32]) {
        let first = position.clamp(self.first_position, self.end());
        let skipped = (first - self.first_position) * self.row_len;
        (first, &self.values[skipped..])
    }

    /// Values of a row.
    pub fn row_len(&self) -> usize {
        self.row_len
    }
}

#[cfg(test)]
mod tests {
    use super::{FeatureTail, MAX_ROWS};

    #[test]
    fn rows_are_found_by_their_position() {
        let mut tail = FeatureTail::new(2, 7);
        tail.extend(&[0.5, 1.0, 0.75, 5.0]);
        assert_eq!(tail.end(), 9);
        assert_eq!(tail.since(0), (7, &[0.5, 1.0, 0.75, 5.0][..]));
        assert_eq!(tail.since(8), (8, &[0.75, 5.0][..]));
        assert_eq!(tail.since(9), (9, &[][..]));
        assert_eq!(tail.since(100), (9, &[][..]));
    }

    #[test]
    fn old_rows_go() {
        let mut tail = FeatureTail::new(4, 0);
        let rows = 5 * MAX_ROWS;
        for row in 0..rows {
            tail.extend(&[row as f32, 0.0, 0.0, 1.0]);
        }
        assert_eq!(tail.end(), rows);
        let (first, values) = tail.since(0);
        assert!((rows - 2 * MAX_ROWS..=rows - MAX_ROWS).contains(&first));
        assert_eq!(values[0], first as f32);
    }
}
