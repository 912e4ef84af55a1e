//! What a shape takes, to choose by.

use tensor::DType;

use crate::gpu::linear::wide::{STEP_COLS, Wide, are_heavy, step_bytes};
use crate::gpu::linear::work::{LINE_BYTES, Work, dtypes};
use crate::gpu::matrix::Form;

/// Of L2 a clock, a multiprocessor's share.
const SHARE_BYTES: usize = 24;
/// Of an instruction of one warp after another: for what all warps of a multiprocessor issue, in sixteenths, and for a warp
/// that waits for its own results. With the latter at 8 and blocks of ten warps alone on a multiprocessor, this count of
/// clocks gave an H200's measured steps of 16, 23, 32 and 64 rows but for the same 2.9 ms; prompts, with eight warps, came
/// to 6.
const ISSUE_SIXTEENTHS: usize = 5;
const ALONE_CLOCKS: usize = 6;
/// Until a block's first step is there.
const FILL_CLOCKS: usize = 1500;
/// Until the sums of its splits are together.
const MEET_CLOCKS: usize = 2000;
/// Where a warp feeds the others, clocks.
struct Fed {
    /// Of a step: whatever a block does, what each warp adds, what it adds more where 16 inputs have a scale, and what each column
    /// tile of a warp adds.
    step: usize,
    warp: usize,
    by_16: usize,
    tile: usize,
    /// Of 128 bytes of a step's copies.
    line: usize,
    /// Of a unit: its first step and its last sums, while another block of the multiprocessor goes on.
    unit: usize,
    /// Until the sums of splits are together in memory, and for each column tile of a warp.
    meet: usize,
    meet_tile: usize,
}
/// The same in a cluster, for each column tile of a warp.
const CLUSTER_TILE: usize = 20;
/// Until the sums of splits of gate and up are left: a guess, with which the chosen shapes of a 27B's were the fastest ones with 32 and 64 rows, and 2
/// and 4 % slower than those with 16 and 23 (one H100, 2026-11-26, `product_shapes -- 16,23,32,64 "5120 gate and up"`).
const LEFT_CLOCKS: usize = 600;
/// Of quants with a scale for 256 inputs, by warps on their own and in groups, as fitted to the matrices of a 27B in Q4_K_M with 23 to 512
/// rows on an H200: the shapes that are chosen so take 0.1 to 1.3 % more than the best ones (docs/tuning.md, "Products").
const QUANTS: Fed = Fed {
    step: 30,
    warp: 51,
    by_16: 53,
    tile: 38,
    line: 0,
    unit: 3100,
    meet: 5900,
    meet_tile: 20,
};
const GROUPED_QUANTS: Fed = Fed {
    step: 0,
    warp: 175,
    by_16: 50,
    tile: 12,
    line: 0,
    unit: 4000,
    meet: 0,
    meet_tile: 210,
};
/// With a scale for 32 inputs, as once fitted to all quants on an H200, but for sums of splits.
const QUANTS_BY_32: Fed = Fed {
    step: 450,
    warp: 0,
    by_16: 0,
    tile: 45,
    line: 1,
    unit: 2900,
    ..QUANTS
};
/// The same of floats; tiles count for each product of a term of the weights and one of the activations. With these, but for sums of splits, the
/// chosen shapes take 3 % more than the best ones over the matrices of a 0.8B in BF16 (the mean of logarithms; docs/tuning.md, "Floats of
/// 16 bits").
const FLOATS: Fed = Fed {
    step: 2100,
    tile: 29,
    unit: 5000,
    ..QUANTS_BY_32
};
const GROUPED_FLOATS: Fed = Fed {
    warp: 72,
    tile: 17,
    ..FLOATS
};
/// Instructions of a column tile, and of floats of each such product.
const TILE_INSTRUCTIONS: usize = 95;
const FLOAT_TILE_INSTRUCTIONS: usize = 150;

