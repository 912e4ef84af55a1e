//! How gpu/matmul_wide.cu and gpu/matmul_fed.cu share the work among thread blocks. It changes no result.

mod cost;
mod shapes;

use std::fmt;

use tensor::DType;

use crate::gpu::driver::{DeviceFacts, DevicePtr, Source};
use crate::gpu::linear::wide::shapes::{FED_TILES, PAIR_TILES, group_tiles};
use crate::gpu::linear::work::{Activations, COLUMNS, Job, LINE_BYTES, MAX_JOBS, Work, dtypes};
use crate::gpu::matrix::{Form, TILE_ROWS, tile_bytes};

/// Sums of splits, at most: beyond, there is work enough without.
const MAX_PARTS_BYTES: usize = 64 << 20;
/// Column tiles of a thread block.
const MAX_COLUMN_TILES: [usize; 4] = [16, 8, 4, 2];
/// Of those that multiply together, and between which registers go.
const GROUP_WARPS: usize = 4;
/// Inputs of a step: see `Stream` and `Stage` in the kernels. Of floats, whose columns take much room, there are fewer.
const STEP_COLS: usize = 256;
const FLOAT_STEP_COLS: usize = 64;
const FED_FLOAT_STEP_COLS: usize = 128;

/// Weights of a call, and inputs, from which on the kernel of few rows is slower with more than a column tile, if scales are of 32 inputs: such
/// rows do not stay in L1. An H200 with 16 rows and Q8_0 (docs/performance.md, "Products"): 89 million weights 46.7 to 34.4 us, 21 and 31
/// million the same.
const FASTER_WEIGHTS: usize = 64 << 20;
const FASTER_COLS: usize = 5120;

/// See gpu/matmul_wide.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct WideArgs {
    pub jobs: [Job; MAX_JOBS],
    pub x: Activations,
    pub factors: DevicePtr,
    pub parts: DevicePtr,
    pub tickets: DevicePtr,
    pub num_jobs: u32,
    pub cols: u32,
    pub num_rows: u32,
    pub accumulate: u32,
    pub matrices: u32,
    pub splits: u32,
    pub column_blocks: u32,
    pub whole_blocks: u32,
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
    /// Of the inputs, among units of work.
    pub splits: usize,
    /// Row blocks, the first ones, that are not split.
    pub whole_blocks: usize,
    pub matrices: usize,
    pub column_blocks: usize,
    pub shared_bytes: usize,
}

/// Bytes that pass through a stage for a row tile and for a column tile, and the inputs that this is.
fn step_bytes(dtype: DType, types: u32, fed: bool) -> (usize, usize, usize) {
    let form = Form::of(dtype);
    let step = match (form, fed) {
        (Form::Floats, true) => FED_FLOAT_STEP_COLS,
        (Form::Floats, false) => FLOAT_STEP_COLS,
        _ => STEP_COLS,
    };
    let tiles = step / form.cols();
    let row = tiles * tile_bytes(dtype);
    (
        // A stage's rows begin with a line each, and its barriers have one.
        if fed {
            row.next_multiple_of(LINE_BYTES)
        } else {
            row
        },
        tiles * form.block_bytes(types),
        step,
    )
}

/// Whether four warps can multiply such weights together.
fn can_be_in_groups(types: u32) -> bool {
    let by_256 = |dtype| Form::of(dtype) == Form::By256;
    let of_16_bits = |dtype| matches!(dtype, DType::F16 | DType::BF16);
    dtypes(types).all(by_256) || dtypes(types).all(of_16_bits)
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
        let of_rest = if self.is_mixed() { " of the rest" } else { "" };
        let together = match (grouped, paired, fed) {
            (true, ..) => "groups, ",
            (false, true, _) => "pairs, ",
            (false, false, true) => "fed, ",
            (false, false, false) => "",
        };
        write!(
            f,
            "{together}{row_warps} x {column_warps} warps, {column_tiles} tiles, {stages} stages, {resident} blocks, {splits} splits{of_rest}, \
             {column_blocks} column blocks"
        )
    }
}

