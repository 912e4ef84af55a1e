//! What is kept comes back, is kept once, and makes room.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use common::{PAGE_TOKENS, Rng, Stand, files, text, with_ending};
use prefix_store::Part;

#[test]
fn what_is_kept_comes_back_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let lens = [
        0,
        1,
        PAGE_TOKENS - 1,
        PAGE_TOKENS,
        PAGE_TOKENS + 1,
        3 * PAGE_TOKENS + 5,
    ];
    let stand = Stand::open(dir.path());
    for len in lens {
        assert!(stand.save(&text(len as u32, len)).0);
    }
    drop(stand);
    let stand = Stand::open(dir.path());
    assert_eq!(stand.stats().prefixes, lens.len() as u64);
    for len in lens {
        let tokens = text(len as u32, len);
        let longer = [&tokens[..], &[7]].concat();
        assert_eq!(stand.longest(&longer), Some(len));
        assert!(stand.load(&tokens), "{len}");
    }
    let stats = stand.stats();
    assert_eq!((stats.loaded, stats.saved), (lens.len() as u64, 0));
    assert_eq!(stats.refused, generation::RefusedFiles::default());
}

#[test]
fn the_longest_prefix_in_range_is_found_and_no_other_text_s() {
    let dir = tempfile::tempdir().unwrap();
    let stand = Stand::open(dir.path());
    let long = text(1, 50);
    for len in [3, 20, 33] {
        stand.save(&long[..len]);
    }
    assert_eq!(stand.longest(&long), Some(33));
    assert_eq!(stand.store.longest(&long, 0..33), Some(20));
    assert_eq!(stand.store.longest(&long, 21..33), None);
    assert_eq!(stand.store.longest(&long, 9..9), None);
    let mut other = long.clone();
    other[25] += 1;
    assert_eq!(stand.longest(&other), Some(20));
    assert_eq!(stand.longest(&text(2, 50)), None);
}

#[test]
fn turns_share_their_pages_and_nothing_is_written_twice() {
    let dir = tempfile::tempdir().unwrap();
    let stand = Stand::open(dir.path());
    let long = text(1, 4 * PAGE_TOKENS);
    let (_, first) = stand.save(&long[..2 * PAGE_TOKENS + 3]);
    assert_eq!(first[..3], [0, 1, 2].map(Part::Page));
    let saved_bytes = stand.stats().saved_bytes;
    // The next turn adds a page, its states, and no more.
    let (_, second) = stand.save(&long[..3 * PAGE_TOKENS]);
    assert_eq!(second[..2], [Part::Page(2), Part::State(0)]);
    assert!(stand.stats().saved_bytes < 2 * saved_bytes);
    assert_eq!(with_ending(dir.path(), "page").len(), 3);
    let before = files(dir.path());
    assert_eq!(stand.save(&long[..3 * PAGE_TOKENS]), (true, Vec::new()));
    assert_eq!(files(dir.path()), before);
    assert_eq!(stand.stats().saved, 2);
    // A save that is given up leaves nothing but whole pages.
    drop(stand.store.save(&text(2, 20), None));
    assert!(stand.save(&text(3, 9)).0);
    let left = files(dir.path()).iter().all(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".page") || name.ends_with(".cut")
    });
    assert!(left);
}

#[test]
fn the_budget_holds_and_what_was_not_used_for_longest_goes() {
    let dir = tempfile::tempdir().unwrap();
    let budget = 6000;
    let stand = Stand::open_as(dir.path(), "model", budget);
    let favourite = text(0, 3 * PAGE_TOKENS);
    stand.save(&favourite);
    for seed in 1..40 {
        assert!(stand.save(&text(seed, 2 * PAGE_TOKENS + 1)).0);
        let bytes: u64 = files(dir.path())
            .iter()
            .map(|f| f.metadata().unwrap().len())
            .sum();
        assert!(bytes <= budget, "{bytes}");
        assert_eq!(stand.stats().bytes, bytes);
        // A page goes after the last cut that needs it.
        let kept = |seed: u32| stand.longest(&text(seed, 2 * PAGE_TOKENS + 1));
        let kept: Vec<u32> = (1..=seed).filter(|seed| kept(*seed).is_some()).collect();
        assert!(kept.contains(&seed) && kept.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        assert!(
            kept.iter()
                .all(|seed| stand.load(&text(*seed, 2 * PAGE_TOKENS + 1)))
        );
        assert!(stand.load(&favourite), "{seed}");
    }
    let stats = stand.stats();
    assert!(stats.evictions > 50 && stats.prefixes > 4, "{stats:?}");
    // What can never fit drives nothing out.
    let prefixes = stats.prefixes;
    assert_eq!(
        stand.save(&text(99, 200 * PAGE_TOKENS)),
        (false, Vec::new())
    );
    let stats = stand.stats();
    assert_eq!((stats.dropped, stats.prefixes), (1, prefixes));
    // Another model's files make room as well.
    drop(stand);
    let other = Stand::open_as(dir.path(), "another", budget);
    assert_eq!(other.stats().prefixes, 0);
    for seed in 0..20 {
        assert!(other.save(&favourite).0 && other.save(&text(seed, 30)).0);
    }
    assert_eq!(
        Stand::open_as(dir.path(), "model", budget).stats().prefixes,
        0
    );
}

#[test]
fn files_are_for_this_user_alone_and_what_is_not_ours_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("new/folder");
    let stand = Stand::open(&root);
    stand.save(&text(1, 20));
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let paths = files(&root);
    assert!(paths.iter().all(|path| mode(path) == 0o600), "{paths:?}");
    let own = paths[0].parent().unwrap();
    assert_eq!(mode(own), 0o700);
    drop(stand);
    let strangers = [
        own.join("notes.txt"),
        own.join("12-xyz.cut"),
        own.join("thing.unfinished"),
        root.join("readme"),
        root.join("photos/a.page"),
        root.join("photos/00000001-00000000000000000000000000000000.page.unfinished"),
    ];
    fs::create_dir(root.join("photos")).unwrap();
    strangers
        .iter()
        .for_each(|path| fs::write(path, "mine").unwrap());
    let stand = Stand::open_as(&root, "model", 1500);
    assert_eq!(stand.stats().refused.unknown, 5);
    for seed in 0..10 {
        assert!(stand.save(&text(seed, 20)).0);
    }
    assert!(
        strangers
            .iter()
            .all(|path| fs::read(path).unwrap() == b"mine")
    );
    // Where there can be no folder, that is said by its name.
    let error = std::panic::catch_unwind(|| Stand::open(&root.join("readme")));
    assert!(error.is_err());
}

#[test]
fn two_processes_may_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let work = |number: u64| {
        let path = dir.path().to_owned();
        move || {
            let stand = Stand::open_as(&path, "model", 20_000);
            let mut rng = Rng(number);
            let mut loaded = 0;
            for _ in 0..150 {
                let text = text(rng.below(6) as u32, 60);
                let len = rng.below(60);
                match stand.longest(&text).filter(|_| rng.below(2) == 0) {
                    Some(len) => loaded += usize::from(stand.load(&text[..len])),
                    None => assert!(stand.save(&text[..len]).0),
                }
            }
            (loaded, stand.stats().refused)
        }
    };
    let threads = [1, 2].map(|number| std::thread::spawn(work(number)));
    for thread in threads {
        let (loaded, refused) = thread.join().unwrap();
        assert!(loaded > 20);
        // What the other one had go is not there; nothing is ever half there.
        let gone = generation::RefusedFiles {
            missing: refused.missing,
            ..generation::RefusedFiles::default()
        };
        assert_eq!(refused, gone);
    }
}
