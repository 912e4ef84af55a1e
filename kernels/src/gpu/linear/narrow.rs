//! How gpu/matmul.cu shares the work among thread blocks. It changes no result.

mod args;
mod choice;
mod sizes;
mod sources;

use std::fmt;

use crate::gpu::driver::{DeviceFacts, Source};
use crate::gpu::linear::activate::MOST_NORMED_COLS;
pub(super) use crate::gpu::linear::narrow::args::NarrowArgs;
pub(super) use crate::gpu::linear::narrow::choice::HEAVY;
use crate::gpu::linear::narrow::choice::{
    APART_PERCENT, BESIDE_CLUSTERS, Choice, FEW, FEW_TOGETHER, HEAVY_WARPS, LIGHT_BESIDE_CLUSTERS,
    SEVERAL, SMALL, SMALL_AND_LIGHT, SMALL_BYTES, TOGETHER_BYTES, USUAL, is_heavy, is_light,
};
pub(in crate::gpu) use crate::gpu::linear::narrow::sizes::row_forms_bytes;
use crate::gpu::linear::narrow::sizes::{
    Held, ROW_SLOT_BYTES, most_column_tiles, row_blocks, sixteen_bytes, sixteens,
};
pub(super) use crate::gpu::linear::narrow::sources::sources;
use crate::gpu::linear::narrow::sources::{Kind, ring_source, row_source};
use crate::gpu::linear::work::{COLUMNS, SLICES, Work, dtypes, slices_of};
use crate::gpu::matrix::{TILE_ROWS, tile_bytes};

/// Tiles of a warp's ring.
const STAGES: [usize; 6] = [8, 6, 4, 3, 2, 1];
/// Shared memory that a block takes besides its own.
const RESERVED_BYTES: usize = 2304;
/// For sums that wait for each other, those of one row and of several.
const SUMS_BYTES: [usize; 2] = [16 << 10, 8 << 10];
/// Column tiles, at most, and shared memory from which on more than one pay: measured on an H200, where the rows of two stay in L1
/// beside rings and those of three do not.
const MOST_COLUMN_TILES: usize = 2;
const LARGE_SHARED_BYTES: usize = 160 << 10;
/// Blocks of 256 inputs of a single row that a warp has at once; for more, registers are too few.
const MOST_ROW_BLOCKS: usize = 4;

/// Where a block's weights lie in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In rings.
    Ring {
        /// Tiles of each.
        stages: usize,
        /// Sixteens of rows whose sums wait for each other at a time.
        round: usize,
    },
    /// All at once.
    Held(Held),
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) struct Narrow {
    choice: Choice,
    /// Eights of rows of the batch.
    column_tiles: usize,
    matrices: usize,
    place: Place,
    kind: Kind,
    /// Of the launch.
    blocks: usize,
    pub shared_bytes: usize,
}

impl fmt::Display for Narrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice {
            warps,
            per_multiprocessor,
            resident,
            row_inside,
            slices,
            apart,
            sixteens: _,
            cluster,
            leaves: _,
            held: _,
            early_stages,
            l1_bytes,
        } = self.choice;
        let row = if row_inside { "inside" } else { "before" };
        let apart = match (apart, cluster) {
            (true, _) => " that are apart",
            (false, 1) => "",
            (false, _) => " in clusters",
        };
        write!(
            f,
            "{warps} warps, {per_multiprocessor} of {resident} blocks{apart}, "
        )?;
        match self.place {
            Place::Ring { stages, .. } => write!(f, "{stages} stages, {early_stages} early, ")?,
            Place::Held(_) => f.write_str("all weights held, ")?,
        }
        write!(
            f,
            "row {row}, {slices} slices, {} tiles, {} KiB of L1",
            self.column_tiles,
            l1_bytes >> 10,
        )
    }
}

impl Narrow {
    /// Whether the rows are few enough.
    pub(super) fn takes(work: &Work, facts: &DeviceFacts) -> bool {
        let is_large = facts.shared_bytes_per_block as usize >= LARGE_SHARED_BYTES;
        let column_tiles = if is_large {
            most_column_tiles(work.types)
        } else {
            1
        };
        work.num_rows <= column_tiles * COLUMNS
    }

