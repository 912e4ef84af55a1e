//! How a step's products are shared among blocks and warps; it changes no result.

use bytemuck::{Pod, Zeroable};
use tensor::DType;

use crate::gpu::driver::DevicePtr;
use crate::gpu::linear::SLICES;
use crate::gpu::matrix::{Form, TILE_ROWS, tile_bytes};
use crate::gpu::megakernel::phases::Share;

/// Pieces of a warp whose sums wait for each other at a time.
const SLOTS: usize = 16;
/// Entries that are read ahead of a list's end.
const READ_AHEAD: usize = 32;

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

/// See `Pieces` of gpu/megakernel.cu.
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
    /// A warp's, that has nothing to do in a round.
    const NOTHING: Self = Self {
        address: 0,
        tiles: 0,
        place: 0,
    };
    const LAST: u32 = 1 << 31;
}

/// Lists of all warps, and the shares of all blocks.
#[derive(Debug)]
pub(super) struct Plan {
    blocks: usize,
    warps: usize,
    /// By block and warp.
    lists: Vec<Vec<Piece>>,
    /// By phase: of each block.
    shares: Vec<Vec<Share>>,
    /// Where the next product's blocks and warps begin, so that all have as much to do over several.
    next_block: usize,
    next_warp: Vec<usize>,
}

/// The first tile of a slice of the inputs: see `slice_start` of gpu/products.h.
fn slice_start(slice: usize, weights: &Weights) -> usize {
    let form = Form::of(weights.dtype).cols();
    let tiles = weights.cols.div_ceil(form);
    tiles.min(slice * weights.cols.div_ceil(256) / SLICES * (256 / form))
}

impl Plan {
    pub fn new(blocks: usize, warps: usize) -> Self {
        Self {
            blocks,
            warps,
            lists: vec![Vec::new(); blocks * warps],
            shares: Vec::new(),
            next_block: 0,
            next_warp: vec![0; blocks],
        }
    }

    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Warps of a block.
    pub fn warps(&self) -> usize {
        self.warps
    }

    /// Bytes of the sums that wait for each other: a float for each row of a piece.
    pub fn slot_bytes(&self) -> usize {
        SLOTS * self.warps * TILE_ROWS * size_of::<f32>()
    }

    /// The blocks that the next product of so many sixteens would have, the first and how many from there on.
    pub fn next_blocks(&self, sixteens: usize) -> (usize, usize) {
        (self.next_block, sixteens.min(self.blocks))
    }

    /// A phase without products.
    pub fn skip(&mut self) {
        self.shares.push(vec![Share::default(); self.blocks]);
    }

    /// A product's phase. Returns how many sixteens' sums wait for each other at a time.
    pub fn add(&mut self, jobs: &[Job]) -> usize {
        let sixteens = |job: &Job| job.matrices[0].rows.div_ceil(TILE_ROWS);
        let all: usize = jobs.iter().map(sixteens).sum();
        let matrices = jobs.first().map_or(1, |job| job.matrices.len());
        let round = (SLOTS * self.warps / (matrices * SLICES)).max(1);
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
                self.add_round(block, jobs, from..(from + round).min(first + count));
            }
            first += count;
        }
        self.next_block = (self.next_block + more) % self.blocks;
        self.shares.push(shares);
        round
    }

    fn add_round(&mut self, block: usize, jobs: &[Job], sixteens: std::ops::Range<usize>) {
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
                    if from == to {
                        continue;
                    }
                    let tile = (sixteen - job.first_sixteen) * tiles + from;
                    let slot = ((sixteen - begin) * job.matrices.len() + m) * SLICES + slice;
                    of_warps[warp % self.warps].push(Piece {
                        address: weights.at.add(tile * bytes).0 | (bytes as u64 / 16) << 48,
                        tiles: (to - from) as u32 | (from as u32) << 16,
                        place: slot as u32 | weights.dtype.ggml_id() << 16,
                    });
                    warp += 1;
                }
            }
        }
        self.next_warp[block] = warp % self.warps;
        for (warp, mut pieces) in of_warps.into_iter().enumerate() {
            if pieces.is_empty() {
                pieces.push(Piece::NOTHING);
            }
            if let Some(last) = pieces.last_mut() {
                last.place |= Piece::LAST;
            }
            self.lists[block * self.warps + warp].extend(pieces);
        }
    }

    /// All lists one after another, and where each begins.
    pub fn lists(&self) -> (Vec<Piece>, Vec<u32>) {
        let (mut all, mut first) = (Vec::new(), Vec::new());
        for list in &self.lists {
            first.push(all.len() as u32);
            all.extend_from_slice(list);
            all.extend([Piece::END; READ_AHEAD]);
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
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn job(first_sixteen: usize, at: u64, rows: usize, cols: usize, matrices: usize) -> Job {
        let weights = |m: usize| Weights {
            at: DevicePtr(at + ((m as u64) << 32)),
            dtype: [DType::BF16, DType::Q4K][m],
            rows,
            cols,
        };
        Job {
            matrices: (0..matrices).map(weights).collect(),
            first_sixteen,
        }
    }

    /// Each tile of each matrix, once, in a slot of its round that no other piece has.
    #[test]
    fn every_tile_is_one_warps_and_every_slot_one_pieces() {
        for (blocks, warps) in [(1, 8), (3, 16), (132, 16)] {
            let mut plan = Plan::new(blocks, warps);
            let products = [
                vec![
                    job(0, 1 << 34, 6144, 1024, 1),
                    job(384, 2 << 34, 20, 1024, 1),
                ],
                vec![job(0, 3 << 34, 1024, 2048, 1)],
                vec![job(0, 4 << 34, 3584, 1024, 2)],
                vec![job(0, 6 << 34, 70, 3584, 1)],
            ];
            let rounds: Vec<usize> = products.iter().map(|jobs| plan.add(jobs)).collect();
            let shares = plan.shares();
            let mut tiles = HashSet::new();
            for block in 0..blocks {
                let mut lists: Vec<_> = (0..warps)
                    .map(|warp| plan.lists[block * warps + warp].iter())
                    .collect();
                for (product, round) in rounds.iter().enumerate() {
                    let share = shares[block * products.len() + product];
                    for _ in 0..(share.count as usize).div_ceil(*round) {
                        let mut slots = HashSet::new();
                        for list in &mut lists {
                            loop {
                                let piece = list.next().expect("a piece that ends the round");
                                let (count, bytes) = (piece.tiles & 0xffff, piece.address >> 48);
                                for tile in 0..u64::from(count) {
                                    let at = piece.address & 0xffff_ffff_ffff;
                                    assert!(tiles.insert(at + tile * bytes * 16), "a tile twice");
                                }
                                if count > 0 {
                                    let slot = piece.place & 0xffff;
                                    assert!((slot as usize) < SLOTS * warps, "slot {slot}");
                                    assert!(slots.insert(slot), "a slot twice");
                                }
                                if piece.place & Piece::LAST != 0 {
                                    break;
                                }
                            }
                        }
                    }
                }
                assert!(lists.iter_mut().all(|list| list.next().is_none()));
            }
            let of_jobs = products.iter().flatten().flat_map(|job| &job.matrices);
            let all = of_jobs
                .map(|w| w.rows.div_ceil(TILE_ROWS) * w.cols.div_ceil(Form::of(w.dtype).cols()));
            assert_eq!(tiles.len(), all.sum::<usize>(), "{blocks} blocks");
        }
    }
}
