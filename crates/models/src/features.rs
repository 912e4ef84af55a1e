//! Rows of features in memory of a device: what a target captures of accepted tokens, and what a draft gets of them.

use std::ops::Range;

use kernels::{Buffer, Device, Span, SpanMut};

use crate::error::ModelError;

/// Room for rows of features.
#[derive(Debug)]
pub struct FeatureBlock {
    /// \[rows, row_len\].
    values: Buffer,
    row_len: usize,
}

/// Some rows of a [`FeatureBlock`].
#[derive(Clone, Copy, Debug)]
pub struct FeatureRows<'a> {
    span: Span<'a>,
    row_len: usize,
}

impl FeatureBlock {
    /// Room on a device.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(device: &dyn Device, num_rows: usize, row_len: usize) -> Result<Self, ModelError> {
        Ok(Self {
            values: device.zeros(num_rows * row_len)?,
            row_len,
        })
    }

    /// Values of a row.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// Rows that there is room for.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.values.len() / self.row_len
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// They are not there.
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> FeatureRows<'_> {
        FeatureRows {
            span: self
                .values
                .span(rows.start * self.row_len..rows.end * self.row_len),
            row_len: self.row_len,
        }
    }

    /// All of it, to be overwritten from its front.
    #[must_use]
    pub fn room(&mut self) -> SpanMut<'_> {
        let len = self.values.len();
        self.values.span_mut(0..len)
    }

    /// Copies values from the host to `row` and after.
    ///
    /// # Panics
    /// There is no room.
    pub fn write(&mut self, device: &dyn Device, row: usize, values: &[f32]) {
        device.write(&mut self.values, row * self.row_len, values);
    }

    /// Copies rows of another block of the same device to `row` and after.
    ///
    /// # Panics
    /// There is no room.
    pub fn copy_from(&mut self, row: usize, rows: FeatureRows<'_>) {
        self.copy_span(row, rows.span);
    }

    pub(crate) fn copy_span(&mut self, row: usize, span: Span<'_>) {
        self.values.copy_from(row * self.row_len, span);
    }
}

impl<'a> FeatureRows<'a> {
    /// Number of rows.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.span.len() / self.row_len
    }

    /// Values of a row.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// Some of them.
    ///
    /// # Panics
    /// They are not there.
    #[must_use]
    pub fn slice(self, rows: Range<usize>) -> Self {
        Self {
            span: self
                .span
                .slice(rows.start * self.row_len..rows.end * self.row_len),
            row_len: self.row_len,
        }
    }

    /// The values, where they lie: \[rows, row_len\].
    #[must_use]
    pub fn span(self) -> Span<'a> {
        self.span
    }

    /// The values on the host.
    #[must_use]
    pub fn to_vec(self) -> Vec<f32> {
        self.span.to_vec()
    }
}
