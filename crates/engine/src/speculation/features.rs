//! Feature rows of one sequence, kept for the draft where they were computed: on the target's device.

use std::ops::Range;

use models::{FeatureBlock, FeatureRows, Model, ModelError};
use prefix_store::FeatureShape;

/// Bytes of rows kept for a sequence.
const MAX_BYTES: usize = 32 << 20;
/// Rows kept at most: what drafts look back.
const MAX_ROWS: usize = 4096;
/// Rows kept at least, however wide they are.
const MIN_ROWS: usize = 64;

/// The latest rows, so that a draft that comes late, or comes back, begins with a context.
#[derive(Debug)]
pub(crate) struct FeatureTail {
    /// The row of a position is at the position modulo the number of rows.
    block: FeatureBlock,
    kept: Range<usize>,
}

impl FeatureTail {
    /// Rows that are kept of `row_len` values each.
    pub fn capacity(row_len: usize) -> usize {
        let row_bytes = row_len * size_of::<f32>();
        (MAX_BYTES / row_bytes).clamp(MIN_ROWS, MAX_ROWS)
    }

    /// No rows yet; the first will be of `position`.
    pub fn new(block: FeatureBlock, position: usize) -> Self {
        Self {
            block,
            kept: position..position,
        }
    }

    /// Position after the last row.
    pub fn end(&self) -> usize {
        self.kept.end
    }

    /// Takes the next `num_rows` positions; `copy` copies some of the new rows to a row of the block.
    pub fn extend(
        &mut self,
        num_rows: usize,
        mut copy: impl FnMut(Range<usize>, &mut FeatureBlock, usize),
    ) {
        let capacity = self.block.num_rows();
        let mut next = num_rows.saturating_sub(capacity);
        while next < num_rows {
            let at = (self.kept.end + next) % capacity;
            let last = num_rows.min(next + capacity - at);
            copy(next..last, &mut self.block, at);
            next = last;
        }
        self.kept.end += num_rows;
        let oldest = self.kept.end.saturating_sub(capacity);
        self.kept.start = self.kept.start.max(oldest);
    }

    /// Rows of `position` and later, as far as they are kept and lie one after the other, and the position of their first.
    /// There are none only at the end.
    pub fn since(&self, position: usize) -> (usize, FeatureRows<'_>) {
        let capacity = self.block.num_rows();
        let first = position.clamp(self.kept.start, self.kept.end);
        let at = first % capacity;
        let last = (at + self.kept.end - first).min(capacity);
        (first, self.block.rows(at..last))
    }

    /// A copy of the rows, which stays when the tail goes on.
    ///
    /// # Errors
    /// There is no memory.
    pub fn keep(&self, model: &Model, layers: &[usize]) -> Result<KeptFeatures, ModelError> {
        let mut block = model.feature_block(self.kept.len(), self.row_len())?;
        let mut next = self.kept.start;
        while next < self.kept.end {
            let (first, rows) = self.since(next);
            block.copy_from(first - self.kept.start, rows);
            next = first + rows.num_rows();
        }
        Ok(KeptFeatures {
            layers: layers.to_vec(),
            block,
            first: self.kept.start,
        })
    }

    /// Values of a row.
    pub fn row_len(&self) -> usize {
        self.block.row_len()
    }

    /// The memory, for another sequence.
    pub fn into_block(self) -> FeatureBlock {
        self.block
    }
}

/// The rows before one position, for a sequence that goes on from there.
#[derive(Debug)]
pub(crate) struct KeptFeatures {
    /// Layers that they are of.
    pub layers: Vec<usize>,
    block: FeatureBlock,
    /// Position of the first row.
    pub first: usize,
}

impl KeptFeatures {
    /// Puts the rows into a tail that begins at the first one.
    pub fn restore(&self, tail: &mut FeatureTail) {
        tail.extend(self.block.num_rows(), |rows, to, at| {
            to.copy_from(at, self.block.rows(rows));
        });
    }

    /// Room for rows that come from files; `None` where they are no rows of this model, or there is no memory.
    pub fn with_room(model: &Model, shape: &FeatureShape) -> Option<Self> {
        let row_len = shape.layers.len() * model.config().hidden_size;
        let is_row = row_len > 0 && shape.row_bytes == row_len * size_of::<f32>();
        if !is_row || shape.num_rows > FeatureTail::capacity(row_len) {
            return None;
        }
        Some(Self {
            layers: shape.layers.clone(),
            block: model.feature_block(shape.num_rows, row_len).ok()?,
            first: shape.first,
        })
    }

