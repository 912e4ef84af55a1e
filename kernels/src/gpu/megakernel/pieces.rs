//! How a step's products are shared among blocks and warps; it changes no result.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use tensor::DType;

use crate::gpu::driver::DevicePtr;
use crate::gpu::linear::{self, SLICES};
use crate::gpu::matrix::{Form, TILE_ROWS, tile_bytes};
use crate::gpu::megakernel::phases::Share;

/// Slices of a warp whose sums wait for each other at a time.
const SLOTS: usize = 16;
const _: () = assert!(
    SLOTS / SLICES * TILE_ROWS <= 32,
    "a thread writes one output"
);
/// Inputs and bytes of a piece at most.
const PIECE_COLS: usize = 256;
const PIECE_BYTES: usize = 8192;

/// A matrix, or one of a gate and up pair, of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub at: DevicePtr,
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
}

/// One product: matrices that read the same row, or pairs of such.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// One, or gate and up.
    pub matrices: Vec<Weights>,
    /// Of all jobs' sixteens, its first.
    pub first_sixteen: usize,
}

/// 16 rows of a matrix by some inputs; see gpu/step_products.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Piece {
    address: u64,
    tiles: u32,
    place: u32,
}

impl Piece {
    /// Behind a list's end.
    const END: Self = Self {
        address: 0,
        tiles: 0,
        place: u32::MAX,
    };
    /// A warp's that has nothing to do.
    const NOTHING: Self = Self {
        address: 0,
        tiles: 0,
        place: 0,
    };
    const BEGINS_SLICE: u32 = 1 << 28;
    const ENDS_SLICE: u32 = 1 << 29;
    const IS_TAIL: u32 = 1 << 30;
    const ENDS_ROUND: u32 = 1 << 31;
}

/// Lists and shares of all blocks.
#[derive(Debug)]
pub(super) struct Plan {
    blocks: usize,
    warps: usize,
    /// By block; of as many entries as there are warps each has one.
    lists: Vec<Vec<Piece>>,
    /// By phase: of each block.
    shares: Vec<Vec<Share>>,
    matrices: Vec<(DType, usize, usize)>,
    /// Where the next product's blocks and warps begin, so that all have as much to do over several.
    next_block: usize,
    next_warp: Vec<usize>,
    /// Sixteens of the last product.
    last_sixteens: usize,
}

/// The first 256 inputs of a slice, counted in such. Where slices are half as many, each second one is empty.
fn first_block(slice: usize, cols: usize) -> usize {
    let slice = slice.next_multiple_of(SLICES / linear::slices_of(cols));
    slice * cols.div_ceil(256) / SLICES
}

/// The first tile of a slice of the inputs: see `slice_start` of gpu/products.h.
fn slice_start(slice: usize, weights: &Weights) -> usize {
    let form = Form::of(weights.dtype).cols();
    let tiles = weights.cols.div_ceil(form);
    tiles.min(first_block(slice, weights.cols) * (256 / form))
}

/// A bit for each slice of the inputs that has some: of the others there is no piece.
pub(super) fn slices_of(cols: usize) -> u32 {
    let has_inputs = |k| first_block(k, cols) < first_block(k + 1, cols);
    (0..SLICES).map(|k| u32::from(has_inputs(k)) << k).sum()
}

/// A bit for each slice of a product's inputs whose last piece is another warp's. That is so where slices have one or two pieces, of types whose
/// products with 256 inputs go on top of a slice's sum by one operation: no warp then has two pieces while others have none.
fn tails_of(jobs: &[Job]) -> u32 {
    let mut all = jobs.iter().flat_map(|job| &job.matrices);
    let blocks = |cols: usize, k| first_block(k + 1, cols) - first_block(k, cols);
    let has_tails = |weights: &Weights| {
        Form::of(weights.dtype) == Form::By256
            && (0..SLICES).all(|k| (1..=2).contains(&blocks(weights.cols, k)))
    };
    match jobs.first() {
        Some(job) if all.all(has_tails) => {
            let cols = job.matrices[0].cols;
            (0..SLICES)
                .map(|k| u32::from(blocks(cols, k) == 2) << k)
                .sum()
        }
        _ => 0,
    }
}

/// Slots of a slice: see gpu/step_products.h.
fn slots_of_slice(tails: u32) -> usize {
    if tails == 0 { 1 } else { 3 }
}

/// Tiles of a piece at most.
fn piece_tiles(dtype: DType) -> usize {
    (PIECE_COLS / Form::of(dtype).cols()).min(PIECE_BYTES / tile_bytes(dtype))
}

/// Bytes of a stage for pieces of such weights.
pub(super) fn piece_bytes(dtype: DType) -> usize {
    (piece_tiles(dtype) * tile_bytes(dtype)).next_multiple_of(128)
}

impl Plan {
    pub fn new(blocks: usize, warps: usize) -> Self {
        Self {
            blocks,
            warps,
            lists: vec![Vec::new(); blocks],
            shares: Vec::new(),
            matrices: Vec::new(),
            next_block: 0,
            next_warp: vec![0; blocks],
            last_sixteens: 0,
        }
    }

    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Warps of a block.
    pub fn warps(&self) -> usize {
        self.warps
    }

    /// Types, rows and inputs of all that is multiplied, in its order.
    pub fn matrices(&self) -> &[(DType, usize, usize)] {
        &self.matrices
    }

    /// Bytes of the sums that wait for each other: a float for each row of a piece.
    pub fn slot_bytes(&self) -> usize {
        SLOTS * self.warps * TILE_ROWS * size_of::<f32>()
    }

