//! Files that are not what they were: refused, counted, set aside, and never believed.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Rng, Stand, files, text, with_ending};
use generation::RefusedFiles;

/// Two pages, a tail, two states, features.
const TOKENS: usize = 20;

/// Changes one file's bytes, and has a new store be asked for the text: refused once, for what `is_counted` says, and written anew
/// the next time.
fn check(
    dir: &Path,
    file: &Path,
    what: &str,
    change: impl FnOnce(&mut Vec<u8>),
    is_counted: impl Fn(&RefusedFiles) -> bool,
) {
    let before = fs::read(file).unwrap();
    let mut bytes = before.clone();
    change(&mut bytes);
    fs::write(file, &bytes).unwrap();
    let stand = Stand::open(dir);
    let tokens = text(1, TOKENS);
    assert!(!stand.load(&tokens), "{what} of {}", file.display());
    let stats = stand.stats();
    assert!(is_counted(&stats.refused), "{what}: {:?}", stats.refused);
    assert_eq!((stats.loaded, stand.longest(&tokens)), (0, None), "{what}");
    assert!(stand.save(&tokens).0 && stand.load(&tokens), "{what}");
    assert!(fs::read(file).unwrap() == before, "{what}");
    for aside in with_ending(dir, "refused") {
        fs::remove_file(aside).unwrap();
    }
}

fn stored(dir: &Path) -> Vec<PathBuf> {
    let stand = Stand::open(dir);
    stand.save(&text(1, TOKENS));
    files(dir)
}

fn is_any(refused: &RefusedFiles) -> bool {
    let RefusedFiles {
        damaged,
        version,
        foreign,
        ..
    } = refused;
    damaged + version + foreign == 1
}

#[test]
fn no_bit_of_a_file_can_change() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng(1);
    for file in stored(dir.path()) {
        let len = fs::read(&file).unwrap().len();
        // Every byte of the header, and then some of every section.
        for place in (0..72).chain((72..len).step_by(5)) {
            let bit = 1 << rng.below(8);
            let flip = |bytes: &mut Vec<u8>| bytes[place] ^= bit;
            check(dir.path(), &file, &format!("byte {place}"), flip, is_any);
        }
    }
}

#[test]
fn no_byte_can_be_missing_or_too_many() {
    let dir = tempfile::tempdir().unwrap();
    let is_damaged = |refused: &RefusedFiles| refused.damaged == 1;
    for file in stored(dir.path()) {
        let len = fs::read(&file).unwrap().len();
        for left in (0..len).step_by(7).chain([len - 1]) {
            let cut = |bytes: &mut Vec<u8>| bytes.truncate(left);
            check(
                dir.path(),
                &file,
                &format!("cut to {left}"),
                cut,
                is_damaged,
            );
        }
        let longer = |bytes: &mut Vec<u8>| bytes.extend([0; 9]);
        check(dir.path(), &file, "nine more", longer, is_damaged);
        let zeroed = |bytes: &mut Vec<u8>| bytes.fill(0);
        check(dir.path(), &file, "zeroed", zeroed, is_any);
    }
}

#[test]
fn no_section_and_no_file_stands_for_another() {
    let dir = tempfile::tempdir().unwrap();
    let paths = stored(dir.path());
    let cut = paths
        .iter()
        .find(|path| path.extension().unwrap() == "cut")
        .unwrap();
    // Both states have as many bytes; they and the checksums behind them change places.
    let bytes = fs::read(cut).unwrap();
    let frame = 24 + 16;
    let features = 3 * 8 + 16;
    let first = bytes.len() - features - 2 * frame;
    let swap = |bytes: &mut Vec<u8>| bytes[first..first + 2 * frame].rotate_left(frame);
    check(dir.path(), cut, "swapped states", swap, |r| r.damaged == 1);
    let pages = with_ending(dir.path(), "page");
    let other = fs::read(&pages[1]).unwrap();
    let replace = |bytes: &mut Vec<u8>| *bytes = other;
    check(dir.path(), &pages[0], "another page", replace, |r| {
        r.foreign == 1
    });
    let page = fs::read(&pages[0]).unwrap();
    check(dir.path(), cut, "a page", |bytes| *bytes = page, is_any);
}

#[test]
fn files_of_another_model_are_refused_wherever_they_lie() {
    let dir = tempfile::tempdir().unwrap();
    let ours = stored(dir.path());
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Stand::open_as(elsewhere.path(), "another", u64::MAX);
    other.save(&text(1, TOKENS));
    drop(other);
    for (ours, theirs) in ours.iter().zip(files(elsewhere.path())) {
        let theirs = fs::read(theirs).unwrap();
        let replace = |bytes: &mut Vec<u8>| *bytes = theirs;
        check(dir.path(), ours, "another model's", replace, |r| {
            r.foreign == 1
        });
    }
    // In a folder of its own nobody sees it.
    let stand = Stand::open_as(dir.path(), "another", u64::MAX);
    assert_eq!(stand.longest(&text(1, TOKENS)), None);
    assert!(!stand.load(&text(1, TOKENS)));
    assert_eq!(stand.stats().refused.missing, 1);
}

#[test]
fn another_version_is_told_apart_from_damage() {
    let dir = tempfile::tempdir().unwrap();
    for file in stored(dir.path()) {
        let next = |bytes: &mut Vec<u8>| bytes[8] += 1;
        check(dir.path(), &file, "the next version", next, |r| {
            r.version == 1
        });
    }
}

#[test]
fn without_one_of_its_pages_a_cut_is_of_no_use() {
    let dir = tempfile::tempdir().unwrap();
    let paths = stored(dir.path());
    for page in paths
        .iter()
        .filter(|path| path.extension().unwrap() == "page")
    {
        fs::remove_file(page).unwrap();
        let stand = Stand::open(dir.path());
        assert!(!stand.load(&text(1, TOKENS)));
        assert_eq!(stand.stats().refused.missing, 1);
        assert_eq!(stand.longest(&text(1, TOKENS)), None);
        assert!(stand.save(&text(1, TOKENS)).0 && stand.load(&text(1, TOKENS)));
    }
}
