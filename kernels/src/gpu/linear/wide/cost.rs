//! What a shape takes, to choose by.

use crate::gpu::linear::wide::{STEP_COLS, Wide, step_bytes};
use crate::gpu::linear::work::{Work, dtypes};

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
/// Where a warp feeds the others, clocks of an H200 as fitted to its times of 23, 64 and 512 rows. Of a step: whatever a block
/// does, what each warp adds, and what each column tile of a warp adds, on its own and in a group.
const FED_STEP_CLOCKS: usize = 500;
const GROUP_WARP_CLOCKS: usize = 80;
const FED_TILE_CLOCKS: usize = 42;
const GROUP_TILE_CLOCKS: usize = 26;
/// Of a step's copies, that shared memory takes in a clock.
const COPIED_BYTES: usize = 128;
/// Of a unit: its first step and its last sums, while another block of the multiprocessor goes on.
const FED_UNIT_CLOCKS: usize = 2800;
/// Until the sums of splits are together, and for each column tile of a warp.
const FED_MEET_CLOCKS: usize = 9000;
const FED_MEET_TILE_CLOCKS: usize = 60;

impl Wide {
    /// Clocks of the busiest multiprocessor, roughly.
    pub(in crate::gpu::linear) fn cost(&self, work: &Work<'_>, multiprocessors: usize) -> usize {
        let units = self
            .units(self.row_blocks(work.heights))
            .div_ceil(multiprocessors)
            .max(1);
        let together = self.resident.min(units);
        let turns = units.div_ceil(together);
        let mut steps = work.cols.div_ceil(STEP_COLS).div_ceil(self.splits);
        if self.splits == 1 {
            steps *= self.matrices / self.matrices_at_once();
        }
        let bytes = |dtype| {
            let (row, column, step) = step_bytes(dtype);
            let columns = self.column_warps * self.column_tiles * column;
            (self.row_warps * row + columns) * (STEP_COLS / step)
        };
        let bytes = together * dtypes(work.types).map(bytes).max().unwrap_or(0);
        let warps = together * self.warps();
        if self.fed {
            turns * self.fed_clocks(steps, warps, bytes, together)
        } else {
            turns * self.clocks(steps, warps, bytes)
        }
    }

    /// Of as many units as are multiplied together: blocks share a multiprocessor's issue slots and what it can read; one of
    /// few warps waits for its own results; and each begins with waiting for memory.
    fn clocks(&self, steps: usize, warps: usize, bytes: usize) -> usize {
        let instructions = 170 + 95 * self.column_tiles;
        let step = (warps * instructions * ISSUE_SIXTEENTHS / 16)
            .max(ALONE_CLOCKS * instructions)
            .max(bytes / SHARE_BYTES);
        let parts = match self.splits {
            1 => 0,
            _ => 2 * warps * self.column_tiles * 512 / SHARE_BYTES + MEET_CLOCKS,
        };
        steps * step + parts + FILL_CLOCKS
    }

    /// The same of blocks that are fed.
    fn fed_clocks(&self, steps: usize, warps: usize, bytes: usize, together: usize) -> usize {
        let of_warp = if self.grouped {
            GROUP_WARP_CLOCKS + GROUP_TILE_CLOCKS * self.column_tiles
        } else {
            FED_TILE_CLOCKS * self.column_tiles
        };
        // Some of it a quarter of the multiprocessor has to itself, and one of them has the most warps.
        let slowest = (warps + warps.next_multiple_of(4)) * of_warp / 2;
        let step = FED_STEP_CLOCKS + slowest + bytes / COPIED_BYTES;
        let parts = match self.splits {
            1 => 0,
            _ => FED_MEET_CLOCKS + FED_MEET_TILE_CLOCKS * warps * self.column_tiles,
        };
        steps * step.max(bytes / SHARE_BYTES) + parts + FED_UNIT_CLOCKS / together
    }
}
