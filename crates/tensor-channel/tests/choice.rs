//! Which transport is taken.

mod pair;

use pair::{LINK, instance};
use tensor_channel::{ChannelError, OfferOptions, Transport, available, choose, offer};

#[test]
fn the_best_common_transport_is_chosen() {
    use Transport::{CudaIpc, HipIpc, Shm, Tcp};
    let rows: [(&[Transport], &[Transport], Option<Transport>); 6] = [
        (&[Shm, Tcp], &[Shm, Tcp], Some(Shm)),
        (&[Tcp, Shm], &[Tcp, Shm, CudaIpc], Some(Shm)),
        (&[CudaIpc, Shm], &[HipIpc, Shm], Some(Shm)),
        (&[Shm, CudaIpc], &[Shm, CudaIpc], Some(CudaIpc)),
        (&[Shm], &[Tcp], None),
        (&[], &[Tcp], None),
    ];
    for (ours, theirs, expected) in rows {
        assert_eq!(choose(ours, theirs), expected, "{ours:?} and {theirs:?}");
    }
}

#[test]
fn this_machine_has_shared_memory_and_tcp() {
    assert_eq!(available(None), [Transport::Shm, Transport::Tcp]);
    let device = available(Some(Transport::HipIpc));
    assert_eq!(device[0], Transport::HipIpc);
    assert_eq!(device[1..], available(None));
}

#[test]
fn what_cannot_be_offered_is_named() {
    let options = |instance: String| OfferOptions {
        instance,
        tcp_bind: "nowhere".to_owned(),
        tcp_host: None,
    };
    let fine = options(instance("choice"));
    let error = offer(Transport::CudaIpc, LINK, &fine, None).unwrap_err();
    assert!(
        matches!(
            error,
            ChannelError::Unavailable {
                transport: Transport::CudaIpc,
                ..
            }
        ),
        "{error}"
    );
    let error = offer(Transport::Tcp, LINK, &fine, None).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
    for name in ["", "../x", "a/b", "a b", &"x".repeat(101)] {
        let error = offer(Transport::Shm, LINK, &options(name.to_owned()), None).unwrap_err();
        assert!(
            matches!(
                error,
                ChannelError::Invalid {
                    field: "instance",
                    ..
                }
            ),
            "{name}: {error}"
        );
    }
}
