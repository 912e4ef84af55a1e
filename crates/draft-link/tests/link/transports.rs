//! The same talk over every transport of this machine.

use std::thread;
use std::time::Duration;

use draft_link::{DraftEnd, LinkError, TargetEnd, link_spec};
use tensor_channel::{ChannelError, OfferOptions, Transport, attach, available, offer};

use crate::{PATIENCE, SHAPE, talk};

fn ends(transport: Transport) -> (TargetEnd, DraftEnd) {
    let options = OfferOptions {
        instance: format!("draft-link-test-{}", std::process::id()),
        tcp_bind: "127.0.0.1:0".to_owned(),
        tcp_host: None,
    };
    let spec = link_spec(&SHAPE);
    let offer = offer(transport, spec, &options, None).unwrap();
    let descriptor = offer.descriptor().clone();
    let draft = thread::spawn(move || offer.accept(PATIENCE).unwrap());
    let target = attach(&descriptor, spec, PATIENCE, None).unwrap();
    (
        TargetEnd::new(target, SHAPE).unwrap(),
        DraftEnd::new(draft.join().unwrap(), SHAPE).unwrap(),
    )
}

#[test]
fn a_round_goes_over_every_transport() {
    for transport in available(None) {
        let (mut target, mut draft) = ends(transport);
        talk::check_round(&mut target, &mut draft);
    }
}

#[test]
fn an_end_that_goes_is_an_error_at_the_other() {
    let is_gone = |error: LinkError| {
        let gone = matches!(error, LinkError::Channel(ChannelError::PeerGone { .. }));
        assert!(gone, "{error}");
    };
    for transport in available(None) {
        let (mut target, draft) = ends(transport);
        drop(draft);
        is_gone(target.receive(PATIENCE).unwrap_err());
        let (target, mut draft) = ends(transport);
        drop(target);
        is_gone(talk::hear(&mut draft, PATIENCE).unwrap_err());
    }
}

#[test]
fn nobody_speaks_and_nobody_waits_longer_than_told() {
    for transport in available(None) {
        let (mut target, mut draft) = ends(transport);
        let patience = Duration::from_millis(1);
        assert_eq!(target.receive(patience).unwrap(), None);
        assert_eq!(talk::hear(&mut draft, patience).unwrap(), None);
    }
}
