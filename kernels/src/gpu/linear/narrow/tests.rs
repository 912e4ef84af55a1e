use tensor::DType;

use super::*;
use crate::gpu::linear::narrow::sizes::row_tile_bytes;
use crate::gpu::linear::work::facts;
use crate::gpu::matrix::Form;

/// Every product of few rows has a shape on every chip, which fits.
#[test]
fn shapes_fit_on_every_chip() {
    for facts in [facts(132, 227), facts(82, 99), facts(40, 64), facts(1, 96)] {
        for dtype in DType::ALL {
            for (num_rows, cols, matrices, adds) in [
                (1, 256, 1, false),
                (1, 6144, 1, true),
                (1, 17408, 2, false),
                (5, 5120, 2, false),
                (8, 17408, 1, true),
                (16, 17408, 2, false),
            ] {
                let work = Work {
                    num_rows,
                    heights: vec![5120, 48],
                    cols,
                    matrices,
                    each: Vec::new(),
                    types: 1 << dtype.ggml_id(),
                    is_normed: false,
                    adds,
                    beside_clusters: true,
                };
                let what = format!("{dtype}, {num_rows} rows of {cols}, {facts:?}");
                if !Narrow::takes(&work, &facts) {
                    assert!(num_rows > 8, "{what}");
                    continue;
                }
                let shape = Narrow::of(&work, &facts).expect(&what);
                let bytes = shape.shared_bytes + RESERVED_BYTES;
                let room = facts.shared_bytes_per_block as usize + 1024;
                match shape.choice.apart {
                    true => assert_eq!(room / bytes, 1, "{what}: {shape:?}"),
                    false => assert!(room / bytes >= shape.choice.resident, "{what}: {shape:?}"),
                }
                assert!(shape.blocks() <= 323, "{what}: {shape:?}");
            }
        }
    }
}

/// A row by itself.
fn row_alone(dtype: DType, heights: &[usize], cols: usize, matrices: usize) -> Work {
    Work {
        num_rows: 1,
        heights: heights.to_vec(),
        cols,
        matrices,
        each: Vec::new(),
        types: 1 << dtype.ggml_id(),
        is_normed: false,
        adds: false,
        beside_clusters: false,
    }
}

/// On an H200 and on a 3090, the matrices of a model of 27 billion have deep rings, and a row alone is made ready inside.
#[test]
fn usual_matrices_have_deep_rings() {
    for (facts, least) in [(facts(132, 227), 2), (facts(82, 99), 2)] {
        for (dtype, height, cols, matrices) in [
            (DType::Q4K, 17408, 5120, 2),
            (DType::Q6K, 5120, 17408, 1),
            (DType::BF16, 1024, 3584, 1),
        ] {
            let heights = [height];
            let work = row_alone(dtype, &heights, cols, matrices);
            let shape = Narrow::of(&work, &facts).expect("a shape");
            let is_deep = match shape.place {
                Place::Ring { stages, .. } => stages >= least,
                Place::Held(_) => true,
            };
            assert!(shape.row_inside() && is_deep, "{dtype}: {shape:?}");
        }
    }
}

/// On an H100 outputs behind DeltaNet lie on a multiprocessor each, gate and up need not, and a block that is one of few asks for all its weights
/// early.
#[test]
fn small_matrices_find_room_beside_other_launches() {
    let facts = facts(132, 227);
    let choice = |dtype: DType, height, cols, matrices, adds| {
        let heights = [height];
        let work = Work {
            adds,
            ..row_alone(dtype, &heights, cols, matrices)
        };
        Narrow::of(&work, &facts).expect("a shape").choice
    };
    let outputs = choice(DType::Q4K, 5120, 6144, 1, true);
    assert!(outputs.apart && outputs.resident == 2, "{outputs:?}");
    let gate_and_up = choice(DType::BF16, 3584, 1024, 2, false);
    assert!(
        !gate_and_up.apart && gate_and_up.resident == 2,
        "{gate_and_up:?}"
    );
    let few = choice(DType::Q8_0, 1024, 3584, 1, true);
    let is_early = few.early_stages == FEW.early_stages && few.warps == FEW.warps;
    assert!(is_early && !few.apart, "{few:?}");
    assert_eq!((few.sixteens, few.cluster), (1, 1), "{few:?}");
    // The 27B's `down` has more than a multiprocessor holds.
    let large = choice(DType::Q4K, 5120, 17408, 1, true);
    assert!(!large.apart && large.resident == 1, "{large:?}");
}

