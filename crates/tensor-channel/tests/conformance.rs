//! One list of tests over every transport.

use std::time::Duration;

use tensor_channel::{
    ChannelSpec, ElementType, Ends, LinkSpec, OfferOptions, Tag, Transport, attach, offer,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn spec() -> LinkSpec {
    let inbound = ChannelSpec {
        element: ElementType::F32,
        row_len: 5,
        slot_rows: 3,
        slots: 2,
    };
    LinkSpec {
        inbound,
        outbound: ChannelSpec {
            element: ElementType::U8,
            row_len: 7,
            slot_rows: 2,
            slots: 3,
        },
    }
}

fn link(t: Transport) -> (Ends, Ends) {
    let o = offer(
        t,
        spec(),
        &OfferOptions {
            instance: format!("conf-{}", std::process::id()),
            tcp_bind: "127.0.0.1:0".into(),
            tcp_host: None,
        },
    )
    .expect("links");
    let d = o.descriptor().clone();
    let b = std::thread::spawn(move || attach(&d, spec(), PATIENCE).expect("links"));
    let a = o.accept(PATIENCE).expect("links");
    (a, b.join().expect("links"))
}

#[test]
fn shm_smoke() {
    let (mut a, mut b) = link(Transport::Shm);
    for i in 0..10u64 {
        a.sender
            .send(Tag([i; 4]), &[i as u8; 14], PATIENCE)
            .unwrap();
        let mut room = [0; 14];
        let got = b.receiver.receive(&mut room, PATIENCE).unwrap();
        assert_eq!(got, Some((Tag([i; 4]), 14)));
        assert_eq!(room, [i as u8; 14]);
    }
    drop(a);
    println!("{:?}", b.receiver.receive(&mut [0; 14], PATIENCE));
    println!("{:?}", b.sender.send(Tag::default(), &[], PATIENCE));
}
