//! Offering a link, and attaching to one.

use std::time::Duration;

use crate::channel::{Descriptor, Ends, LinkSpec};
use crate::deadline::Deadline;
use crate::error::ChannelError;
use crate::shm::{self, ShmOffer};
use crate::tcp::{self, TcpOffer};
use crate::transport::Transport;

/// The transports that this machine and build have, the best one first.
#[must_use]
pub fn available() -> Vec<Transport> {
    let mut transports = Vec::new();
    if shm::is_available() {
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

/// Offers a link. Hand the [`Offer::descriptor`] to the peer, then [`Offer::accept`].
///
/// # Errors
/// [`ChannelError::Unavailable`]: not with this transport; [`ChannelError::Invalid`]: an impossible size or name;
/// [`ChannelError::Io`]: the system refuses the memory or the socket.
pub fn offer(
    transport: Transport,
    link: LinkSpec,
    options: &OfferOptions,
) -> Result<Offer, ChannelError> {
    let kind = match transport {
        Transport::Shm => Kind::Shm(ShmOffer::new(link, &options.instance)?),
        Transport::Tcp => {
            let host = options.tcp_host.as_deref();
            Kind::Tcp(TcpOffer::new(link, &options.tcp_bind, host)?)
        }
        Transport::CudaIpc | Transport::HipIpc => {
            return Err(ChannelError::Unavailable {
                transport,
                why: "this build shares no device memory",
            });
        }
    };
    Ok(Offer(kind))
}

/// Attaches to an offered link; waits at most `patience` for the other side, once the system knows the host's address.
/// `link` is what this side expects, named as
/// the offering side names it: this side sends into `inbound` and receives from `outbound`.
///
/// # Errors
/// [`ChannelError::Damaged`]: the link is not what `link` says; [`ChannelError::Io`]: it is not there;
/// [`ChannelError::PeerGone`]: the other side hung up or did not answer in time.
pub fn attach(
    descriptor: &Descriptor,
    link: LinkSpec,
    patience: Duration,
) -> Result<Ends, ChannelError> {
    match descriptor {
        Descriptor::Shm {
            inbound,
            outbound,
            generation,
        } => shm::attach(inbound, outbound, *generation, link),
        Descriptor::Tcp { address, secret } => {
            tcp::attach(address, secret, link, Deadline::after(patience))
        }
    }
}
