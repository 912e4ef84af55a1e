//! A peer that writes nonsense into shared memory: errors, never a panic, never a call that does not come back.

#![allow(clippy::unwrap_used)]

mod pair;
mod raw;

use std::fs::File;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use pair::{LINK, WATCHDOG, joined, message, offered};
use raw::Raw;
use tensor_channel::{
    ChannelError, ChannelSpec, Descriptor, Ends, Segments, Tag, TensorReceiver, TensorSender,
    Transport, attach,
};

// Where the fields lie; the crate asserts the same at compile time.
const MAGIC: usize = 0;
const VERSION: usize = 8;
const ELEMENT: usize = 12;
const GENERATION: usize = 16;
const ROW_LEN: usize = 24;
const SLOT_ROWS: usize = 32;
const SLOTS: usize = 40;
const PAYLOADS_AT: usize = 48;
const WRITTEN: usize = 128;
const READ: usize = 256;
const HEADER_BYTES: usize = 896;
const SLOT_HEADER_BYTES: usize = 64;
const SLOT_BYTES: usize = 8;

/// Both sides of a link, and the hostile view of the segment from the first to the second.
fn exposed() -> (Ends, Ends, Raw) {
    let offer = offered(Transport::Shm, LINK);
    let Descriptor::Shm(Segments { outbound, .. }) = offer.descriptor() else {
        panic!("not a segment");
    };
    let raw = Raw::open(outbound);
    let (ours, theirs) = joined(offer, LINK);
    (ours, theirs, raw)
}

/// A generator of numbers: xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }
}

#[test]
fn every_field_that_says_what_a_segment_is_is_checked() {
    let rows = [
        (MAGIC, "magic"),
        (VERSION, "version"),
        (ELEMENT, "element type"),
        (GENERATION, "generation"),
        (ROW_LEN, "row_len"),
        (SLOT_ROWS, "slot_rows"),
        (SLOTS, "slots"),
        (PAYLOADS_AT, "place of payloads"),
    ];
    for (offset, name) in rows {
        let offer = offered(Transport::Shm, LINK);
        let Descriptor::Shm(Segments { inbound, .. }) = offer.descriptor() else {
            panic!("not a segment");
        };
        let word = offset / 4;
        let raw = Raw::open(inbound);
        raw.word(word).fetch_xor(0x10, Ordering::SeqCst);
        let error = attach(offer.descriptor(), LINK, WATCHDOG, None).unwrap_err();
        assert!(
            matches!(error, ChannelError::Damaged { field, .. } if field == name),
            "{name}: {error}"
        );
    }
}

#[test]
fn segments_of_another_size_are_refused() {
    // Never nothing: this process's own side of the offer still touches the first page.
    for bytes in [1, HEADER_BYTES as u64 - 1, HEADER_BYTES as u64, 1 << 20] {
        let offer = offered(Transport::Shm, LINK);
        let Descriptor::Shm(Segments { inbound, .. }) = offer.descriptor() else {
            panic!("not a segment");
        };
        let path = format!("/dev/shm/{inbound}");
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(bytes).unwrap();
        let result = attach(offer.descriptor(), LINK, WATCHDOG, None);
        assert_damaged(result, "segment bytes");
    }
}

fn send(ends: &mut Ends) -> Result<(), ChannelError> {
    let (tag, payload) = message(LINK.outbound, 3);
    ends.sender.send(tag, &payload, Duration::ZERO)
}

fn receive(ends: &mut Ends) -> Result<Option<(Tag, usize)>, ChannelError> {
    let mut room = vec![0; LINK.outbound.slot_bytes()];
    ends.receiver.receive(&mut room, Duration::ZERO)
}

fn assert_damaged<T: std::fmt::Debug>(result: Result<T, ChannelError>, name: &str) {
    assert!(
        matches!(result, Err(ChannelError::Damaged { field, .. }) if field == name),
        "{name}: {result:?}"
    );
}

#[test]
fn cursors_that_cannot_be_are_named() {
    let slots = LINK.outbound.slots as u64;
    for written in [slots + 2, u64::MAX, 0] {
        let (mut ours, mut theirs, raw) = exposed();
        send(&mut ours).unwrap();
        receive(&mut theirs).unwrap();
        raw.write(WRITTEN, written);
        assert_damaged(receive(&mut theirs), "written count");
    }
    for read in [slots + 1, u64::MAX] {
        let (mut ours, _theirs, raw) = exposed();
        for _ in 0..slots {
            send(&mut ours).unwrap();
        }
        raw.write(READ, read);
        assert_damaged(send(&mut ours), "read count");
    }
}

