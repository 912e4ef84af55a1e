//! Stages and their sessions.

use proto::stage::v1 as wire;

use crate::convert::draft::{channel_from_proto, channel_to_proto};
use crate::error::SessionError;
use crate::stage::{LaterStage, StageDescription, StageSession};

pub(crate) fn later_stage_to_proto(stage: &LaterStage) -> wire::OpenRequest {
    wire::OpenRequest {
        transports: super::transports_to_proto(&stage.transports),
        file_bytes: stage.file_bytes,
        num_layers: stage.num_layers,
        hidden_size: stage.hidden_size,
        first_layer: stage.first_layer,
        max_tokens: stage.max_tokens,
        max_sequences: stage.max_sequences,
        max_batch_rows: stage.max_batch_rows,
    }
}

/// The stage after, as the one before takes it.
#[must_use]
pub fn later_stage_from_proto(request: &wire::OpenRequest) -> LaterStage {
    LaterStage {
        transports: super::transports_from_proto(&request.transports),
        file_bytes: request.file_bytes,
        num_layers: request.num_layers,
        hidden_size: request.hidden_size,
        first_layer: request.first_layer,
        max_tokens: request.max_tokens,
        max_sequences: request.max_sequences,
        max_batch_rows: request.max_batch_rows,
    }
}

/// A session as it goes over the wire.
#[must_use]
pub fn stage_session_to_proto(session: &StageSession) -> wire::Opened {
    let stage = |stage: &StageDescription| wire::StageDescription {
        device: stage.device.clone(),
        first_layer: stage.first_layer,
        end_layer: stage.end_layer,
        compiles_kernels: stage.compiles_kernels,
    };
    wire::Opened {
        channel: Some(channel_to_proto(&session.channel)),
        stages: session.stages.iter().map(stage).collect(),
    }
}

pub(crate) fn stage_session_from_proto(opened: wire::Opened) -> Result<StageSession, SessionError> {
    let missing = || SessionError::Invalid("Opened.channel is missing".to_owned());
    let stage = |stage: wire::StageDescription| StageDescription {
        device: stage.device,
        first_layer: stage.first_layer,
        end_layer: stage.end_layer,
        compiles_kernels: stage.compiles_kernels,
    };
    Ok(StageSession {
        channel: channel_from_proto(opened.channel.ok_or_else(missing)?)?,
        stages: opened.stages.into_iter().map(stage).collect(),
    })
}

#[cfg(test)]
mod tests {
    use tensor_channel::{Descriptor, Transport};

    use super::*;

    #[test]
    fn sessions_and_stages_come_back_as_they_went() {
        let session = StageSession {
            channel: Descriptor::Tcp {
                address: "[::1]:7".to_owned(),
                secret: [7; 16],
            },
            stages: vec![StageDescription {
                device: "cpu".to_owned(),
                first_layer: 0,
                end_layer: 3,
                compiles_kernels: true,
            }],
        };
        let back = stage_session_from_proto(stage_session_to_proto(&session));
        assert_eq!(back.unwrap(), session);
        let later = LaterStage {
            transports: vec![Transport::Shm, Transport::Tcp],
            file_bytes: 1 << 40,
            num_layers: 64,
            hidden_size: 5120,
            first_layer: 30,
            max_tokens: 1 << 33,
            max_sequences: 8,
            max_batch_rows: 392,
        };
        let back = later_stage_from_proto(&later_stage_to_proto(&later));
        assert_eq!(back, later);
    }

    #[test]
    fn a_session_without_a_channel_is_an_error() {
        let error = stage_session_from_proto(wire::Opened::default()).unwrap_err();
        assert!(error.to_string().contains("channel"), "{error}");
    }
}
