//! How gpu/matmul_wide.cu and gpu/matmul_fed.cu share the work among thread blocks. It changes no result.

mod cost;

use std::fmt;

use tensor::DType;

use crate::gpu::driver::{DeviceFacts, DevicePtr, Source};
use crate::gpu::linear::work::{Activations, COLUMNS, Job, MAX_JOBS, SLICES, Work, dtypes};
use crate::gpu::matrix::{Form, TILE_ROWS, tile_bytes};

/// Column tiles of a warp that kernels are compiled for. Nine are the 65 rows of a large tree.
const COLUMN_TILES: &[usize] = &[2, 3, 4, 5, 6, 8, 9];
/// Column tiles of a thread block.
const MAX_COLUMN_TILES: [usize; 4] = [16, 8, 4, 2];
/// The same of four warps together (gpu/warpgroup.h), and the threads of a multiprocessor whose registers hold their sums.
const GROUP_TILES: [(usize, usize); 7] = [
    (2, 512),
    (3, 512),
    (4, 512),
    (6, 384),
    (8, 384),
    (10, 256),
    (12, 256),
];
const MAX_GROUP_TILES: [usize; 4] = [12, 10, 8, 4];
/// The same of warps on their own that another one feeds.
const FED_TILES: [(usize, usize); 6] = [(2, 640), (3, 512), (4, 512), (5, 384), (6, 384), (8, 384)];
const MAX_FED_TILES: [usize; 2] = [8, 4];
/// The same where gate and up go at once. With more column tiles, groups were faster than two such blocks of columns.
const PAIR_TILES: [(usize, usize); 3] = [(2, 640), (3, 640), (4, 640)];
/// As many as a multiprocessor holds: with fewer, small matrices were slower than by warps that take both in turn.
const PAIR_ROW_WARPS: [usize; 3] = [16, 18, 20];
/// Among so many, one is likely to deal a matrix's rows evenly to the multiprocessors. Of those in between, with the matrices of a
/// 27B and 16 to 32 rows on an H200, 5 and 7 were as fast as 6 (within 2 %) or slower, and 9 slower than 10.
const FED_ROW_WARPS: [usize; 10] = [4, 6, 8, 10, 11, 12, 14, 16, 18, 20];
/// Of those that multiply together, and between which registers go.
const GROUP_WARPS: usize = 4;
/// Barriers of a stage.
const BARRIER_BYTES: usize = 16;
/// With 10, matrices of 5120 rows are dealt evenly to the 132 multiprocessors of an H200.
const ROW_WARPS: [usize; 3] = [8, 4, 10];
const STAGES: [usize; 2] = [3, 2];
const FED_STAGES: [usize; 5] = [6, 5, 4, 3, 2];
const SPLITS: [usize; 4] = [1, 2, 4, 8];
/// Threads of a multiprocessor, at 128 registers each.
const RESIDENT_THREADS: usize = 512;
/// With more column tiles than this, a thread needs up to 200 registers.
const LIGHT_COLUMN_TILES: usize = 8;
const HEAVY_THREADS: usize = 320;
/// Up to so many column tiles, 80 registers do.
const LEAN_COLUMN_TILES: usize = 3;
const LEAN_THREADS: usize = 768;
/// Shared memory that a block takes besides its own.
const RESERVED_BYTES: usize = 1280;
/// Of a unit of work, of each warp.
const UNIT_BYTES: usize = 80;
/// Sums of splits, at most: beyond, there is work enough without.
const MAX_PARTS_BYTES: usize = 64 << 20;
/// Inputs of a step: see `Stream` in the kernel.
const STEP_COLS: usize = 256;

/// See gpu/matmul_wide.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct WideArgs {
    pub jobs: [Job; MAX_JOBS],
    pub x: Activations,
    pub parts: DevicePtr,
    pub tickets: DevicePtr,
    pub num_jobs: u32,
    pub cols: u32,
    pub num_rows: u32,
    pub accumulate: u32,
    pub matrices: u32,
    pub splits: u32,
    pub column_blocks: u32,
    pub units: u32,
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) struct Wide {
    /// A warp of a block feeds the others.
    pub fed: bool,
    /// Four warps multiply together.
    pub grouped: bool,
    /// Gate and up at once, by one half of the warps each.
    pub paired: bool,
    /// Column tiles of a warp.
    column_tiles: usize,
    row_warps: usize,
    column_warps: usize,
    stages: usize,
    /// Blocks that a multiprocessor holds at a time.
    resident: usize,
    pub splits: usize,
    pub matrices: usize,
    pub column_blocks: usize,
    pub shared_bytes: usize,
}

