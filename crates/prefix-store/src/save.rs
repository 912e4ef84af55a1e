//! Writing: one save at a time, on a thread of its own.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant, SystemTime};

use crate::file::{NewFile, sync_folder, touch};
use crate::folder::{Listing, NoRoom};
use crate::format::{Identity, Kind, file_bytes, token_bytes};
use crate::key::{Chain, Key};
use crate::layout::{FeatureShape, Part};
use crate::store::{Common, us};

/// Bytes that wait to be written at most; whoever has more waits with reading them off the device.
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// Wait for another process that writes.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// A prefix on its way to the files. Dropped before its end it is given up.
#[derive(Debug)]
pub struct Save {
    notes: Receiver<Note>,
    parts: Sender<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
    wanted: VecDeque<Part>,
}

/// What a save needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// This part.
    Part(Part),
    /// Nothing now; the store wakes who waits.
    Later,
    /// Nothing more: the prefix is in files, or will not be.
    Ended {
        /// Whether it is.
        is_kept: bool,
    },
}

/// From the thread to a [`Save`].
enum Note {
    Wanted(Vec<Part>),
    Ended { is_kept: bool },
}

/// A [`Save`]'s other end.
pub(crate) struct Order {
    tokens: Vec<u32>,
    features: Option<FeatureShape>,
    notes: Sender<Note>,
    parts: Receiver<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
}

impl Save {
    pub(crate) fn new(tokens: &[u32], features: Option<FeatureShape>) -> (Self, Order) {
        let (notes, noted) = mpsc::channel();
        let (parts, given) = mpsc::channel();
        let queued_bytes = Arc::default();
        let order = Order {
            tokens: tokens.to_vec(),
            features,
            notes,
            parts: given,
            queued_bytes: Arc::clone(&queued_bytes),
        };
        let save = Self {
            notes: noted,
            parts,
            queued_bytes,
            wanted: VecDeque::new(),
        };
        (save, order)
    }

    /// What it needs next.
    pub fn wanted(&mut self) -> Wanted {
        loop {
            match self.notes.try_recv() {
                Ok(Note::Wanted(parts)) => self.wanted.extend(parts),
                Ok(Note::Ended { is_kept }) => return Wanted::Ended { is_kept },
                Err(TryRecvError::Disconnected) => return Wanted::Ended { is_kept: false },
                Err(TryRecvError::Empty) => break,
            }
        }
        // Relaxed: a bound on memory, nothing is ordered by it.
        let is_full = self.queued_bytes.load(Ordering::Relaxed) >= MAX_QUEUED_BYTES;
        match self.wanted.front() {
            Some(part) if !is_full => Wanted::Part(*part),
            _ => Wanted::Later,
        }
    }

    /// Gives the part that is wanted.
    pub fn give(&mut self, bytes: Vec<u8>) {
        self.wanted.pop_front();
        self.queued_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        // A thread that is gone says so at the next look.
        let _gone = self.parts.send(bytes);
    }
}

/// Why a prefix was not written.
#[derive(Debug, thiserror::Error)]
enum Unsaved {
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("another process writes")]
    Busy,
    #[error("a part has {got} bytes, expected {expected}")]
    Size { got: usize, expected: usize },
    #[error("the keys of a text of {tokens} tokens end before it")]
    NoKey { tokens: usize },
    #[error("given up")]
    GivenUp,
}

/// Writes what is ordered until nobody orders any more.
pub(crate) fn run(common: &Common, orders: &Receiver<Order>) {
    let mut has_warned = false;
    for order in orders {
        let started = Instant::now();
        let saved = save(common, &order);
        let (len, time) = (order.tokens.len(), started.elapsed());
        common.counters.update(|stats| {
            stats.save_us += us(time);
            match &saved {
                Ok(0) => {}
                Ok(bytes) => {
                    stats.saved += 1;
                    stats.saved_bytes += bytes;
                }
                Err(_) => stats.dropped += 1,
            }
        });
        match &saved {
            Ok(bytes) => tracing::debug!(tokens = len, bytes, ?time, "a prefix is in files"),
            Err(error @ (Unsaved::GivenUp | Unsaved::Busy)) => {
                tracing::debug!(tokens = len, %error, "a prefix is not in files");
            }
            Err(error) if has_warned => {
                tracing::debug!(tokens = len, %error, "a prefix is not in files");
            }
            Err(error) => {
                has_warned = true;
                tracing::warn!(tokens = len, %error, "a prefix cannot be written; more of this is told at debug level");
            }
        }
        let is_kept = saved.is_ok();
        // Who ordered it may have left.
        let _left = order.notes.send(Note::Ended { is_kept });
        common.wake();
    }
}

/// A text on its way to the files.
struct Saving<'a> {
    common: &'a Common,
    order: &'a Order,
    chain: Chain<'a>,
    /// When all its files were used last.
    used: SystemTime,
}

/// Writes a prefix as far as it is not there; how many bytes.
fn save(common: &Common, order: &Order) -> Result<u64, Unsaved> {
    let _lock = lock(common)?;
    let saving = Saving {
        common,
        order,
        chain: Chain::new(
            &common.fingerprint,
            &order.tokens,
            common.layout.page_tokens,
        ),
        used: SystemTime::now(),
    };
    let mut listing = common.folder.list()?;
    let missing = saving.use_what_is_there(&mut listing)?;
    let Some(missing) = missing else {
        return Ok(0);
    };
    let wanted = missing.iter().map(|number| Part::Page(*number));
    let wanted = wanted.chain(saving.cut_parts()).collect();
    let wanted = order.notes.send(Note::Wanted(wanted));
    wanted.map_err(|_| Unsaved::GivenUp)?;
    common.wake();
    for number in &missing {
        saving.write_page(*number)?;
    }
    saving.write_cut()?;
    sync_folder(common.folder.own())?;
    let bytes = saving.need(missing.len());
    common.add_cut(order.tokens.len(), saving.cut_key()?);
    common.counters.update(|stats| {
        stats.prefixes += 1;
        stats.bytes += bytes;
    });
    Ok(bytes)
}