    /// Of the blocks that the next product of so many sixteens would have, those that had nothing to do in the last one, if there are such: the
    /// first and how many from there on.
    pub fn idle_blocks(&self, sixteens: usize) -> (usize, usize) {
        let count = if self.last_sixteens < self.blocks {
            self.blocks - self.last_sixteens
        } else {
            self.blocks
        };
        (self.next_block, sixteens.min(count))
    }

    /// A phase without products.
    pub fn skip(&mut self, shares: Vec<Share>) {
        debug_assert_eq!(shares.len(), self.blocks, "each block has one");
        self.shares.push(shares);
    }

    /// A product's phase. Returns how many sixteens' sums wait for each other at a time, and a bit for each slice whose last piece is another warp's.
    pub fn add(&mut self, jobs: &[Job]) -> (usize, u32) {
        let sixteens = |job: &Job| job.matrices[0].rows.div_ceil(TILE_ROWS);
        let all: usize = jobs.iter().map(sixteens).sum();
        let matrices = jobs.first().map_or(1, |job| job.matrices.len());
        let tails = tails_of(jobs);
        let of_sixteen = matrices * SLICES * slots_of_slice(tails);
        let round = (SLOTS * self.warps / of_sixteen).max(1);
        let weights = jobs.iter().flat_map(|job| &job.matrices);
        let sizes = weights.map(|weights| (weights.dtype, weights.rows, weights.cols));
        self.matrices.extend(sizes);
        let mut shares = vec![Share::default(); self.blocks];
        let (each, more) = (all / self.blocks, all % self.blocks);
        let mut first = 0;
        for place in 0..self.blocks {
            let block = (self.next_block + place) % self.blocks;
            let count = each + usize::from(place < more);
            shares[block] = Share {
                first: first as u32,
                count: count as u32,
            };
            for from in (first..first + count).step_by(round) {
                let sixteens = from..(from + round).min(first + count);
                self.add_round(block, jobs, sixteens, tails);
            }
            first += count;
        }
        self.next_block = (self.next_block + more) % self.blocks;
        self.last_sixteens = all;
        self.shares.push(shares);
        (round, tails)
    }

    fn add_round(&mut self, block: usize, jobs: &[Job], sixteens: Range<usize>, tails: u32) {
        let mut of_warps = vec![Vec::new(); self.warps];
        let begin = sixteens.start;
        let mut warp = self.next_warp[block];
        for sixteen in sixteens {
            let is_of = |job: &&Job| job.first_sixteen <= sixteen;
            let Some(job) = jobs.iter().rfind(is_of) else {
                continue;
            };
            for (m, weights) in job.matrices.iter().enumerate() {
                let bytes = tile_bytes(weights.dtype);
                let tiles = weights.cols.div_ceil(Form::of(weights.dtype).cols());
                for slice in 0..SLICES {
                    let (from, to) = (slice_start(slice, weights), slice_start(slice + 1, weights));
                    let of_matrix = ((sixteen - begin) * job.matrices.len() + m) * SLICES;
                    let slot = (of_matrix + slice) * slots_of_slice(tails);
                    let has_tail = tails >> slice & 1 == 1;
                    for first in (from..to).step_by(piece_tiles(weights.dtype)) {
                        let end = to.min(first + piece_tiles(weights.dtype));
                        let tile = (sixteen - job.first_sixteen) * tiles + first;
                        let sixteenths = ((end - first) * bytes / 16) as u64;
                        let mut place = slot as u32 | weights.dtype.ggml_id() << 16;
                        if first == from {
                            place |= Piece::BEGINS_SLICE;
                        }
                        if end == to {
                            place |= Piece::ENDS_SLICE;
                        }
                        if has_tail {
                            place |= Piece::BEGINS_SLICE | Piece::ENDS_SLICE;
                        }
                        if has_tail && first > from {
                            place = (place + 1) | Piece::IS_TAIL;
                            warp += 1;
                        }
                        of_warps[warp % self.warps].push(Piece {
                            address: weights.at.add(tile * bytes).0 | sixteenths << 48,
                            tiles: (end - first) as u32 | (first as u32) << 16,
                            place,
                        });
                    }
                    if from < to {
                        warp += 1;
                    }
                }
            }
        }
        self.next_warp[block] = warp % self.warps;
        let rows = of_warps.iter().map(Vec::len).max().unwrap_or(0);
        for row in 0..rows {
            for pieces in &of_warps {
                let mut piece = pieces.get(row).copied().unwrap_or(Piece::NOTHING);
                if row + 1 == rows {
                    piece.place |= Piece::ENDS_ROUND;
                }
                self.lists[block].push(piece);
            }
        }
    }

    /// All lists one after another, for a ring of so many stages, and where each begins and the last one ends. What is read ahead
    /// follows each: the same `anew`, for launches of several tokens, or nothing.
    pub fn lists(&self, stages: usize, anew: bool) -> (Vec<Piece>, Vec<u32>) {
        let (mut all, mut first) = (Vec::new(), vec![0]);
        for list in &self.lists {
            all.extend_from_slice(list);
            // A block without products has no list.
            let again = list.iter().filter(|_| anew).cycle();
            let beyond = if anew { Piece::NOTHING } else { Piece::END };
            let tail = again.copied().chain(std::iter::repeat(beyond));
            all.extend(tail.take(2 * stages));
            first.push(all.len() as u32);
        }
        (all, first)
    }

    /// \[blocks, phases\].
    pub fn shares(&self) -> Vec<Share> {
        let of_block = |block: usize| self.shares.iter().map(move |shares| shares[block]);
        (0..self.blocks).flat_map(of_block).collect()
    }
}

#[cfg(test)]
mod tests;
