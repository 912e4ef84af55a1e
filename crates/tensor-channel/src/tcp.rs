//! Links over one TCP connection.
//!
//! The connection is neither encrypted nor signed: the secret keeps strangers out of a trusted network, no more.

mod connection;
mod ends;
mod frame;
mod handshake;
mod state;

use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::channel::{Descriptor, Ends, LinkSpec};
use crate::deadline::Deadline;
use crate::error::ChannelError;
use crate::geometry::Geometry;
use crate::random;
use crate::tcp::connection::Connection;

/// A link that waits for its peer.
#[derive(Debug)]
pub(crate) struct TcpOffer {
    listener: TcpListener,
    secret: [u8; 16],
    link: LinkSpec,
    outgoing: Geometry,
    incoming: Geometry,
    descriptor: Descriptor,
}

impl TcpOffer {
    /// Listens at `bind`; the descriptor names `host`, or the address listened on.
    ///
    /// # Errors
    /// A size is not possible; the system refuses the address.
    pub(crate) fn new(
        link: LinkSpec,
        bind: &str,
        host: Option<&str>,
    ) -> Result<Self, ChannelError> {
        let failed = |source| ChannelError::Io {
            what: format!("listening at {bind}"),
            source,
        };
        let incoming = Geometry::new(link.inbound)?;
        let outgoing = Geometry::new(link.outbound)?;
        let listener = TcpListener::bind(bind).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let secret = random::bytes()?;
        Ok(Self {
            listener,
            secret,
            link,
            outgoing,
            incoming,
            descriptor: Descriptor::Tcp {
                address: match host {
                    None => bound.to_string(),
                    Some(host) if host.contains(':') && !host.starts_with('[') => {
                        format!("[{host}]:{}", bound.port())
                    }
                    Some(host) => format!("{host}:{}", bound.port()),
                },
                secret,
            },
        })
    }

    pub(crate) const fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Waits for the peer; strangers are sent away.
    ///
    /// # Errors
    /// Nobody came in time.
    pub(crate) fn accept(self, deadline: Deadline) -> Result<Ends, ChannelError> {
        loop {
            let Some(stream) = self
                .next_stream(deadline)
                .map_err(|source| ChannelError::Io {
                    what: "waiting for a connection".to_owned(),
                    source,
                })?
            else {
                return Err(ChannelError::NOBODY);
            };
            match handshake::answer(&stream, self.link, &self.secret, deadline) {
                Ok(Some(())) => {
                    let connection = Connection::start(stream, self.outgoing, self.incoming)?;
                    return Ok(ends::ends(connection, self.outgoing, self.incoming));
                }
                Ok(None) => {
                    tracing::warn!("a connection with another secret or other channels was refused")
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection ended before it said what it wants")
                }
            }
        }
    }

    /// The next connection before the deadline.
    fn next_stream(&self, deadline: Deadline) -> io::Result<Option<TcpStream>> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return Ok(Some(stream));
                }
                // A connection that went away before it was taken, for one.
                Err(error) if handshake::is_not_yet(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
            let Ok(limit) = handshake::some_time(deadline) else {
                return Ok(None);
            };
            let limit = Timespec::try_from(limit).ok();
            let mut listening = [PollFd::from_borrowed_fd(
                self.listener.as_fd(),
                PollFlags::IN,
            )];
            match poll(&mut listening, limit.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Connects to an offer.
///
/// # Errors
/// Nobody listens there; the other side refuses, or expects other channels.
pub(crate) fn attach(
    address: &str,
    secret: &[u8; 16],
    link: LinkSpec,
    deadline: Deadline,
) -> Result<Ends, ChannelError> {
    let outgoing = Geometry::new(link.inbound)?;
    let incoming = Geometry::new(link.outbound)?;
    let stream = connect(address, deadline).map_err(|source| ChannelError::Io {
        what: format!("connecting to {address}"),
        source,
    })?;
    handshake::ask(&stream, link, secret, deadline)?;
    let connection = Connection::start(stream, outgoing, incoming)?;
    Ok(ends::ends(connection, outgoing, incoming))
}

/// Tries what the address means, one after another.
fn connect(address: &str, deadline: Deadline) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, handshake::some_time(deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
