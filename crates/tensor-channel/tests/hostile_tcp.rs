//! A peer that speaks nonsense over TCP: errors, never a panic, and the offer stands.

#![allow(clippy::unwrap_used)]

mod pair;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use pair::{LINK, WATCHDOG, joined, offered};
use tensor_channel::{ChannelError, Descriptor, Ends, Offer, Transport};

/// The words of a frame's head.
type Head = [u64; 8];

/// A message of one row that is as it should be: magic and flags, sequence, read count, bytes, tag.
fn right() -> Head {
    let magic = u64::from(u32::from_le_bytes(*b"tfrm"));
    let row = LINK.inbound.row_bytes() as u64;
    [magic | 1 << 32, 0, 0, row, 1, 2, 3, 4]
}

fn bytes(head: Head) -> Vec<u8> {
    let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(64 + LINK.inbound.row_bytes(), 7);
    bytes
}

fn address(offer: &Offer) -> (String, [u8; 16]) {
    let Descriptor::Tcp { address, secret } = offer.descriptor() else {
        panic!("not a socket");
    };
    (address.clone(), *secret)
}

/// What the attaching side says first, written down a second time.
fn hello(secret: [u8; 16]) -> Vec<u8> {
    let mut hello = b"tandemtc".to_vec();
    hello.extend(secret);
    let words: [u64; 9] = [1, 1, 5, 3, 2, 2, 7, 4, 3];
    hello.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    hello
}

/// A link whose other side is a bare socket.
fn bare() -> (Ends, TcpStream) {
    let offer = offered(Transport::Tcp, LINK);
    let (address, secret) = address(&offer);
    let greeting = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&hello(secret)).unwrap();
        let mut answer = [0; 80];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[8..], hello(secret)[24..]);
        stream
    });
    let ends = offer.accept(WATCHDOG).unwrap();
    (ends, greeting.join().unwrap())
}

/// What the receiver says at the end of what it gets.
fn received(mut ends: Ends) -> (usize, ChannelError) {
    let mut room = vec![0; LINK.inbound.slot_bytes()];
    let mut messages = 0;
    loop {
        match ends.receiver.receive(&mut room, WATCHDOG) {
            Ok(Some((_, bytes))) => {
                assert!(bytes <= room.len());
                messages += 1;
            }
            Ok(None) => panic!("nothing before the watchdog"),
            Err(error) => return (messages, error),
        }
    }
}

#[test]
fn a_right_frame_is_right() {
    let (ends, mut stream) = bare();
    stream.write_all(&bytes(right())).unwrap();
    drop(stream);
    let (messages, error) = received(ends);
    assert_eq!(messages, 1);
    assert!(matches!(error, ChannelError::PeerGone { .. }), "{error}");
}

#[test]
fn frames_that_cannot_be_are_named() {
    let row = LINK.inbound.row_bytes() as u64;
    let rows: [(usize, u64, &str); 8] = [
        (0, 0, "frame magic"),
        (0, right()[0] | 1 << 40, "frame flags"),
        (1, 1, "sequence"),
        (1, u64::MAX, "sequence"),
        (2, 1, "read count"),
        (3, row + 1, "payload bytes"),
        (3, 4 * row, "payload bytes"),
        (3, u64::MAX, "payload bytes"),
    ];
    for (word, value, name) in rows {
        let (ends, mut stream) = bare();
        let mut head = right();
        head[word] = value;
        stream.write_all(&bytes(head)).unwrap();
        let (messages, error) = received(ends);
        assert_eq!(messages, 0);
        assert!(
            matches!(error, ChannelError::Damaged { field, .. } if field == name),
            "{name}: {error}"
        );
    }
}

#[test]
fn more_messages_than_slots_are_refused() {
    let (ends, mut stream) = bare();
    for sequence in 0..=LINK.inbound.slots as u64 {
        let mut head = right();
        head[1] = sequence;
        stream.write_all(&bytes(head)).unwrap();
    }
    // Nothing is received before the last one was refused, which shows as the end of the stream.
    let mut sink = Vec::new();
    stream.read_to_end(&mut sink).unwrap();
    let (messages, error) = received(ends);
    assert_eq!(messages, LINK.inbound.slots);
    assert!(
        matches!(
            error,
            ChannelError::Damaged {
                field: "messages on their way",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_frame_that_stops_in_the_middle_is_a_peer_that_is_gone() {
    let whole = bytes(right());
    for length in [1, 63, 64, whole.len() - 1] {
        let (ends, mut stream) = bare();
        stream.write_all(&whole[..length]).unwrap();
        drop(stream);
        let (messages, error) = received(ends);
        assert_eq!(messages, 0);
        assert!(matches!(error, ChannelError::PeerGone { .. }), "{error}");
    }
}

#[test]
fn strangers_do_not_spoil_an_offer() {
    let offer = offered(Transport::Tcp, LINK);
    let (address, secret) = address(&offer);
    let say = |what: &[u8]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(what).unwrap();
        stream
    };
    // The right magic with a wrong secret, a web browser, and one that hangs up at once.
    let mut wrong = secret;
    wrong[0] ^= 1;
    let strangers = [
        say(&hello(wrong)),
        say(b"GET / HTTP/1.1\r\nHost: tandem.example\r\n\r\n"),
    ];
    drop(say(b""));
    let _both = joined(offer, LINK);
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(WATCHDOG)).unwrap();
        let mut heard = Vec::new();
        // A reset is as good as an end.
        let _ = stranger.read_to_end(&mut heard);
        assert!(heard.is_empty(), "a stranger gets no answer");
    }
}

#[test]
fn a_silent_stranger_keeps_the_peer_out_for_a_second_only() {
    let offer = offered(Transport::Tcp, LINK);
    let silent = TcpStream::connect(address(&offer).0).unwrap();
    let _both = joined(offer, LINK);
    drop(silent);
}

#[test]
fn a_host_to_advertise_stands_in_the_descriptor() {
    let rows = [
        ("gpu-1", "gpu-1:"),
        ("10.0.0.7", "10.0.0.7:"),
        ("fd00::7", "[fd00::7]:"),
        ("[fd00::7]", "[fd00::7]:"),
    ];
    for (host, expected) in rows {
        let options = tensor_channel::OfferOptions {
            instance: pair::instance("host"),
            tcp_bind: "127.0.0.1:0".to_owned(),
            tcp_host: Some(host.to_owned()),
        };
        let offer = tensor_channel::offer(Transport::Tcp, LINK, &options, None).unwrap();
        let (address, _) = address(&offer);
        assert!(address.starts_with(expected), "{address}");
    }
}
