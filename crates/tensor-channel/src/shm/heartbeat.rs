//! Signs of life: one thread per process beats for all its channel ends and watches their peers.
//!
//! A peer that dies is noticed at once through a pidfd, where its pid means something here. In another pid namespace it
//! is noticed at the next beat: each process holds the segment locked into which it writes, and the lock dies with it.
//! A peer that is stopped is noticed when its heartbeat stands still.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::doorbell::Bell;
use crate::error::ChannelError;
use crate::shm::header::{Life, Process};
use crate::shm::segment::Segment;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Time between two beats.
const BEAT: Duration = Duration::from_millis(20);

/// Beats of ours without one of the peer's after which it counts as gone: a second. Counted in beats, not on a clock,
/// so that a process that was stopped itself accuses nobody; long, so that a busy machine gives no false alarm.
const SILENT_BEATS: u64 = 50;

/// Which end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Writer,
    Reader,
}

/// One channel end of this process; closes the end and stops beating when it drops.
#[derive(Debug)]
pub(crate) struct Pulse(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    segment: Segment,
    role: Role,
    /// Set when the peer is there; without a descriptor where its pid means nothing here.
    peer: OnceLock<Option<OwnedFd>>,
    /// The same for both channels of a link.
    state: Arc<PeerState>,
    /// What the peer's heartbeat said last, and for how many of our beats. The watching thread's alone.
    seen_beats: AtomicU64,
    silent_beats: AtomicU64,
}

/// What is known of the peer of a link: [`ALIVE`], [`DIED`] or [`SILENT`].
#[derive(Debug, Default)]
pub(crate) struct PeerState(AtomicU32);

const ALIVE: u32 = 0;
const DIED: u32 = 1;
const SILENT: u32 = 2;

impl Pulse {
    /// Attaches this process to its end and starts to beat for it.
    ///
    /// # Errors
    /// Somebody is attached there; the system refuses the thread.
    pub(crate) fn start(
        segment: Segment,
        role: Role,
        state: &Arc<PeerState>,
    ) -> Result<Self, ChannelError> {
        let watched = Arc::new(Watched {
            segment,
            role,
            peer: OnceLock::new(),
            state: Arc::clone(state),
            seen_beats: AtomicU64::new(0),
            silent_beats: AtomicU64::new(0),
        });
        watched.own().attach(this_process())?;
        Watch::add(Arc::clone(&watched))?;
        Ok(Self(watched))
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.0.segment
    }

    /// The peer, once it is attached.
    pub(crate) fn peer(&self) -> Option<Process> {
        self.0.other().process()
    }

    /// Watches the peer from now on.
    pub(crate) fn watch(&self, peer: Process) {
        let pidfd = match descriptor(peer) {
            Ok(pidfd) => pidfd,
            Err(()) => {
                self.0.declare(DIED);
                None
            }
        };
        // A second call changes nothing: a link has one peer.
        let _ = self.0.peer.set(pidfd);
    }

    /// Why the peer will not answer any more, where that is known.
    pub(crate) fn gone(&self) -> Option<ChannelError> {
        let how = match self.0.state.0.load(Ordering::Acquire) {
            ALIVE => return None,
            DIED => "its process ended",
            _ => "its process gave no sign of life for a second",
        };
        Some(ChannelError::PeerGone { how })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        let ring = &self.0.segment.header().ring;
        match self.0.role {
            Role::Writer => ring.close_writer(),
            Role::Reader => ring.close_reader(),
        }
        Watch::remove(&self.0);
    }
}

impl Watched {
    fn own(&self) -> &Life {
        let header = self.segment.header();
        match self.role {
            Role::Writer => &header.writer,
            Role::Reader => &header.reader,
        }
    }

    fn other(&self) -> &Life {
        let header = self.segment.header();
        match self.role {
            Role::Writer => &header.reader,
            Role::Reader => &header.writer,
        }
    }

    /// The bell on which this end waits.
    fn bell(&self) -> &Bell {
        let ring = &self.segment.header().ring;
        match self.role {
            Role::Writer => &ring.freed,
            Role::Reader => &ring.filled,
        }
    }

    /// The peer is gone: wakes who waits for it.
    fn declare(&self, state: u32) {
        // Release; pairs with the Acquire in `gone`.
        self.state.0.store(state, Ordering::Release);
        self.bell().ring();
    }

    fn is_watched(&self) -> bool {
        self.peer.get().is_some() && self.state.0.load(Ordering::Relaxed) == ALIVE
    }

