//! How gpu/matmul_wide.cu and gpu/matmul_fed.cu share the work among thread blocks. It changes no result.

mod cost;
mod meetings;
mod shapes;

use std::fmt;

use tensor::DType;

use crate::gpu::driver::{DeviceFacts, DevicePtr, Source};
pub(super) use crate::gpu::linear::wide::shapes::sources;
use crate::gpu::linear::work::{
    Activations, COLUMNS, Job, LINE_BYTES, MAX_JOBS, Rest, Work, dtypes,
};
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

/// See gpu/matmul_wide.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct WideArgs {
    pub jobs: [Job; MAX_JOBS],
    pub x: Activations,
    pub factors: DevicePtr,
    pub parts: DevicePtr,
    pub tickets: DevicePtr,
    pub rest: Rest,
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
    /// Column tiles of a warp.
    column_tiles: usize,
    row_warps: usize,
    column_warps: usize,
    stages: usize,
    /// Blocks that a multiprocessor holds at a time.
    resident: usize,
    /// Of the inputs, each of which is added up by itself.
    slices: usize,
    /// Of the inputs, among units of work.
    pub splits: usize,
    /// Row blocks, the first ones, that are not split.
    pub whole_blocks: usize,
    /// Of the rows of units that are split, each a unit of as many of a block's warps.
    pub cuts: usize,
    /// Matrices whose weights take longer come last, and their units are those that are split.
    pub heavy_apart: bool,
    pub matrices: usize,
    pub column_blocks: usize,
    /// Where the sums of slices wait for their neighbours' where they are fed: places in shared memory.
    shared_places: usize,
    /// Blocks of a cluster, which have the splits of the same outputs; 1: sums of splits meet in memory.
    pub cluster: usize,
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

/// Whether weights of a type take longer: 16 inputs have a scale, in place of 32.
fn is_heavy(dtype: DType) -> bool {
    matches!(dtype, DType::Q2K | DType::Q3K | DType::Q6K)
}

/// The same of any of some types.
pub(super) fn are_heavy(types: u32) -> bool {
    dtypes(types).any(is_heavy)
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
            column_tiles,
            row_warps,
            column_warps,
            stages,
            resident,
            splits,
            cuts,
            heavy_apart,
            column_blocks,
            cluster,
            ..
        } = self;
        let of_rest = match (self.is_mixed(), *cluster > 1) {
            (true, _) if *heavy_apart => " of heavy ones",
            (true, _) if *cuts > 1 => " of the rest by groups",
            (true, _) => " of the rest",
            (_, true) => " in clusters",
            _ => "",
        };
        let together = match (grouped, fed) {
            (true, _) => "groups, ",
            (false, true) => "fed, ",
            (false, false) => "",
        };
        write!(
            f,
            "{together}{row_warps} x {column_warps} warps, {column_tiles} tiles, {stages} stages, {resident} blocks, {splits} splits{of_rest}, \
             {column_blocks} column blocks"
        )
    }
}

impl Wide {
    /// Whether rows that are few enough for gpu/matmul.cu are better off here: quants with more than a column tile of them, which do not stay
    /// in L1. An H200 with 16 rows (docs/tuning.md, "Products").
    pub(super) fn is_faster(work: &Work, facts: &DeviceFacts) -> bool {
        Self::are_fed(facts)
            && work.num_rows > COLUMNS
            && dtypes(work.types).all(|dtype| Form::of(dtype) != Form::Floats)
    }

    /// The cheapest of those that fit on the device; none where nothing fits.
    pub(super) fn of(work: &Work, facts: &DeviceFacts) -> Option<Self> {
        let multiprocessors = (facts.multiprocessors as usize).max(1);
        let cheapest = |shapes: &mut dyn Iterator<Item = Self>| {
            shapes
                .filter(|shape| {
                    let blocks = shape.row_blocks(&work.heights);
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
    pub(super) fn all(work: &Work, facts: &DeviceFacts) -> Vec<Self> {
        let all = MAX_COLUMN_TILES.iter();
        let by_warps = all.flat_map(|&most| Self::by_warps(work, most, facts));
        Self::fed(work, facts).chain(by_warps).collect()
    }

    fn row_blocks(&self, rows: &[usize]) -> usize {
        rows.iter()
            .map(|rows| rows.div_ceil(self.block_rows()))
            .sum()
    }

    pub(super) fn slices(&self) -> usize {
        self.slices
    }

    /// Rows of a matrix that a block takes.
    pub(super) fn block_rows(&self) -> usize {
        self.row_warps * TILE_ROWS
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

    /// Whether sums of what is split can meet where the outputs of gate and up are read, of so many: see gpu/rest.h.
    pub(super) fn leaves_rest(&self, rows: usize) -> bool {
        self.matrices == 2 && self.is_mixed() && rows.is_multiple_of(8)
    }

    /// Units of work that are whole, where both matrices are one, and those that are not.
    fn units_of(&self, row_blocks: usize) -> [usize; 2] {
        let split = (row_blocks - self.whole_blocks) * self.splits * self.cuts * self.matrices;
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
        // Cuts share their block's.
        (of_blocks + split / self.cuts) * self.column_tiles * self.threads() * 16
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
                define("SHARED_PLACES", self.shared_places),
                define("CLUSTER", self.cluster),
                define("CUTS", self.cuts),
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
            define("SLICES", self.slices),
        ]);
        Source {
            name,
            text,
            defines,
        }
    }
}

#[cfg(test)]
mod tests;
