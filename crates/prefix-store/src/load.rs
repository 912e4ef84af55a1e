//! Reading: one load at a time, on a thread of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::time::{Instant, SystemTime};

use crate::error::Refusal;
use crate::file::{open, touch};
use crate::format::{Identity, Kind, SectionReader, token_bytes};
use crate::key::{Chain, Key};
use crate::layout::{FeatureShape, MAX_FEATURE_LAYERS, Part};
use crate::store::{Common, us};

/// Parts read ahead of who takes them.
const PARTS_AHEAD: usize = 2;

/// A prefix on its way from the files. Dropped before its end it is given up.
#[derive(Debug)]
pub struct Load(Receiver<Arrived>);

/// What has come of a prefix.
#[derive(Debug)]
pub enum Arrived {
    /// Comes first: what features there are.
    Features(Option<FeatureShape>),
    /// A part, checked.
    Part(Part, Vec<u8>),
    /// That was all of it.
    End,
    /// It cannot be had; the store does not find it again.
    Refused,
}

/// A [`Load`]'s other end.
pub(crate) struct Order {
    tokens: Vec<u32>,
    arrived: SyncSender<Arrived>,
}

impl Load {
    pub(crate) fn new(tokens: &[u32]) -> (Self, Order) {
        let (arrived, arrives) = mpsc::sync_channel(PARTS_AHEAD);
        let order = Order {
            tokens: tokens.to_vec(),
            arrived,
        };
        (Self(arrives), order)
    }

    /// What comes next. `None`: nothing has come yet; the store wakes who waits.
    pub fn next(&self) -> Option<Arrived> {
        match self.0.try_recv() {
            Ok(arrived) => Some(arrived),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Arrived::Refused),
        }
    }
}

/// Why a load ends early.
enum Stop {
    /// A file is not used.
    Refused(PathBuf, Refusal),
    /// Nobody wants it any more.
    GivenUp,
}

/// Reads what is ordered until nobody orders any more.
pub(crate) fn run(common: &Common, orders: &Receiver<Order>) {
    for order in orders {
        let started = Instant::now();
        let loaded = load(common, &order);
        let time = started.elapsed();
        common.counters.update(|stats| stats.load_us += us(time));
        let last = match loaded {
            Ok(bytes) => {
                common.counters.update(|stats| {
                    stats.loaded += 1;
                    stats.loaded_bytes += bytes;
                });
                tracing::debug!(
                    tokens = order.tokens.len(),
                    bytes,
                    ?time,
                    "a prefix was read"
                );
                Arrived::End
            }
            Err(Stop::GivenUp) => continue,
            Err(Stop::Refused(path, refusal)) => {
                refuse(common, &order.tokens, &path, &refusal);
                Arrived::Refused
            }
        };
        // Who ordered it may have left.
        let _left = order.arrived.send(last);
        common.wake();
    }
}

/// Sends all of a prefix; how many bytes.
fn load(common: &Common, order: &Order) -> Result<u64, Stop> {
    let (folder, layout, len) = (&common.folder, &common.layout, order.tokens.len());
    let chain = Chain::new(&common.fingerprint, &order.tokens, layout.page_tokens);
    let missing = || Stop::Refused(folder.own().to_owned(), Refusal::Missing);
    let key = chain.cut(len).ok_or_else(missing)?;
    let used = SystemTime::now();
    let mut bytes = 0;
    let mut send = |arrived: Arrived| {
        if let Arrived::Part(_, part) = &arrived {
            bytes += part.len() as u64;
        }
        order.arrived.send(arrived).map_err(|_| Stop::GivenUp)?;
        common.wake();
        Ok(())
    };
    let refused = |refusal| Stop::Refused(folder.cut(len, key), refusal);
    let (mut cut, shape) = open_cut(common, &order.tokens, key).map_err(refused)?;
    send(Arrived::Features(shape.clone()))?;
    for part in layout.cut_parts(len, shape.as_ref()) {
        let size = layout.bytes(part, shape.as_ref()).unwrap_or(0);
        let payload = cut.read("a state", size).map_err(refused)?;
        send(Arrived::Part(part, payload))?;
    }
    cut.finish().map_err(refused)?;
    touch(cut.get_ref(), used);
    for number in 0..layout.full_pages(len) {
        let key = chain.page(number).ok_or_else(missing)?;
        let refused = |refusal| Stop::Refused(folder.page(number, key), refusal);
        let page = read_page(common, &order.tokens, number, key);
        let (file, payload) = page.map_err(refused)?;
        touch(&file, used);
        send(Arrived::Part(Part::Page(number), payload))?;
    }
    Ok(bytes)
}

