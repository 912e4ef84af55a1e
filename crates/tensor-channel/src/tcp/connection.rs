//! A connection and its two threads: one reads frames, one writes them. The ends touch memory only, so that a peer
//! that neither reads nor writes holds up nobody beyond their patience.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::ChannelError;
use crate::geometry::Geometry;
use crate::tcp::frame::{Frame, HEAD_BYTES, Status};
use crate::tcp::handshake::is_not_yet;
use crate::tcp::state::{Fault, Message, Shared, State};

/// A frame is written at least this often.
const BEAT: Duration = Duration::from_millis(100);

/// Silent beats after which the peer counts as gone: three seconds, as a lost packet alone can cost one. A process that
/// ends closes its connection, which is noticed at once. Counted in own beats: who was stopped accuses nobody.
const SILENT_BEATS: u32 = 30;

/// How long a closing connection waits for the peer to take what was sent.
const LINGER: Duration = Duration::from_secs(1);

/// A connection with a peer that was greeted. Dropping it sends what was queued.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
    stream: Arc<TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

impl Connection {
    /// # Errors
    /// The system refuses a thread or an option of the socket.
    pub(crate) fn start(
        stream: TcpStream,
        outgoing: Geometry,
        incoming: Geometry,
    ) -> Result<Self, ChannelError> {
        let failed = |source| ChannelError::Io {
            what: "starting a TCP link".to_owned(),
            source,
        };
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(BEAT)).map_err(failed)?;
        let mut connection = Self {
            shared: Arc::new(Shared::new(outgoing, incoming)),
            stream: Arc::new(stream),
            threads: Vec::new(),
        };
        connection
            .spawn("channel-read", read_frames)
            .map_err(failed)?;
        connection
            .spawn("channel-write", write_frames)
            .map_err(failed)?;
        Ok(connection)
    }

    fn spawn(&mut self, name: &str, run: fn(&TcpStream, &Shared) -> Fault) -> io::Result<()> {
        let (shared, stream) = (Arc::clone(&self.shared), Arc::clone(&self.stream));
        shared.lock().threads += 1;
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            let fault = run(&stream, &shared);
            shared.fail(fault);
            // Tells the peer, whose reader then ends, whose writer then ends, which ends our reader.
            let _ = stream.shutdown(Shutdown::Write);
            shared.change(|state| state.threads -= 1);
        });
        match thread {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                self.shared.lock().threads -= 1;
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Ends that are dropped have said so already; a connection that broke has nothing left to say.
        let is_broken = self.shared.change(|state| {
            state.sender_closed = true;
            state.receiver_closed = true;
            state.fault.is_some()
        });
        let linger = if is_broken { Duration::ZERO } else { LINGER };
        // Closing before the peer has read would reset the connection, and what is on its way would be lost.
        let all_ended = |state: &mut State| (state.threads == 0).then_some(());
        if self
            .shared
            .wait(Deadline::after(linger), all_ended)
            .is_none()
        {
            self.shared.fail(Fault::Gone("this side closed its end"));
        }
        let _ = self.stream.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            // A panic of a thread was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// Reads frames until the connection ends.
fn read_frames(stream: &TcpStream, shared: &Shared) -> Fault {
    loop {
        if let Err(error) = read_frame(stream, shared) {
            return error.into();
        }
    }
}

fn read_frame(stream: &TcpStream, shared: &Shared) -> Result<(), ChannelError> {
    let mut head = [0; HEAD_BYTES];
    read(stream, &mut head)?;
    let frame = Frame::decode(&head)?;
    let (bytes, memory) = shared.change(|state| {
        let bytes = state.take_in(&frame)?;
        let memory = frame.message.map(|_| state.incoming.take_memory());
        Ok::<_, ChannelError>((bytes, memory))
    })?;
    if let (Some((tag, _)), Some(mut payload)) = (frame.message, memory) {
        payload.resize(bytes, 0);
        read(stream, &mut payload)?;
        shared.change(|state| {
            state.incoming.entered += 1;
            state.incoming.queue.push_back(Message { tag, payload });
        });
    }
    Ok(())
}

/// Fills `bytes`; gives up where the peer is silent for [`SILENT_BEATS`].
fn read(mut stream: &TcpStream, bytes: &mut [u8]) -> Result<(), ChannelError> {
    let mut filled = 0;
    let mut silent_beats = 0;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(ChannelError::CLOSED),
            Ok(read) => {
                filled += read;
                silent_beats = 0;
            }
            Err(error) if is_not_yet(&error) => silent_beats += 1,
            Err(_) => {
                let how = "the connection broke";
                return Err(ChannelError::PeerGone { how });
            }
        }
        if silent_beats > SILENT_BEATS {
            let how = "it gave no sign of life for three seconds";
            return Err(ChannelError::PeerGone { how });
        }
    }
    Ok(())
}

/// What the writing thread does next.
enum Next {
    Write(Frame, Option<Message>),
    End(Fault),
}

/// Writes messages as they come, and where this side stands when that changes or a beat is due, until both ends are
/// closed or the connection ends.
fn write_frames(mut stream: &TcpStream, shared: &Shared) -> Fault {
    let mut told = Status::default();
    let mut sequence = 0;
    loop {
        let next = shared
            .wait(Deadline::after(BEAT), |state| next(state, told, sequence))
            .unwrap_or_else(|| Next::Write(frame(&shared.lock(), None, sequence), None));
        let (frame, message) = match next {
            Next::Write(frame, message) => (frame, message),
            Next::End(fault) => return fault,
        };
        let payload = message.as_ref().map_or(&[][..], |message| &message.payload);
        if stream
            .write_all(&frame.encode())
            .and_then(|()| stream.write_all(payload))
            .is_err()
        {
            return Fault::Gone("the connection broke");
        }
        told = frame.status;
        if let Some(message) = message {
            sequence += 1;
            shared.lock().outgoing.keep_memory(message.payload);
        }
    }
}

fn next(state: &mut State, told: Status, sequence: u64) -> Option<Next> {
    if let Some(fault) = &state.fault {
        return Some(Next::End(fault.clone()));
    }
    if let Some(message) = state.outgoing.queue.pop_front() {
        let frame = frame(state, Some(&message), sequence);
        return Some(Next::Write(frame, Some(message)));
    }
    if state.status() != told {
        return Some(Next::Write(frame(state, None, sequence), None));
    }
    (told.sender_closed && told.receiver_closed)
        .then_some(Next::End(Fault::Gone("this side closed its end")))
}

fn frame(state: &State, message: Option<&Message>, sequence: u64) -> Frame {
    let mut status = state.status();
    // A message closes nothing: the frame after it does.
    status.sender_closed &= message.is_none();
    Frame {
        status,
        sequence,
        message: message.map(|message| (message.tag, message.payload.len() as u64)),
    }
}
