//! Two sides of a link in one test.
#![allow(dead_code, reason = "each test program uses its part")]

use std::thread;
use std::time::{Duration, Instant};

use tensor_channel::{
    ChannelSpec, ElementType, Ends, LinkSpec, Offer, OfferOptions, Tag, Transport, attach, offer,
};

/// Longer than anything takes, so that only what never happens fails.
pub const WATCHDOG: Duration = Duration::from_secs(20);

/// Small sizes that are all different.
pub const LINK: LinkSpec = LinkSpec {
    inbound: ChannelSpec {
        element: ElementType::F32,
        row_len: 5,
        slot_rows: 3,
        slots: 2,
    },
    outbound: ChannelSpec {
        element: ElementType::U8,
        row_len: 7,
        slot_rows: 4,
        slots: 3,
    },
};

/// A name of this process's own: other test programs have segments as well.
pub fn instance(test: &str) -> String {
    format!("test-{}-{test}", std::process::id())
}

pub fn offered(transport: Transport, link: LinkSpec) -> Offer {
    let options = OfferOptions {
        instance: instance("pair"),
        tcp_bind: "127.0.0.1:0".to_owned(),
        tcp_host: None,
    };
    offer(transport, link, &options, None).expect("the machine has the transport")
}

/// The offering and the attaching side.
pub fn joined(offer: Offer, link: LinkSpec) -> (Ends, Ends) {
    let descriptor = offer.descriptor().clone();
    let attaching = thread::spawn(move || attach(&descriptor, link, WATCHDOG, None));
    let offering = offer.accept(WATCHDOG).expect("the other side attaches");
    let attached = attaching.join().expect("attaching does not panic");
    (offering, attached.expect("the link is as expected"))
}

pub fn pair(transport: Transport) -> (Ends, Ends) {
    joined(offered(transport, LINK), LINK)
}

/// Message `number` of a channel: fewer or more rows, and bytes that tell it from its neighbours.
pub fn message(spec: ChannelSpec, number: u64) -> (Tag, Vec<u8>) {
    let rows = number as usize % (spec.slot_rows + 1);
    let bytes = (0..rows * spec.row_bytes())
        .map(|i| (number as usize * 31 + i) as u8)
        .collect();
    let tag = [number, !number, number << 32, number.wrapping_mul(0x9e37)];
    (Tag(tag), bytes)
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WATCHDOG, "{what} did not happen");
        thread::yield_now();
    }
}
