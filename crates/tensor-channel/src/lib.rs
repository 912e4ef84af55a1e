//! Tensors between processes: a bounded ring with one writer and one reader, over shared memory or TCP.
//!
//! A link is two channels, one each way. One side offers it and hands the [`Descriptor`] to the other, which
//! attaches. After that nothing else is asked of anyone: both ends see within 100 ms when the other is gone.

mod channel;
mod doorbell;
mod error;
mod geometry;
mod link;
mod random;
mod ring;
mod shm;
mod sync;
mod tcp;
mod transport;

pub use channel::{
    ChannelSpec, Descriptor, ElementType, Ends, LinkSpec, Tag, TensorReceiver, TensorSender,
};
pub use error::ChannelError;
pub use link::{Offer, OfferOptions, attach, available, choose, offer};
pub use shm::remove_left_behind;
pub use sync::futex_calls;
pub use transport::Transport;