/// A cut's file, at its first part, and the shape of its features.
fn open_cut(
    common: &Common,
    tokens: &[u32],
    key: Key,
) -> Result<(SectionReader<File>, Option<FeatureShape>), Refusal> {
    let len = tokens.len();
    let identity = Identity {
        kind: Kind::Cut,
        fingerprint: common.fingerprint,
        key,
        end: len,
    };
    let mut cut = open(&common.folder.cut(len, key), identity)?;
    if cut.read("its tokens", len * 4)? != token_bytes(tokens) {
        return Err(Refusal::Foreign { what: "its text" });
    }
    let what = "the shape of its features";
    let shape = FeatureShape::decode(&cut.read_up_to(what, 8 * MAX_FEATURE_LAYERS)?);
    let fits = |shape: &Option<FeatureShape>| shape.as_ref().is_none_or(|shape| shape.ends_at(len));
    let shape = shape.filter(fits).ok_or(Refusal::Foreign { what })?;
    Ok((cut, shape))
}

/// A full page's file and values.
fn read_page(
    common: &Common,
    tokens: &[u32],
    number: usize,
    key: Key,
) -> Result<(File, Vec<u8>), Refusal> {
    let page_tokens = common.layout.page_tokens;
    let end = (number + 1) * page_tokens;
    let identity = Identity {
        kind: Kind::Page,
        fingerprint: common.fingerprint,
        key,
        end,
    };
    let mut page = open(&common.folder.page(number, key), identity)?;
    if page.read("its tokens", page_tokens * 4)? != token_bytes(&tokens[end - page_tokens..end]) {
        return Err(Refusal::Foreign { what: "its text" });
    }
    let payload = page.read("its values", common.layout.page_bytes)?;
    page.finish()?;
    Ok((page.into_inner(), payload))
}

/// Sees to it that a prefix that cannot be had is not found again, and that all of it that is damaged is written anew with the
/// next one that needs it.
fn refuse(common: &Common, tokens: &[u32], path: &Path, refusal: &Refusal) {
    note_refused(common, path, refusal);
    let chain = Chain::new(&common.fingerprint, tokens, common.layout.page_tokens);
    let Some(key) = chain.cut(tokens.len()) else {
        return;
    };
    common.remove_cut(tokens.len(), key);
    let cut = common.folder.cut(tokens.len(), key);
    // Without a page it is of no use either.
    if cut != path {
        common.folder.set_aside(&cut);
    }
    if !refusal.is_lasting() {
        return;
    }
    for number in 0..common.layout.full_pages(tokens.len()) {
        let Some(key) = chain.page(number) else {
            return;
        };
        if let Err(refusal) = read_page(common, tokens, number, key)
            && refusal.is_lasting()
        {
            note_refused(common, &common.folder.page(number, key), &refusal);
        }
    }
}

/// Counts a file that is not used, says so, and takes its name away, so that nobody meets it again.
fn note_refused(common: &Common, path: &Path, refusal: &Refusal) {
    common.counters.update(|stats| {
        let refused = &mut stats.refused;
        *match refusal {
            Refusal::Missing => &mut refused.missing,
            Refusal::Version { .. } => &mut refused.version,
            Refusal::Foreign { .. } => &mut refused.foreign,
            Refusal::Damaged { .. } => &mut refused.damaged,
            Refusal::Unreadable(_) => &mut refused.unreadable,
        } += 1;
    });
    // Another process may have made room meanwhile.
    if matches!(refusal, Refusal::Missing) {
        tracing::debug!(path = %path.display(), %refusal, "a kept prefix is not used");
    } else {
        tracing::warn!(path = %path.display(), %refusal, "a kept prefix is not used");
    }
    if refusal.is_lasting() {
        common.folder.set_aside(path);
    }
}
