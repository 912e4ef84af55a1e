//! One list of tests over every transport.

#![allow(clippy::unwrap_used)]

mod pair;

use std::thread;
use std::time::{Duration, Instant};

use pair::{LINK, WATCHDOG, joined, message, offered, pair, until};
use tensor_channel::{
    ChannelError, ChannelSpec, Descriptor, ElementType, Ends, LinkSpec, Tag, TensorReceiver,
    TensorSender, Transport, attach,
};

/// Each test once per transport.
macro_rules! conformance {
    ($($test:ident),* $(,)?) => {
        mod shm {
            $(#[test] fn $test() { super::$test(super::Transport::Shm) })*
        }
        mod tcp {
            $(#[test] fn $test() { super::$test(super::Transport::Tcp) })*
        }
    };
}

conformance!(
    messages_arrive_whole_and_in_order,
    as_many_messages_as_slots_are_under_way_then_full,
    a_freed_slot_wakes_a_waiting_sender,
    nothing_is_none_after_patience,
    what_was_sent_before_closing_is_still_received,
    an_end_learns_that_its_other_end_closed,
    a_closing_peer_wakes_a_waiting_receiver,
    a_closing_peer_wakes_a_waiting_sender,
    payloads_that_do_not_fit_are_refused,
    other_channels_are_refused_and_the_offer_stands,
    an_impostor_is_refused_and_the_offer_stands,
    an_offer_is_taken_once,
    an_offer_ends_with_its_patience,
    impossible_sizes_are_refused,
);

fn receive(receiver: &mut dyn TensorReceiver) -> (Tag, Vec<u8>) {
    let mut room = vec![0; receiver.spec().slot_bytes()];
    let received = receiver.receive(&mut room, WATCHDOG).expect("a message");
    let (tag, bytes) = received.expect("a message before the watchdog");
    room.truncate(bytes);
    (tag, room)
}

fn assert_gone<T: std::fmt::Debug>(result: Result<T, ChannelError>) {
    assert!(
        matches!(result, Err(ChannelError::PeerGone { .. })),
        "{result:?}"
    );
}

fn send_all(mut sender: Box<dyn TensorSender>, messages: u64) {
    for number in 0..messages {
        let (tag, payload) = message(sender.spec(), number);
        sender.send(tag, &payload, WATCHDOG).unwrap();
    }
}

fn receive_all(mut receiver: Box<dyn TensorReceiver>, messages: u64) {
    for number in 0..messages {
        let expected = message(receiver.spec(), number);
        assert_eq!(receive(&mut *receiver), expected, "message {number}");
    }
}

fn messages_arrive_whole_and_in_order(transport: Transport) {
    let (offering, attached) = pair(transport);
    assert_eq!(offering.sender.spec(), LINK.outbound);
    assert_eq!(offering.receiver.spec(), LINK.inbound);
    assert_eq!(attached.sender.spec(), LINK.inbound);
    assert_eq!(attached.receiver.spec(), LINK.outbound);
    const MESSAGES: u64 = 2000;
    thread::scope(|scope| {
        scope.spawn(|| send_all(offering.sender, MESSAGES));
        scope.spawn(|| receive_all(offering.receiver, MESSAGES));
        scope.spawn(|| send_all(attached.sender, MESSAGES));
        scope.spawn(|| receive_all(attached.receiver, MESSAGES));
    });
}

fn as_many_messages_as_slots_are_under_way_then_full(transport: Transport) {
    let (mut ours, mut theirs) = pair(transport);
    let slots = LINK.outbound.slots as u64;
    for number in 0..slots {
        let (tag, payload) = message(LINK.outbound, number);
        ours.sender.send(tag, &payload, Duration::ZERO).unwrap();
    }
    let (tag, payload) = message(LINK.outbound, slots);
    for patience in [Duration::ZERO, Duration::from_millis(30)] {
        let start = Instant::now();
        let result = ours.sender.send(tag, &payload, patience);
        assert!(
            matches!(result, Err(ChannelError::Full { waited_ms }) if u128::from(waited_ms) == patience.as_millis()),
            "{result:?}"
        );
        assert!(start.elapsed() >= patience);
    }
    let expected = message(LINK.outbound, 0);
    assert_eq!(receive(&mut *theirs.receiver), expected);
    ours.sender.send(tag, &payload, WATCHDOG).unwrap();
    for number in 1..=slots {
        let expected = message(LINK.outbound, number);
        assert_eq!(receive(&mut *theirs.receiver), expected);
    }
}

fn a_freed_slot_wakes_a_waiting_sender(transport: Transport) {
    let (mut ours, mut theirs) = pair(transport);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..=LINK.outbound.slots as u64 {
                let (tag, payload) = message(LINK.outbound, number);
                ours.sender.send(tag, &payload, WATCHDOG).unwrap();
            }
        });
        for number in 0..=LINK.outbound.slots as u64 {
            let expected = message(LINK.outbound, number);
            assert_eq!(receive(&mut *theirs.receiver), expected);
        }
    });
}

