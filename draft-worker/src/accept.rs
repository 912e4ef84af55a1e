//! From an offered channel to a session on the device thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::Duration;

use draft_link::{DraftEnd, LinkShape, link_spec};
use kernels::Device;
use tensor_channel::{
    ChannelDevice, ChannelError, Offer, OfferOptions, Transport, available, choose,
};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use worker_api::{DraftDescription, DraftSession, SessionError};

use crate::proposer::Command;
use crate::session::Session;

/// A target that was handed a session attaches at once, or never.
const PATIENCE: Duration = Duration::from_secs(2);

/// What sessions are made of. There once the model is loaded.
pub(crate) struct Sessions {
    pub description: DraftDescription,
    pub device: Arc<dyn Device>,
    pub options: OfferOptions,
    pub commands: Sender<Command>,
    /// Waits for targets; each for a bounded time, which the shutdown waits out.
    pub waiting: TaskTracker,
    pub next_id: AtomicU64,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("description", &self.description)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A session that was offered. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Offered {
    pub session: DraftSession,
    ended: oneshot::Receiver<String>,
    _left: DropGuard,
}

impl Offered {
    /// Waits for the session's end, and says why it came.
    pub async fn ended(self) -> SessionError {
        let Self {
            ended, _left: left, ..
        } = self;
        let why = ended.await;
        drop(left);
        SessionError::Gone(why.unwrap_or_else(|_| "the draft stopped".to_owned()))
    }
}

impl Sessions {
    /// Offers a channel to a target that can do `transports`.
    pub fn offer(&self, transports: &[Transport]) -> Result<Offered, SessionError> {
        let shape = link_shape(&self.description);
        let (transport, offer) = self.best_offer(transports, &shape)?;
        let session = DraftSession {
            channel: offer.descriptor().clone(),
            draft: self.description.clone(),
        };
        let (end_sender, ended) = oneshot::channel();
        let left = CancellationToken::new();
        let id = self.next_id.fetch_add(1, Relaxed);
        let (commands, token) = (self.commands.clone(), left.clone());
        self.waiting.spawn_blocking(move || {
            match accept(offer, shape) {
                Ok(end) => {
                    tracing::info!(session = id, %transport, "target attached");
                    let session = Session {
                        id,
                        end,
                        left: token,
                        ended: end_sender,
                    };
                    // Where the thread is gone the session goes with the message.
                    let _ = commands.send(Command::Serve(session));
                }
                Err(why) => {
                    tracing::debug!(session = id, why, "no target attached");
                    // Nobody listens where the stream was dropped.
                    let _ = end_sender.send(why);
                }
            }
        });
        Ok(Offered {
            session,
            ended,
            _left: left.drop_guard(),
        })
    }

    /// An offer by the best way that both have and that this machine allows.
    fn best_offer(
        &self,
        transports: &[Transport],
        shape: &LinkShape,
    ) -> Result<(Transport, Offer), SessionError> {
        let device = self.device.channel_device();
        let mut ours = available(device.and_then(ChannelDevice::transport));
        loop {
            let transport = choose(&ours, transports).ok_or_else(|| {
                SessionError::Mismatch(format!(
                    "the draft can do {ours:?}, the target {transports:?}: there is no way between them"
                ))
            })?;
            match tensor_channel::offer(transport, link_spec(shape), &self.options, device) {
                Ok(offer) => return Ok((transport, offer)),
                Err(ChannelError::Unavailable { why, .. }) => {
                    tracing::warn!(%transport, why, "not available; taking another way");
                    ours.retain(|&other| other != transport);
                }
                Err(error) => return Err(SessionError::Gone(words(&error))),
            }
        }
    }
}

/// What a target and this draft agree on.
pub(crate) fn link_shape(draft: &DraftDescription) -> LinkShape {
    LinkShape {
        feature_len: draft.capture_layers.len() * draft.hidden_size as usize,
        vocab_size: draft.vocab_size,
        depth: draft.block_size.saturating_sub(1) as usize,
        max_top_k: draft.max_top_k as usize,
    }
}

fn accept(offer: Offer, shape: LinkShape) -> Result<DraftEnd, String> {
    let ends = offer.accept(PATIENCE).map_err(|error| words(&error))?;
    DraftEnd::new(ends, shape).map_err(|error| error.to_string())
}

/// With what the system says.
fn words(error: &ChannelError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
