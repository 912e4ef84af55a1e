use super::*;
use crate::gpu::linear::work::{Shape, facts};

fn hopper() -> DeviceFacts {
    DeviceFacts {
        arch: "sm_90a".to_owned(),
        clusters: [66, 32, 16],
        ..facts(132, 227)
    }
}

/// Every number of rows has a shape on every chip that takes them all and fits.
#[test]
fn shapes_take_all_rows_and_fit() {
    for facts in [hopper(), facts(132, 227), facts(82, 99), facts(40, 64)] {
        for dtype in DType::ALL {
            for num_rows in (9..200).chain([512, 4096]) {
                let what = format!("{dtype}, {num_rows} rows, {facts:?}");
                let work = Work {
                    num_rows,
                    heights: vec![5120],
                    cols: 5120,
                    matrices: 1,
                    each: Vec::new(),
                    types: 1 << dtype.ggml_id(),
                    is_normed: false,
                    adds: false,
                    beside_clusters: false,
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

fn shape_of(dtype: DType, num_rows: usize, cols: usize, facts: &DeviceFacts) -> Shape {
    let work = Work {
        num_rows,
        heights: vec![5120],
        cols,
        matrices: 1,
        each: Vec::new(),
        types: 1 << dtype.ggml_id(),
        is_normed: false,
        adds: false,
        beside_clusters: false,
    };
    Shape::of(&work, facts).expect("a shape")
}

#[test]
fn quants_are_fed_with_more_rows_than_a_tile() {
    let is_fed = |dtype, num_rows, facts: &DeviceFacts| match shape_of(dtype, num_rows, 4096, facts)
    {
        Shape::Narrow(_) => false,
        Shape::Wide(shape) => shape.fed,
    };
    assert!(is_fed(DType::Q8_0, 16, &hopper()));
    assert!(!is_fed(DType::Q8_0, 8, &hopper()));
    assert!(is_fed(DType::Q6K, 16, &hopper()));
    assert!(!is_fed(DType::Q8_0, 16, &facts(132, 227)));
}

/// Blocks of the next launch begin before this one's end where there is room for them.
#[test]
fn the_last_of_many_stages_leaves_room_for_the_next_launch() {
    let facts = DeviceFacts {
        clusters: [66, 30, 15],
        ..hopper()
    };
    for num_rows in [17, 23, 24] {
        match shape_of(DType::Q4K, num_rows, 3840, &facts) {
            Shape::Narrow(shape) => panic!("{shape:?}"),
            Shape::Wide(shape) => {
                assert_eq!(shape.stages, 5, "{num_rows} rows: {shape:?}");
                let left = facts.shared_bytes_per_block as usize - shape.shared_bytes;
                assert!(left >= 8 << 10, "{num_rows} rows: {left} bytes");
            }
        }
    }
}

/// `down` of a 27B with a tree's rows, where as many clusters run at a time as it needs.
#[test]
fn splits_meet_in_clusters_that_run_at_a_time() {
    let clusters = |counts| {
        let facts = DeviceFacts {
            clusters: counts,
            ..hopper()
        };
        match shape_of(DType::Q4K, 23, 17408, &facts) {
            Shape::Narrow(shape) => panic!("{shape:?}"),
            Shape::Wide(shape) => (shape.cluster, shape.row_blocks(&[5120])),
        }
    };
    let (size, blocks) = clusters([66, 30, 0]);
    assert_eq!(size, 4);
    assert!(blocks <= 30, "{blocks}");
    assert_ne!(clusters([66, 16, 0]).0, 4);
    assert_eq!(clusters([0; 3]).0, 1);
}