fn nothing_is_none_after_patience(transport: Transport) {
    let (mut ours, _theirs) = pair(transport);
    let mut room = vec![0; LINK.inbound.slot_bytes()];
    for patience in [Duration::ZERO, Duration::from_millis(70)] {
        let start = Instant::now();
        assert_eq!(ours.receiver.receive(&mut room, patience).unwrap(), None);
        assert!(start.elapsed() >= patience);
    }
}

fn what_was_sent_before_closing_is_still_received(transport: Transport) {
    let (mut ours, mut theirs) = pair(transport);
    for number in 0..3 {
        let (tag, payload) = message(LINK.outbound, number);
        ours.sender.send(tag, &payload, WATCHDOG).unwrap();
    }
    // In the background: a side that closes may wait a moment for the other to take what is on its way.
    let closing = thread::spawn(move || drop(ours));
    for number in 0..3 {
        let expected = message(LINK.outbound, number);
        assert_eq!(receive(&mut *theirs.receiver), expected);
    }
    let mut room = vec![0; LINK.outbound.slot_bytes()];
    assert_gone(theirs.receiver.receive(&mut room, WATCHDOG));
    assert_gone(theirs.receiver.receive(&mut room, Duration::ZERO));
    closing.join().unwrap();
}

fn an_end_learns_that_its_other_end_closed(transport: Transport) {
    let (ours, mut theirs) = pair(transport);
    let Ends {
        mut sender,
        receiver,
    } = ours;
    drop(receiver);
    until("the sender learns that nobody reads", || {
        let (tag, payload) = message(LINK.inbound, 1);
        match theirs.sender.send(tag, &payload, Duration::ZERO) {
            Err(ChannelError::PeerGone { .. }) => true,
            Ok(()) | Err(ChannelError::Full { .. }) => false,
            Err(other) => panic!("{other}"),
        }
    });
    // The other direction still works.
    let (tag, payload) = message(LINK.outbound, 1);
    sender.send(tag, &payload, WATCHDOG).unwrap();
    assert_eq!(receive(&mut *theirs.receiver), (tag, payload));
    drop(sender);
    let mut room = vec![0; LINK.outbound.slot_bytes()];
    assert_gone(theirs.receiver.receive(&mut room, WATCHDOG));
}

fn a_closing_peer_wakes_a_waiting_receiver(transport: Transport) {
    let (mut ours, theirs) = pair(transport);
    let waiting = thread::spawn(move || {
        let mut room = vec![0; LINK.inbound.slot_bytes()];
        ours.receiver.receive(&mut room, WATCHDOG)
    });
    drop(theirs);
    assert_gone(waiting.join().unwrap());
}

fn a_closing_peer_wakes_a_waiting_sender(transport: Transport) {
    let (mut ours, theirs) = pair(transport);
    let waiting = thread::spawn(move || {
        loop {
            ours.sender.send(Tag::default(), &[], WATCHDOG)?;
        }
    });
    drop(theirs);
    assert_gone::<()>(waiting.join().unwrap());
}

fn payloads_that_do_not_fit_are_refused(transport: Transport) {
    let (mut ours, mut theirs) = pair(transport);
    let row = LINK.outbound.row_bytes();
    for bytes in [1, row + 1, LINK.outbound.slot_bytes() + row] {
        let result = ours.sender.send(Tag::default(), &vec![0; bytes], WATCHDOG);
        assert!(
            matches!(result, Err(ChannelError::Payload { got, .. }) if got == bytes),
            "{result:?}"
        );
    }
    let mut short = vec![0; LINK.outbound.slot_bytes() - 1];
    let result = theirs.receiver.receive(&mut short, WATCHDOG);
    assert!(
        matches!(result, Err(ChannelError::Payload { got, .. }) if got == short.len()),
        "{result:?}"
    );
    let (tag, payload) = message(LINK.outbound, 3);
    ours.sender.send(tag, &payload, WATCHDOG).unwrap();
    assert_eq!(receive(&mut *theirs.receiver), (tag, payload));
}

