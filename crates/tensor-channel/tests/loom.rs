//! The ring and the doorbell in every order that two threads and the memory model allow.
//! `RUSTFLAGS="--cfg loom" cargo test -p tensor-channel --release --test loom --target-dir target/loom`
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use tensor_channel::deadline::Deadline;
use tensor_channel::ring::{ReaderCursor, Ring, Turn, WriterCursor};

/// A ring with slots that loom watches: two who touch one at a time are an error.
struct Channel {
    ring: Ring,
    slots: Vec<UnsafeCell<u64>>,
}

// SAFETY: what is to be shown; loom reports every access to a slot that is not ordered after the one before.
unsafe impl Sync for Channel {}

impl Channel {
    fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self {
            ring: Ring::default(),
            slots: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn slot(&self, number: u64) -> &UnsafeCell<u64> {
        &self.slots[number as usize % self.slots.len()]
    }
}

/// In a model nobody runs out of patience: a wake that is lost is a deadlock, which loom reports.
fn forever() -> Deadline {
    Deadline::after(Duration::MAX)
}

/// What a sender does; false: the reader has closed.
fn send(channel: &Channel, cursor: &mut WriterCursor, value: u64) -> bool {
    let look = || match cursor.claim(&channel.ring).unwrap() {
        Turn::Wait => None,
        turn => Some(turn),
    };
    let Some(Turn::Message(number)) = channel.ring.freed.wait(forever(), look) else {
        return false;
    };
    // SAFETY: loom checks that nobody else touches the slot.
    channel
        .slot(number)
        .with_mut(|slot| unsafe { *slot = value });
    cursor.publish(&channel.ring);
    true
}

/// What a receiver does. `None`: the writer has closed.
fn receive(channel: &Channel, cursor: &mut ReaderCursor) -> Option<u64> {
    let look = || match cursor.next(&channel.ring).unwrap() {
        Turn::Wait => None,
        turn => Some(turn),
    };
    let Some(Turn::Message(number)) = channel.ring.filled.wait(forever(), look) else {
        return None;
    };
    // SAFETY: loom checks that nobody else touches the slot.
    let value = channel.slot(number).with(|slot| unsafe { *slot });
    cursor.release(&channel.ring);
    Some(value)
}

/// Orders with up to so many forced switches between the threads: more find nothing new and take for ever.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Sends `messages` through `slots` slots, closes, and expects all of them and then the end.
fn all_arrive(slots: usize, messages: u64) {
    let channel = Channel::new(slots);
    let writing = {
        let channel = Arc::clone(&channel);
        thread::spawn(move || {
            let mut cursor = WriterCursor::new(slots as u64);
            for value in 0..messages {
                assert!(send(&channel, &mut cursor, value));
            }
            channel.ring.close_writer();
        })
    };
    let mut cursor = ReaderCursor::new(slots as u64);
    for value in 0..messages {
        assert_eq!(receive(&channel, &mut cursor), Some(value));
    }
    assert_eq!(receive(&channel, &mut cursor), None);
    writing.join().unwrap();
}

#[test]
fn one_slot_hands_messages_over_one_by_one() {
    check(3, || all_arrive(1, 2));
}

#[test]
fn two_slots_wrap_around() {
    check(3, || all_arrive(2, 3));
}

#[test]
fn a_writer_that_waits_learns_that_the_reader_closed() {
    check(3, || {
        let channel = Channel::new(1);
        let reading = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || channel.ring.close_reader())
        };
        let mut cursor = WriterCursor::new(1);
        while send(&channel, &mut cursor, 7) {}
        reading.join().unwrap();
    });
}

#[test]
fn a_third_thread_may_ring_as_well() {
    // As the thread does that watches over the peer: it says that the peer is gone, then rings.
    use loom::sync::atomic::{AtomicBool, Ordering};
    check(3, || {
        let channel = Channel::new(1);
        let gone = Arc::new(AtomicBool::new(false));
        let watching = {
            let (channel, gone) = (Arc::clone(&channel), Arc::clone(&gone));
            thread::spawn(move || {
                gone.store(true, Ordering::Release);
                channel.ring.filled.ring();
            })
        };
        let writing = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || {
                let mut cursor = WriterCursor::new(1);
                send(&channel, &mut cursor, 7)
            })
        };
        let mut cursor = ReaderCursor::new(1);
        let look = || match cursor.next(&channel.ring).unwrap() {
            Turn::Wait => gone.load(Ordering::Acquire).then_some(Turn::Closed),
            turn => Some(turn),
        };
        assert!(channel.ring.filled.wait(forever(), look).is_some());
        watching.join().unwrap();
        assert!(writing.join().unwrap());
    });
}
