//! The life of the router: build, serve, drain.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::serve::ListenerExt;
use gguf::GgufFile;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::compression::Prefill;
use crate::config::RouterConfig;
use crate::connections;
use crate::drafts::{DraftStatus, Drafts};
use crate::http;
use crate::state::State;
use crate::target::Target;

/// Time for the last words of requests that outlived the draining.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serves `target` on `listener` with the words of `model` until `shutdown`, then lets the requests at work come to
/// their end within `config.drain_timeout`. `drafts` keeps the target speculating, until the very end; `prefill` says what long prompts
/// can do without.
///
/// # Errors
/// A model file without a usable tokenizer or chat template, a model card that says what none may, sampling defaults out of range.
pub async fn run(
    config: RouterConfig,
    model: GgufFile,
    target: impl Target,
    drafts: Option<Drafts>,
    prefill: Option<Prefill>,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let (drain_timeout, head_time) = (config.drain_timeout, config.times.header);
    let status = Arc::new(
        drafts
            .as_ref()
            .map_or_else(DraftStatus::default, Drafts::status),
    );
    let state = State::new(
        config,
        &model,
        target,
        Arc::clone(&status),
        prefill,
        shutdown.clone(),
    )?;
    let state = Arc::new(state);
    drop(model);
    let address = listener.local_addr().context("reading the address")?;
    info!(%address, model = state.words.model_name, "serving HTTP");
    let listener = listener.tap_io(|stream| {
        // Tokens are small and wait for nobody.
        if let Err(error) = stream.set_nodelay(true) {
            warn!(%error, "a connection keeps its delays");
        }
    });
    let app = http::service(Arc::clone(&state));
    let serving = connections::serve(listener, app, head_time, shutdown.clone());
    let mut serving = pin!(serving);
    let patience = async {
        shutdown.cancelled().await;
        info!(timeout_ms = drain_timeout.as_millis() as u64, "draining");
        tokio::time::sleep(drain_timeout).await;
    };
    let speculate = async {
        match &drafts {
            Some(drafts) => drafts.keep(&status).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = &mut serving => return Ok(()),
        () = speculate => {}
        () = state.metrics.keep_up() => {}
        () = patience => {}
    }
    warn!("requests are still at work; ending them");
    state.deadline.cancel();
    // Whether they had their last words or not, it ends.
    let _ = tokio::time::timeout(LAST_WORDS, serving).await;
    Ok(())
}
