//! The read-only memory mapping of one file; the only module with unsafe code.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::{Advice, Mmap, UncheckedAdvice};

/// A multiple of every page size in use (4, 16 and 64 KiB).
const PAGE_GRANULE: usize = 64 << 10;

/// A file mapped read-only; other formats of weights are read through it too.
#[derive(Debug)]
pub struct Mapping(Mmap);

impl Mapping {
    /// Maps the whole file. Model files must not be rewritten in place while they are served.
    ///
    /// # Errors
    /// The system refuses; an empty file cannot be mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the mapping is read-only and no reference handed out is mutable. That nobody
        // truncates or rewrites a model file in place while it is mapped is the operator's
        // contract, as for every program that maps its weights; replacing by rename is fine.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self(map))
    }

    /// The file's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Tells the kernel the file will be read front to back.
    pub(crate) fn advise_sequential(&self) -> io::Result<()> {
        self.0.advise(Advice::Sequential)
    }

    /// Drops the resident pages that `range` touches; they are read again on access. The system maps pages around
    /// the one asked for, hence the neighbours at both ends go too.
    ///
    /// # Errors
    /// The system refuses.
    pub fn release(&self, range: Range<usize>) -> io::Result<()> {
        let start = range.start / PAGE_GRANULE * PAGE_GRANULE;
        let end = range.end.next_multiple_of(PAGE_GRANULE).min(self.0.len());
        if start >= end {
            return Ok(());
        }
        // SAFETY: the range is page-aligned and inside the mapping, and the mapping is read-only
        // and backed by the file: a dropped page comes back with the same bytes when touched, so
        // no live `&[u8]` can observe a change.
        unsafe {
            self.0
                .unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start)
        }
    }
}