    /// What they are; `None` where there are none.
    pub fn shape(&self) -> Option<FeatureShape> {
        let num_rows = self.block.num_rows();
        (num_rows > 0).then(|| FeatureShape {
            layers: self.layers.clone(),
            first: self.first,
            num_rows,
            row_bytes: self.block.row_len() * size_of::<f32>(),
        })
    }

    /// Some of the rows as bytes; `None` where they are not there.
    pub fn read(&self, rows: Range<usize>) -> Option<Vec<u8>> {
        let is_there = rows.start <= rows.end && rows.end <= self.block.num_rows();
        let values = is_there.then(|| self.block.rows(rows).to_vec())?;
        Some(
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
        )
    }

    /// Puts rows, as [`KeptFeatures::read`] gave them, to `row` and after, of which there is room.
    pub fn write(&mut self, model: &Model, row: usize, bytes: &[u8]) {
        let (values, _) = bytes.as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|v| f32::from_le_bytes(*v)).collect();
        self.block.write(model.device().as_ref(), row, &values);
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.block.num_rows() * self.block.row_len() * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use kernels::CpuDevice;
    use models::FeatureBlock;

    use super::FeatureTail;

    /// A tail of `capacity` rows of two values.
    fn tail(capacity: usize, position: usize) -> (CpuDevice, FeatureTail) {
        let device = CpuDevice::new(1).unwrap();
        let block = FeatureBlock::new(&device, capacity, 2).unwrap();
        (device, FeatureTail::new(block, position))
    }

    /// Extends by rows that hold their position and a half.
    fn extend(device: &CpuDevice, tail: &mut FeatureTail, num_rows: usize) {
        let first = tail.end();
        let mut rows = FeatureBlock::new(device, num_rows, 2).unwrap();
        let values = (first..first + num_rows).flat_map(|position| [position as f32, 0.5]);
        rows.write(device, 0, &values.collect::<Vec<_>>());
        tail.extend(num_rows, |range, block, at| {
            block.copy_from(at, rows.rows(range));
        });
    }

    /// All rows from a position on: the position of the first, and what they hold.
    fn since(tail: &FeatureTail, position: usize) -> (usize, Vec<f32>) {
        let (first, mut next) = (tail.since(position).0, position);
        let mut all = Vec::new();
        loop {
            let (at, rows) = tail.since(next);
            if rows.num_rows() == 0 {
                return (first, all);
            }
            all.extend(rows.to_vec().into_iter().step_by(2));
            next = at + rows.num_rows();
        }
    }

    fn positions(range: std::ops::Range<usize>) -> Vec<f32> {
        range.map(|position| position as f32).collect()
    }

    #[test]
    fn rows_are_found_by_their_position() {
        let (device, mut tail) = tail(8, 7);
        extend(&device, &mut tail, 2);
        assert_eq!(tail.end(), 9);
        assert_eq!(since(&tail, 0), (7, positions(7..9)));
        assert_eq!(since(&tail, 8), (8, positions(8..9)));
        assert_eq!(since(&tail, 9), (9, Vec::new()));
        assert_eq!(since(&tail, 100), (9, Vec::new()));
    }

    #[test]
    fn the_latest_rows_are_kept_however_they_come() {
        for pieces in [[1, 1, 1, 1], [3, 8, 2, 5], [30, 1, 9, 4], [8, 8, 16, 7]] {
            let (device, mut tail) = tail(8, 5);
            let mut end = 5;
            for rows in pieces {
                extend(&device, &mut tail, rows);
                end += rows;
                let first = end.saturating_sub(8).max(5);
                assert_eq!(since(&tail, 0), (first, positions(first..end)));
                assert_eq!(since(&tail, end - 1), (end - 1, positions(end - 1..end)));
            }
        }
    }

    #[test]
    fn wide_rows_are_fewer() {
        assert_eq!(FeatureTail::capacity(4), 4096);
        assert_eq!(FeatureTail::capacity(5 * 5120), 327);
        assert_eq!(FeatureTail::capacity(1 << 20), 64);
    }
}
