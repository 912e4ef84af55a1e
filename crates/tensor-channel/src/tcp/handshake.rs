//! What both sides say before the first frame: who they are, and which channels they expect.
//!
//! The side that attaches says magic, secret, version and channels; the side that offers answers with the same but the
//! secret. Whoever does not know the secret gets no answer. Numbers are little-endian.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use subtle::ConstantTimeEq;

use crate::channel::{ChannelSpec, LinkSpec};
use crate::deadline::Deadline;
use crate::error::{ChannelError, same};

const MAGIC: [u8; 8] = *b"tandemtc";
const VERSION: u64 = 1;

/// Longest wait for a stranger's first words, so that one who says nothing keeps the peer out for this long only.
const STRANGER: Duration = Duration::from_secs(1);

/// What is said, in words of 8 bytes: version, then two channels of four.
const WORDS: usize = 9;
const FIELDS: [&str; WORDS] = [
    "version",
    "inbound element type",
    "inbound row_len",
    "inbound slot_rows",
    "inbound slots",
    "outbound element type",
    "outbound row_len",
    "outbound slot_rows",
    "outbound slots",
];

/// The offering side's part. `None`: a stranger, or a peer that expects something else; it knows by now.
pub(crate) fn answer(
    stream: &TcpStream,
    link: LinkSpec,
    secret: &[u8; 16],
    deadline: Deadline,
) -> io::Result<Option<()>> {
    let patience = Deadline::after(STRANGER.min(deadline.left()));
    let mut who = [0; 24];
    read(stream, &mut who, patience)?;
    let (magic, theirs) = who.split_at(8);
    // In constant time, or its length would tell how much of a guess was right.
    if !bool::from(theirs.ct_eq(secret)) || magic != MAGIC {
        return Ok(None);
    }
    let mut words = [0; WORDS * 8];
    read(stream, &mut words, patience)?;
    let mut answer = MAGIC.to_vec();
    answer.extend(encode(link));
    write(stream, &answer, patience)?;
    Ok((words == encode(link)).then_some(()))
}

/// The attaching side's part.
///
/// # Errors
/// The other side is none of ours, or expects something else.
pub(crate) fn ask(
    stream: &TcpStream,
    link: LinkSpec,
    secret: &[u8; 16],
    deadline: Deadline,
) -> Result<(), ChannelError> {
    let mut hello = MAGIC.to_vec();
    hello.extend(secret);
    hello.extend(encode(link));
    let mut answer = [0; 8 + WORDS * 8];
    write(stream, &hello, deadline)
        .and_then(|()| read(stream, &mut answer, deadline))
        .map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => ChannelError::PeerGone {
                how: "it hung up, as it does where the secret is not the offer's",
            },
            ErrorKind::TimedOut => ChannelError::PeerGone {
                how: "it did not answer in time",
            },
            _ => ChannelError::Io {
                what: "greeting the peer over TCP".to_owned(),
                source: error,
            },
        })?;
    let (magic, theirs) = answer.split_at(8);
    same("magic", word(magic), u64::from_le_bytes(MAGIC))?;
    let ours = encode(link);
    for ((field, theirs), ours) in FIELDS.iter().zip(theirs.chunks(8)).zip(ours.chunks(8)) {
        same(field, word(theirs), word(ours))?;
    }
    Ok(())
}

fn encode(link: LinkSpec) -> [u8; WORDS * 8] {
    let channel = |spec: ChannelSpec| {
        [
            u64::from(spec.element.code()),
            spec.row_len as u64,
            spec.slot_rows as u64,
            spec.slots as u64,
        ]
    };
    let words = [VERSION]
        .into_iter()
        .chain(channel(link.inbound))
        .chain(channel(link.outbound));
    let mut bytes = [0; WORDS * 8];
    for (place, word) in bytes.chunks_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("words have 8 bytes"))
}

/// Fills `bytes` before the deadline.
fn read(mut stream: &TcpStream, bytes: &mut [u8], deadline: Deadline) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        stream.set_read_timeout(Some(some_time(deadline)?))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if is_not_yet(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes` before the deadline.
fn write(mut stream: &TcpStream, bytes: &[u8], deadline: Deadline) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        stream.set_write_timeout(Some(some_time(deadline)?))?;
        match stream.write(&bytes[written..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(more) => written += more,
            Err(error) if is_not_yet(&error) => {}
            Err(error) => return Err(error),
        }
    }
    stream.set_write_timeout(None)
}

/// What is left, at least a millisecond, as the system takes 0 for ever.
pub(crate) fn some_time(deadline: Deadline) -> io::Result<Duration> {
    let left = deadline.left();
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    // A day is enough for one call; some systems refuse more than they can count.
    Ok(left.clamp(Duration::from_millis(1), Duration::from_secs(86400)))
}

/// The time of one call is over, or a signal came.
pub(crate) fn is_not_yet(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
