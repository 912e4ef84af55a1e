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
use crate::payload::{Place, Registered, SlotMemory};
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
pub(crate) struct Pulse {
    /// Goes before the segment, which it may refer to.
    device: Option<OnDevice>,
    watched: Arc<Watched>,
}

/// What a device has of a channel.
#[derive(Debug)]
pub(crate) enum OnDevice {
    /// The payloads: this process's memory at the reader's end, and lent by the reader at the writer's.
    Memory(Box<dyn SlotMemory>),
    /// Knows the segment, so that it copies from and to it by itself.
    Registered(#[expect(dead_code, reason = "held, not used")] Box<dyn Registered>),
}

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
        device: Option<OnDevice>,
    ) -> Result<Self, ChannelError> {
        let watched = Arc::new(Watched {
            segment,
            role,
            peer: OnceLock::new(),
            state: Arc::clone(state),
            seen_beats: AtomicU64::new(0),
            silent_beats: AtomicU64::new(0),
        });
        let attached = watched.own().attach(this_process());
        if let Err(error) = attached.and_then(|()| Watch::add(Arc::clone(&watched))) {
            // Before the segment, to which it may refer.
            drop(device);
            return Err(error);
        }
        Ok(Self { device, watched })
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.watched.segment
    }

    /// Where the first `bytes` of a message's payload lie.
    pub(crate) fn place(&self, number: u64, bytes: usize) -> Place<'_> {
        let segment = self.segment();
        match &self.device {
            Some(OnDevice::Memory(memory)) => Place::Device {
                memory: &**memory,
                offset: segment.device_offset(number),
                bytes,
            },
            Some(OnDevice::Registered(_)) | None => {
                Place::Host(segment.slot(number).payload(bytes))
            }
        }
    }

    /// The peer, once it is attached.
    pub(crate) fn peer(&self) -> Option<Process> {
        self.watched.other().process()
    }

    /// Watches the peer from now on.
    pub(crate) fn watch(&self, peer: Process) {
        let pidfd = match descriptor(peer) {
            Ok(pidfd) => pidfd,
            Err(()) => {
                self.watched.declare(DIED);
                None
            }
        };
        // A second call changes nothing: a link has one peer.
        let _ = self.watched.peer.set(pidfd);
    }

    /// Why the peer will not answer any more, where that is known.
    pub(crate) fn gone(&self) -> Option<ChannelError> {
        let how = match self.watched.state.0.load(Ordering::Acquire) {
            ALIVE => return None,
            DIED => "its process ended",
            _ => "its process gave no sign of life for a second",
        };
        Some(ChannelError::PeerGone { how })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        let device = self.device.take();
        let ring = &self.watched.segment.header().ring;
        match (self.watched.role, device) {
            (Role::Writer, device) => {
                // In this order: the reader gives memory back as soon as it knows that nobody has it any more.
                drop(device);
                ring.close_writer();
            }
            (Role::Reader, Some(OnDevice::Memory(memory))) => {
                ring.close_reader();
                if let Some(peer) = self.peer() {
                    self.watch(peer);
                    return Watch::outlive_writer(&self.watched, memory);
                }
            }
            (Role::Reader, _) => ring.close_reader(),
        }
        Watch::remove(&self.watched);
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

    /// Whether the writer has given back what it was lent, or cannot have it any more.
    fn is_writer_done(&self) -> bool {
        self.segment.header().ring.is_writer_closed()
            || self.state.0.load(Ordering::Relaxed) != ALIVE
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
    /// Memory of readers that are gone, until their writers have given it back: what a process frees while another has it
    /// mapped is undefined.
    lent: Vec<(Arc<Watched>, Box<dyn SlotMemory>)>,
    is_running: bool,
}

impl Watch {
    fn lock() -> MutexGuard<'static, Self> {
        static WATCH: Mutex<Watch> = Mutex::new(Watch {
            ends: Vec::new(),
            lent: Vec::new(),
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

    /// Keeps memory, and watches its writer on, until that has given it back.
    fn outlive_writer(end: &Arc<Watched>, memory: Box<dyn SlotMemory>) {
        Self::lock().lent.push((Arc::clone(end), memory));
    }

    /// Takes out what writers have given back.
    fn returned() -> Vec<(Arc<Watched>, Box<dyn SlotMemory>)> {
        let mut watch = Self::lock();
        let is_returned = |lent: &mut (Arc<Watched>, _)| lent.0.is_writer_done();
        let returned: Vec<_> = watch.lent.extract_if(.., is_returned).collect();
        for (end, _) in &returned {
            watch.ends.retain(|other| !Arc::ptr_eq(other, end));
        }
        returned
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
        // Given back here, without the lock: a device may take its time.
        drop(Watch::returned());
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