/// `LINK` with one field changed.
fn other_links() -> Vec<(&'static str, LinkSpec)> {
    type Change = fn(&mut ChannelSpec);
    let changes: [(&str, Change); 4] = [
        ("element type", |spec| {
            spec.element = match spec.element {
                ElementType::F32 => ElementType::U8,
                ElementType::U8 => ElementType::F32,
            }
        }),
        ("row_len", |spec| spec.row_len += 1),
        ("slot_rows", |spec| spec.slot_rows += 1),
        ("slots", |spec| spec.slots += 1),
    ];
    let mut links = Vec::new();
    for (field, change) in changes {
        let (mut inbound, mut outbound) = (LINK, LINK);
        change(&mut inbound.inbound);
        change(&mut outbound.outbound);
        links.extend([(field, inbound), (field, outbound)]);
    }
    links
}

/// While the offer waits, `tries` must not spoil it.
fn offer_survives(transport: Transport, tries: impl Fn(&Descriptor) + Send) {
    let offer = offered(transport, LINK);
    let descriptor = offer.descriptor().clone();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| offer.accept(WATCHDOG));
        tries(&descriptor);
        let mut theirs = attach(&descriptor, LINK, WATCHDOG, None).unwrap();
        let mut ours = accepting.join().unwrap().unwrap();
        let (tag, payload) = message(LINK.inbound, 3);
        theirs.sender.send(tag, &payload, WATCHDOG).unwrap();
        assert_eq!(receive(&mut *ours.receiver), (tag, payload));
    });
}

fn other_channels_are_refused_and_the_offer_stands(transport: Transport) {
    offer_survives(transport, |descriptor| {
        for (name, link) in other_links() {
            let error = attach(descriptor, link, WATCHDOG, None).unwrap_err();
            let ChannelError::Damaged { field, .. } = error else {
                panic!("{name}: {error}");
            };
            assert!(field.ends_with(name), "{name}: {field}");
        }
    });
}

fn an_impostor_is_refused_and_the_offer_stands(transport: Transport) {
    offer_survives(transport, |descriptor| {
        let mut other = descriptor.clone();
        match &mut other {
            Descriptor::Shm(segments) => segments.generation ^= 1,
            Descriptor::Device { .. } => panic!("no device here"),
            Descriptor::Tcp { secret, .. } => secret[15] ^= 1,
        }
        let error = attach(&other, LINK, WATCHDOG, None).unwrap_err();
        assert!(
            matches!(
                error,
                ChannelError::Damaged {
                    field: "generation",
                    ..
                } | ChannelError::PeerGone { .. }
            ),
            "{error}"
        );
    });
}

fn an_offer_is_taken_once(transport: Transport) {
    let offer = offered(transport, LINK);
    let descriptor = offer.descriptor().clone();
    let _both = joined(offer, LINK);
    let error = attach(&descriptor, LINK, WATCHDOG, None).unwrap_err();
    assert!(matches!(error, ChannelError::Io { .. }), "{error}");
}

fn an_offer_ends_with_its_patience(transport: Transport) {
    let start = Instant::now();
    let patience = Duration::from_millis(30);
    assert_gone(offered(transport, LINK).accept(patience));
    assert!(start.elapsed() >= patience);
}

fn impossible_sizes_are_refused(transport: Transport) {
    let options = tensor_channel::OfferOptions {
        instance: pair::instance("sizes"),
        tcp_bind: "127.0.0.1:0".to_owned(),
        tcp_host: None,
    };
    for (field, size) in [
        ("row_len", 0),
        ("slot_rows", 0),
        ("slots", 0),
        ("all", 1 << 40),
    ] {
        let mut link = LINK;
        match field {
            "row_len" => link.inbound.row_len = size,
            "slot_rows" => link.inbound.slot_rows = size,
            "slots" => link.inbound.slots = size,
            _ => (link.inbound.row_len, link.inbound.slots) = (size, size),
        }
        let error = tensor_channel::offer(transport, link, &options, None).unwrap_err();
        assert!(
            matches!(error, ChannelError::Invalid { .. }),
            "{field}: {error}"
        );
    }
}
