//! Outputs of captured layers.

use kernels::{Buffer, Device, DeviceError};

use crate::features::FeatureBlock;

/// Outputs of captured layers of the last batch.
#[derive(Debug, Default)]
pub(super) struct Features {
    /// \[max_rows, layers, E\]; made when first needed.
    pub all: Buffer,
    /// Rows on their way to the host.
    picked: Buffer,
    /// Values of a row: layers E.
    pub row_len: usize,
}

impl Features {
    /// Makes room for `max_rows` rows of `row_len` values; whether the buffers are others than before.
    pub fn keep(
        &mut self,
        device: &dyn Device,
        max_rows: usize,
        row_len: usize,
    ) -> Result<bool, DeviceError> {
        self.row_len = row_len;
        let len = max_rows * row_len;
        if self.all.len() >= len {
            return Ok(false);
        }
        self.all = device.zeros(len)?;
        self.picked = device.zeros(len)?;
        Ok(true)
    }

    /// Rows \[rows, row_len\].
    pub fn read(&mut self, device: &dyn Device, rows: &[usize]) -> Vec<f32> {
        let row_len = self.row_len;
        let mut values = vec![0.0; rows.len() * row_len];
        if values.is_empty() {
            // Where nothing was ever captured, the buffers are not the device's.
            return values;
        }
        let is_run = rows.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        match rows.first() {
            Some(first) if is_run => device.read(&self.all, first * row_len, &mut values),
            _ => {
                device.gather_rows(&self.all, row_len, rows, &mut self.picked);
                device.read(&self.picked, 0, &mut values);
            }
        }
        values
    }
    /// Copies rows to `to_row` of a block and after.
    pub fn copy(
        &mut self,
        device: &dyn Device,
        rows: &[usize],
        to: &mut FeatureBlock,
        to_row: usize,
    ) {
        let len = self.row_len;
        let is_run = rows.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        match rows.first() {
            None => {}
            Some(first) if is_run => {
                let run = first * len..(first + rows.len()) * len;
                to.copy_span(to_row, self.all.span(run));
            }
            Some(_) => {
                device.gather_rows(&self.all, len, rows, &mut self.picked);
                to.copy_span(to_row, self.picked.span(0..rows.len() * len));
            }
        }
    }
}