/// Bytes that pass through a stage for a row tile and for a column tile, and the inputs that this is.
fn step_bytes(dtype: DType) -> (usize, usize, usize) {
    let form = Form::of(dtype);
    let step = if form == Form::Floats {
        form.cols()
    } else {
        STEP_COLS
    };
    let tiles = step / form.cols();
    (tiles * tile_bytes(dtype), tiles * form.block_bytes(), step)
}

impl fmt::Display for Wide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            fed,
            grouped,
            paired,
            column_tiles,
            row_warps,
            column_warps,
            stages,
            resident,
            splits,
            column_blocks,
            ..
        } = self;
        let together = match (grouped, paired, fed) {
            (true, ..) => "groups, ",
            (false, true, _) => "pairs, ",
            (false, false, true) => "fed, ",
            (false, false, false) => "",
        };
        write!(
            f,
            "{together}{row_warps} x {column_warps} warps, {column_tiles} tiles, {stages} stages, {resident} blocks, {splits} splits, \
             {column_blocks} column blocks"
        )
    }
}

impl Wide {
    /// The cheapest of those that fit on the device; none where nothing fits.
    pub(super) fn of(work: &Work<'_>, facts: &DeviceFacts) -> Option<Self> {
        let multiprocessors = (facts.multiprocessors as usize).max(1);
        let cheapest = |shapes: &mut dyn Iterator<Item = Self>| {
            shapes
                .filter(|shape| {
                    let outputs = shape.row_blocks(work.heights) * shape.column_blocks;
                    shape.splits == 1 || shape.parts_bytes(outputs, 0) <= MAX_PARTS_BYTES
                })
                .min_by_key(|shape| shape.cost(work, multiprocessors))
        };
        cheapest(&mut Self::fed(work, facts)).or_else(|| {
            let mut most = MAX_COLUMN_TILES.iter();
            most.find_map(|&most| cheapest(&mut Self::by_warps(work, most, facts)))
        })
    }

    /// Those that fit, the same one perhaps more than once.
    pub(super) fn all(work: &Work<'_>, facts: &DeviceFacts) -> Vec<Self> {
        let all = MAX_COLUMN_TILES.iter();
        let by_warps = all.flat_map(|&most| Self::by_warps(work, most, facts));
        Self::fed(work, facts).chain(by_warps).collect()
    }

    /// Those that fit of warps on their own, with at most so many column tiles in a block.
    fn by_warps(work: &Work<'_>, most: usize, facts: &DeviceFacts) -> impl Iterator<Item = Self> {
        let threads = [RESIDENT_THREADS, LEAN_THREADS];
        let choices = threads.into_iter().flat_map(|threads| {
            let choices = ROW_WARPS
                .iter()
                .flat_map(|&row_warps| SPLITS.map(|splits| (row_warps, splits)));
            choices.map(move |(row_warps, splits)| (row_warps, splits, threads))
        });
        choices.filter_map(move |(row_warps, splits, most_threads)| {
            let tiles = work.num_rows.div_ceil(COLUMNS);
            let column_blocks = tiles.div_ceil(most);
            let of_block = tiles.div_ceil(column_blocks);
            let column_warps = if of_block > 9 { 2 } else { 1 };
            let of_warp = of_block.div_ceil(column_warps);
            let column_tiles = *COLUMN_TILES.iter().find(|&&tiles| tiles >= of_warp)?;
            let threads = if column_tiles <= LEAN_COLUMN_TILES {
                LEAN_THREADS
            } else if column_tiles <= LIGHT_COLUMN_TILES {
                RESIDENT_THREADS
            } else {
                HEAVY_THREADS
            };
            let shape = Self {
                column_tiles,
                row_warps,
                column_warps,
                column_blocks,
                splits,
                ..Self::unfitted(work)
            };
            shape.fitted(work, threads.min(most_threads), facts)
        })
    }

    /// Those that fit where a warp feeds the others; none where the chip has no such copies, and none in groups where a type
    /// has no such products.
    fn fed(work: &Work<'_>, facts: &DeviceFacts) -> impl Iterator<Item = Self> {
        let is_able = matches!(facts.arch.as_str(), "sm_90a" | "host");
        let in_groups = dtypes(work.types).all(|dtype| Form::of(dtype) == Form::By256);
        let kinds = [false, true]
            .into_iter()
            .filter(move |&grouped| is_able && (in_groups || !grouped));
        let choices = kinds.flat_map(|grouped| {
            let most: &[usize] = if grouped {
                &MAX_GROUP_TILES
            } else {
                &MAX_FED_TILES
            };
            most.iter().flat_map(move |&most| {
                let choices = FED_ROW_WARPS.iter();
                let choices = choices.filter(move |&warps| !grouped || warps % GROUP_WARPS == 0);
                choices.flat_map(move |&warps| SPLITS.map(|splits| (grouped, most, warps, splits)))
            })
        });
        let choices = choices.filter_map(|(grouped, most, row_warps, splits)| {
            let known: &[(usize, usize)] = if grouped { &GROUP_TILES } else { &FED_TILES };
            let shape = Self {
                grouped,
                row_warps,
                splits,
                ..Self::unfitted(work)
            };
            shape.fitted_to_columns(work, most, known, facts)
        });
        let are_pairs = is_able && work.matrices == 2 && work.types.is_power_of_two();
        let pairs = PAIR_ROW_WARPS.iter().filter(move |_| are_pairs);
        let pairs = pairs.filter_map(|&row_warps| {
            let shape = Self {
                paired: true,
                row_warps,
                ..Self::unfitted(work)
            };
            shape.fitted_to_columns(work, usize::MAX, &PAIR_TILES, facts)
        });
        choices.chain(pairs)
    }

