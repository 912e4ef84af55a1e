//! Drafts and their sessions.

use proto::draft::v1 as wire;
use tensor_channel::{Descriptor, MemoryHandle, Segments, Transport};

use crate::convert::memory::{memory_from_proto, memory_to_proto};
use crate::error::SessionError;
use crate::session::{DraftDescription, DraftSession, DraftStats};

/// A description as it goes over the wire.
#[must_use]
pub fn draft_to_proto(draft: &DraftDescription) -> wire::DraftDescription {
    wire::DraftDescription {
        name: draft.name.clone(),
        architecture: draft.architecture.clone(),
        block_size: draft.block_size,
        capture_layers: draft.capture_layers.clone(),
        hidden_size: draft.hidden_size,
        vocab_size: draft.vocab_size,
        max_top_k: draft.max_top_k,
        max_sequences: draft.max_sequences,
        context_length: draft.context_length,
        device: draft.device.clone(),
    }
}

pub(crate) fn draft_from_proto(draft: wire::DraftDescription) -> DraftDescription {
    DraftDescription {
        name: draft.name,
        architecture: draft.architecture,
        block_size: draft.block_size,
        capture_layers: draft.capture_layers,
        hidden_size: draft.hidden_size,
        vocab_size: draft.vocab_size,
        max_top_k: draft.max_top_k,
        max_sequences: draft.max_sequences,
        context_length: draft.context_length,
        device: draft.device,
    }
}

/// A session as it goes over the wire.
#[must_use]
pub fn session_to_proto(session: &DraftSession) -> wire::Session {
    wire::Session {
        channel: Some(channel_to_proto(&session.channel)),
        draft: Some(draft_to_proto(&session.draft)),
    }
}

/// A session as the target takes it. Whether its sizes make sense is for the link to say.
///
/// # Errors
/// [`SessionError::Invalid`]: a part is missing, or the secret or a device's identity has another length.
pub fn session_from_proto(session: wire::Session) -> Result<DraftSession, SessionError> {
    let missing = |field: &str| SessionError::Invalid(format!("Session.{field} is missing"));
    let draft = session.draft.ok_or_else(|| missing("draft"))?;
    let channel = session.channel.ok_or_else(|| missing("channel"))?;
    Ok(DraftSession {
        channel: channel_from_proto(channel)?,
        draft: draft_from_proto(draft),
    })
}

pub(crate) fn channel_to_proto(channel: &Descriptor) -> wire::Channel {
    let way = match channel {
        Descriptor::Shm(segments) => wire::channel::Way::SharedMemory(segments_to_proto(segments)),
        Descriptor::Device {
            transport,
            segments,
            memory,
        } => wire::channel::Way::DeviceMemory(wire::DeviceMemory {
            transport: transport_to_proto(transport).into(),
            segments: Some(segments_to_proto(segments)),
            device: memory.device.to_vec(),
            bytes: memory.bytes,
            handle: memory.handle.clone(),
        }),
        Descriptor::Tcp { address, secret } => wire::channel::Way::Tcp(wire::Tcp {
            address: address.clone(),
            secret: secret.to_vec(),
        }),
    };
    wire::Channel { way: Some(way) }
}

pub(crate) fn channel_from_proto(channel: wire::Channel) -> Result<Descriptor, SessionError> {
    let missing = || SessionError::Invalid("Channel.way is missing".to_owned());
    Ok(match channel.way.ok_or_else(missing)? {
        wire::channel::Way::SharedMemory(way) => Descriptor::Shm(segments_from_proto(way)),
        wire::channel::Way::DeviceMemory(way) => device_memory_from_proto(way)?,
        wire::channel::Way::Tcp(way) => Descriptor::Tcp {
            address: way.address,
            secret: sixteen("Tcp.secret", way.secret)?,
        },
    })
}

fn segments_to_proto(segments: &Segments) -> wire::SharedMemory {
    wire::SharedMemory {
        inbound: segments.inbound.clone(),
        outbound: segments.outbound.clone(),
        generation: segments.generation,
    }
}

fn segments_from_proto(segments: wire::SharedMemory) -> Segments {
    Segments {
        inbound: segments.inbound,
        outbound: segments.outbound,
        generation: segments.generation,
    }
}

fn device_memory_from_proto(way: wire::DeviceMemory) -> Result<Descriptor, SessionError> {
    let invalid = |words: &str| SessionError::Invalid(format!("DeviceMemory.{words}"));
    let segments = way.segments.ok_or_else(|| invalid("segments is missing"))?;
    Ok(Descriptor::Device {
        transport: transport_from_proto(way.transport)
            .ok_or_else(|| invalid("transport is none that is known"))?,
        segments: segments_from_proto(segments),
        memory: MemoryHandle {
            device: sixteen("DeviceMemory.device", way.device)?,
            bytes: way.bytes,
            handle: way.handle,
        },
    })
}

fn sixteen(field: &str, bytes: Vec<u8>) -> Result<[u8; 16], SessionError> {
    bytes.try_into().map_err(|bytes: Vec<u8>| {
        let len = bytes.len();
        SessionError::Invalid(format!("{field} has {len} bytes, expected 16"))
    })
}

pub(crate) fn transports_to_proto(transports: &[Transport]) -> Vec<i32> {
    transports
        .iter()
        .map(|transport| transport_to_proto(transport).into())
        .collect()
}

