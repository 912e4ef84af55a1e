//! What stands at the front of a segment. Every field is an atomic: two processes touch it.

use crate::error::{ChannelError, same};
use crate::geometry::{Geometry, PayloadsAt};
use crate::ring::Ring;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// "tandemch" in ASCII, read as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"tandemch");

/// Version of the layout of header and slots.
const VERSION: u32 = 2;

/// The front of a segment; the slots follow. All zero is a ring that nobody has offered.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) identity: Identity,
    pub(crate) ring: Ring,
    pub(crate) writer: Life,
    pub(crate) reader: Life,
}

/// What the segment is. Written by the side that offers before anyone else knows the name.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Identity {
    magic: AtomicU64,
    version: AtomicU32,
    element: AtomicU32,
    generation: AtomicU64,
    row_len: AtomicU64,
    slot_rows: AtomicU64,
    slots: AtomicU64,
    /// 0: payloads lie beside the slots' words; 1: on a device.
    payloads_at: AtomicU32,
}

/// Signs of life of one side.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Life {
    /// Not 0: this side is there, and the fields below are valid.
    attached: AtomicU32,
    /// Its process.
    pid: AtomicU32,
    /// The namespace in which that number means it; 0: unknown.
    pid_namespace: AtomicU64,
    /// Goes up while the process runs.
    beats: AtomicU64,
    /// Not 0: this side is the writer and holds the segment locked.
    locked: AtomicU32,
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Identity>() == 128);
    assert!(offset_of!(Identity, version) == 8);
    assert!(offset_of!(Identity, element) == 12);
    assert!(offset_of!(Identity, generation) == 16);
    assert!(offset_of!(Identity, row_len) == 24);
    assert!(offset_of!(Identity, slot_rows) == 32);
    assert!(offset_of!(Identity, slots) == 40);
    assert!(offset_of!(Identity, payloads_at) == 48);
    assert!(size_of::<Life>() == 128);
    assert!(offset_of!(Life, pid) == 4);
    assert!(offset_of!(Life, pid_namespace) == 8);
    assert!(offset_of!(Life, beats) == 16);
    assert!(offset_of!(Life, locked) == 24);
    assert!(size_of::<Ring>() == 512);
    assert!(offset_of!(Header, ring) == 128);
    assert!(offset_of!(Header, writer) == 640);
    assert!(offset_of!(Header, reader) == 768);
    assert!(size_of::<Header>() == 896);
    assert!(align_of::<Header>() == 128);
};

impl Identity {
    /// Says what the segment is.
    pub(crate) fn write(&self, geometry: &Geometry, generation: u64) {
        let facts = Facts::of(geometry, generation);
        self.version.store(facts.version, Ordering::Relaxed);
        self.element.store(facts.element, Ordering::Relaxed);
        self.generation.store(facts.generation, Ordering::Relaxed);
        self.row_len.store(facts.row_len, Ordering::Relaxed);
        self.slot_rows.store(facts.slot_rows, Ordering::Relaxed);
        self.slots.store(facts.slots, Ordering::Relaxed);
        self.payloads_at.store(facts.payloads_at, Ordering::Relaxed);
        // Release; pairs with the Acquire in `check`.
        self.magic.store(facts.magic, Ordering::Release);
    }

    /// # Errors
    /// The segment is not what is expected; the first field that differs is named.
    pub(crate) fn check(&self, geometry: &Geometry, generation: u64) -> Result<(), ChannelError> {
        let expected = Facts::of(geometry, generation);
        same("magic", self.magic.load(Ordering::Acquire), expected.magic)?;
        let version = self.version.load(Ordering::Relaxed);
        same("version", version.into(), expected.version.into())?;
        let got = self.generation.load(Ordering::Relaxed);
        same("generation", got, expected.generation)?;
        let element = self.element.load(Ordering::Relaxed);
        same("element type", element.into(), expected.element.into())?;
        let row_len = self.row_len.load(Ordering::Relaxed);
        same("row_len", row_len, expected.row_len)?;
        let slot_rows = self.slot_rows.load(Ordering::Relaxed);
        same("slot_rows", slot_rows, expected.slot_rows)?;
        same("slots", self.slots.load(Ordering::Relaxed), expected.slots)?;
        let payloads_at = self.payloads_at.load(Ordering::Relaxed);
        same(
            "place of payloads",
            payloads_at.into(),
            expected.payloads_at.into(),
        )
    }
}

/// The fields of an [`Identity`] as they should be.
struct Facts {
    magic: u64,
    version: u32,
    element: u32,
    generation: u64,
    row_len: u64,
    slot_rows: u64,
    slots: u64,
    payloads_at: u32,
}

impl Facts {
    const fn of(geometry: &Geometry, generation: u64) -> Self {
        let spec = geometry.spec();
        Self {
            magic: MAGIC,
            version: VERSION,
            element: spec.element.code(),
            generation,
            row_len: spec.row_len as u64,
            slot_rows: spec.slot_rows as u64,
            slots: spec.slots as u64,
            payloads_at: match geometry.payloads_at() {
                PayloadsAt::Segment => 0,
                PayloadsAt::Device => 1,
            },
        }
    }
}

/// Who a side is, copied out of its [`Life`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// 0: unknown.
    pub(crate) pid_namespace: u64,
}

impl Life {
    /// Says that `process` is this side.
    ///
    /// # Errors
    /// Somebody else is.
    pub(crate) fn attach(&self, process: Process) -> Result<(), ChannelError> {
        // 1 while the fields are being written, 2 once they are there: two who attach cannot mix them.
        self.attached
            .compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed)
            .map_err(|got| ChannelError::Damaged {
                field: "attached",
                got: got.into(),
                expected: "0, for nobody is attached yet".to_owned(),
            })?;
        self.pid.store(process.pid, Ordering::Relaxed);
        self.pid_namespace
            .store(process.pid_namespace, Ordering::Relaxed);
        // Release; pairs with the Acquire in `process`.
        self.attached.store(2, Ordering::Release);
        Ok(())
    }

    /// Who this side is, once it is there.
    pub(crate) fn process(&self) -> Option<Process> {
        (self.attached.load(Ordering::Acquire) == 2).then(|| Process {
            pid: self.pid.load(Ordering::Relaxed),
            pid_namespace: self.pid_namespace.load(Ordering::Relaxed),
        })
    }

    /// One more sign of life. Relaxed, as is its partner: nothing is ordered by it.
    pub(crate) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// From now on this side's lock is a sign of life. Release; pairs with the Acquire in [`Life::is_locked`].
    pub(crate) fn say_locked(&self) {
        self.locked.store(1, Ordering::Release);
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Acquire) != 0
    }
}