    /// One of those that are fed, with as many of the `known` column tiles as its blocks need that take at most `most`.
    fn fitted_to_columns(
        self,
        work: &Work<'_>,
        most: usize,
        known: &[(usize, usize)],
        facts: &DeviceFacts,
    ) -> Option<Self> {
        let tiles = work.num_rows.div_ceil(COLUMNS);
        let column_blocks = tiles.div_ceil(most);
        let of_block = tiles.div_ceil(column_blocks);
        let (column_tiles, threads) = *known.iter().find(|(tiles, _)| *tiles >= of_block)?;
        let shape = Self {
            fed: true,
            column_tiles,
            column_blocks,
            ..self
        };
        shape.fitted(work, threads, facts)
    }

    fn unfitted(work: &Work<'_>) -> Self {
        Self {
            fed: false,
            grouped: false,
            paired: false,
            column_tiles: 1,
            row_warps: 1,
            column_warps: 1,
            stages: 2,
            resident: 1,
            splits: 1,
            matrices: work.matrices,
            column_blocks: 1,
            shared_bytes: 0,
        }
    }

    /// With as many stages and blocks of a multiprocessor, of at most so many threads, as fit.
    fn fitted(self, work: &Work<'_>, most_threads: usize, facts: &DeviceFacts) -> Option<Self> {
        let threads = self.threads();
        if threads > most_threads {
            return None;
        }
        let stage = |dtype| {
            let (row, column, _) = step_bytes(dtype);
            self.row_warps * row + self.column_warps * self.column_tiles * column
        };
        let stage = dtypes(work.types).map(stage).max()?;
        let waiting = if self.splits < SLICES {
            self.column_tiles * threads * 16
        } else {
            0
        };
        let room = facts.shared_bytes_per_block as usize;
        // Each block of those that are fed has its feeders.
        let full = match self.fed {
            true if self.row_warps > 4 => 1,
            true => 2,
            false => most_threads / threads,
        };
        let own = if self.fed {
            self.threads() * UNIT_BYTES / 32
        } else {
            0
        };
        let stage = stage + if self.fed { BARRIER_BYTES } else { 0 };
        let fits = |(resident, stages): &(usize, usize)| {
            resident * (waiting + stages * stage + own + RESERVED_BYTES) <= room + 1024
        };
        let options = [full.max(1), (full / 2).max(1), 1];
        let known: &[usize] = if self.fed { &FED_STAGES } else { &STAGES };
        let mut options = options
            .iter()
            .flat_map(|&r| known.iter().map(move |&stages| (r, stages)));
        let (resident, stages) = options.find(fits)?;
        Some(Self {
            stages,
            resident,
            shared_bytes: waiting + stages * stage,
            ..self
        })
    }

    fn row_blocks(&self, rows: &[usize]) -> usize {
        rows.iter()
            .map(|rows| rows.div_ceil(self.block_rows()))
            .sum()
    }

    /// Rows of a matrix that a block takes.
    pub(super) fn block_rows(&self) -> usize {
        self.row_warps / self.matrices_at_once() * TILE_ROWS
    }

    fn matrices_at_once(&self) -> usize {
        if self.paired { 2 } else { 1 }
    }

    /// Columns of all blocks together.
    pub(super) fn columns(&self) -> usize {
        self.column_blocks * self.column_warps * self.column_tiles * COLUMNS
    }

    /// Those that multiply.
    fn threads(&self) -> usize {
        self.row_warps * self.column_warps * 32
    }

    pub(super) fn warps(&self) -> usize {
        self.row_warps * self.column_warps
    }

    /// Threads that feed the others, one warp of them for long; the rest, where registers can go to the others, bring theirs.
    fn feeders(&self) -> usize {
        if self.row_warps.is_multiple_of(GROUP_WARPS) {
            GROUP_WARPS * 32
        } else {
            32
        }
    }

