//! The hot path makes no system call. The only test of its program: the count is the process's.

#![allow(clippy::unwrap_used)]

mod pair;

use std::time::Duration;

use pair::{LINK, message, pair};
use tensor_channel::{Transport, futex_calls};

#[test]
fn who_finds_something_does_not_sleep_and_who_is_awake_is_not_woken() {
    let (mut ours, mut theirs) = pair(Transport::Shm);
    let mut room = vec![0; LINK.outbound.slot_bytes()];
    let before = futex_calls();
    for number in 0..1000 {
        let (tag, payload) = message(LINK.outbound, number);
        ours.sender.send(tag, &payload, Duration::ZERO).unwrap();
        let received = theirs.receiver.receive(&mut room, Duration::MAX).unwrap();
        assert_eq!(received, Some((tag, payload.len())));
    }
    assert_eq!(futex_calls(), before);
    // The count counts: nothing comes, so the receiver sleeps.
    let patience = Duration::from_millis(5);
    assert_eq!(theirs.receiver.receive(&mut room, patience).unwrap(), None);
    assert!(futex_calls() > before);
}
