//! Tensors between processes: a bounded ring with one writer and one reader, over shared memory or TCP.
//!
//! A link is two channels, one each way. One side offers it and hands the [`Descriptor`] to the other, which
//! attaches. After that nothing else is asked of anyone: both ends see within 100 ms when the other is gone.

mod channel;
mod error;

pub use channel::{
    ChannelSpec, Descriptor, ElementType, Ends, LinkSpec, Tag, TensorReceiver, TensorSender,
    Transport,
};
pub use error::ChannelError;
