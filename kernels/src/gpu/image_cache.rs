//! Compiled modules kept on disk, so that a kernel is compiled once for a chip and not once for a process.
//!
//! A file's name says what it was made from and by which compiler; its head repeats both and holds a checksum. Files
//! are written under another name and renamed, so that nobody sees half of one, whoever writes at the same time.

use std::fs::{self, File, FileTimes};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use crate::gpu::driver::Source;
use crate::gpu::modules::HEADERS;
use crate::gpu::places;

/// Begins every file; the number changes with the format and with what is asked of an image.
const MAGIC: &[u8; 8] = b"TANDEMK1";
/// Most bytes kept; the modules of a chip are some 10 MiB.
const MAX_BYTES: u64 = 256 << 20;
/// Age from which a file that was never renamed is what a killed process left.
const ABANDONED: Duration = Duration::from_secs(3600);
const ENDING: &str = ".module";
const UNFINISHED: &str = ".unfinished";

type Hash = [u8; 32];

/// What a module was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageId {
    arch: String,
    source: Hash,
    /// `None`: no compiler is there; what any made will do.
    compiler: Option<Hash>,
}

impl ImageId {
    pub(crate) fn new(source: &Source, arch: &str, compiler: Option<&str>) -> Self {
        let headers = HEADERS.iter().flat_map(|(name, text)| [*name, *text]);
        let defines = source.defines.iter();
        let defines = defines.flat_map(|(name, value)| [name, value.as_str()]);
        let about = [env!("CARGO_PKG_VERSION"), arch, source.name, source.text];
        Self {
            arch: arch.to_owned(),
            source: hash_of(about.into_iter().chain(headers).chain(defines)),
            compiler: compiler.map(|compiler| Sha256::digest(compiler).into()),
        }
    }

    /// `sm_90-SOURCE-`, and the compiler's part.
    fn name(&self) -> (String, Option<String>) {
        let compiler = self.compiler.as_ref();
        (
            format!("{}-{}-", self.arch, hex(&self.source[..16])),
            compiler.map(|compiler| format!("{}{ENDING}", hex(&compiler[..8]))),
        )
    }
}

/// An image and the file that it came from.
#[derive(Debug)]
pub(crate) struct Kept {
    pub image: Vec<u8>,
    file: PathBuf,
}

/// The folders.
#[derive(Debug)]
pub(crate) struct ImageCache {
    folder: Option<PathBuf>,
    read_only: Option<PathBuf>,
    max_bytes: u64,
    has_warned: AtomicBool,
}

impl ImageCache {
    /// The folders of this user and this machine.
    pub(crate) fn here() -> Self {
        Self::new(
            places::kernel_cache(),
            places::read_only_kernel_cache(),
            MAX_BYTES,
        )
    }

    pub(crate) fn new(folder: Option<PathBuf>, read_only: Option<PathBuf>, max_bytes: u64) -> Self {
        Self {
            folder,
            read_only,
            max_bytes,
            has_warned: AtomicBool::new(false),
        }
    }

    /// What was made from this before, whole and unchanged.
    pub(crate) fn get(&self, id: &ImageId) -> Option<Kept> {
        let folders = [&self.folder, &self.read_only];
        folders.into_iter().flatten().find_map(|folder| {
            let files = files_of(folder, id);
            files.into_iter().find_map(|file| self.read(&file, id))
        })
    }

    fn read(&self, file: &Path, id: &ImageId) -> Option<Kept> {
        let bytes = fs::read(file).ok()?;
        let Some(image) = checked(&bytes, id) else {
            tracing::warn!(file = %file.display(), "a kept module is damaged and is made anew");
            self.remove(file);
            return None;
        };
        let now = FileTimes::new().set_modified(SystemTime::now());
        // How long ago it was of use decides what goes first; a file of somebody else's keeps its time.
        let _ = File::options()
            .append(true)
            .open(file)
            .and_then(|file| file.set_times(now));
        Some(Kept {
            image: image.to_vec(),
            file: file.to_owned(),
        })
    }

