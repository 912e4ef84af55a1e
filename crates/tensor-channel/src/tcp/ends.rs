//! The two ends over TCP.

use std::sync::Arc;
use std::time::Duration;

use crate::channel::{ChannelSpec, Ends, Tag, TensorReceiver, TensorSender};
use crate::deadline::Deadline;
use crate::error::ChannelError;
use crate::geometry::Geometry;
use crate::payload::{HostBytes, Place, Sink, Source};
use crate::tcp::connection::Connection;
use crate::tcp::state::Message;

/// Both ends of a connection. It closes with the last of them.
pub(crate) fn ends(connection: Connection, outgoing: Geometry, incoming: Geometry) -> Ends {
    let connection = Arc::new(connection);
    Ends {
        sender: Box::new(TcpSender {
            geometry: outgoing,
            connection: Arc::clone(&connection),
        }),
        receiver: Box::new(TcpReceiver {
            geometry: incoming,
            connection,
        }),
    }
}

/// Queues messages for the writing thread.
#[derive(Debug)]
struct TcpSender {
    geometry: Geometry,
    connection: Arc<Connection>,
}

impl TensorSender for TcpSender {
    fn spec(&self) -> ChannelSpec {
        self.geometry.spec()
    }

    fn send_from(
        &mut self,
        tag: Tag,
        payload: &dyn Source,
        patience: Duration,
    ) -> Result<(), ChannelError> {
        let bytes = payload.bytes();
        self.geometry.check_payload(bytes)?;
        let shared = &self.connection.shared;
        let memory = shared.wait(Deadline::after(patience), |state| {
            if state.peer.receiver_closed {
                return Some(Err(ChannelError::CLOSED));
            }
            if let Some(fault) = &state.fault {
                return Some(Err(fault.clone().into()));
            }
            let lane = &mut state.outgoing;
            lane.has_room().then(|| Ok(lane.take_memory()))
        });
        let Some(memory) = memory else {
            return Err(ChannelError::Full {
                waited_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
            });
        };
        let mut copy = memory?;
        copy.resize(bytes, 0);
        payload.copy_to(Place::Host(HostBytes::of(&mut copy)))?;
        shared.change(|state| {
            state.outgoing.entered += 1;
            state
                .outgoing
                .queue
                .push_back(Message { tag, payload: copy });
        });
        Ok(())
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        self.connection
            .shared
            .change(|state| state.sender_closed = true);
    }
}

/// Takes messages that the reading thread queued.
#[derive(Debug)]
struct TcpReceiver {
    geometry: Geometry,
    connection: Arc<Connection>,
}

impl TensorReceiver for TcpReceiver {
    fn spec(&self) -> ChannelSpec {
        self.geometry.spec()
    }

    fn receive_into(
        &mut self,
        payload: &mut dyn Sink,
        patience: Duration,
    ) -> Result<Option<(Tag, usize)>, ChannelError> {
        self.geometry.check_room(payload.room())?;
        let shared = &self.connection.shared;
        let message = shared.wait(Deadline::after(patience), |state| {
            if let Some(message) = state.incoming.queue.pop_front() {
                return Some(Ok(message));
            }
            if state.peer.sender_closed {
                return Some(Err(ChannelError::CLOSED));
            }
            state.fault.clone().map(|fault| Err(fault.into()))
        });
        let Some(mut message) = message.transpose()? else {
            return Ok(None);
        };
        let bytes = message.payload.len();
        payload.copy_from(Place::Host(HostBytes::of(&mut message.payload)))?;
        shared.change(|state| {
            state.incoming.read += 1;
            state.incoming.keep_memory(message.payload);
        });
        Ok(Some((message.tag, bytes)))
    }
}

impl Drop for TcpReceiver {
    fn drop(&mut self) {
        self.connection
            .shared
            .change(|state| state.receiver_closed = true);
    }
}
