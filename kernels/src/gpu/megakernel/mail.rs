//! What the host and a launch say to each other while it runs, in memory of the host; mirrors gpu/phases.h.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytemuck::{Pod, Zeroable};

use crate::error::DeviceError;
use crate::gpu::driver::{DevicePtr, Driver};
use crate::gpu::tables::{HostTables, Row, SegmentEntry, Step};
use crate::gpu::top_k::MOST_SOUGHT;
use crate::gpu::words::Words;

/// A word that is set by a launch whose blocks waited for what did not come.
#[derive(Debug)]
pub(in crate::gpu) struct StuckFlag(Words);

impl StuckFlag {
    pub fn new(driver: &Arc<dyn Driver>) -> Result<Self, DeviceError> {
        Words::zeros(driver, 1).map(Self)
    }

    pub fn ptr(&self) -> DevicePtr {
        self.0.ptr()
    }

    pub fn is_set(&self) -> bool {
        self.0.word(0).load(Ordering::Acquire) != 0
    }
}

/// See gpu/phases.h; its number is written by itself.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Asked {
    id: u32,
    first_page: u32,
    num_pages: u32,
    row: Row,
    segment: SegmentEntry,
    step: Step,
}

/// Words of `Mail` in gpu/phases.h.
const NUMBER: usize = 0;
const ASKED: usize = 1;
const ANSWERED: usize = 32;
const TAKEN: usize = 33;
const LEFT: usize = 34;
const IDS: usize = 64;
const VALUES: usize = IDS + MOST_SOUGHT;
const PAGES: usize = VALUES + MOST_SOUGHT;

/// Tokens are told by their numbers: what their phases' numbers are counted from.
#[derive(Debug)]
pub(super) struct Mailbox {
    words: Words,
    most_pages: usize,
}

impl Mailbox {
    /// For steps of sequences of so many pages.
    pub fn new(driver: &Arc<dyn Driver>, most_pages: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            words: Words::zeros(driver, PAGES + most_pages)?,
            most_pages,
        })
    }

    pub fn ptr(&self) -> DevicePtr {
        self.words.ptr()
    }

    /// Asks for token `number`, when the last one's inputs have been taken. The device knows the first `known_pages` of the
    /// tables' pages.
    ///
    /// # Panics
    /// The tables are not those of one row, or have more new pages than there is room for.
    pub fn ask(&self, number: u32, id: u32, tables: &HostTables, known_pages: usize) {
        let ([row], [segment], [step]) =
            (&tables.rows[..], &tables.segments[..], &tables.steps[..])
        else {
            panic!("a launch of steps of one row is asked for one of several");
        };
        let pages = &tables.pages[known_pages..];
        assert!(pages.len() <= self.most_pages, "more pages than a step has");
        let asked = Asked {
            id,
            first_page: known_pages as u32,
            num_pages: pages.len() as u32,
            row: *row,
            segment: *segment,
            step: *step,
        };
        self.words.write(PAGES, pages);
        self.words
            .write(ASKED, bytemuck::cast_slice(bytemuck::bytes_of(&asked)));
        self.words.word(NUMBER).store(number, Ordering::Release);
    }

    /// Lets a launch end that waits for another token.
    pub fn dismiss(&self) {
        self.words.word(NUMBER).store(0, Ordering::Relaxed);
    }

    /// Whether a token's inputs have been read.
    pub fn is_taken(&self, number: u32) -> bool {
        self.words.word(TAKEN).load(Ordering::Acquire) == number
    }

    /// Whether the launch ended without waiting for the token any longer.
    pub fn is_left(&self, number: u32) -> bool {
        self.words.word(LEFT).load(Ordering::Acquire) == number
    }

    /// Whether a token is done.
    pub fn is_answered(&self, number: u32) -> bool {
        self.words.word(ANSWERED).load(Ordering::Acquire) == number
    }

    /// Of a token that is done: the `k` likeliest ids, and their values' bits.
    pub fn top(&self, k: usize) -> Vec<u32> {
        let places = (IDS..IDS + k).chain(VALUES..VALUES + k);
        let word = |at| self.words.word(at).load(Ordering::Relaxed);
        places.map(word).collect()
    }
}