impl Wide {
    /// Whether rows that are few enough for gpu/matmul.cu are better off here.
    pub(super) fn is_faster(work: &Work<'_>, facts: &DeviceFacts) -> bool {
        let weights = work.matrices * work.cols * work.heights.iter().sum::<usize>();
        Self::are_fed(facts)
            && work.num_rows > COLUMNS
            && work.cols >= FASTER_COLS
            && weights >= FASTER_WEIGHTS
            && dtypes(work.types).all(|dtype| Form::of(dtype) == Form::By32)
    }

    /// The cheapest of those that fit on the device; none where nothing fits.
    pub(super) fn of(work: &Work<'_>, facts: &DeviceFacts) -> Option<Self> {
        let multiprocessors = (facts.multiprocessors as usize).max(1);
        let cheapest = |shapes: &mut dyn Iterator<Item = Self>| {
            shapes
                .filter(|shape| {
                    let blocks = shape.row_blocks(work.heights);
                    shape.splits == 1 || shape.parts_bytes(blocks, facts) <= MAX_PARTS_BYTES
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

    /// Whether some units are split and others are not.
    pub(super) fn is_mixed(&self) -> bool {
        self.splits > 1 && self.whole_blocks > 0
    }

    /// Units of work that are whole, where both matrices are one, and those that are not.
    fn units_of(&self, row_blocks: usize) -> [usize; 2] {
        let in_turn = self.matrices / self.matrices_at_once();
        let split = (row_blocks - self.whole_blocks) * self.splits * in_turn;
        [self.whole_blocks, split].map(|units| units * self.column_blocks)
    }

    pub(super) fn units(&self, row_blocks: usize) -> usize {
        self.units_of(row_blocks).iter().sum()
    }

    /// Blocks of the launch: where units are whole, and where they are fed, they take units in turn.
    pub(super) fn grid(&self, row_blocks: usize, facts: &DeviceFacts) -> usize {
        let units = self.units(row_blocks);
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

    pub(super) fn parts_bytes(&self, row_blocks: usize, facts: &DeviceFacts) -> usize {
        let [whole, split] = self.units_of(row_blocks);
        let of_blocks = match whole {
            0 => 0,
            _ => 3 * self.grid(row_blocks, facts),
        };
        (of_blocks + split) * self.column_tiles * self.threads() * 16
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
        whole_blocks: 0,
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
    let are_able = can_be_in_groups(types);
    let in_groups = group_tiles(types).iter().filter(|_| are_able);
    let in_groups = in_groups.map(|&(tiles, threads)| Wide {
        fed: true,
        grouped: true,
        ..shape(tiles, threads / 32, 1, 1)
    });
    let in_groups: Vec<Wide> = in_groups.collect();
    let shapes = by_warps.iter().chain(&fed).chain(pairs).chain(&in_groups);
    shapes.map(|shape| shape.source(types)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::linear::work::{Shape, facts};

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

    /// The large matrices of a 27B's draft, in Q8_0, with a draft block's rows.
    #[test]
    fn a_drafts_large_products_are_fed() {
        let hopper = DeviceFacts {
            arch: "sm_90a".to_owned(),
            ..facts(132, 227)
        };
        let is_fed = |dtype: DType, num_rows, height, cols, matrices, facts: &DeviceFacts| {
            let work = Work {
                num_rows,
                heights: &[height],
                cols,
                matrices,
                types: 1 << dtype.ggml_id(),
            };
            match Shape::of(&work, facts).expect("a shape") {
                Shape::Narrow(_) => false,
                Shape::Wide(shape) => shape.fed,
            }
        };
        for (height, cols, matrices) in [(17408, 5120, 2), (5120, 17408, 1), (5120, 25600, 1)] {
            assert!(is_fed(DType::Q8_0, 16, height, cols, matrices, &hopper));
            assert!(!is_fed(DType::Q8_0, 8, height, cols, matrices, &hopper));
            assert!(!is_fed(DType::Q6K, 16, height, cols, matrices, &hopper));
            let older = facts(132, 227);
            assert!(!is_fed(DType::Q8_0, 16, height, cols, matrices, &older));
        }
        assert!(!is_fed(DType::Q8_0, 16, 5120, 4096, 1, &hopper));
        assert!(!is_fed(DType::Q8_0, 16, 248_320, 1024, 1, &hopper));
    }
}
