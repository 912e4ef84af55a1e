//! Tensors between processes: a bounded ring with one writer and one reader, over shared memory or TCP. What a device
//! computes may go from its memory into a slot and out of one into that of another: see [`ChannelDevice`].
//!
//! A link is two channels, one each way. One side offers it and hands the [`Descriptor`] to the other, which
//! attaches. After that nothing else is asked of anyone: both ends see within 100 ms when the other's process ended, and
//! within a second (shared memory) or three (TCP) when it is stopped. No call takes longer than its patience.
//!
//! Built with `--cfg loom`, only the ring and the doorbell are there, for the model in `tests/loom.rs`.
#![cfg_attr(loom, allow(dead_code, reason = "the model has no use for the rest"))]

mod channel;
mod error;
mod geometry;
mod payload;
mod sync;
mod transport;

#[cfg(loom)]
pub mod deadline;
#[cfg(loom)]
pub mod doorbell;
#[cfg(loom)]
pub mod ring;

#[cfg(not(loom))]
mod deadline;
#[cfg(not(loom))]
mod doorbell;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod random;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
mod shm;
#[cfg(not(loom))]
mod tcp;

pub use channel::{
    ChannelSpec, Descriptor, ElementType, Ends, LinkSpec, Segments, Tag, TensorReceiver,
    TensorSender,
};
pub use error::ChannelError;
#[cfg(not(loom))]
pub use link::{Offer, OfferOptions, attach, available, choose, offer};
pub use payload::{
    ChannelDevice, HostBytes, MemoryError, MemoryHandle, Place, Registered, Sink, SlotMemory,
    Source,
};
#[cfg(not(loom))]
pub use shm::remove_left_behind;
#[cfg(not(loom))]
pub use sync::futex_calls;
pub use transport::Transport;
