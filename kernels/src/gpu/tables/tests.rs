#![allow(clippy::unwrap_used)]

use super::*;

fn segment(parents: &[i32], committed_len: usize) -> Segment<'_> {
    Segment {
        first_row: 0,
        parents,
        committed_len,
        first_position: 0,
        pages: &[3, 5],
        state_index: 0,
        advance: false,
        window: None,
    }
}

/// Walks the steps and says which path each row was computed along.
fn walked(parents: &[i32]) -> (Vec<Vec<u32>>, u32) {
    let tables = HostTables::new(&[segment(parents, 0)], Visibility::Ancestors);
    let mut saved: Vec<Vec<u32>> = vec![Vec::new(); MAX_SAVED_LEVELS as usize];
    let mut at: Vec<u32> = Vec::new();
    let mut paths = vec![Vec::new(); parents.len()];
    let mut levels = 0;
    for step in &tables.steps {
        match step.load {
            NONE => {}
            BASE => at.clear(),
            level => at = saved[level as usize].clone(),
        }
        let path = [&at[..], &[step.row]].concat();
        paths[step.row as usize] = path.clone();
        if step.save != LEAF {
            at = path;
        }
        if step.save < LEAF {
            saved[step.save as usize] = at.clone();
            levels = levels.max(step.save + 1);
        }
    }
    (paths, levels)
}

#[test]
fn a_walk_computes_every_row_along_its_path_with_few_saved_states() {
    let mut seed = 1_u64;
    for nodes in 1..=256_usize {
        let mut below = |n: usize| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        let parents: Vec<i32> = (0..nodes).map(|node| below(node + 1) as i32 - 1).collect();
        let (paths, levels) = walked(&parents);
        for (node, path) in paths.iter().enumerate() {
            let mut expected = vec![node as u32];
            while let Ok(parent) = usize::try_from(parents[expected[0] as usize]) {
                expected.insert(0, parent as u32);
            }
            assert_eq!(*path, expected);
        }
        let bound = levels_of(nodes as u32);
        assert!(levels <= bound, "{levels} levels for {nodes} nodes");
    }
}

#[test]
fn rows_know_their_places_and_paths() {
    let tables = HostTables::new(&[segment(&[-1, 0, 0, 2], 70)], Visibility::Ancestors);
    let last = tables.rows[3];
    assert_eq!((last.place, last.slot, last.seen_end), (72, 73, 73));
    assert_eq!(tables.paths[last.path as usize..][..3], [70, 72, 73]);
    assert_eq!(tables.pages, [3, 5]);
    let block = HostTables::new(&[segment(&[-1, -1, -1], 70)], Visibility::All);
    assert_eq!(
        (
            block.rows[1].place,
            block.rows[1].seen_end,
            block.rows[1].path
        ),
        (71, 73, NONE)
    );
}
