//! Weights that the blocks of a product of many rows read first: they come as far as L2 while its rows are made ready.

use crate::gpu::driver::{DeviceFacts, DevicePtr};
use crate::gpu::linear::wide::{Wide, are_heavy};
use crate::gpu::linear::work::{Product, types_of};
use crate::gpu::matrix::{GpuMatrix, TILE_ROWS, tile_bytes, tile_cols};

/// Runs of a launch at most; what would be more comes later.
const MOST_RUNS: usize = 8;
/// Inputs of a block of a row, in which slices are counted.
const BLOCK: usize = 256;

/// See gpu/activate.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct Run {
    at: DevicePtr,
    apart: u32,
    bytes: u32,
    pieces: u32,
    unused: u32,
}

/// See gpu/activate.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Ahead {
    runs: [Run; MOST_RUNS],
    count: u32,
    unused: u32,
}

impl Ahead {
    pub const NONE: Self = Self {
        runs: [Run {
            at: DevicePtr::NULL,
            apart: 0,
            bytes: 0,
            pieces: 0,
            unused: 0,
        }; MOST_RUNS],
        count: 0,
        unused: 0,
    };

    /// Of the units that a launch of this shape begins with, their matrices in its order.
    pub fn of(shape: &Wide, products: &[Product<'_>], facts: &DeviceFacts) -> Self {
        let mut ahead = Self::NONE;
        // Where columns are many blocks', weights come from L2 anyhow.
        if !shape.fed || shape.column_blocks > 1 {
            return ahead;
        }
        let blocks_of = |product: &Product<'_>| product.weight.rows.div_ceil(shape.block_rows());
        let row_blocks = products.iter().map(blocks_of).sum();
        let mut left = shape.grid(row_blocks, facts);
        for product in products {
            let is_light = !are_heavy(types_of(&[*product]));
            let is_whole =
                shape.splits == 1 || shape.is_mixed() && (is_light || !shape.heavy_apart);
            let splits = if is_whole { 1 } else { shape.splits };
            let blocks = blocks_of(product).min(left / splits);
            left -= blocks * splits;
            let rows = product.weight.rows.min(blocks * shape.block_rows());
            // Of a pair that is whole the other matrix comes later.
            let up = product.up.filter(|_| !is_whole);
            for weight in [Some(product.weight), up].into_iter().flatten() {
                for split in 0..splits {
                    let slice = split * shape.slices() / splits;
                    ahead.push(Run::of(weight, rows, slice, shape.slices()));
                }
            }
        }
        ahead
    }

    /// Where all pieces begin, and their bytes.
    #[cfg(test)]
    pub fn places(&self) -> Vec<(u64, u64)> {
        let runs = &self.runs[..self.count as usize];
        let pieces = |run: &Run| {
            let (at, apart, bytes) = (run.at.0, u64::from(run.apart), u64::from(run.bytes));
            (0..u64::from(run.pieces)).map(move |i| (at + i * apart, bytes))
        };
        runs.iter().flat_map(pieces).collect()
    }

    fn push(&mut self, run: Run) {
        if run.pieces > 0 && (self.count as usize) < MOST_RUNS {
            self.runs[self.count as usize] = run;
            self.count += 1;
        }
    }
}

impl Run {
    /// What a stage has of the first inputs of a slice, of so many rows.
    fn of(weight: &GpuMatrix, rows: usize, slice: usize, slices: usize) -> Self {
        let (tiles, bytes) = (weight.tiles_per_row(), tile_bytes(weight.dtype));
        let of_block = BLOCK / tile_cols(weight.dtype);
        // See `slice_start` of gpu/products.h.
        let first = slice * weight.cols.div_ceil(BLOCK) / slices * of_block;
        let count = of_block.min(tiles.saturating_sub(first));
        Self {
            at: weight.memory.ptr().add(first * bytes),
            apart: (tiles * bytes) as u32,
            bytes: (count * bytes) as u32,
            pieces: if count > 0 {
                rows.div_ceil(TILE_ROWS) as u32
            } else {
                0
            },
            unused: 0,
        }
    }
}