    /// The usual one, or what of it there is room for on the device.
    pub(super) fn of(work: &Work, facts: &DeviceFacts) -> Option<Self> {
        let with = |warps, row_inside| Choice {
            warps,
            row_inside,
            ..USUAL
        };
        let sixteens = sixteens(work);
        let multiprocessors = facts.multiprocessors as usize;
        let in_use = sixteens.min(multiprocessors);
        let is_small = sixteens * work.matrices * sixteen_bytes(work) <= SMALL_BYTES * in_use;
        let is_light = is_light(work.types) && row_blocks(SMALL_AND_LIGHT, work.cols) == 1;
        let first = match (work.num_rows, is_small) {
            (1, true) if sixteens < multiprocessors => {
                let few = if is_together(work, sixteens, facts) {
                    FEW_TOGETHER
                } else {
                    FEW
                };
                [few, USUAL, with(8, true)]
            }
            (1, true) => {
                let small = match (is_light, work.beside_clusters) {
                    (true, false) => SMALL_AND_LIGHT,
                    (true, true) => LIGHT_BESIDE_CLUSTERS,
                    (false, true) if !work.adds && !is_heavy(work.types) => {
                        // The launch before, whose outputs are the inputs, has one for every two sixteens of them.
                        let leaves = work.cols / (TILE_ROWS * FEW_TOGETHER.sixteens);
                        Choice {
                            leaves,
                            ..BESIDE_CLUSTERS
                        }
                    }
                    (false, _) => SMALL,
                };
                // Behind attention and DeltaNet, whose blocks are few and small, each block finds a multiprocessor of its own at once. Where
                // launches before it have all shared memory of some, all blocks begin at once only if two may lie on one.
                let apart = small.apart || work.adds;
                [Choice { apart, ..small }, USUAL, with(8, true)]
            }
            (1, false) => [USUAL, with(16, true), with(8, true)],
            _ => [SEVERAL, with(16, false), with(12, false)],
        };
        let choices = [first[0], first[1], first[2], with(8, false), with(4, false)];
        let fitting = choices.map(|choice| {
            // Where blocks have 16 rows each, two slices at a time would leave warps without any; where there are two launches at a
            // time, with one more than others.
            let blocks = multiprocessors * choice.per_multiprocessor;
            let pieces = sixteens.div_ceil(blocks) * SLICES / 2 * work.matrices;
            let uneven = choice.warps + 1..2 * choice.warps;
            let is_few = sixteens <= blocks && pieces < choice.warps
                || choice.resident == 2 && uneven.contains(&pieces);
            let slices = if is_few { 1 } else { choice.slices };
            Self::fitting(Choice { slices, ..choice }, work, facts)
        });
        let mut fitting = fitting.into_iter().flatten();
        let least = fitting.clone().next();
        fitting.find(|shape| shape.is_deep()).or(least)
    }

    /// All that can be compared; those that fit, and none where rows are many.
    pub(super) fn all(work: &Work, facts: &DeviceFacts) -> Vec<Self> {
        let mut shapes = Vec::new();
        if !Self::takes(work, facts) {
            return shapes;
        }
        // Whether the row is inside, slices, early stages and KiB of L1.
        let of_one = [
            (true, 2, 2, 36),
            (true, 2, 8, 36),
            (true, 2, 1, 36),
            (true, 1, 2, 36),
            (true, 1, 8, 36),
            (false, 2, 8, 36),
            (false, 1, 8, 36),
        ];
        let of_some = [
            (false, 2, 8, 36),
            (false, 2, 8, 72),
            (false, 1, 8, 36),
            (false, 1, 8, 72),
        ];
        let kinds = if work.num_rows == 1 {
            &of_one[..]
        } else {
            &of_some
        };
        for (warps, per_multiprocessor, resident) in [
            (20, 1, 1),
            (16, 1, 1),
            (24, 1, 1),
            (8, 2, 2),
            (8, 2, 3),
            (8, 1, 2),
            (16, 1, 2),
        ] {
            for &(row_inside, slices, early_stages, l1_kib) in kinds {
                let choice = Choice {
                    warps,
                    per_multiprocessor,
                    resident,
                    row_inside,
                    slices,
                    early_stages,
                    l1_bytes: l1_kib << 10,
                    ..USUAL
                };
                let shape = Self::fitting(choice, work, facts);
                shapes.extend(shape.filter(|shape| !shapes.contains(shape)));
            }
        }
        if work.num_rows == 1 {
            for (warps, resident, slices) in
                [(8, 2, 2), (8, 2, 1), (12, 1, 2), (16, 1, 1), (16, 2, 2)]
            {
                let choice = Choice {
                    warps,
                    resident,
                    slices,
                    held: true,
                    ..USUAL
                };
                let shape = Self::fitting(choice, work, facts);
                shapes.extend(shape.filter(|shape| !shapes.contains(shape)));
            }
            // Beside clusters. In which clusters they are themselves is a matter of place alone.
            let together = Choice {
                slices: 1,
                cluster: 1,
                ..FEW_TOGETHER
            };
            let left = Choice {
                leaves: 1,
                ..BESIDE_CLUSTERS
            };
            for choice in [together, left, LIGHT_BESIDE_CLUSTERS] {
                let shape = Self::fitting(choice, work, facts);
                shapes.extend(shape.filter(|shape| !shapes.contains(shape)));
            }
        }
        shapes
    }

