//! Two real processes: what one sees when the other is killed or stopped, and what they leave behind.

#![allow(clippy::unwrap_used)]

mod pair;
mod peer;
mod raw;

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pair::{LINK, WATCHDOG, instance, message, offered, until};
use peer::Peer;
use raw::Raw;
use rustix::process::Signal;
use tensor_channel::{
    ChannelError, Descriptor, Ends, OfferOptions, Tag, Transport, attach, offer, remove_left_behind,
};

/// How soon a death must be noticed.
const NOTICE: Duration = Duration::from_millis(100);

/// A machine that is busy with other things may be late in one try, not in all.
const TRIES: usize = 5;

/// The other process of these tests; nothing without a task.
#[test]
#[ignore = "the other tests start it"]
fn peer() {
    let task = peer::task();
    match task.split_first() {
        Some((task, descriptor)) if task == "idle" => idle(descriptor),
        Some((task, descriptor)) if task == "echo" => echo(descriptor),
        Some((task, [instance])) if task == "offer" => only_offer(instance),
        _ => {}
    }
}

/// Attaches, sends two messages and waits.
fn idle(descriptor: &[String]) {
    let mut ends = attach(&peer::read(descriptor), LINK, WATCHDOG, None).unwrap();
    for number in 0..2 {
        let (tag, payload) = message(LINK.inbound, number);
        ends.sender.send(tag, &payload, WATCHDOG).unwrap();
    }
    peer::say("attached");
    peer::wait_for_end();
}

