//! The store: what is asked of it, and its two threads.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use generation::DiskCacheStats;

use crate::error::OpenError;
use crate::folder::Folder;
use crate::index::Index;
use crate::key::{Chain, Fingerprint, Key};
use crate::layout::{FeatureShape, Layout};
use crate::load::{self, Load};
use crate::save::{self, Save};

/// Where a store is, and what is kept in it.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The folder. Other processes may use it too, and other models.
    pub dir: PathBuf,
    /// Bytes of all files in it at most, those of other models too.
    pub budget_bytes: u64,
    /// What gives tokens their states, but for the layout.
    pub fingerprint: Fingerprint,
    /// Sizes of the states.
    pub layout: Layout,
}

/// Counters of a store.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Mutex<DiskCacheStats>>);

impl Counters {
    /// Changes them.
    pub fn update(&self, change: impl FnOnce(&mut DiskCacheStats)) {
        // Sums are whole whatever happens elsewhere.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What they are now.
    #[must_use]
    pub fn get(&self) -> DiskCacheStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the threads share.
pub(crate) struct Common {
    pub folder: Folder,
    pub fingerprint: Fingerprint,
    pub layout: Layout,
    pub counters: Counters,
    /// Held for moments only.
    index: Mutex<Index>,
    is_stopping: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Common {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_index(&self, index: Index) {
        *self.index() = index;
    }

    pub fn add_cut(&self, len: usize, key: Key) {
        self.index().add(len, key);
    }

    pub fn remove_cut(&self, len: usize, key: Key) {
        self.index().remove(len, key);
    }

    /// Wakes who waits for the store.
    pub fn wake(&self) {
        (self.wake)();
    }

    pub fn is_stopping(&self) -> bool {
        // Relaxed: only ends a wait.
        self.is_stopping.load(Ordering::Relaxed)
    }
}

/// Prefixes in files. Dropping it waits for what is being written, a part at most.
pub struct Store {
    common: Arc<Common>,
    /// `None` once dropped.
    saves: Option<Sender<save::Order>>,
    loads: Option<Sender<load::Order>>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("folder", &self.common.folder)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens a folder, made where it is not there yet. `wake` is called when something has come or is wanted.
    ///
    /// # Errors
    /// The folder cannot be had or read; the system gives no thread. What is in it is no reason.
    pub fn open(
        config: StoreConfig,
        counters: Counters,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let fingerprint = config.layout.fingerprint(&config.fingerprint);
        let path = config.dir.clone();
        let of_folder = |error| OpenError::Folder { path, error };
        let opened = Folder::open(config.dir, &fingerprint, config.budget_bytes);
        let listed = opened.and_then(|folder| Ok((folder.list()?, folder)));
        let (listing, folder) = listed.map_err(of_folder)?;
        let (prefixes, bytes) = (listing.cuts.len(), listing.bytes());
        tracing::info!(folder = %folder.own().display(), prefixes, bytes, "prefixes are kept in files");
        if listing.unknown > 0 {
            let files = listing.unknown;
            tracing::warn!(
                files,
                "files that are not of this program are in the folder; they are left alone"
            );
        }
        counters.update(|stats| {
            stats.prefixes = prefixes as u64;
            stats.bytes = bytes;
            stats.refused.unknown += listing.unknown as u64;
        });
        let common = Arc::new(Common {
            folder,
            fingerprint,
            layout: config.layout,
            counters,
            index: Mutex::new(listing.cuts),
            is_stopping: AtomicBool::new(false),
            wake: Box::new(wake),
        });
        let (saves, save_orders) = mpsc::channel();
        let (loads, load_orders) = mpsc::channel();
        let mut store = Self {
            common,
            saves: Some(saves),
            loads: Some(loads),
            threads: Vec::new(),
        };
        store.spawn("prefix-saves", save_orders, save::run)?;
        store.spawn("prefix-loads", load_orders, load::run)?;
        Ok(store)
    }

    fn spawn<T: Send + 'static>(
        &mut self,
        name: &str,
        orders: Receiver<T>,
        run: fn(&Common, &Receiver<T>),
    ) -> Result<(), OpenError> {
        let common = Arc::clone(&self.common);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || run(&common, &orders));
        self.threads.push(thread.map_err(OpenError::Thread)?);
        Ok(())
    }

    /// How many leading tokens of a text there is a prefix of, the longest whose length is in a range.
    #[must_use]
    pub fn longest(&self, text: &[u32], lens: Range<usize>) -> Option<usize> {
        let index = self.common.index();
        if index.len() == 0 || lens.is_empty() {
            return None;
        }
        let chain = Chain::new(
            &self.common.fingerprint,
            text,
            self.common.layout.page_tokens,
        );
        index.longest(&chain, lens)
    }

    /// Begins to read the prefix that `tokens` are.
    #[must_use]
    pub fn load(&self, tokens: &[u32]) -> Load {
        let (load, order) = Load::new(tokens);
        // Where the thread is gone, the load says so.
        let _gone = self.loads.as_ref().map(|loads| loads.send(order));
        load
    }

    /// Begins to write the prefix that `tokens` are, as far as it is not there. What is there counts as used.
    #[must_use]
    pub fn save(&self, tokens: &[u32], features: Option<FeatureShape>) -> Save {
        let (save, order) = Save::new(tokens, features);
        // Where the thread is gone, the save says so.
        let _gone = self.saves.as_ref().map(|saves| saves.send(order));
        save
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.common.is_stopping.store(true, Ordering::Relaxed);
        (self.saves, self.loads) = (None, None);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread for files panicked");
            }
        }
    }
}

/// Microseconds, as the counters hold them.
pub(crate) fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