#[test]
fn slots_that_cannot_be_are_named() {
    let (slot_bytes, row) = (LINK.outbound.slot_bytes(), LINK.outbound.row_bytes());
    let rows = [
        (0, 0, "slot sequence"),
        (0, 2, "slot sequence"),
        (0, u64::MAX, "slot sequence"),
        (SLOT_BYTES, (slot_bytes + row) as u64, "payload bytes"),
        (SLOT_BYTES, row as u64 + 1, "payload bytes"),
        (SLOT_BYTES, u64::MAX, "payload bytes"),
    ];
    for (offset, value, name) in rows {
        let (mut ours, mut theirs, raw) = exposed();
        send(&mut ours).unwrap();
        raw.write(HEADER_BYTES + offset, value);
        assert_damaged(receive(&mut theirs), name);
    }
}

/// A result that a damaged channel may give; true: it still works.
fn is_still_fine<T>(result: Result<T, ChannelError>) -> bool {
    match result {
        Ok(_) | Err(ChannelError::Full { .. }) => true,
        Err(ChannelError::Damaged { .. } | ChannelError::PeerGone { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn no_word_of_header_or_slot_does_harm() {
    let stride = SLOT_HEADER_BYTES + LINK.outbound.slot_bytes().next_multiple_of(64);
    let slots = (0..LINK.outbound.slots).map(|slot| HEADER_BYTES + slot * stride);
    let header = (0..HEADER_BYTES).step_by(4);
    let places = header.chain(slots.flat_map(|slot| (slot..slot + SLOT_HEADER_BYTES).step_by(4)));
    for place in places {
        for value in [0, 1, 0x7fff_ffff, u32::MAX] {
            let (mut ours, mut theirs, raw) = exposed();
            send(&mut ours).unwrap();
            raw.word(place / 4).store(value, Ordering::SeqCst);
            for _ in 0..=LINK.outbound.slots {
                is_still_fine(receive(&mut theirs));
                is_still_fine(send(&mut ours));
            }
        }
    }
}

/// Sends until something is wrong or time is over.
fn keep_sending(sender: &mut dyn TensorSender, spec: ChannelSpec, end: Instant) {
    for number in 0.. {
        let (tag, payload) = message(spec, number);
        let result = sender.send(tag, &payload, Duration::from_millis(1));
        if !is_still_fine(result) || Instant::now() > end {
            return;
        }
    }
}

fn keep_receiving(receiver: &mut dyn TensorReceiver, spec: ChannelSpec, end: Instant) {
    let mut room = vec![0; spec.slot_bytes()];
    loop {
        let result = receiver.receive(&mut room, Duration::from_millis(1));
        if let Ok(Some((_, bytes))) = &result {
            assert!(*bytes <= spec.slot_bytes() && bytes.is_multiple_of(spec.row_bytes()));
        }
        if !is_still_fine(result) || Instant::now() > end {
            return;
        }
    }
}

#[test]
fn random_words_under_a_live_reader_and_writer_do_no_harm() {
    for seed in 1..=40 {
        let mut random = Random(seed);
        let (mut ours, mut theirs, raw) = exposed();
        let end = Instant::now() + Duration::from_millis(10);
        thread::scope(|scope| {
            scope.spawn(|| keep_sending(&mut *ours.sender, LINK.outbound, end));
            scope.spawn(|| keep_receiving(&mut *theirs.receiver, LINK.outbound, end));
            while Instant::now() < end {
                let word = raw.word(random.below(raw.words()));
                // Now a random number, now one bit, which is more often almost right.
                if random.below(2) == 0 {
                    word.store(random.next() as u32, Ordering::Relaxed);
                } else {
                    word.fetch_xor(1 << random.below(32), Ordering::Relaxed);
                }
                (0..random.below(2000)).for_each(|_| std::hint::spin_loop());
            }
        });
        let late = end.elapsed();
        assert!(late < WATCHDOG, "seed {seed}: {late:?} late");
    }
}
