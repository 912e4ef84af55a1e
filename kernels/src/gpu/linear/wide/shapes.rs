//! The shapes there are to choose from.

use tensor::DType;

use crate::gpu::driver::{DeviceFacts, Source};
use crate::gpu::linear::wide::meetings::{FED_SPLITS, Meeting};
use crate::gpu::linear::wide::{GROUP_WARPS, Wide, are_heavy, can_be_in_groups, step_bytes};
use crate::gpu::linear::work::{COLUMNS, LINE_BYTES, SLICES, Work, dtypes, slices_of};
use crate::gpu::matrix::Form;

/// Column tiles of a warp that kernels are compiled for. Nine are the 65 rows of a large tree.
const COLUMN_TILES: &[usize] = &[2, 3, 4, 5, 6, 8, 9];
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
/// Of them, those with registers for the sums of mins too: with more, a 27B's products in Q4_K of 512 rows take 3 to 6 % more.
const MOST_WITH_MINS: usize = 5;
/// The same of floats, whose terms have sums of their own.
const FLOAT_GROUP_TILES: [(usize, usize); 6] =
    [(2, 512), (3, 512), (4, 512), (6, 384), (8, 256), (10, 256)];
const MAX_GROUP_TILES: [usize; 4] = [12, 10, 8, 4];
/// The same of warps on their own that another one feeds.
const FED_TILES: [(usize, usize); 6] = [(2, 640), (3, 512), (4, 512), (5, 384), (6, 384), (8, 384)];
const MAX_FED_TILES: [usize; 2] = [8, 4];
/// Among so many, one is likely to deal a matrix's rows evenly to the multiprocessors. Of those in between, with the matrices of a
/// 27B and 16 to 32 rows on an H200, 5 and 7 were as fast as 6 (within 2 %) or slower, and 9 slower than 10.
const FED_ROW_WARPS: [usize; 10] = [4, 6, 8, 10, 11, 12, 14, 16, 18, 20];
/// With 10, matrices of 5120 rows are dealt evenly to the 132 multiprocessors of an H200.
const ROW_WARPS: [usize; 3] = [8, 4, 10];
const STAGES: [usize; 2] = [3, 2];
/// As many come before places for sums where there is not room for all.
const FEW_STAGES: usize = 3;
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
/// Of a multiprocessor's, what the last of many stages leaves for blocks of the next launch, which otherwise cannot begin before this one's end:
/// those that make rows ready take some 2 KiB each. Whether it pays to have fewer than [`MANY_STAGES`] for that has not been measured.
const NEXT_LAUNCH_BYTES: usize = 8 << 10;
const MANY_STAGES: usize = 6;
/// Of a unit of work, of each warp.
const UNIT_BYTES: usize = 80;

/// Of four warps together, by the weights' types.
fn group_tiles(types: u32) -> &'static [(usize, usize)] {
    let has_mins = |dtype| matches!(dtype, DType::Q2K | DType::Q4K | DType::Q5K);
    if dtypes(types).any(|dtype| Form::of(dtype) == Form::Floats) {
        &FLOAT_GROUP_TILES
    } else if dtypes(types).all(has_mins) {
        &GROUP_TILES[..MOST_WITH_MINS]
    } else {
        &GROUP_TILES
    }
}

/// For a check of a step's tree, a larger one, and a prompt.
pub(in crate::gpu::linear) fn sources(types: u32) -> Vec<Source> {
    let shape = |column_tiles, row_warps, column_warps, resident| Wide {
        fed: false,
        grouped: false,
        column_tiles,
        row_warps,
        column_warps,
        stages: 2,
        resident,
        slices: SLICES,
        splits: 1,
        whole_blocks: 0,
        cuts: 1,
        heavy_apart: false,
        matrices: 1,
        column_blocks: 1,
        shared_places: 1,
        cluster: 1,
        shared_bytes: 0,
    };
    let by_warps = [(3, 8, 1, 3), (8, 8, 1, 2), (8, 8, 2, 1)]
        .map(|(tiles, rows, columns, resident)| shape(tiles, rows, columns, resident));
    let fed = FED_TILES.map(|(tiles, threads)| Wide {
        fed: true,
        ..shape(tiles, threads / 32, 1, 1)
    });
    let are_able = can_be_in_groups(types);
    let in_groups = group_tiles(types).iter().filter(|_| are_able);
    let in_groups = in_groups.map(|&(tiles, threads)| Wide {
        fed: true,
        grouped: true,
        ..shape(tiles, threads / 32, 1, 1)
    });
    let in_groups: Vec<Wide> = in_groups.collect();
    let clustered = Wide {
        fed: true,
        cluster: 4,
        slices: SLICES / 2,
        ..shape(3, 11, 1, 1)
    };
    let shapes = by_warps
        .iter()
        .chain(&fed)
        .chain(&in_groups)
        .chain([&clustered]);
    shapes.map(|shape| shape.source(types)).collect()
}

