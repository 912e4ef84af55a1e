//! A store over states that are a function of their tokens, so that whatever it gives can be checked.

#![allow(clippy::unwrap_used, dead_code)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use generation::DiskCacheStats;
use prefix_store::{
    Arrived, Counters, FeatureShape, Fingerprint, Fingerprinter, Layout, Part, Store, StoreConfig,
    Wanted,
};

pub const PAGE_TOKENS: usize = 8;
pub const PAGE_BYTES: usize = 40;
pub const STATE_BYTES: [usize; 2] = [24, 24];
const ROW_BYTES: usize = 8;
/// Nothing here takes long; a test that waits so long has hung.
const WATCHDOG: Duration = Duration::from_secs(60);

pub fn fingerprint(name: &str) -> Fingerprint {
    let mut maker = Fingerprinter::default();
    maker.add(name);
    maker.finish()
}

/// A text that nothing else begins with.
pub fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| seed * 1000 + i).collect()
}

fn layout() -> Layout {
    Layout {
        page_tokens: PAGE_TOKENS,
        page_bytes: PAGE_BYTES,
        state_bytes: STATE_BYTES.to_vec(),
    }
}

/// Features of the last tokens of longer texts.
pub fn features(len: usize) -> Option<FeatureShape> {
    (len > 2).then(|| FeatureShape {
        layers: vec![1, 5],
        first: len - 3,
        num_rows: 3,
        row_bytes: ROW_BYTES,
    })
}

/// What a part of a text's state is.
pub fn part(tokens: &[u32], part: Part) -> Vec<u8> {
    let (salt, end, len) = match part {
        Part::Page(number) => {
            let end = tokens.len().min((number + 1) * PAGE_TOKENS);
            (number, end, PAGE_BYTES)
        }
        Part::State(number) => (1000 + number, tokens.len(), STATE_BYTES[number]),
        Part::Features { row, num_rows } => (2000 + row, tokens.len(), num_rows * ROW_BYTES),
    };
    let mut state = salt as u64;
    for token in &tokens[..end] {
        state = (state ^ u64::from(*token))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(23);
    }
    (0..len)
        .map(|i| (state.rotate_left(i as u32 * 5) as u8).wrapping_add(i as u8))
        .collect()
}

/// Rings when the store has news.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

pub struct Stand {
    pub store: Store,
    counters: Counters,
    bell: Arc<Bell>,
}

impl Stand {
    pub fn open(dir: &Path) -> Self {
        Self::open_as(dir, "model", u64::MAX)
    }

    pub fn open_as(dir: &Path, name: &str, budget_bytes: u64) -> Self {
        let config = StoreConfig {
            dir: dir.to_owned(),
            budget_bytes,
            fingerprint: fingerprint(name),
            layout: layout(),
        };
        let (counters, bell) = (Counters::default(), Arc::<Bell>::default());
        let ring = Arc::clone(&bell);
        let wake = move || {
            *ring.0.lock().unwrap() = true;
            ring.1.notify_all();
        };
        let store = Store::open(config, counters.clone(), wake).unwrap();
        Self {
            store,
            counters,
            bell,
        }
    }

    pub fn stats(&self) -> DiskCacheStats {
        self.counters.get()
    }

    fn wait(&self) {
        let started = Instant::now();
        let mut rung = self.bell.0.lock().unwrap();
        while !*rung {
            assert!(started.elapsed() < WATCHDOG, "the store gives no sign");
            rung = self.bell.1.wait_timeout(rung, WATCHDOG).unwrap().0;
        }
        *rung = false;
    }

    /// Writes a prefix; whether it is kept, and which parts were wanted.
    pub fn save(&self, tokens: &[u32]) -> (bool, Vec<Part>) {
        let mut save = self.store.save(tokens, features(tokens.len()));
        let mut parts = Vec::new();
        loop {
            match save.wanted() {
                Wanted::Part(wanted) => {
                    parts.push(wanted);
                    save.give(part(tokens, wanted));
                }
                Wanted::Later => self.wait(),
                Wanted::Ended { is_kept } => return (is_kept, parts),
            }
        }
    }

    /// Reads a prefix; `false` where it is refused. Whatever comes is right.
    pub fn load(&self, tokens: &[u32]) -> bool {
        let load = self.store.load(tokens);
        let mut pages = 0;
        loop {
            match load.next() {
                None => self.wait(),
                Some(Arrived::Features(shape)) => assert_eq!(shape, features(tokens.len())),
                Some(Arrived::Part(got, bytes)) => {
                    pages += usize::from(matches!(got, Part::Page(_)));
                    assert_eq!(bytes, part(tokens, got), "{got:?}");
                }
                Some(Arrived::End) => {
                    assert_eq!(pages, tokens.len().div_ceil(PAGE_TOKENS));
                    return true;
                }
                Some(Arrived::Refused) => return false,
            }
        }
    }

    /// How much of a text there is.
    pub fn longest(&self, text: &[u32]) -> Option<usize> {
        self.store.longest(text, 0..text.len() + 1)
    }
}

/// All files of the caches in a folder but the lock, sorted.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let inside = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let folders = inside(dir).into_iter().filter(|path| path.is_dir());
    let mut files: Vec<_> = folders.flat_map(|folder| inside(&folder)).collect();
    files.sort();
    files
}

pub fn with_ending(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let has_ending = |path: &PathBuf| path.extension().is_some_and(|e| e == ending);
    files(dir).into_iter().filter(has_ending).collect()
}

/// The same numbers every time.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}
