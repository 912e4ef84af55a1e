//! The way to the stages before one.

use std::time::Duration;

use anyhow::{Result, bail};
use service::Endpoint;
use stage_link::{LaterEnd, LinkShape, link_spec};
use tensor_channel::{Descriptor, Transport};
use worker_api::{LaterStage, OpenStage, SessionError, StageClient, StageDescription};

use crate::attach::unattached;
use crate::load::LoadedStage;

/// What opening the channel may take; the other stage waits at its end already.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a stage that is not there yet is asked again.
const POLL: Duration = Duration::from_millis(50);

/// Reaches the stage at `endpoint` and all before it, and gives them to the model of `loaded`. Waits for as long as they are
/// not available. They are the model's for as long as what is returned is held.
///
/// # Errors
/// The stages do not go together.
pub async fn attach_earlier(loaded: &mut LoadedStage, endpoint: &Endpoint) -> Result<OpenStage> {
    let mut said = String::new();
    loop {
        match reach(endpoint, &loaded.later).await {
            Ok((session, end)) => {
                loaded.model.set_earlier(Some(Box::new(end)));
                return Ok(session);
            }
            Err(SessionError::Gone(why)) => {
                if said != why {
                    tracing::debug!(%endpoint, why, "waiting for the stages before");
                }
                said = why;
            }
            Err(error) => bail!("the stage at {endpoint}: {error}"),
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Returns when the stages before are gone, and names the nearest; never, where there are none. Cancel-safe.
pub(crate) async fn lost(earlier: &mut Option<OpenStage>) -> SessionError {
    let Some(open) = earlier else {
        return std::future::pending().await;
    };
    let error = open.ended().await;
    SessionError::Gone(format!("{}: {error}", name(&open.session().stages)))
}

/// Opens a session of the stage at `endpoint`, and its channel.
pub(crate) async fn reach(
    endpoint: &Endpoint,
    later: &LaterStage,
) -> Result<(OpenStage, LaterEnd), SessionError> {
    match reach_over(endpoint, later).await {
        // Shared memory ends at the host.
        Err(SessionError::Unreachable(_)) if later.transports.contains(&Transport::Shm) => {
            let later = LaterStage {
                transports: vec![Transport::Tcp],
                ..later.clone()
            };
            reach_over(endpoint, &later).await
        }
        reached => reached,
    }
}

async fn reach_over(
    endpoint: &Endpoint,
    later: &LaterStage,
) -> Result<(OpenStage, LaterEnd), SessionError> {
    let gone = |error: String| SessionError::Gone(error);
    let client = StageClient::new(endpoint).map_err(|error| gone(error.to_string()))?;
    let session = client.open(later).await?;
    let opened = session.session();
    let compiles_kernels = opened.stages.iter().any(|stage| stage.compiles_kernels);
    let (peer, channel) = (name(&opened.stages), opened.channel.clone());
    let shape = link_shape(later);
    let end = tokio::task::spawn_blocking(move || {
        let ends = attach(&channel, &shape)?;
        LaterEnd::new(ends, shape, peer, compiles_kernels)
            .map_err(|error| SessionError::Mismatch(error.to_string()))
    });
    let end = end.await.map_err(|error| gone(error.to_string()))??;
    Ok((session, end))
}

fn attach(channel: &Descriptor, shape: &LinkShape) -> Result<tensor_channel::Ends, SessionError> {
    let ends = tensor_channel::attach(channel, link_spec(shape), PATIENCE, None);
    ends.map_err(|error| unattached(&error))
}

/// What the last of `stages` is called in messages.
fn name(stages: &[StageDescription]) -> String {
    let device = stages.last().map_or("?", |stage| stage.device.as_str());
    format!("stage {} on {device}", stages.len())
}

/// What both sides of a link are made for.
pub(crate) fn link_shape(later: &LaterStage) -> LinkShape {
    LinkShape {
        hidden_size: later.hidden_size as usize,
        max_batch_rows: later.max_batch_rows as usize,
        max_sequences: later.max_sequences as usize,
    }
}
