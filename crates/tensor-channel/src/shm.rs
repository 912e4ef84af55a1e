//! Links over POSIX shared memory: one segment per direction.
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

use crate::channel::{ChannelSpec, Descriptor, ElementType, Ends, LinkSpec};
use crate::deadline::Deadline;
use crate::error::ChannelError;
use crate::geometry::Geometry;
use crate::random;
use crate::shm::heartbeat::{Pulse, Role};
use crate::shm::receiver::ShmReceiver;
use crate::shm::segment::{Name, Segment};
use crate::shm::sender::ShmSender;

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
    /// Makes both segments.
    ///
    /// # Errors
    /// A size or the instance is not possible; the system refuses a segment.
    pub(crate) fn new(link: LinkSpec, instance: &str) -> Result<Self, ChannelError> {
        let generation = u64::from_ne_bytes(random::bytes()?);
        let (inbound, inbound_name) = create(link.inbound, instance, generation)?;
        let (outbound, outbound_name) = create(link.outbound, instance, generation)?;
        // Made by this side, hence locked by it. The lock of `inbound` goes to its writer once that is there.
        outbound.header().writer.say_locked();
        let peer = Arc::default();
        Ok(Self {
            inbound: Pulse::start(inbound, Role::Reader, &peer)?,
            outbound: Pulse::start(outbound, Role::Writer, &peer)?,
            descriptor: Descriptor::Shm {
                inbound: inbound_name.as_str().to_owned(),
                outbound: outbound_name.as_str().to_owned(),
                generation,
            },
            _names: [inbound_name, outbound_name],
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

/// Attaches to the segments of an offer and takes their names away.
///
/// # Errors
/// There are no such segments, or they are not what `link` and `generation` say; somebody else is attached.
pub(crate) fn attach(
    inbound: &str,
    outbound: &str,
    generation: u64,
    link: LinkSpec,
) -> Result<Ends, ChannelError> {
    let to_peer = Segment::open(inbound, Geometry::new(link.inbound)?, generation)?;
    let from_peer = Segment::open(outbound, Geometry::new(link.outbound)?, generation)?;
    let peer = Arc::default();
    let to_peer = Pulse::start(to_peer, Role::Writer, &peer)?;
    let from_peer = Pulse::start(from_peer, Role::Reader, &peer)?;
    for pulse in [&to_peer, &from_peer] {
        let peer = pulse.peer().ok_or_else(|| ChannelError::Damaged {
            field: "attached",
            got: 0,
            expected: "2, for the side that offers is there first".to_owned(),
        })?;
        pulse.watch(peer);
    }
    segment::unlink(inbound);
    segment::unlink(outbound);
    // The offer waits at this bell for both.
    from_peer.segment().header().ring.freed.ring();
    Ok(ends(to_peer, from_peer))
}

fn create(
    spec: ChannelSpec,
    instance: &str,
    generation: u64,
) -> Result<(Segment, Name), ChannelError> {
    let (segment, name) = Segment::create(instance, Geometry::new(spec)?)?;
    segment.header().identity.write(spec, generation);
    Ok((segment, name))
}

fn ends(to_peer: Pulse, from_peer: Pulse) -> Ends {
    Ends {
        sender: Box::new(ShmSender::new(to_peer)),
        receiver: Box::new(ShmReceiver::new(from_peer)),
    }
}
