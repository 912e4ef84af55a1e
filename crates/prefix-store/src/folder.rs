//! The folder: which files there are, which make room, and who may write.
//!
//! `ROOT/lock`, held by the process that writes; `ROOT/FINGERPRINT/NUMBER-KEY.page` and `ROOT/FINGERPRINT/TOKENS-KEY.cut`. What was
//! used together has the same time: a cut and all its pages. So a page is never older than the cuts that need it, and by time
//! alone cuts go before their pages.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::index::Index;
use crate::key::{Fingerprint, Key};

/// Behind the name of a file that is being written.
pub(crate) const UNFINISHED: &str = ".unfinished";
/// Behind the name of a file that was refused; it is first to make room.
const REFUSED: &str = ".refused";
/// The file that the process that writes holds.
const LOCK: &str = "lock";
/// Bytes of the file system that are left to others.
const FREE_BYTES: u64 = 1 << 30;
/// Files that are looked at, so that a start takes a bounded time.
const MAX_FILES: usize = 1 << 17;

/// What a file's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// Left by a writer that died.
    Unfinished,
    Refused,
    Cut(usize, Key),
    Page(Reverse<usize>, Key),
}

impl Name {
    fn parse(name: &str) -> Option<Self> {
        for (ending, waste) in [(UNFINISHED, Self::Unfinished), (REFUSED, Self::Refused)] {
            if let Some(name) = name.strip_suffix(ending) {
                return Self::parse(name).map(|_| waste);
            }
        }
        let (name, kind) = name.rsplit_once('.')?;
        let (number, key) = name.split_once('-')?;
        let (number, key) = (number.parse().ok()?, Key::parse(key)?);
        match kind {
            "cut" => Some(Self::Cut(number, key)),
            "page" => Some(Self::Page(Reverse(number), key)),
            _ => None,
        }
    }

    /// Whether nothing can come of it.
    fn is_waste(self) -> bool {
        matches!(self, Self::Unfinished | Self::Refused)
    }
}

/// Files of one fingerprint, and the budget of all.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    own: PathBuf,
    budget_bytes: u64,
}

/// A file of the cache.
#[derive(Debug)]
struct Entry {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
    name: Name,
}

/// What there is.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    entries: Vec<Entry>,
    /// Files that are none of ours.
    pub unknown: usize,
    /// Cuts of the own fingerprint.
    pub cuts: Index,
    /// Pages of the own fingerprint.
    pub pages: HashSet<Key>,
}

/// Why nothing can be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error("{need} bytes, the budget is {budget}")]
    Budget { need: u64, budget: u64 },
    #[error("{need} bytes, the file system has {free} free, of which {FREE_BYTES} stay free")]
    FileSystem { need: u64, free: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Folder {
    /// Makes the folders where they are not there yet.
    pub fn open(root: PathBuf, of: &Fingerprint, budget_bytes: u64) -> io::Result<Self> {
        let own = root.join(of.to_string());
        DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
        Ok(Self {
            root,
            own,
            budget_bytes,
        })
    }

    pub fn own(&self) -> &Path {
        &self.own
    }

    pub fn page(&self, number: usize, key: Key) -> PathBuf {
        self.own.join(format!("{number:08}-{key}.page"))
    }

    pub fn cut(&self, len: usize, key: Key) -> PathBuf {
        self.own.join(format!("{len:08}-{key}.cut"))
    }

    /// Makes this process the one that writes, as long as the file is held. `None`: another one is.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.root.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Looks at all files.
    pub fn list(&self) -> io::Result<Listing> {
        let mut listing = Listing::default();
        let mut left = MAX_FILES;
        // Its own first: where there are too many, others' are not looked at.
        self.list_folder(&self.own, &mut listing, &mut left)?;
        for folder in fs::read_dir(&self.root)? {
            let folder = folder?;
            let (path, name) = (folder.path(), folder.file_name());
            let is_ours = name.to_str().is_some_and(|name| Key::parse(name).is_some());
            if path == self.own || name == LOCK {
                continue;
            }
            if is_ours && path.is_dir() {
                self.list_folder(&path, &mut listing, &mut left)?;
            } else {
                listing.unknown += 1;
            }
        }
        Ok(listing)
    }

    fn list_folder(
        &self,
        folder: &Path,
        listing: &mut Listing,
        left: &mut usize,
    ) -> io::Result<()> {
        let is_own = folder == self.own;
        for file in fs::read_dir(folder)? {
            let file = file?;
            let Some(rest) = left.checked_sub(1) else {
                return Ok(());
            };
            *left = rest;
            let named = file.file_name();
            let name = named.to_str().and_then(Name::parse);
            // One that goes meanwhile is not there.
            let facts = file.metadata().ok().filter(fs::Metadata::is_file);
            let (Some(name), Some(facts)) = (name, facts) else {
                listing.unknown += 1;
                continue;
            };
            match name {
                Name::Cut(len, key) if is_own => listing.cuts.add(len, key),
                Name::Page(_, key) if is_own => {
                    listing.pages.insert(key);
                }
                _ => {}
            }
            listing.entries.push(Entry {
                path: file.path(),
                bytes: facts.len(),
                used: facts.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                name,
            });
        }
        Ok(())
    }

    /// Has files go, those not used for longest first, until `need` bytes more are within the budget; how many went. Files in
    /// `stay` do not. For the process that holds the lock.
    pub fn make_room(
        &self,
        listing: &mut Listing,
        need: u64,
        stay: &HashSet<PathBuf>,
    ) -> Result<usize, NoRoom> {
        let budget = self.budget_bytes;
        let stays = |entry: &Entry| stay.contains(&entry.path);
        let entries = listing.entries.iter();
        let staying: u64 = entries.filter(|e| stays(e)).map(|e| e.bytes).sum();
        if staying.saturating_add(need) > budget {
            let need = staying.saturating_add(need);
            return Err(NoRoom::Budget { need, budget });
        }
        let (mut bytes, mut evicted) = (listing.bytes(), 0);
        // What goes leaves room there too; nothing goes for what has none then.
        let goes = bytes.saturating_add(need).saturating_sub(budget);
        let free = free_bytes(&self.root)?.saturating_add(goes);
        if free < need.saturating_add(FREE_BYTES) {
            return Err(NoRoom::FileSystem { need, free });
        }
        let mut entries = std::mem::take(&mut listing.entries);
        entries.sort_by_key(|entry| (!entry.name.is_waste(), entry.used, entry.name));
        for entry in entries {
            // Only who holds the lock writes, so what is unfinished now was left.
            let may_stay = bytes.saturating_add(need) <= budget && entry.name != Name::Unfinished;
            if may_stay || stays(&entry) {
                listing.entries.push(entry);
                continue;
            }
            match fs::remove_file(&entry.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            bytes -= entry.bytes;
            evicted += usize::from(!entry.name.is_waste());
            match entry.name {
                Name::Cut(len, key) if entry.path.starts_with(&self.own) => {
                    listing.cuts.remove(len, key);
                }
                _ => {}
            }
        }
        Ok(evicted)
    }

    /// Takes a refused file's name away, so that nobody meets it again.
    pub fn set_aside(&self, path: &Path) {
        let mut name = path.to_owned().into_os_string();
        name.push(REFUSED);
        if let Err(error) = fs::rename(path, &name) {
            tracing::debug!(path = %path.display(), %error, "a refused file stays where it is");
        }
    }
}

impl Listing {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }
}

fn free_bytes(path: &Path) -> io::Result<u64> {
    let facts = rustix::fs::statvfs(path)?;
    Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
}
