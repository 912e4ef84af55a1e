//! A process that is killed while it writes prefixes leaves nothing that changes an answer, or keeps the next one from starting.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::conversations::{COLD, ROOMY, Rng, tiny, tiny_with};
use common::{Stand, request, within};
use engine::{DiskCacheConfig, EngineConfig, Fingerprinter};

/// Names the folder to the process that is killed.
const FOLDER: &str = "TANDEM_TEST_PLUG";
/// At least so many kills, and more until some came in the middle of a write and some prefixes had been written.
const KILLS: usize = 50;

fn stand(dir: &Path) -> Stand {
    let config = EngineConfig {
        prefix_cache: ROOMY,
        ..COLD
    };
    let disk = DiskCacheConfig {
        dir: dir.to_owned(),
        budget_bytes: 4 << 20,
        min_tokens: 1,
        settle: Duration::ZERO,
        fingerprint: Fingerprinter::default().finish(),
    };
    tiny_with(config, Some(60), Some(disk))
}

/// A text of some turns, each of which begins with the last.
fn turns(number: usize) -> impl Iterator<Item = Vec<u32>> {
    let text = Rng(number as u64).text(300);
    (1..5).map(move |turn| text[..turn * 70].to_vec())
}

/// Not a test by itself: what the killed process does, until it is killed.
#[tokio::test]
async fn writes_until_it_is_killed() {
    let Ok(dir) = std::env::var(FOLDER) else {
        return;
    };
    let stand = stand(Path::new(&dir));
    for number in 0.. {
        for turn in turns(number % 7) {
            let answer = stand.answer(&request(&turn, 1)).await;
            println!("turn {:?}", answer.ids());
        }
    }
}

#[tokio::test]
async fn whenever_the_plug_is_pulled_answers_stay_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let cold = tiny(COLD, None);
    let program = std::env::current_exe().unwrap();
    let (mut hits, mut unfinished, mut rng) = (0, 0, Rng(1));
    for kill in 0.. {
        if kill >= KILLS && hits > 10 && unfinished > 0 {
            break;
        }
        assert!(
            kill < 20 * KILLS,
            "{hits} hits, {unfinished} unfinished files"
        );
        let mut child = Command::new(&program)
            .args(["--exact", "writes_until_it_is_killed", "--nocapture"])
            .env(FOLDER, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_turn = |line: &String| line.contains("turn [");
        lines.by_ref().map(Result::unwrap).find(is_turn).unwrap();
        // Ever longer, for machines that are slow.
        let at_most_us = 30_000 * (1 + kill / KILLS);
        std::thread::sleep(Duration::from_micros(rng.below(at_most_us) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        unfinished += count_unfinished(dir.path());
        let stand = stand(dir.path());
        let turn = turns(kill % 7).nth(kill % 4).unwrap();
        let longer = request(&[&turn[..], &[3, 4]].concat(), 3);
        let [expected, answer] =
            within(async { [cold.answer(&longer).await, stand.answer(&longer).await] }).await;
        assert_eq!(answer.ids(), expected.ids(), "kill {kill}");
        let disk = stand.handle.stats().prefix_cache.disk;
        let refused = disk.refused;
        assert_eq!(
            (refused.damaged, refused.foreign, refused.version),
            (0, 0, 0)
        );
        hits += disk.hits;
    }
}

fn count_unfinished(dir: &Path) -> usize {
    let inside = |dir: &Path| {
        std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
    };
    let folders = inside(dir).filter(|path| path.is_dir());
    let files = folders.flat_map(|folder| inside(&folder));
    files
        .filter(|path| path.extension().is_some_and(|e| e == "unfinished"))
        .count()
}
