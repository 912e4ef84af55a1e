use std::collections::HashSet;

use super::*;

const GATED: [DType; 2] = [DType::BF16, DType::Q4K];
const PLAIN: [DType; 1] = [DType::BF16];

fn job(first_sixteen: usize, at: u64, rows: usize, cols: usize, dtypes: &[DType]) -> Job {
    let weights = |(m, &dtype)| Weights {
        at: DevicePtr(at + ((m as u64) << 32)),
        dtype,
        rows,
        cols,
    };
    Job {
        matrices: (0..).zip(dtypes).map(weights).collect(),
        first_sixteen,
    }
}

/// Each tile of each matrix, once; slices whole, in order, by one warp, in a slot of the round that no other has; or the last tile by another
/// warp, in the slot behind that.
#[test]
fn every_tile_is_one_warps_and_every_slot_one_slices() {
    for (blocks, warps) in [(1, 8), (3, 16), (132, 16)] {
        let mut plan = Plan::new(blocks, warps);
        let products = [
            vec![
                job(0, 1 << 34, 6144, 1024, &PLAIN),
                job(384, 2 << 34, 20, 1024, &PLAIN),
            ],
            vec![job(0, 3 << 34, 1024, 2048, &PLAIN)],
            vec![job(0, 4 << 34, 3584, 1024, &GATED)],
            vec![job(0, 6 << 34, 70, 3584, &PLAIN)],
            vec![job(0, 7 << 34, 1024, 3584, &[DType::Q6K])],
            vec![job(0, 8 << 34, 300, 2304, &[DType::Q4K, DType::Q5K])],
            // Half as many slices.
            vec![job(0, 9 << 34, 300, 4352, &[DType::Q4K])],
        ];
        let added = products.iter().map(|jobs| plan.add(jobs));
        let (rounds, tails): (Vec<usize>, Vec<u32>) = added.unzip();
        // Of 14 times 256 inputs six slices have two; of 9 the last one.
        assert_eq!(tails, [0, 0, 0, 0, 0b1110_1110, 0b1000_0000, 0]);
        let shares = plan.shares();
        let mut tiles = HashSet::new();
        for block in 0..blocks {
            let mut rows = plan.lists[block].chunks_exact(warps);
            for (product, round) in rounds.iter().enumerate() {
                let share = shares[block * products.len() + product];
                for _ in 0..(share.count as usize).div_ceil(*round) {
                    let mut slots = HashSet::new();
                    // What each warp's slice has come to.
                    let mut ends = vec![None; warps];
                    loop {
                        let row = rows.next().expect("a row that ends the round");
                        for (piece, end) in row.iter().zip(&mut ends) {
                            let at = piece.address & 0xffff_ffff_ffff;
                            let count = u64::from(piece.tiles & 0xffff);
                            if count == 0 {
                                continue;
                            }
                            let bytes = (piece.address >> 48) * 16;
                            for tile in 0..count {
                                assert!(tiles.insert(at + tile * bytes / count), "a tile twice");
                            }
                            let slot = piece.place & 0xffff;
                            assert!((slot as usize) < SLOTS * warps, "slot {slot}");
                            if piece.place & Piece::BEGINS_SLICE != 0 {
                                assert!(slots.insert(slot), "a slot twice");
                            } else {
                                assert_eq!(*end, Some((slot, at)), "a slice goes on");
                            }
                            let goes_on = piece.place & Piece::ENDS_SLICE == 0;
                            *end = goes_on.then_some((slot, at + bytes));
                        }
                        if row[0].place & Piece::ENDS_ROUND != 0 {
                            break;
                        }
                    }
                    assert!(ends.iter().all(Option::is_none), "a slice without an end");
                    let width = slots_of_slice(tails[product]);
                    let bits_of = |place| {
                        let slots = slots.iter().map(|slot| *slot as usize);
                        let slices = slots.filter(|slot| slot % width == place);
                        slices.fold(0, |all, slot| all | 1 << (slot / width % SLICES))
                    };
                    let cols = products[product][0].matrices[0].cols;
                    assert_eq!(bits_of(0), slices_of(cols), "{cols} inputs");
                    if width > 1 {
                        assert_eq!(bits_of(1), tails[product], "{cols} inputs");
                        assert_eq!(bits_of(2), 0, "scales' places");
                    }
                }
            }
            assert!(rows.next().is_none() && rows.remainder().is_empty());
        }
        let of_jobs = products.iter().flatten().flat_map(|job| &job.matrices);
        let all =
            of_jobs.map(|w| w.rows.div_ceil(TILE_ROWS) * w.cols.div_ceil(Form::of(w.dtype).cols()));
        assert_eq!(tiles.len(), all.sum::<usize>(), "{blocks} blocks");
    }
}

/// What is not a product goes to blocks that the last one left idle, if it did.
#[test]
fn idle_blocks_are_the_next_products() {
    let mut plan = Plan::new(132, 16);
    assert_eq!(plan.idle_blocks(500), (0, 132));
    plan.add(&[job(0, 1 << 34, 1024, 3584, &PLAIN)]);
    assert_eq!(plan.idle_blocks(500), (64, 68));
    assert_eq!(plan.idle_blocks(20), (64, 20));
    plan.add(&[job(0, 2 << 34, 6144, 1024, &PLAIN)]);
    assert_eq!(plan.idle_blocks(500), (52, 132));
}
