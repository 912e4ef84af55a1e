//! A channel inside the process, so that a test can say anything over it.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use draft_link::{LinkShape, link_spec};
use tensor_channel::{
    ChannelError, ChannelSpec, Ends, HostBytes, Place, Sink, Source, Tag, TensorReceiver,
    TensorSender,
};

#[derive(Debug)]
struct Sender(ChannelSpec, SyncSender<(Tag, Vec<u8>)>);

#[derive(Debug)]
struct Receiving(ChannelSpec, Receiver<(Tag, Vec<u8>)>);

impl TensorSender for Sender {
    fn spec(&self) -> ChannelSpec {
        self.0
    }

    fn send_from(
        &mut self,
        tag: Tag,
        payload: &dyn Source,
        _: Duration,
    ) -> Result<(), ChannelError> {
        let mut bytes = vec![0; payload.bytes()];
        payload.copy_to(Place::Host(HostBytes::of(&mut bytes)))?;
        self.1.try_send((tag, bytes)).map_err(|error| match error {
            TrySendError::Full(_) => ChannelError::Full { waited_ms: 0 },
            TrySendError::Disconnected(_) => ChannelError::PeerGone { how: "it left" },
        })
    }
}

impl TensorReceiver for Receiving {
    fn spec(&self) -> ChannelSpec {
        self.0
    }

    fn receive_into(
        &mut self,
        payload: &mut dyn Sink,
        _: Duration,
    ) -> Result<Option<(Tag, usize)>, ChannelError> {
        let Ok((tag, mut sent)) = self.1.try_recv() else {
            return Ok(None);
        };
        payload.copy_from(Place::Host(HostBytes::of(&mut sent)))?;
        Ok(Some((tag, sent.len())))
    }
}

/// The ends of target and draft.
pub fn pair(shape: &LinkShape) -> (Ends, Ends) {
    let spec = link_spec(shape);
    let (to_draft, at_draft) = channel(spec.inbound);
    let (to_target, at_target) = channel(spec.outbound);
    let ends = |sender, receiver| Ends { sender, receiver };
    (ends(to_draft, at_target), ends(to_target, at_draft))
}

fn channel(spec: ChannelSpec) -> (Box<dyn TensorSender>, Box<dyn TensorReceiver>) {
    let (sender, receiver) = sync_channel(spec.slots);
    (
        Box::new(Sender(spec, sender)),
        Box::new(Receiving(spec, receiver)),
    )
}