    fn fitting(choice: Choice, work: &Work, facts: &DeviceFacts) -> Option<Self> {
        let row_inside = choice.row_inside
            && work.num_rows == 1
            && work.cols.is_multiple_of(4)
            && work.cols <= MOST_NORMED_COLS;
        // A slice of many inputs is as long as two.
        let all_slices = slices_of(work.cols);
        let choice = Choice {
            row_inside,
            slices: (choice.slices * all_slices / SLICES).max(1),
            ..choice
        };
        let column_tiles = work.num_rows.div_ceil(COLUMNS);
        if is_heavy(work.types) && (choice.resident > 1 || choice.warps > HEAVY_WARPS) {
            return None;
        }
        let sixteens = sixteens(work);
        let multiprocessors = (facts.multiprocessors as usize).saturating_sub(choice.leaves);
        let most = multiprocessors * choice.per_multiprocessor;
        let blocks = sixteens.div_ceil(choice.sixteens).clamp(1, most.max(1));
        let slot = if row_inside {
            ROW_SLOT_BYTES
        } else {
            column_tiles * 128 * 4
        };
        let pieces = work.matrices * all_slices / choice.slices;
        let sums = pieces * slot;
        let round = (SUMS_BYTES[usize::from(!row_inside)] / sums)
            .min(sixteens / blocks + 2)
            .max(1);
        let x = if row_inside {
            row_forms_bytes(work.types, work.cols)
        } else {
            0
        };
        let stage = dtypes(work.types).map(tile_bytes).max()?;
        let all = facts.shared_bytes_per_block as usize + 1024;
        let l1 = if row_inside {
            0
        } else {
            choice.l1_bytes.min(all / 3)
        };
        let room = match choice.apart {
            true => all * APART_PERCENT / 100,
            false => (all - l1) / choice.resident,
        };
        let bytes = |stages: usize| choice.warps * stages * stage + round * sums + x;
        let fits = |stages: &usize| bytes(*stages) + RESERVED_BYTES <= room;
        let held = choice.held && row_inside;
        let held = held.then(|| Held::of(work, (choice.warps, choice.slices), blocks));
        let held = held.flatten();
        let held = held.filter(|held| held.bytes + x + RESERVED_BYTES <= room);
        let (place, bytes) = match held {
            Some(held) => (Place::Held(held), held.bytes + x),
            None => {
                let stages = STAGES.into_iter().find(fits)?;
                (Place::Ring { stages, round }, bytes(stages))
            }
        };
        Some(Self {
            choice,
            column_tiles,
            matrices: work.matrices,
            place,
            kind: Kind {
                row_blocks: row_blocks(choice, work.cols),
                one_job: work.heights.iter().filter(|rows| **rows > 0).count() == 1,
                slices: all_slices,
            },
            blocks,
            shared_bytes: match choice.apart {
                true => bytes.max(all / 2),
                false => bytes,
            },
        })
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(super) fn threads(&self) -> usize {
        self.choice.warps * 32
    }

    /// Columns of all column tiles.
    pub(super) fn columns(&self) -> usize {
        self.column_tiles * COLUMNS
    }

    /// Whether blocks make the row ready for themselves.
    pub(super) fn row_inside(&self) -> bool {
        self.choice.row_inside
    }

    /// Whether weights are there some time before they are multiplied.
    fn is_deep(&self) -> bool {
        match self.place {
            Place::Ring { stages, .. } => stages > 1,
            Place::Held(_) => true,
        }
    }

    /// `types`: bit mask of the types in use; `is_normed`: of rows that are made ready inside.
    pub(super) fn source(&self, types: u32, is_normed: bool) -> Source {
        match self.place {
            Place::Ring { stages, .. } => ring_source(
                types,
                self.matrices,
                self.choice,
                stages,
                self.column_tiles,
                self.kind,
            ),
            Place::Held(held) => row_source(
                types,
                self.matrices,
                self.choice,
                self.kind,
                (is_normed, held.one_tile),
            ),
        }
    }
}

/// Whether few sixteens are dealt out in pairs, to whole clusters, beside which twice as many run.
fn is_together(work: &Work, sixteens: usize, facts: &DeviceFacts) -> bool {
    let Choice {
        sixteens: of_block,
        cluster,
        ..
    } = FEW_TOGETHER;
    let clusters = sixteens.div_ceil(of_block * cluster);
    work.beside_clusters
        && clusters * of_block * cluster == sixteens
        && 3 * clusters <= facts.clusters_of(cluster)
        && of_block * sixteen_bytes(work) < TOGETHER_BYTES
}

#[cfg(test)]
mod tests;