impl Saving<'_> {
    fn cut_key(&self) -> Result<Key, Unsaved> {
        let tokens = self.order.tokens.len();
        self.chain.cut(tokens).ok_or(Unsaved::NoKey { tokens })
    }

    fn page_key(&self, number: usize) -> Result<Key, Unsaved> {
        let tokens = self.order.tokens.len();
        self.chain.page(number).ok_or(Unsaved::NoKey { tokens })
    }

    fn cut_parts(&self) -> Vec<Part> {
        let (tokens, features) = (&self.order.tokens, self.order.features.as_ref());
        self.common.layout.cut_parts(tokens.len(), features)
    }

    fn part_bytes(&self, part: Part) -> usize {
        let bytes = self.common.layout.bytes(part, self.order.features.as_ref());
        bytes.unwrap_or(0)
    }

    fn cut_bytes(&self) -> u64 {
        let shape = FeatureShape::encode(self.order.features.as_ref()).len();
        let parts = self.cut_parts().into_iter();
        let parts = parts.map(|part| self.part_bytes(part));
        file_bytes(
            [self.order.tokens.len() * 4, shape]
                .into_iter()
                .chain(parts),
        )
    }

    fn page_bytes(&self) -> u64 {
        let layout = &self.common.layout;
        file_bytes([layout.page_tokens * 4, layout.page_bytes])
    }

    /// Bytes of the cut and so many pages.
    fn need(&self, pages: usize) -> u64 {
        self.cut_bytes() + pages as u64 * self.page_bytes()
    }

    /// Notes the use of what is there already, and makes room for the rest: which pages are missing, or `None` where all is there.
    fn use_what_is_there(&self, listing: &mut Listing) -> Result<Option<Vec<usize>>, Unsaved> {
        let (folder, len) = (&self.common.folder, self.order.tokens.len());
        let (mut stay, mut missing) = (HashSet::new(), Vec::new());
        for number in 0..self.common.layout.full_pages(len) {
            let key = self.page_key(number)?;
            if listing.pages.contains(&key) {
                stay.insert(folder.page(number, key));
            } else {
                missing.push(number);
            }
        }
        let cut = self.cut_key()?;
        let is_whole = missing.is_empty() && listing.cuts.has(len, cut);
        if is_whole {
            stay.insert(folder.cut(len, cut));
        }
        for path in &stay {
            touch(&File::open(path)?, self.used);
        }
        let evicted = if is_whole {
            Ok(0)
        } else {
            folder.make_room(listing, self.need(missing.len()), &stay)
        };
        // What went is gone, whether there is room now or not.
        self.common.counters.update(|stats| {
            stats.prefixes = listing.cuts.len() as u64;
            stats.bytes = listing.bytes();
            stats.evictions += *evicted.as_ref().unwrap_or(&0) as u64;
        });
        self.common.set_index(std::mem::take(&mut listing.cuts));
        evicted?;
        Ok((!is_whole).then_some(missing))
    }

    fn write_page(&self, number: usize) -> Result<(), Unsaved> {
        let page_tokens = self.common.layout.page_tokens;
        let values = self.take(Part::Page(number))?;
        let (key, end) = (self.page_key(number)?, (number + 1) * page_tokens);
        let identity = self.identity(Kind::Page, key, end);
        let path = self.common.folder.page(number, key);
        let mut file = NewFile::create(path, identity, self.page_bytes())?;
        let tokens = &self.order.tokens[end - page_tokens..end];
        file.write(&token_bytes(tokens))?;
        file.write(&values)?;
        Ok(file.finish(self.used)?)
    }

    fn write_cut(&self) -> Result<(), Unsaved> {
        let (tokens, key) = (&self.order.tokens, self.cut_key()?);
        let identity = self.identity(Kind::Cut, key, tokens.len());
        let path = self.common.folder.cut(tokens.len(), key);
        let mut file = NewFile::create(path, identity, self.cut_bytes())?;
        file.write(&token_bytes(tokens))?;
        file.write(&FeatureShape::encode(self.order.features.as_ref()))?;
        for part in self.cut_parts() {
            file.write(&self.take(part)?)?;
        }
        Ok(file.finish(self.used)?)
    }

    fn identity(&self, kind: Kind, key: Key, end: usize) -> Identity {
        Identity {
            kind,
            fingerprint: self.common.fingerprint,
            key,
            end,
        }
    }

    /// The next part given, of the size that it must have.
    fn take(&self, part: Part) -> Result<Vec<u8>, Unsaved> {
        let bytes = self.order.parts.recv().map_err(|_| Unsaved::GivenUp)?;
        self.order
            .queued_bytes
            .fetch_sub(bytes.len(), Ordering::Relaxed);
        self.common.wake();
        let (got, expected) = (bytes.len(), self.part_bytes(part));
        if got != expected {
            return Err(Unsaved::Size { got, expected });
        }
        Ok(bytes)
    }
}

/// Waits until no other process writes.
fn lock(common: &Common) -> Result<File, Unsaved> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match common.folder.lock()? {
            Some(lock) => return Ok(lock),
            None if common.is_stopping() || Instant::now() >= deadline => {
                return Err(Unsaved::Busy);
            }
            None => std::thread::sleep(LOCK_INTERVAL),
        }
    }
}