impl Wide {
    /// Those that fit of warps on their own, with at most so many column tiles in a block.
    pub(super) fn by_warps(
        work: &Work,
        most: usize,
        facts: &DeviceFacts,
    ) -> impl Iterator<Item = Self> {
        let threads = [RESIDENT_THREADS, LEAN_THREADS];
        let choices = threads.into_iter().flat_map(|threads| {
            let choices = ROW_WARPS
                .iter()
                .flat_map(|&row_warps| SPLITS.map(|splits| (row_warps, splits)))
                .filter(|(_, splits)| *splits <= slices_of(work.cols));
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

    /// Whether the chip has copies that a warp can feed the others by.
    pub(super) fn are_fed(facts: &DeviceFacts) -> bool {
        matches!(facts.arch.as_str(), "sm_90a" | "host")
    }

    /// Those that fit where a warp feeds the others; none where the chip has no such copies, and none in groups where a type
    /// has no such products.
    pub(super) fn fed(work: &Work, facts: &DeviceFacts) -> impl Iterator<Item = Self> {
        let is_able = Self::are_fed(facts);
        let in_groups = can_be_in_groups(work.types);
        // What it takes of others has not been measured.
        let can_mix = dtypes(work.types).all(|dtype| Form::of(dtype) == Form::By256);
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
                choices
                    .flat_map(move |&warps| FED_SPLITS.map(|splits| (grouped, most, warps, splits)))
            })
        });
        let choices = choices.filter(move |(.., (_, meeting))| can_mix || !meeting.is_of_rest());
        let choices = choices.filter(|(.., (splits, _))| *splits <= slices_of(work.cols));
        // Where sums meet in memory, with 8 of the rest that takes longer than is won (docs/tuning.md, "Steps of trees").
        let can_have_8 = work.matrices == 2;
        let choices = choices.filter(move |(.., (splits, meeting))| {
            can_have_8 || *splits != 8 || !meeting.is_of_rest()
        });
        choices.filter_map(|(grouped, most, row_warps, (splits, meeting))| {
            let known = if grouped {
                group_tiles(work.types)
            } else {
                &FED_TILES
            };
            let shape = Self {
                grouped,
                row_warps,
                splits,
                ..Self::unfitted(work)
            };
            shape.fitted_to_columns(work, (most, known), meeting, facts)
        })
    }

    /// One of those that are fed, with as many of the `known` column tiles as its blocks need that take at most `most`. Where only the rest
    /// is split, units are whole as long as every block has one at a time; none where nothing is left or nothing is whole. In clusters
    /// all splits of the same outputs run at a time; none where they cannot.
    fn fitted_to_columns(
        self,
        work: &Work,
        (most, known): (usize, &[(usize, usize)]),
        meeting: Meeting,
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
        match meeting {
            Meeting::InMemory => return shape.fitted(work, threads, facts),
            Meeting::InClusters => {
                let cluster = shape.splits;
                let shape = Self { cluster, ..shape }.fitted(work, threads, facts)?;
                let at_once = facts.clusters_of(cluster) * shape.resident;
                let fits = shape.row_blocks(&work.heights) <= at_once;
                return (fits && work.matrices == 1 && column_blocks == 1).then_some(shape);
            }
            Meeting::OfRest | Meeting::OfCutRest | Meeting::OfHeavy => {}
        }
        // With memory for the sums of slices.
        let whole = Self { splits: 1, ..shape }.fitted(work, threads, facts)?;
        let at_once = (facts.multiprocessors as usize).max(1) * whole.resident;
        if meeting == Meeting::OfHeavy {
            let each = work.heights.iter().zip(&work.each);
            let light = each.filter(|(_, types)| !are_heavy(**types));
            let light = light
                .map(|(rows, _)| rows.div_ceil(whole.block_rows()))
                .sum();
            let shape = Self {
                splits: shape.splits,
                whole_blocks: light,
                heavy_apart: true,
                ..whole
            };
            let is_some = (1..whole.whole_blocks).contains(&light)
                && work.matrices == 1
                && shape.units(whole.whole_blocks) <= at_once;
            return is_some.then_some(shape);
        }
        let units = whole.units(whole.whole_blocks) / at_once * at_once;
        let cuts = match meeting {
            Meeting::OfCutRest if !shape.grouped || shape.row_warps == GROUP_WARPS => return None,
            Meeting::OfCutRest => shape.row_warps / GROUP_WARPS,
            _ => 1,
        };
        let shape = Self {
            splits: shape.splits,
            cuts,
            whole_blocks: units / column_blocks,
            ..whole
        };
        let is_some = (1..whole.whole_blocks).contains(&shape.whole_blocks);
        is_some.then_some(shape)
    }

    fn unfitted(work: &Work) -> Self {
        Self {
            fed: false,
            grouped: false,
            column_tiles: 1,
            row_warps: 1,
            column_warps: 1,
            stages: 2,
            resident: 1,
            slices: slices_of(work.cols),
            splits: 1,
            whole_blocks: 0,
            cuts: 1,
            heavy_apart: false,
            matrices: work.matrices,
            column_blocks: 1,
            shared_places: 0,
            cluster: 1,
            shared_bytes: 0,
        }
    }

    /// With as many stages and blocks of a multiprocessor, of at most so many threads, as fit.
    fn fitted(self, work: &Work, most_threads: usize, facts: &DeviceFacts) -> Option<Self> {
        let threads = self.threads();
        if threads > most_threads {
            return None;
        }
        let stage = |dtype| {
            let (row, column, _) = step_bytes(dtype, work.types, self.fed);
            self.row_warps * row + self.column_warps * self.column_tiles * column
        };
        let stage = dtypes(work.types).map(stage).max()?;
        let all = facts.shared_bytes_per_block as usize + 1024;
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
        let (stage, barriers) = match self.fed {
            true => (stage.next_multiple_of(LINE_BYTES), LINE_BYTES),
            false => (stage, 0),
        };
        let place = self.column_tiles * threads * 16;
        // What comes to each warp of a cluster's block, of its own column tiles, and its counter.
        let (inbox, own) = match self.cluster {
            1 => (0, own),
            cluster => {
                let own_tiles = self.column_tiles.div_ceil(cluster);
                let warps = threads / 32;
                (warps * cluster * own_tiles * 512, own + warps * 8)
            }
        };
        let [least, most] = self.places_of_sums(work.types);
        let options = [full.max(1), (full / 2).max(1), 1];
        let known: &[usize] = if self.fed { &FED_STAGES } else { &STAGES };
        let mut options = options
            .iter()
            .flat_map(|&r| known.iter().map(move |&stages| (r, stages)));
        options.find_map(|(resident, stages)| {
            let bytes = barriers + inbox + stages * stage;
            let room = match stages {
                MANY_STAGES.. => all - NEXT_LAUNCH_BYTES,
                _ => all,
            };
            let left = (room / resident).checked_sub(bytes + own + RESERVED_BYTES)?;
            let shared_places = most.min(left / place);
            let needed = if stages > FEW_STAGES { most } else { least };
            (shared_places >= needed).then(|| Self {
                stages,
                resident,
                shared_places,
                shared_bytes: bytes + shared_places * place,
                whole_blocks: match self.splits {
                    1 => self.row_blocks(&work.heights),
                    _ => 0,
                },
                ..self
            })
        })
    }

    /// Places in shared memory where sums wait, at least and at most: see `sums_at` in gpu/wide.h.
    fn places_of_sums(&self, types: u32) -> [usize; 2] {
        let are_floats = dtypes(types).any(|dtype| Form::of(dtype) == Form::Floats);
        // See HOLDS_SUMS in gpu/matmul_fed.cu.
        let held = usize::from(self.grouped && are_floats);
        let slices = self.slices / self.splits;
        let levels = (slices.ilog2() as usize).saturating_sub(held);
        if !self.fed {
            return [levels.min(1); 2];
        }
        let least = if held == 0 { levels.min(1) } else { 0 };
        let of_first_matrix = usize::from(self.matrices == 2 && slices == self.slices);
        [least, levels + of_first_matrix]
    }
}
