//! Links over POSIX shared memory: one segment per direction. Where both sides have devices that share memory, what the
//! offering side receives lies in its device's memory, and only the words of the ring and the slots are here.
//!
//! The side that offers makes both segments and holds them locked; the side that attaches checks them, and takes their
//! names away. From then on nothing is left that could stay behind. What stands in a segment is hostile input; that
//! the peer cuts a segment short under us is not defended against: it runs as the same user and could as well trace us.

mod header;
mod heartbeat;
mod left_behind;
mod name;
mod receiver;
mod segment;
mod sender;
mod slot;

use std::sync::Arc;

use crate::channel::{ChannelSpec, Descriptor, ElementType, Ends, LinkSpec, Segments};
use crate::deadline::Deadline;
use crate::error::{ChannelError, same};
use crate::geometry::Geometry;
use crate::payload::{ChannelDevice, MemoryError, MemoryHandle, SlotMemory};
use crate::random;
use crate::shm::heartbeat::{OnDevice, Pulse, Role};
use crate::shm::receiver::ShmReceiver;
use crate::shm::segment::{Name, Segment};
use crate::shm::sender::ShmSender;
use crate::transport::Transport;

pub use left_behind::remove_left_behind;

/// Whether this machine gives shared memory.
pub(crate) fn is_available() -> bool {
    let byte = ChannelSpec {
        element: ElementType::U8,
        row_len: 1,
        slot_rows: 1,
        slots: 1,
    };
    Geometry::new(byte)
        .and_then(|geometry| Segment::create("probe", geometry))
        .is_ok()
}

/// A link that waits for its peer.
#[derive(Debug)]
pub(crate) struct ShmOffer {
    inbound: Pulse,
    outbound: Pulse,
    /// Of both segments; taken away when the offer ends, either way.
    _names: [Name; 2],
    descriptor: Descriptor,
}

impl ShmOffer {
    /// Makes both segments. A device copies from and to that of `inbound` by itself, if it can.
    ///
    /// # Errors
    /// A size or the instance is not possible; the system refuses a segment.
    pub(crate) fn new(
        link: LinkSpec,
        instance: &str,
        device: Option<&dyn ChannelDevice>,
    ) -> Result<Self, ChannelError> {
        let inbound = Geometry::new(link.inbound)?;
        let made = Made::new(inbound, link.outbound, instance)?;
        let on_device = register(&made.inbound, device);
        made.offer(on_device, Descriptor::Shm)
    }

    /// Makes both segments, and memory on the device for the payloads of `inbound`.
    ///
    /// # Errors
    /// As [`ShmOffer::new`]; [`ChannelError::Unavailable`]: the device lends no memory.
    pub(crate) fn on_device(
        transport: Transport,
        link: LinkSpec,
        instance: &str,
        device: Option<&dyn ChannelDevice>,
    ) -> Result<Self, ChannelError> {
        let device = sharing(transport, device)?;
        let inbound = Geometry::new(link.inbound)?.on_device();
        let made = Made::new(inbound, link.outbound, instance)?;
        let shared = device.share(inbound.device_bytes());
        let (memory, handle) = shared.map_err(|error| unavailable(transport, &error))?;
        made.offer(Some(OnDevice::Memory(memory)), |segments| {
            Descriptor::Device {
                transport,
                segments,
                memory: handle,
            }
        })
    }

    pub(crate) const fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Waits for the peer.
    ///
    /// # Errors
    /// Nobody came in time.
    pub(crate) fn accept(self, deadline: Deadline) -> Result<Ends, ChannelError> {
        let Self {
            inbound, outbound, ..
        } = self;
        let bell = &outbound.segment().header().ring.freed;
        let (writer, reader) = bell
            .wait(deadline, || inbound.peer().zip(outbound.peer()))
            .ok_or(ChannelError::NOBODY)?;
        inbound.segment().unlock();
        inbound.watch(writer);
        outbound.watch(reader);
        Ok(ends(outbound, inbound))
    }
}

/// Both segments of an offer.
struct Made {
    inbound: Segment,
    outbound: Segment,
    names: [Name; 2],
    generation: u64,
}

impl Made {
    fn new(inbound: Geometry, outbound: ChannelSpec, instance: &str) -> Result<Self, ChannelError> {
        let generation = u64::from_ne_bytes(random::bytes()?);
        let create = |geometry| {
            let (segment, name) = Segment::create(instance, geometry)?;
            segment.header().identity.write(&geometry, generation);
            Ok::<_, ChannelError>((segment, name))
        };
        let (inbound, inbound_name) = create(inbound)?;
        let (outbound, outbound_name) = create(Geometry::new(outbound)?)?;
        // Made by this side, hence locked by it. The lock of `inbound` goes to its writer once that is there.
        outbound.header().writer.say_locked();
        Ok(Self {
            inbound,
            outbound,
            names: [inbound_name, outbound_name],
            generation,
        })
    }