/// Beside clusters, few sixteens are dealt out in pairs to clusters of their own where those fit, and others leave them their multiprocessors.
#[test]
fn small_matrices_leave_room_to_clusters() {
    let shape = |clusters, dtype: DType, height, cols, matrices, adds| {
        let facts = DeviceFacts {
            clusters,
            ..facts(132, 227)
        };
        let heights = [height];
        let work = Work {
            adds,
            beside_clusters: true,
            ..row_alone(dtype, &heights, cols, matrices)
        };
        Narrow::of(&work, &facts).expect("a shape")
    };
    let hopper = [66, 31, 15];
    for dtype in [DType::Q4K, DType::Q6K, DType::Q8_0] {
        let down = shape(hopper, dtype, 1024, 3584, 1, true);
        let of_one = down.choice.slices == 1 && down.choice.sixteens == 2;
        assert!(of_one && down.choice.cluster == 4, "{dtype}: {down:?}");
        assert_eq!(down.blocks, 32, "{dtype}");
        let down = shape([66, 23, 11], dtype, 1024, 3584, 1, true);
        assert_eq!((down.choice.cluster, down.blocks), (1, 64), "{dtype}");
    }
    let down = shape(hopper, DType::BF16, 1024, 3584, 1, true);
    assert_eq!((down.choice.cluster, down.blocks), (1, 64), "{down:?}");
    let gate_and_up = shape(hopper, DType::Q4K, 3584, 1024, 2, false);
    assert_eq!(gate_and_up.blocks, 100, "{gate_and_up:?}");
    assert!(gate_and_up.choice.apart, "{gate_and_up:?}");
    let gate_and_up = shape(hopper, DType::Q8_0, 3584, 1024, 2, false);
    assert_eq!(gate_and_up.choice, LIGHT_BESIDE_CLUSTERS);
}

/// As gpu/matmul.h has it: how many sixteens each block takes.
fn sixteens_of_blocks(row_bytes: &[(usize, usize)], blocks: usize) -> Vec<usize> {
    let all: usize = row_bytes.iter().map(|(count, bytes)| count * bytes).sum();
    let first_of = |number: usize| {
        let mut at = number * (all / blocks) + number.min(all % blocks);
        let mut before = 0;
        for (count, bytes) in row_bytes {
            if at <= count * bytes {
                return before + at.div_ceil(*bytes);
            }
            at -= count * bytes;
            before += count;
        }
        before
    };
    (0..blocks)
        .map(|number| first_of(number + 1) - first_of(number))
        .collect()
}

/// What is held has room for every block's weights and outputs, and blocks that have more than that are not held.
#[test]
fn held_weights_have_room() {
    let types = [
        &[DType::Q4K, DType::Q4K][..],
        &[DType::Q4K, DType::Q6K],
        &[DType::Q8_0, DType::Q4K],
    ];
    let mut held_ones = 0;
    for (dtypes, cols, blocks) in types
        .into_iter()
        .flat_map(|types| [256, 1024, 3584, 4096].map(|cols| (types, cols)))
        .flat_map(|(types, cols)| [1, 32, 100, 132].map(|blocks| (types, cols, blocks)))
    {
        for heights in [[4608, 512], [16, 48], [1024, 0], [512, 4600]] {
            let work = Work {
                types: dtypes
                    .iter()
                    .fold(0, |all, dtype| all | 1 << dtype.ggml_id()),
                ..row_alone(dtypes[0], &heights, cols, 1)
            };
            let blocks = blocks.min(sixteens(&work));
            let Some(held) = Held::of(&work, (12, 2), blocks) else {
                continue;
            };
            held_ones += 1;
            let row_bytes: Vec<_> = heights
                .iter()
                .zip(dtypes)
                .map(|(rows, dtype)| (rows.div_ceil(TILE_ROWS), row_tile_bytes(*dtype, cols) / 16))
                .collect();
            let taken = sixteens_of_blocks(&row_bytes, blocks);
            let what = format!("{dtypes:?}, {heights:?} x {cols} by {blocks}: {held:?}");
            assert!(taken.iter().all(|&taken| taken <= held.sixteens), "{what}");
            assert!(held.sixteens * TILE_ROWS <= 12 * 32, "{what}");
            // A warp's share of a block's pieces, of four quarters of a row each.
            let pieces = (held.sixteens * 4).div_ceil(12);
            let quarter = |dtype: DType| cols.div_ceil(1024) * 256 / Form::of(dtype).cols();
            let most = dtypes
                .iter()
                .map(|&dtype| quarter(dtype) * tile_bytes(dtype));
            assert!(
                held.warp_bytes >= pieces * most.max().unwrap_or(0),
                "{what}"
            );
            assert_eq!(
                held.one_tile,
                dtypes.iter().all(|&d| quarter(d) == 1),
                "{what}"
            );
        }
    }
    assert!(held_ones > 50, "{held_ones}");
}
