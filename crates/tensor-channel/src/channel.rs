//! What a channel carries, and its two ends.

use std::fmt::Debug;
use std::time::Duration;

use crate::error::ChannelError;
use crate::payload::{MemoryHandle, Sink, Source};
use crate::transport::Transport;

/// Type of the elements of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// 4 bytes.
    F32,
    /// 1 byte.
    U8,
}

impl ElementType {
    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::U8 => 1,
        }
    }

    /// How it is written down for a peer.
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::F32 => 1,
            Self::U8 => 2,
        }
    }
}

/// Shape and size of a channel: slots of up to `slot_rows` rows of `row_len` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Type of the elements.
    pub element: ElementType,
    /// Elements of a row.
    pub row_len: usize,
    /// Rows of a slot at most.
    pub slot_rows: usize,
    /// Slots: messages that can be on their way.
    pub slots: usize,
}

impl ChannelSpec {
    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_len * self.element.bytes()
    }

    /// Bytes of a slot's payload.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_rows * self.row_bytes()
    }
}

/// The channels of a link, named from the side that offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// From the side that attaches to the side that offers.
    pub inbound: ChannelSpec,
    /// From the side that offers to the side that attaches.
    pub outbound: ChannelSpec,
}

/// Words beside the payload of a slot; what they mean is the caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag(pub [u64; 4]);

/// How to reach an offered link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// Segments by name.
    Shm(Segments),
    /// Segments by name, and the payloads of [`LinkSpec::inbound`] in memory of a device of the offering side.
    Device {
        /// Whose devices.
        transport: Transport,
        /// The segments.
        segments: Segments,
        /// How the memory is opened.
        memory: MemoryHandle,
    },
    /// A listening socket.
    Tcp {
        /// `HOST:PORT`.
        address: String,
        /// What the connecting side must say first.
        secret: [u8; 16],
    },
}

/// The shared memory of an offered link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Name of the segment of [`LinkSpec::inbound`].
    pub inbound: String,
    /// Name of the segment of [`LinkSpec::outbound`].
    pub outbound: String,
    /// What their headers must say; another number is another link's.
    pub generation: u64,
}

impl Descriptor {
    /// The way that it leads.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        match self {
            Self::Shm(_) => Transport::Shm,
            Self::Device { transport, .. } => *transport,
            Self::Tcp { .. } => Transport::Tcp,
        }
    }
}

/// Puts tensors in. Dropping it tells the reader.
pub trait TensorSender: Debug + Send {
    /// What the channel carries.
    fn spec(&self) -> ChannelSpec;

    /// Sends whole rows, at most a slot of them; waits at most `patience` for a free slot. This is the only copy on
    /// this side.
    ///
    /// # Errors
    /// [`ChannelError::Full`] where no slot became free, and nothing was sent; the peer is gone, or the channel
    /// damaged; `payload` is not whole rows or too long, or its device cannot copy it.
    fn send_from(
        &mut self,
        tag: Tag,
        payload: &dyn Source,
        patience: Duration,
    ) -> Result<(), ChannelError>;

    /// [`TensorSender::send_from`] of bytes.
    ///
    /// # Errors
    /// As there.
    fn send(&mut self, tag: Tag, payload: &[u8], patience: Duration) -> Result<(), ChannelError> {
        self.send_from(tag, &payload, patience)
    }
}

/// Takes tensors out. Dropping it tells the writer.
pub trait TensorReceiver: Debug + Send {
    /// What the channel carries.
    fn spec(&self) -> ChannelSpec;

    /// Copies the next slot's payload to the front of `payload`, which has room for a slot, and gives its tag and
    /// bytes; waits at most `patience` for it. `None`: nothing came. This is the only copy on this side.
    ///
    /// # Errors
    /// The peer is gone and everything that it sent was received; the channel is damaged; `payload` is too short, or its
    /// device cannot copy it.
    fn receive_into(
        &mut self,
        payload: &mut dyn Sink,
        patience: Duration,
    ) -> Result<Option<(Tag, usize)>, ChannelError>;

    /// [`TensorReceiver::receive_into`] bytes.
    ///
    /// # Errors
    /// As there.
    fn receive(
        &mut self,
        mut payload: &mut [u8],
        patience: Duration,
    ) -> Result<Option<(Tag, usize)>, ChannelError> {
        self.receive_into(&mut payload, patience)
    }
}

/// One side of a link.
#[derive(Debug)]
pub struct Ends {
    /// To the peer.
    pub sender: Box<dyn TensorSender>,
    /// From the peer.
    pub receiver: Box<dyn TensorReceiver>,
}