    fn offer(
        self,
        on_device: Option<OnDevice>,
        descriptor: impl FnOnce(Segments) -> Descriptor,
    ) -> Result<ShmOffer, ChannelError> {
        let [inbound, outbound] = &self.names;
        let segments = Segments {
            inbound: inbound.as_str().to_owned(),
            outbound: outbound.as_str().to_owned(),
            generation: self.generation,
        };
        let peer = Arc::default();
        Ok(ShmOffer {
            inbound: Pulse::start(self.inbound, Role::Reader, &peer, on_device)?,
            outbound: Pulse::start(self.outbound, Role::Writer, &peer, None)?,
            descriptor: descriptor(segments),
            _names: self.names,
        })
    }
}

/// Attaches to the segments of an offer and takes their names away.
///
/// # Errors
/// There are no such segments, or they are not what `link` says; somebody else is attached.
pub(crate) fn attach(
    segments: &Segments,
    link: LinkSpec,
    device: Option<&dyn ChannelDevice>,
) -> Result<Ends, ChannelError> {
    let opened = Opened::new(segments, Geometry::new(link.inbound)?, link.outbound)?;
    let on_device = register(&opened.to_peer, device);
    opened.attach(segments, on_device)
}

/// The same where the payloads of `inbound` go to memory of the peer's device.
///
/// # Errors
/// As [`attach`]; [`ChannelError::Unavailable`]: the memory is out of this device's reach.
pub(crate) fn attach_on_device(
    transport: Transport,
    segments: &Segments,
    memory: &MemoryHandle,
    link: LinkSpec,
    device: Option<&dyn ChannelDevice>,
) -> Result<Ends, ChannelError> {
    let device = sharing(transport, device)?;
    let inbound = Geometry::new(link.inbound)?.on_device();
    let expected = inbound.device_bytes() as u64;
    same("bytes of device memory", memory.bytes, expected)?;
    let opened = Opened::new(segments, inbound, link.outbound)?;
    let memory: Box<dyn SlotMemory> = device
        .open(memory)
        .map_err(|error| unavailable(transport, &error))?;
    opened.attach(segments, Some(OnDevice::Memory(memory)))
}

/// Both segments of somebody's offer.
struct Opened {
    to_peer: Segment,
    from_peer: Segment,
}

impl Opened {
    fn new(
        segments: &Segments,
        inbound: Geometry,
        outbound: ChannelSpec,
    ) -> Result<Self, ChannelError> {
        let generation = segments.generation;
        Ok(Self {
            to_peer: Segment::open(&segments.inbound, inbound, generation)?,
            from_peer: Segment::open(&segments.outbound, Geometry::new(outbound)?, generation)?,
        })
    }

    fn attach(
        self,
        segments: &Segments,
        on_device: Option<OnDevice>,
    ) -> Result<Ends, ChannelError> {
        let peer = Arc::default();
        let to_peer = Pulse::start(self.to_peer, Role::Writer, &peer, on_device)?;
        let from_peer = Pulse::start(self.from_peer, Role::Reader, &peer, None)?;
        for pulse in [&to_peer, &from_peer] {
            let peer = pulse.peer().ok_or_else(|| ChannelError::Damaged {
                field: "attached",
                got: 0,
                expected: "2, for the side that offers is there first".to_owned(),
            })?;
            pulse.watch(peer);
        }
        segment::unlink(&segments.inbound);
        segment::unlink(&segments.outbound);
        // The offer waits at this bell for both.
        from_peer.segment().header().ring.freed.ring();
        Ok(ends(to_peer, from_peer))
    }
}

/// The device, where its memory goes this way.
fn sharing(
    transport: Transport,
    device: Option<&dyn ChannelDevice>,
) -> Result<&dyn ChannelDevice, ChannelError> {
    let is_such = |device: &&dyn ChannelDevice| device.transport() == Some(transport);
    device
        .filter(is_such)
        .ok_or_else(|| ChannelError::Unavailable {
            transport,
            why: "this worker's device shares no memory so".to_owned(),
        })
}

fn unavailable(transport: Transport, error: &MemoryError) -> ChannelError {
    ChannelError::Unavailable {
        transport,
        why: error.to_string(),
    }
}

/// Lets a device copy by itself; without that its copies take a detour, and that is all.
fn register(segment: &Segment, device: Option<&dyn ChannelDevice>) -> Option<OnDevice> {
    match segment.register(device?) {
        Ok(registered) => Some(OnDevice::Registered(registered)),
        Err(error) => {
            tracing::warn!(%error, "the device copies from and to shared memory by a detour");
            None
        }
    }
}

fn ends(to_peer: Pulse, from_peer: Pulse) -> Ends {
    Ends {
        sender: Box::new(ShmSender::new(to_peer)),
        receiver: Box::new(ShmReceiver::new(from_peer)),
    }
}