fn transport_to_proto(transport: &Transport) -> wire::Transport {
    match transport {
        Transport::CudaIpc => wire::Transport::CudaIpc,
        Transport::HipIpc => wire::Transport::HipIpc,
        Transport::EmulatedIpc => wire::Transport::EmulatedIpc,
        Transport::Shm => wire::Transport::Shm,
        Transport::Tcp => wire::Transport::Tcp,
    }
}

fn transport_from_proto(transport: i32) -> Option<Transport> {
    match wire::Transport::try_from(transport).ok()? {
        wire::Transport::CudaIpc => Some(Transport::CudaIpc),
        wire::Transport::HipIpc => Some(Transport::HipIpc),
        wire::Transport::EmulatedIpc => Some(Transport::EmulatedIpc),
        wire::Transport::Shm => Some(Transport::Shm),
        wire::Transport::Tcp => Some(Transport::Tcp),
        wire::Transport::Unspecified => None,
    }
}

/// The transports that are known here; others are a newer peer's.
#[must_use]
pub fn transports_from_proto(transports: &[i32]) -> Vec<Transport> {
    let known = |&transport: &i32| transport_from_proto(transport);
    transports.iter().filter_map(known).collect()
}

/// Counters as they go over the wire.
#[must_use]
pub fn draft_stats_to_proto(stats: DraftStats) -> wire::DraftStats {
    wire::DraftStats {
        sessions: stats.sessions,
        sequences: stats.sequences,
        steps: stats.steps,
        proposals: stats.proposals,
        refusals: stats.refusals,
        feature_rows: stats.feature_rows,
        evicted_sequences: stats.evicted_sequences,
        memory: Some(memory_to_proto(stats.memory)),
    }
}

pub(crate) fn draft_stats_from_proto(stats: wire::DraftStats) -> DraftStats {
    DraftStats {
        sessions: stats.sessions,
        sequences: stats.sequences,
        steps: stats.steps,
        proposals: stats.proposals,
        refusals: stats.refusals,
        feature_rows: stats.feature_rows,
        evicted_sequences: stats.evicted_sequences,
        memory: memory_from_proto(stats.memory.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(channel: Descriptor) -> DraftSession {
        let draft = DraftDescription {
            name: "d".to_owned(),
            architecture: "a".to_owned(),
            block_size: 16,
            capture_layers: vec![1, 3],
            hidden_size: 512,
            vocab_size: 8192,
            max_top_k: 32,
            max_sequences: 8,
            context_length: 4096,
            device: "cpu".to_owned(),
        };
        DraftSession { channel, draft }
    }

    fn segments() -> Segments {
        Segments {
            inbound: "in".to_owned(),
            outbound: "out".to_owned(),
            generation: u64::MAX,
        }
    }

    fn device() -> Descriptor {
        Descriptor::Device {
            transport: Transport::HipIpc,
            segments: segments(),
            memory: MemoryHandle {
                device: [9; 16],
                bytes: u64::MAX,
                handle: vec![1, 2, 3],
            },
        }
    }

    #[test]
    fn sessions_come_back_as_they_went() {
        let shm = Descriptor::Shm(segments());
        let device = device();
        let tcp = Descriptor::Tcp {
            address: "[::1]:7".to_owned(),
            secret: [7; 16],
        };
        for session in [session(shm), session(device), session(tcp)] {
            let back = session_from_proto(session_to_proto(&session)).unwrap();
            assert_eq!(back, session);
        }
    }

    #[test]
    fn transports_come_back_as_they_went_and_unknown_ones_are_left_out() {
        let all = [
            Transport::CudaIpc,
            Transport::HipIpc,
            Transport::EmulatedIpc,
            Transport::Shm,
            Transport::Tcp,
        ];
        let mut wire = transports_to_proto(&all);
        wire.extend([0, 99, -1]);
        assert_eq!(transports_from_proto(&wire), all);
    }

    #[test]
    fn a_session_without_its_parts_is_an_error() {
        let tcp = Descriptor::Tcp {
            address: String::new(),
            secret: [0; 16],
        };
        let whole = session_to_proto(&session(tcp));
        let check = |session: wire::Session, words: &str| {
            let error = session_from_proto(session).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        let no_draft = wire::Session {
            draft: None,
            ..whole.clone()
        };
        check(no_draft, "draft");
        let no_way = wire::Session {
            channel: Some(wire::Channel { way: None }),
            ..whole.clone()
        };
        check(no_way, "Channel.way");
        let way = wire::channel::Way::Tcp(wire::Tcp {
            address: String::new(),
            secret: vec![1; 15],
        });
        let with = |way| wire::Session {
            channel: Some(wire::Channel { way: Some(way) }),
            ..whole.clone()
        };
        check(with(way), "15 bytes");
        type Change = fn(&mut wire::DeviceMemory);
        let bad: [(Change, &str); 3] = [
            (|memory| memory.device.clear(), "device has 0 bytes"),
            (|memory| memory.segments = None, "segments"),
            (|memory| memory.transport = 99, "transport"),
        ];
        for (change, words) in bad {
            let sent = session_to_proto(&session(device()));
            let Some(wire::channel::Way::DeviceMemory(mut memory)) = sent.channel.unwrap().way
            else {
                panic!("memory of a device");
            };
            change(&mut memory);
            check(with(wire::channel::Way::DeviceMemory(memory)), words);
        }
    }
}