/// Sends back the tags that it gets until the other side closes; then nothing may be left open.
fn echo(descriptor: &[String]) {
    let open = || {
        let count = |directory| fs::read_dir(directory).unwrap().count();
        (count("/proc/self/fd"), count("/proc/self/task"))
    };
    let before = open();
    {
        let mut ends = attach(&peer::read(descriptor), LINK, WATCHDOG, None).unwrap();
        let mut room = vec![0; LINK.outbound.slot_bytes()];
        loop {
            match ends.receiver.receive(&mut room, WATCHDOG) {
                Ok(Some((tag, _))) => ends.sender.send(tag, &[], WATCHDOG).unwrap(),
                Ok(None) => panic!("nothing came before the watchdog"),
                Err(ChannelError::PeerGone { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        assert_ne!(open(), before, "the count counts");
    }
    until("closing every file and ending every thread", || {
        open() == before
    });
}

/// Makes an offer that nobody takes.
fn only_offer(instance: &str) {
    let options = OfferOptions {
        instance: instance.to_owned(),
        tcp_bind: String::new(),
        tcp_host: None,
    };
    let _offer = offer(Transport::Shm, LINK, &options, None).unwrap();
    peer::say("offered");
    peer::wait_for_end();
}

/// A link to an idle process.
fn idling(transport: Transport) -> (Ends, Peer) {
    let offer = offered(transport, LINK);
    let mut peer = Peer::start(&format!("idle {}", peer::write(offer.descriptor())));
    let ends = offer.accept(WATCHDOG).unwrap();
    assert_eq!(peer.hear(), "attached");
    (ends, peer)
}

fn is_gone<T>(result: &Result<T, ChannelError>) -> bool {
    matches!(result, Err(ChannelError::PeerGone { .. }))
}

/// Receives the two messages of an idle peer.
fn receive_both(ends: &mut Ends) {
    let mut room = vec![0; LINK.inbound.slot_bytes()];
    for number in 0..2 {
        let (tag, payload) = message(LINK.inbound, number);
        let received = ends.receiver.receive(&mut room, WATCHDOG).unwrap();
        assert_eq!(received, Some((tag, payload.len())));
        assert_eq!(room[..payload.len()], payload);
    }
}

/// A link to an idle process that seems to be in another pid namespace, where a pidfd cannot watch it.
fn linked_across_namespaces() -> (Ends, Peer) {
    // Where the namespaces of the peer's two ends stand in the headers.
    const WRITER: usize = 640 + 8;
    const READER: usize = 768 + 8;
    // Where the peer says that its lock is a sign of life; it takes it at a beat after ours is given up.
    const LOCKED: usize = 640 + 24;
    let offer = offered(Transport::Shm, LINK);
    let Descriptor::Shm(segments) = offer.descriptor() else {
        panic!("not a segment");
    };
    let (inbound, outbound) = (Raw::open(&segments.inbound), Raw::open(&segments.outbound));
    let mut peer = Peer::start(&format!("idle {}", peer::write(offer.descriptor())));
    assert_eq!(peer.hear(), "attached");
    inbound.write(WRITER, 1);
    outbound.write(READER, 1);
    let ends = offer.accept(WATCHDOG).unwrap();
    until("the peer locks its segment", || {
        inbound.word(LOCKED / 4).load(Ordering::SeqCst) != 0
    });
    (ends, peer)
}

fn a_killed_peer_is_noticed_at_once(link: impl Fn() -> (Ends, Peer)) {
    let mut times = Vec::new();
    for _ in 0..TRIES {
        let (mut ends, mut peer) = link();
        receive_both(&mut ends);
        let mut room = vec![0; LINK.inbound.slot_bytes()];
        let waiting = std::thread::spawn(move || {
            let result = ends.receiver.receive(&mut room, WATCHDOG);
            (Instant::now(), result, ends)
        });
        let killed = Instant::now();
        peer.kill();
        let (noticed, result, mut ends) = waiting.join().unwrap();
        assert!(is_gone(&result), "{result:?}");
        // The other direction has its own eyes.
        until("the sender notices", || {
            let result = ends.sender.send(Tag::default(), &[], Duration::ZERO);
            is_gone(&result)
        });
        times.push(noticed.duration_since(killed));
        if times.last().is_some_and(|time| *time < NOTICE) {
            return;
        }
    }
    panic!("noticed after {times:?}");
}

#[test]
fn a_killed_peer_is_noticed_at_once_over_shm() {
    a_killed_peer_is_noticed_at_once(|| idling(Transport::Shm));
}

#[test]
fn a_killed_peer_is_noticed_at_once_in_another_pid_namespace() {
    a_killed_peer_is_noticed_at_once(linked_across_namespaces);
}

#[test]
fn a_killed_peer_is_noticed_at_once_over_tcp() {
    a_killed_peer_is_noticed_at_once(|| idling(Transport::Tcp));
}

#[test]
fn a_killed_peer_wakes_a_waiting_sender() {
    let (mut ends, mut peer) = idling(Transport::Shm);
    let waiting = std::thread::spawn(move || {
        loop {
            ends.sender.send(Tag::default(), &[], WATCHDOG)?;
        }
    });
    peer.kill();
    let result: Result<(), ChannelError> = waiting.join().unwrap();
    assert!(is_gone(&result), "{result:?}");
}

#[test]
fn what_a_killed_peer_had_sent_is_still_received() {
    let (mut ends, mut peer) = idling(Transport::Shm);
    peer.kill();
    until("the sender notices", || {
        is_gone(&ends.sender.send(Tag::default(), &[], Duration::ZERO))
    });
    receive_both(&mut ends);
    let mut room = vec![0; LINK.inbound.slot_bytes()];
    let result = ends.receiver.receive(&mut room, WATCHDOG);
    assert!(is_gone(&result), "{result:?}");
}

/// Calls with little patience come back from a peer that is stopped, if without success.
fn a_stopped_peer_hangs_no_call(transport: Transport) -> (Ends, Peer) {
    let (mut ends, peer) = idling(transport);
    receive_both(&mut ends);
    peer.signal(Signal::STOP);
    let mut room = vec![0; LINK.inbound.slot_bytes()];
    let patience = Duration::from_millis(50);
    let start = Instant::now();
    let received = ends.receiver.receive(&mut room, patience);
    assert!(
        is_gone(&received) || matches!(received, Ok(None)),
        "{received:?}"
    );
    for _ in 0..=LINK.outbound.slots {
        let sent = ends.sender.send(Tag::default(), &[], patience);
        assert!(
            is_gone(&sent) || matches!(sent, Ok(()) | Err(ChannelError::Full { .. })),
            "{sent:?}"
        );
    }
    assert!(start.elapsed() < WATCHDOG);
    (ends, peer)
}

fn a_stopped_peer_counts_as_gone(transport: Transport) {
    let (mut ends, peer) = a_stopped_peer_hangs_no_call(transport);
    let mut room = vec![0; LINK.inbound.slot_bytes()];
    let result = ends.receiver.receive(&mut room, WATCHDOG);
    assert!(is_gone(&result), "{result:?}");
    let result = ends.sender.send(Tag::default(), &[], WATCHDOG);
    assert!(is_gone(&result), "{result:?}");
    // Nor does closing hang.
    drop(ends);
    drop(peer);
}

#[test]
fn a_stopped_peer_counts_as_gone_over_shm() {
    a_stopped_peer_counts_as_gone(Transport::Shm);
}

#[test]
fn a_stopped_peer_counts_as_gone_over_tcp() {
    a_stopped_peer_counts_as_gone(Transport::Tcp);
}

/// This instance's segments that have a name.
fn segments(instance: &str) -> Vec<String> {
    let prefix = format!("tandem-{}-{instance}-", rustix::process::getuid().as_raw());
    let mut names: Vec<String> = fs::read_dir("/dev/shm")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(&prefix))
        .collect();
    names.sort();
    names
}

#[test]
fn segments_of_the_dead_are_removed_and_those_of_the_living_stay() {
    let family = instance("family");
    let (dead, living) = (format!("{family}.dead"), format!("{family}.living"));
    let mut killed = Peer::start(&format!("offer {dead}"));
    let mut alive = Peer::start(&format!("offer {living}"));
    assert_eq!(killed.hear(), "offered");
    assert_eq!(alive.hear(), "offered");
    let own = format!("{family}.own");
    let options = OfferOptions {
        instance: own.clone(),
        tcp_bind: String::new(),
        tcp_host: None,
    };
    let offer = offer(Transport::Shm, LINK, &options, None).unwrap();
    killed.kill();
    drop(killed);
    let left = segments(&dead);
    assert_eq!(left.len(), 2);
    let mut removed = remove_left_behind(&family).unwrap();
    removed.sort();
    assert_eq!(removed, left);
    assert_eq!(segments(&dead).len(), 0);
    assert_eq!(segments(&living).len(), 2);
    assert_eq!(segments(&own).len(), 2);
    alive.finish();
    drop(offer);
    assert!(segments(&living).is_empty() && segments(&own).is_empty());
}

fn normal_use_leaves_nothing(transport: Transport) {
    let name = instance("normal");
    let options = OfferOptions {
        instance: name.clone(),
        tcp_bind: "127.0.0.1:0".to_owned(),
        tcp_host: None,
    };
    let offer = offer(transport, LINK, &options, None).unwrap();
    let peer = Peer::start(&format!("echo {}", peer::write(offer.descriptor())));
    let mut ends = offer.accept(WATCHDOG).unwrap();
    assert_eq!(
        segments(&name),
        [""; 0],
        "nothing has a name while it is in use"
    );
    let mut room = vec![0; LINK.inbound.slot_bytes()];
    for number in 0..500 {
        let (tag, payload) = message(LINK.outbound, number);
        ends.sender.send(tag, &payload, WATCHDOG).unwrap();
        let received = ends.receiver.receive(&mut room, WATCHDOG).unwrap();
        assert_eq!(received, Some((tag, 0)));
    }
    drop(ends);
    peer.finish();
    assert_eq!(segments(&name), [""; 0]);
}

#[test]
fn normal_use_leaves_nothing_over_shm() {
    normal_use_leaves_nothing(Transport::Shm);
}

#[test]
fn normal_use_leaves_nothing_over_tcp() {
    normal_use_leaves_nothing(Transport::Tcp);
}
