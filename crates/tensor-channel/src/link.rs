//! Offering a link, and attaching to one.

use std::time::Duration;

use crate::channel::{Descriptor, Ends, LinkSpec};
use crate::deadline::Deadline;
use crate::error::ChannelError;
use crate::payload::ChannelDevice;
use crate::shm::{self, ShmOffer};
use crate::tcp::{self, TcpOffer};
use crate::transport::Transport;

/// The transports that this machine has, the best one first, for a process whose device shares memory by `device_memory`.
#[must_use]
pub fn available(device_memory: Option<Transport>) -> Vec<Transport> {
    let mut transports = Vec::new();
    if shm::is_available() {
        transports.extend(device_memory);
        transports.push(Transport::Shm);
    }
    transports.push(Transport::Tcp);
    transports
}

/// The best transport that both sides have. The caller leaves out what cannot be, such as shared memory between hosts.
#[must_use]
pub fn choose(ours: &[Transport], theirs: &[Transport]) -> Option<Transport> {
    ours.iter()
        .filter(|ours| theirs.contains(ours))
        .min()
        .copied()
}

/// What a link is offered under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferOptions {
    /// Name of the offering worker, part of the names of shared memory segments: letters, digits, dots, dashes and
    /// underscores. [`remove_left_behind`](crate::remove_left_behind) finds them by it.
    pub instance: String,
    /// `HOST:PORT` to listen on for TCP. Port 0 lets the system choose one.
    pub tcp_bind: String,
    /// Host that the descriptor names for TCP; `None`: the address listened on. Needed where that is all addresses.
    pub tcp_host: Option<String>,
}

/// A link that waits for its peer. Dropping it takes the offer back.
#[derive(Debug)]
pub struct Offer(Kind);

#[derive(Debug)]
enum Kind {
    Shm(ShmOffer),
    Tcp(TcpOffer),
}

impl Offer {
    /// How the peer reaches it.
    #[must_use]
    pub const fn descriptor(&self) -> &Descriptor {
        match &self.0 {
            Kind::Shm(offer) => offer.descriptor(),
            Kind::Tcp(offer) => offer.descriptor(),
        }
    }

    /// Waits at most `patience` for the peer to attach.
    ///
    /// # Errors
    /// [`ChannelError::PeerGone`]: nobody came.
    pub fn accept(self, patience: Duration) -> Result<Ends, ChannelError> {
        let deadline = Deadline::after(patience);
        match self.0 {
            Kind::Shm(offer) => offer.accept(deadline),
            Kind::Tcp(offer) => offer.accept(deadline),
        }
    }
}

/// Offers a link. Hand the [`Offer::descriptor`] to the peer, then [`Offer::accept`]. What comes in is received into
/// memory of `device`, if there is one.
///
/// # Errors
/// [`ChannelError::Unavailable`]: not with this transport; [`ChannelError::Invalid`]: an impossible size or name;
/// [`ChannelError::Io`]: the system refuses the memory or the socket.
pub fn offer(
    transport: Transport,
    link: LinkSpec,
    options: &OfferOptions,
    device: Option<&dyn ChannelDevice>,
) -> Result<Offer, ChannelError> {
    let instance = &options.instance;
    let kind = match transport {
        Transport::Shm => Kind::Shm(ShmOffer::new(link, instance, device)?),
        Transport::Tcp => {
            let host = options.tcp_host.as_deref();
            Kind::Tcp(TcpOffer::new(link, &options.tcp_bind, host)?)
        }
        Transport::CudaIpc | Transport::HipIpc | Transport::EmulatedIpc => {
            Kind::Shm(ShmOffer::on_device(transport, link, instance, device)?)
        }
    };
    Ok(Offer(kind))
}

/// Attaches to an offered link; waits at most `patience` for the other side, once the system knows the host's address.
/// `link` is what this side expects, named as
/// the offering side names it: this side sends into `inbound`, from memory of `device` if there is one, and receives from
/// `outbound`.
///
/// # Errors
/// [`ChannelError::Damaged`]: the link is not what `link` says; [`ChannelError::Io`]: it is not there;
/// [`ChannelError::Unavailable`]: it leads to memory that this device does not reach; [`ChannelError::PeerGone`]: the
/// other side hung up or did not answer in time.
pub fn attach(
    descriptor: &Descriptor,
    link: LinkSpec,
    patience: Duration,
    device: Option<&dyn ChannelDevice>,
) -> Result<Ends, ChannelError> {
    match descriptor {
        Descriptor::Shm(segments) => shm::attach(segments, link, device),
        Descriptor::Device {
            transport,
            segments,
            memory,
        } => shm::attach_on_device(*transport, segments, memory, link, device),
        Descriptor::Tcp { address, secret } => {
            tcp::attach(address, secret, link, Deadline::after(patience))
        }
    }
}