    /// One beat of ours; looks at the peer's signs of life.
    fn beat(&self) {
        self.own().beat();
        self.lock_as_writer();
        if self.state.0.load(Ordering::Relaxed) != ALIVE {
            // The link's other end may have noticed, and rung its own bell only.
            self.bell().ring();
        } else if let Some(pidfd) = self.peer.get() {
            if pidfd.is_none() && self.has_lost_lock() {
                self.declare(DIED);
            }
            self.look_at_beats();
        }
    }

    /// A writer holds its segment locked as soon as the side that made it gives the lock up.
    fn lock_as_writer(&self) {
        if self.role == Role::Writer && !self.own().is_locked() && self.segment.try_lock() {
            self.own().say_locked();
        }
    }

    /// Whether the writer's lock is free though the writer did not close, which takes the end of its process.
    fn has_lost_lock(&self) -> bool {
        if self.role != Role::Reader || !self.other().is_locked() || !self.segment.try_lock() {
            return false;
        }
        self.segment.unlock();
        !self.segment.header().ring.is_writer_closed()
    }

    fn look_at_beats(&self) {
        let beats = self.other().beats();
        if self.seen_beats.swap(beats, Ordering::Relaxed) != beats {
            self.silent_beats.store(0, Ordering::Relaxed);
        } else if self.silent_beats.fetch_add(1, Ordering::Relaxed) >= SILENT_BEATS {
            self.declare(SILENT);
        }
    }
}

/// All ends of this process, and whether a thread beats for them.
struct Watch {
    ends: Vec<Arc<Watched>>,
    is_running: bool,
}

impl Watch {
    fn lock() -> MutexGuard<'static, Self> {
        static WATCH: Mutex<Watch> = Mutex::new(Watch {
            ends: Vec::new(),
            is_running: false,
        });
        // Nothing that holds the lock leaves the list half changed.
        WATCH.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(end: Arc<Watched>) -> Result<(), ChannelError> {
        let mut watch = Self::lock();
        if !watch.is_running {
            std::thread::Builder::new()
                .name("channel-watch".to_owned())
                .spawn(run)
                .map_err(|source| ChannelError::Io {
                    what: "starting the thread that watches channels".to_owned(),
                    source,
                })?;
            watch.is_running = true;
        }
        watch.ends.push(end);
        Ok(())
    }

    fn remove(end: &Arc<Watched>) {
        Self::lock().ends.retain(|other| !Arc::ptr_eq(other, end));
    }

    /// The ends as they are now; none: the thread that asks ends.
    fn ends_or_stop() -> Vec<Arc<Watched>> {
        let mut watch = Self::lock();
        watch.is_running = !watch.ends.is_empty();
        watch.ends.clone()
    }
}

/// The watching thread: ends with the last channel end, and is started again by the next.
fn run() {
    loop {
        let ends = Watch::ends_or_stop();
        if ends.is_empty() {
            return;
        }
        if wait_for_deaths(&ends) {
            ends.iter().for_each(|end| end.beat());
        }
    }
}

/// Waits for the death of a peer, until the next beat is due; true: it is due.
fn wait_for_deaths(ends: &[Arc<Watched>]) -> bool {
    let watched: Vec<(&Arc<Watched>, &OwnedFd)> = ends
        .iter()
        .filter(|end| end.is_watched())
        .filter_map(|end| Some((end, end.peer.get()?.as_ref()?)))
        .collect();
    let mut descriptors: Vec<PollFd<'_>> = watched
        .iter()
        .map(|(_, pidfd)| PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN))
        .collect();
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: BEAT.subsec_nanos().into(),
    };
    let died = match poll(&mut descriptors, Some(&limit)) {
        Ok(died) => died,
        Err(rustix::io::Errno::INTR) => return false,
        Err(_) => {
            // Without memory for a poll the heartbeat alone has to do.
            std::thread::sleep(BEAT);
            0
        }
    };
    for ((end, _), descriptor) in watched.iter().zip(&descriptors) {
        if !descriptor.revents().is_empty() {
            end.declare(DIED);
        }
    }
    died == 0
}

/// A descriptor that tells of the end of a process, where its pid means something here. Error: it has ended.
fn descriptor(process: Process) -> Result<Option<OwnedFd>, ()> {
    let is_visible =
        process.pid_namespace != 0 && process.pid_namespace == this_process().pid_namespace;
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid.filter(|_| is_visible) else {
        return Ok(None);
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(rustix::io::Errno::SRCH) => Err(()),
        Err(error) => {
            tracing::warn!(%error, "no pidfd of the peer: its end is noticed by its silence");
            Ok(None)
        }
    }
}

fn this_process() -> Process {
    use std::os::unix::fs::MetadataExt;
    Process {
        pid: std::process::id(),
        pid_namespace: std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino()),
    }
}