    /// Forgets an image that could not be loaded.
    pub(crate) fn reject(&self, kept: &Kept) {
        tracing::warn!(file = %kept.file.display(), "a kept module does not load and is made anew");
        self.remove(&kept.file);
    }

    fn remove(&self, file: &Path) {
        let is_ours = self
            .folder
            .as_ref()
            .is_some_and(|folder| file.starts_with(folder));
        if is_ours {
            let _ = fs::remove_file(file);
        }
    }

    /// Keeps an image. Where that cannot be, it is said once.
    pub(crate) fn put(&self, id: &ImageId, image: &[u8]) {
        let (Some(folder), (start, Some(end))) = (&self.folder, id.name()) else {
            return;
        };
        let file = folder.join(start + &end);
        let kept = write(folder, &file, id, image).and_then(|()| self.make_room(folder, &file));
        if let Err(error) = kept
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                folder = %folder.display(),
                %error,
                "compiled kernels cannot be kept; they are compiled again at the next start"
            );
        }
    }

    /// Removes what was of use longest ago until the rest fits, and what killed processes left.
    fn make_room(&self, folder: &Path, newest: &Path) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            // Another process may be at the same.
            let Ok((entry, about)) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))
            else {
                continue;
            };
            let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let name = entry.to_string_lossy();
            if name.ends_with(UNFINISHED) && used.elapsed().is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(&entry);
            } else if name.ends_with(ENDING) {
                files.push((used, about.len(), entry));
            }
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
        for (_, len, file) in files {
            if bytes <= self.max_bytes {
                break;
            }
            if file != newest {
                let _ = fs::remove_file(&file);
                bytes -= len;
            }
        }
        Ok(())
    }
}

/// The file of an id, or where any compiler will do all that may be.
fn files_of(folder: &Path, id: &ImageId) -> Vec<PathBuf> {
    let (start, end) = id.name();
    if let Some(end) = end {
        return vec![folder.join(start + &end)];
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&start) && name.ends_with(ENDING)
    });
    files.sort();
    files
}

/// Of texts in their order.
pub(crate) fn hash_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Hash {
    let mut hasher = Sha256::new();
    for text in texts {
        // Lengths keep one text's end and the next one's beginning apart.
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    hasher.finalize().into()
}

/// For a file's name.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Magic, source, compiler, checksum, image.
fn write(folder: &Path, file: &Path, id: &ImageId, image: &[u8]) -> io::Result<()> {
    let (compiler, checksum) = (id.compiler.unwrap_or_default(), Sha256::digest(image));
    let parts = [MAGIC.as_slice(), &id.source, &compiler, &checksum, image];
    write_whole(folder, file, &parts)
}

/// A file that nobody sees half of, whoever writes it at the same time.
pub(crate) fn write_whole(folder: &Path, file: &Path, parts: &[&[u8]]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut unfinished = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // As other files: the folder may become one that others only look into.
        unfinished.permissions(fs::Permissions::from_mode(0o644));
    }
    let mut unfinished = unfinished.suffix(UNFINISHED).tempfile_in(folder)?;
    for part in parts {
        unfinished.write_all(part)?;
    }
    unfinished.as_file().sync_all()?;
    unfinished.persist(file).map_err(|error| error.error)?;
    Ok(())
}

/// The image in a file's bytes, if they are what was written for this id.
fn checked<'a>(bytes: &'a [u8], id: &ImageId) -> Option<&'a [u8]> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let rest = rest.strip_prefix(&id.source)?;
    let (compiler, rest) = rest.split_first_chunk::<32>()?;
    let (checksum, image) = rest.split_first_chunk::<32>()?;
    let is_ours = id.compiler.is_none_or(|wanted| wanted == *compiler);
    (is_ours && *checksum == Hash::from(Sha256::digest(image))).then_some(image)
}

#[cfg(test)]
mod tests;