    /// Of a launch.
    pub(super) fn block_threads(&self) -> usize {
        self.threads() + if self.fed { self.feeders() } else { 0 }
    }

    /// Units of work: without splits, both matrices are one.
    pub(super) fn units(&self, row_blocks: usize) -> usize {
        let matrices = if self.splits == 1 { 1 } else { self.matrices };
        row_blocks * self.column_blocks * self.splits * matrices
    }

    /// Blocks of the launch: without splits, and where they are fed, they take units in turn.
    pub(super) fn grid(&self, units: usize, facts: &DeviceFacts) -> usize {
        if self.fed || self.splits == 1 {
            units.min(facts.multiprocessors as usize * self.resident)
        } else {
            units
        }
    }

    pub(super) fn kernel(&self) -> &'static str {
        if self.fed {
            "matmul_fed"
        } else {
            "matmul_wide"
        }
    }

    pub(super) fn parts_bytes(&self, outputs: usize, grid: usize) -> usize {
        let parts = match self.splits {
            1 => 3 * grid,
            _ => outputs * self.splits * self.matrices,
        };
        parts * self.column_tiles * self.threads() * 16
    }

    /// `types`: bit mask of the types in use.
    pub(super) fn source(&self, types: u32) -> Source {
        let define = |name, value: usize| (name, value.to_string());
        let (name, text) = if self.fed {
            ("matmul_fed.cu", include_str!("../../../gpu/matmul_fed.cu"))
        } else {
            (
                "matmul_wide.cu",
                include_str!("../../../gpu/matmul_wide.cu"),
            )
        };
        let mut defines = if self.fed {
            vec![
                define("GROUPED", usize::from(self.grouped)),
                define("PAIRED", usize::from(self.paired)),
            ]
        } else {
            vec![define("COLUMN_WARPS", self.column_warps)]
        };
        defines.extend([
            ("TYPES", types.to_string()),
            define("COLUMN_TILES", self.column_tiles),
            define("ROW_WARPS", self.row_warps),
            define("STAGES", self.stages),
            define("RESIDENT", self.resident),
        ]);
        Source {
            name,
            text,
            defines,
        }
    }
}

/// For a check of a step's tree, a larger one, and a prompt.
pub(super) fn sources(types: u32) -> Vec<Source> {
    let shape = |column_tiles, row_warps, column_warps, resident| Wide {
        fed: false,
        grouped: false,
        paired: false,
        column_tiles,
        row_warps,
        column_warps,
        stages: 2,
        resident,
        splits: 1,
        matrices: 1,
        column_blocks: 1,
        shared_bytes: 0,
    };
    let by_warps = [(3, 8, 1, 3), (8, 8, 1, 2), (8, 8, 2, 1)]
        .map(|(tiles, rows, columns, resident)| shape(tiles, rows, columns, resident));
    let fed = FED_TILES.map(|(tiles, threads)| Wide {
        fed: true,
        ..shape(tiles, threads / 32, 1, 1)
    });
    let pairs = PAIR_TILES.map(|(tiles, threads)| Wide {
        fed: true,
        paired: true,
        ..shape(tiles, threads / 32, 1, 1)
    });
    let pairs = pairs.iter().filter(|_| types.is_power_of_two());
    let are_able = dtypes(types).all(|dtype| Form::of(dtype) == Form::By256);
    let in_groups = GROUP_TILES.map(|(tiles, threads)| Wide {
        fed: true,
        grouped: true,
        ..shape(tiles, threads / 32, 1, 1)
    });
    let in_groups = in_groups.iter().filter(|_| are_able);
    let shapes = by_warps.iter().chain(&fed).chain(pairs).chain(in_groups);
    shapes.map(|shape| shape.source(types)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::linear::work::facts;

    /// Every number of rows has a shape on every chip that takes them all and fits.
    #[test]
    fn shapes_take_all_rows_and_fit() {
        let hopper = DeviceFacts {
            arch: "sm_90a".to_owned(),
            ..facts(132, 227)
        };
        for facts in [hopper, facts(132, 227), facts(82, 99), facts(40, 64)] {
            for dtype in DType::ALL {
                for num_rows in (9..200).chain([512, 4096]) {
                    let what = format!("{dtype}, {num_rows} rows, {facts:?}");
                    let work = Work {
                        num_rows,
                        heights: &[5120],
                        cols: 5120,
                        matrices: 1,
                        types: 1 << dtype.ggml_id(),
                    };
                    let shape = Wide::of(&work, &facts);
                    let shape = shape.expect(&what);
                    assert!(shape.columns() >= num_rows, "{what}: {shape:?}");
                    assert!(
                        shape.shared_bytes <= facts.shared_bytes_per_block as usize,
                        "{what}: {shape:?}"
                    );
                }
            }
        }
    }
}