impl Wide {
    /// Clocks of the busiest multiprocessor, roughly.
    pub(in crate::gpu::linear) fn cost(&self, work: &Work, multiprocessors: usize) -> usize {
        let steps = work.cols.div_ceil(STEP_COLS);
        let in_turn = work.matrices;
        let [whole, split] = self.units_of(self.row_blocks(&work.heights));
        let of_each = |heavy| {
            let some = work.each.iter().filter(|types| are_heavy(**types) == heavy);
            some.fold(0, |all, types| all | types)
        };
        let [light, heavy] = match self.heavy_apart {
            true => [false, true].map(of_each),
            false => [work.types; 2],
        };
        let whole = whole.div_ceil(multiprocessors);
        let of_whole = self.cost_of((work.types, light), whole, steps * in_turn, 1);
        let steps = steps.div_ceil(self.splits);
        let split = split.div_ceil(multiprocessors);
        let rest = Self {
            row_warps: self.row_warps / self.cuts,
            ..*self
        };
        let of_rest = rest.cost_of((work.types, heavy), split, steps, self.splits);
        match self.heavy_apart {
            // Beside each other.
            true => of_whole.max(of_rest),
            false => of_whole + of_rest,
        }
    }

    /// Of a multiprocessor's `units` of so many steps and splits, of the second of `types`, where the first are in use.
    fn cost_of(&self, types: (u32, u32), units: usize, steps: usize, splits: usize) -> usize {
        if units == 0 {
            return 0;
        }
        let together = self.resident.min(units);
        let turns = units.div_ceil(together);
        let bytes = |dtype| {
            let (row, column, step) = step_bytes(dtype, types.0, self.fed);
            let columns = self.column_warps * self.column_tiles * column;
            (self.row_warps * row + columns) * (STEP_COLS / step)
        };
        let bytes = together * dtypes(types.1).map(bytes).max().unwrap_or(0);
        let warps = together * self.warps();
        if self.fed {
            turns * self.fed_clocks(steps, warps, bytes, together, (types.1, splits))
        } else {
            turns * self.clocks(steps, warps, bytes, (types.1, splits))
        }
    }

    /// Of as many units as are multiplied together: blocks share a multiprocessor's issue slots and what it can read; one of
    /// few warps waits for its own results; and each begins with waiting for memory.
    fn clocks(
        &self,
        steps: usize,
        warps: usize,
        bytes: usize,
        (types, splits): (u32, usize),
    ) -> usize {
        let of_tile = match float_products(types) {
            0 => TILE_INSTRUCTIONS,
            products => products * FLOAT_TILE_INSTRUCTIONS,
        };
        let instructions = 170 + of_tile * self.column_tiles;
        let step = (warps * instructions * ISSUE_SIXTEENTHS / 16)
            .max(ALONE_CLOCKS * instructions)
            .max(bytes / SHARE_BYTES);
        let parts = match splits {
            1 => 0,
            _ => 2 * warps * self.column_tiles * 512 / SHARE_BYTES + MEET_CLOCKS,
        };
        steps * step + parts + FILL_CLOCKS
    }

    /// The same of blocks that are fed.
    fn fed_clocks(
        &self,
        steps: usize,
        warps: usize,
        bytes: usize,
        together: usize,
        (types, splits): (u32, usize),
    ) -> usize {
        let products = float_products(types);
        let by_256 = dtypes(types).any(|dtype| Form::of(dtype) == Form::By256);
        let fed = match (products, self.grouped) {
            (0, true) => GROUPED_QUANTS,
            (0, false) if by_256 => QUANTS,
            (0, false) => QUANTS_BY_32,
            (_, false) => FLOATS,
            (_, true) => GROUPED_FLOATS,
        };
        let of_rows = fed.warp + if are_heavy(types) { fed.by_16 } else { 0 };
        let of_warp = of_rows + products.max(1) * fed.tile * self.column_tiles;
        // Some of it a quarter of the multiprocessor has to itself, and one of them has the most warps.
        let slowest = (warps + warps.next_multiple_of(4)) * of_warp / 2;
        let step = fed.step + slowest + bytes / LINE_BYTES * fed.line;
        let parts = match (splits, self.cluster) {
            (1, _) => 0,
            // They are left for those who read them.
            _ if self.matrices == 2 && self.is_mixed() => LEFT_CLOCKS,
            (_, 1) => fed.meet + fed.meet_tile * warps * self.column_tiles,
            _ => CLUSTER_TILE * warps * self.column_tiles,
        };
        steps * step.max(bytes / SHARE_BYTES) + parts + fed.unit / together
    }
}

/// Products of a float weight's bf16 terms with those of an activation; 0 for quants. Of several types the one with the fewest: what a model
/// keeps more exactly are a few rows beside many.
fn float_products(types: u32) -> usize {
    let products = |dtype| match dtype {
        DType::BF16 => 2,
        DType::F16 => 4,
        DType::F32 => 9,
        _ => 0,
    };
    dtypes(types).map(products).min().unwrap_or(0)
}
