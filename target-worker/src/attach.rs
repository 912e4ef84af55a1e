//! Setting up speculation: does the draft go with the target, and can it be reached?

use std::sync::Arc;
use std::time::Duration;

use draft_link::{LinkShape, TargetEnd, link_spec};
use engine::{DraftShape, DrafterLease, EngineHandle};
use generation::SpeculationMode;
use kernels::Device;
use tensor_channel::ChannelError;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use worker_api::{
    DraftDescription, DraftSession, SessionError, SpeculationDescription, session_status,
};

use crate::remote_drafter::RemoteDrafter;

/// What opening the channel may take; the draft waits at its end already.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens the channel of `session` and gives the draft behind it to the engine.
pub(crate) async fn attach(
    engine: &EngineHandle,
    target: &SpeculationDescription,
    device: &Arc<dyn Device>,
    session: &DraftSession,
) -> Result<DrafterLease, SessionError> {
    let vocab_size = engine.description().vocab_size;
    let (link, shape) = check(target, vocab_size, &session.draft)?;
    let (channel, device) = (session.channel.clone(), Arc::clone(device));
    let connect = move || {
        let device = device.channel_device();
        let ends = tensor_channel::attach(&channel, link_spec(&link), PATIENCE, device);
        let ends = ends.map_err(|error| unattached(&error))?;
        TargetEnd::new(ends, link).map_err(|error| SessionError::Mismatch(error.to_string()))
    };
    let end = tokio::task::spawn_blocking(connect).await;
    let end = end.map_err(|error| SessionError::Gone(error.to_string()))??;
    Ok(engine.set_drafter(Box::new(RemoteDrafter::new(end, shape))))
}

/// Waits until the engine has let go of the draft, or the worker stops.
pub(crate) async fn until_lost(mut lease: DrafterLease, stop: CancellationToken) -> Status {
    let words = tokio::select! {
        () = lease.lost() => "the engine has let go of the draft",
        () = stop.cancelled() => "the target worker is shutting down",
    };
    session_status(&SessionError::Gone(words.to_owned()))
}

/// Another way may do where the offered one is not there; nothing else helps where it broke.
pub(crate) fn unattached(error: &ChannelError) -> SessionError {
    let source = std::error::Error::source(error);
    let words = source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    match error {
        ChannelError::Io { .. } | ChannelError::Unavailable { .. } => {
            SessionError::Unreachable(words)
        }
        _ => SessionError::Gone(words),
    }
}

/// Holds a draft against the target, and names both values where they differ.
fn check(
    target: &SpeculationDescription,
    vocab_size: u32,
    draft: &DraftDescription,
) -> Result<(LinkShape, DraftShape), SessionError> {
    let mismatch = |words: String| Err(SessionError::Mismatch(words));
    if target.mode == SpeculationMode::Off.name() {
        return mismatch("the target runs with speculation off".to_owned());
    }
    for (what, drafts, targets) in [
        ("hidden size", draft.hidden_size, target.hidden_size),
        ("vocabulary size", draft.vocab_size, vocab_size),
    ] {
        if drafts != targets {
            return mismatch(format!(
                "the draft is made for a target of {what} {drafts}, this target has {targets}"
            ));
        }
    }
    let layers = &draft.capture_layers;
    if layers.is_empty() {
        return mismatch("the draft reads no target layer, expected at least one".to_owned());
    }
    if let Some(layer) = layers.iter().find(|&&layer| layer >= target.num_layers) {
        return mismatch(format!(
            "the draft reads the target layer {layer}, this target has {}",
            target.num_layers
        ));
    }
    let shape = DraftShape {
        capture_layers: layers.iter().map(|&layer| layer as usize).collect(),
        depth: draft.block_size.saturating_sub(1) as usize,
        max_top_k: draft.max_top_k as usize,
    };
    let link = LinkShape {
        feature_len: layers.len() * target.hidden_size as usize,
        vocab_size,
        depth: shape.depth,
        max_top_k: shape.max_top_k,
    };
    match link.check() {
        Ok(()) => Ok((link, shape)),
        Err(error) => mismatch(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> SpeculationDescription {
        SpeculationDescription {
            mode: "auto".to_owned(),
            hidden_size: 512,
            num_layers: 8,
            transports: Vec::new(),
        }
    }

    fn draft() -> DraftDescription {
        DraftDescription {
            name: "d".to_owned(),
            architecture: "a".to_owned(),
            block_size: 16,
            capture_layers: vec![1, 3, 5],
            hidden_size: 512,
            vocab_size: 8192,
            max_top_k: 32,
            max_sequences: 8,
            context_length: 4096,
            device: "cpu".to_owned(),
        }
    }

    #[test]
    fn a_draft_of_the_target_gives_the_shapes() {
        let (link, shape) = check(&target(), 8192, &draft()).unwrap();
        assert_eq!((link.feature_len, link.vocab_size), (3 * 512, 8192));
        assert_eq!((link.depth, link.max_top_k), (15, 32));
        assert_eq!(shape.capture_layers, [1, 3, 5]);
        assert_eq!((shape.depth, shape.max_top_k), (15, 32));
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_both_values() {
        let check = |change: &dyn Fn(&mut DraftDescription), values: [&str; 2]| {
            let mut draft = draft();
            change(&mut draft);
            let error = check(&target(), 8192, &draft).unwrap_err();
            let words = error.to_string();
            assert!(matches!(error, SessionError::Mismatch(_)), "{words}");
            assert!(values.iter().all(|value| words.contains(value)), "{words}");
        };
        check(&|draft| draft.hidden_size = 5120, ["5120", "512"]);
        check(&|draft| draft.vocab_size = 8193, ["8193", "8192"]);
        check(
            &|draft| draft.capture_layers = vec![1, 8],
            ["layer 8", "has 8"],
        );
        check(
            &|draft| draft.capture_layers.clear(),
            ["no target layer", "one"],
        );
        check(&|draft| draft.block_size = 1, ["depth", "0"]);
        check(&|draft| draft.max_top_k = 0, ["max_top_k", "0"]);
    }

    #[test]
    fn a_target_that_does_not_speculate_takes_no_draft() {
        let off = SpeculationDescription {
            mode: "off".to_owned(),
            ..target()
        };
        let error = check(&off, 8192, &draft()).unwrap_err();
        assert!(error.to_string().contains("off"), "{error}");
    }
}
