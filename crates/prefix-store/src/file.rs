//! Files that appear whole or not at all.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::Refusal;
use crate::folder::UNFINISHED;
use crate::format::{Identity, SectionReader, SectionWriter};

/// A file on its way; dropped before its end it leaves nothing.
#[derive(Debug)]
pub(crate) struct NewFile {
    sections: SectionWriter<BufWriter<File>>,
    unfinished: PathBuf,
    path: PathBuf,
    is_finished: bool,
}

impl NewFile {
    /// Begins a file of `file_bytes` bytes, for this user alone: it holds what people said.
    pub fn create(path: PathBuf, identity: Identity, file_bytes: u64) -> io::Result<Self> {
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(UNFINISHED);
        let unfinished = PathBuf::from(unfinished);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&unfinished)?;
        let sections = SectionWriter::new(BufWriter::new(file), identity, file_bytes)?;
        Ok(Self {
            sections,
            unfinished,
            path,
            is_finished: false,
        })
    }

    pub fn write(&mut self, payload: &[u8]) -> io::Result<()> {
        self.sections.write(payload)
    }

    /// Gives the file its name once its bytes are safe. Who does several makes their names safe with [`sync_folder`].
    pub fn finish(mut self, used: SystemTime) -> io::Result<()> {
        io::Write::flush(self.sections.get_mut())?;
        let file = self.sections.get_ref().get_ref();
        file.set_times(FileTimes::new().set_modified(used))?;
        file.sync_all()?;
        fs::rename(&self.unfinished, &self.path)?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_finished {
            // What cannot be removed is cleared away with the next save.
            let _left = fs::remove_file(&self.unfinished);
        }
    }
}

/// Makes the names in a folder safe.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Opens a file that must be that of `identity`.
pub(crate) fn open(path: &Path, identity: Identity) -> Result<SectionReader<File>, Refusal> {
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (bytes, file) = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Refusal::Missing,
        _ => Refusal::Unreadable(error),
    })?;
    SectionReader::new(file, identity, bytes)
}

/// Notes when a file was last used. Where that cannot be, it only goes earlier.
pub(crate) fn touch(file: &File, used: SystemTime) {
    if let Err(error) = file.set_times(FileTimes::new().set_modified(used)) {
        tracing::debug!(%error, "the time of use could not be noted");
    }
}
