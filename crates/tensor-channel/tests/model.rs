//! Random operations on a ring in shared memory, against a queue.

mod pair;

use std::collections::VecDeque;
use std::time::Duration;

use pair::{joined, message, offered};
use proptest::prelude::*;
use tensor_channel::{ChannelError, ChannelSpec, ElementType, LinkSpec, Tag, Transport};

#[derive(Clone, Copy, Debug)]
enum Step {
    Send,
    Receive,
    SendTooLong,
    ReceiveInTooLittle,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => Just(Step::Send),
        8 => Just(Step::Receive),
        1 => Just(Step::SendTooLong),
        1 => Just(Step::ReceiveInTooLittle),
    ];
    proptest::collection::vec(step, 0..200)
}

fn specs() -> impl Strategy<Value = ChannelSpec> {
    let element = prop_oneof![Just(ElementType::F32), Just(ElementType::U8)];
    (element, 1..40_usize, 1..4_usize, 1..6_usize).prop_map(
        |(element, row_len, slot_rows, slots)| ChannelSpec {
            element,
            row_len,
            slot_rows,
            slots,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_ring_is_a_bounded_queue(spec in specs(), steps in steps()) {
        let link = LinkSpec { inbound: spec, outbound: spec };
        let (mut ours, mut theirs) = joined(offered(Transport::Shm, link), link);
        let mut queue: VecDeque<(Tag, Vec<u8>)> = VecDeque::new();
        let mut room = vec![0; spec.slot_bytes()];
        let mut number = 0;
        for step in steps {
            match step {
                Step::Send => {
                    let (tag, payload) = message(spec, number);
                    let sent = ours.sender.send(tag, &payload, Duration::ZERO);
                    if queue.len() == spec.slots {
                        prop_assert!(matches!(sent, Err(ChannelError::Full { .. })), "{:?}", sent);
                    } else {
                        prop_assert!(sent.is_ok());
                        queue.push_back((tag, payload));
                        number += 1;
                    }
                }
                Step::Receive => {
                    let received = theirs.receiver.receive(&mut room, Duration::ZERO);
                    let received = received.expect("nothing is wrong");
                    let received = received.map(|(tag, bytes)| (tag, room[..bytes].to_vec()));
                    prop_assert_eq!(received, queue.pop_front());
                }
                Step::SendTooLong => {
                    let payload = vec![0; spec.slot_bytes() + spec.row_bytes()];
                    let sent = ours.sender.send(Tag::default(), &payload, Duration::ZERO);
                    prop_assert!(matches!(sent, Err(ChannelError::Payload { .. })), "{:?}", sent);
                }
                Step::ReceiveInTooLittle => {
                    let little = &mut room[1..];
                    let received = theirs.receiver.receive(little, Duration::ZERO);
                    prop_assert!(matches!(received, Err(ChannelError::Payload { .. })), "{:?}", received);
                }
            }
        }
        drop(ours);
        for expected in queue {
            let received = theirs.receiver.receive(&mut room, Duration::ZERO);
            let (tag, bytes) = received.expect("nothing is wrong").expect("it was sent");
            prop_assert_eq!((tag, room[..bytes].to_vec()), expected);
        }
        let end = theirs.receiver.receive(&mut room, Duration::ZERO);
        prop_assert!(matches!(end, Err(ChannelError::PeerGone { .. })), "{:?}", end);
    }
}
