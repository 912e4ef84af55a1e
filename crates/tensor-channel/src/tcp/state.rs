//! What both ends and both threads of a connection share.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::channel::Tag;
use crate::deadline::Deadline;
use crate::error::ChannelError;
use crate::geometry::Geometry;
use crate::tcp::frame::{Frame, Status};

/// A message on its way.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) tag: Tag,
    pub(crate) payload: Vec<u8>,
}

/// Why a connection ended. Told to every later call.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Gone(&'static str),
    Damaged {
        field: &'static str,
        got: u64,
        expected: String,
    },
}

impl From<Fault> for ChannelError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Gone(how) => Self::PeerGone { how },
            Fault::Damaged {
                field,
                got,
                expected,
            } => Self::Damaged {
                field,
                got,
                expected,
            },
        }
    }
}

impl From<ChannelError> for Fault {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Damaged {
                field,
                got,
                expected,
            } => Self::Damaged {
                field,
                got,
                expected,
            },
            ChannelError::PeerGone { how } => Self::Gone(how),
            _ => Self::Gone("the connection broke"),
        }
    }
}

/// One direction's messages. At most as many as the channel has slots are between the two calls of its ends.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) geometry: Geometry,
    pub(crate) queue: VecDeque<Message>,
    /// Memory of earlier messages, for later ones.
    spare: Vec<Vec<u8>>,
    /// Messages that entered, and messages that were read at the other end.
    pub(crate) entered: u64,
    pub(crate) read: u64,
}

impl Lane {
    fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            queue: VecDeque::new(),
            spare: Vec::new(),
            entered: 0,
            read: 0,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.entered - self.read < self.geometry.spec().slots as u64
    }

    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps memory for later messages; never more pieces than messages can be on their way.
    pub(crate) fn keep_memory(&mut self, memory: Vec<u8>) {
        if self.spare.len() < self.geometry.spec().slots {
            self.spare.push(memory);
        }
    }
}

/// Where a connection stands.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) outgoing: Lane,
    pub(crate) incoming: Lane,
    pub(crate) sender_closed: bool,
    pub(crate) receiver_closed: bool,
    pub(crate) peer: Status,
    pub(crate) fault: Option<Fault>,
    /// Threads that still run.
    pub(crate) threads: u32,
}

impl State {
    /// What the next frame says of this side. A closed sender is told of after its last message.
    pub(crate) fn status(&self) -> Status {
        Status {
            read: self.incoming.read,
            sender_closed: self.sender_closed && self.outgoing.queue.is_empty(),
            receiver_closed: self.receiver_closed,
        }
    }

    /// Takes in what a frame says, copied and before its payload is read; gives the bytes of its payload.
    ///
    /// # Errors
    /// It says what cannot be.
    pub(crate) fn take_in(&mut self, frame: &Frame) -> Result<usize, ChannelError> {
        let damaged = |field, got, expected| ChannelError::Damaged {
            field,
            got,
            expected,
        };
        let (least, most) = (self.outgoing.read, self.outgoing.entered);
        let read = frame.status.read;
        if !(least..=most).contains(&read) {
            return Err(damaged("read count", read, format!("{least} to {most}")));
        }
        let received = self.incoming.entered;
        if frame.sequence != received {
            return Err(damaged("sequence", frame.sequence, received.to_string()));
        }
        let bytes = match frame.message {
            None => 0,
            Some(_) if self.peer.sender_closed => {
                let expected = "nothing, as the sender is closed".to_owned();
                return Err(damaged("sequence", frame.sequence, expected));
            }
            Some(_) if !self.incoming.has_room() => {
                let slots = self.incoming.geometry.spec().slots as u64;
                let expected = format!("at most {slots}");
                return Err(damaged("messages on their way", slots + 1, expected));
            }
            Some((_, bytes)) => self.incoming.geometry.check_written(bytes)?,
        };
        self.outgoing.read = read;
        self.peer = frame.status;
        Ok(bytes)
    }
}

/// The state and who waits for it to change.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    pub(crate) fn new(outgoing: Geometry, incoming: Geometry) -> Self {
        Self {
            state: Mutex::new(State {
                outgoing: Lane::new(outgoing),
                incoming: Lane::new(incoming),
                sender_closed: false,
                receiver_closed: false,
                peer: Status::default(),
                fault: None,
                threads: 0,
            }),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes everyone who waits for that: two ends and two threads at most.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// The first fault stays.
    pub(crate) fn fail(&self, fault: Fault) {
        self.change(|state| {
            state.fault.get_or_insert(fault);
        });
    }

    /// Looks after every change until something is found or the deadline has passed.
    pub(crate) fn wait<T>(
        &self,
        deadline: Deadline,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            let left = deadline.left();
            if left.is_zero() {
                return None;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
