//! Sessions of a stage: offered on the gRPC side, served one after another on the device thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use models::{Model, ModelError};
use service::Endpoint;
use stage_link::{EarlierEnd, LaterEnd, LinkError, LinkShape, link_spec};
use tensor_channel::{ChannelError, Offer, OfferOptions, available, choose};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use worker_api::{LaterStage, OpenStage, SessionError, StageDescription, StageSession};

use crate::attach::unattached;
use crate::earlier::{link_shape, lost, reach};

/// A stage that was handed a session attaches at once, or never.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for a command, which ends it at once; this bounds how late a session that was dropped is seen.
const WAIT: Duration = Duration::from_millis(20);

/// What sessions are made of. There once the layers are loaded.
#[derive(Debug)]
pub(super) struct Sessions {
    pub description: StageDescription,
    /// This stage, as the one before it knows it.
    pub own: LaterStage,
    /// Where the stage before listens.
    pub before: Option<Endpoint>,
    pub options: OfferOptions,
    pub sessions: Sender<Session>,
    /// Waits for the stage after; each for a bounded time, which the shutdown waits out.
    pub waiting: TaskTracker,
    /// There is a session.
    pub is_taken: Arc<AtomicBool>,
}

/// The one session there can be, until it is dropped.
#[derive(Debug)]
struct Taken(Arc<AtomicBool>);

impl Drop for Taken {
    fn drop(&mut self) {
        // Release; pairs with the Acquire in `Sessions::take`.
        self.0.store(false, Ordering::Release);
    }
}

/// A session as the device thread has it.
#[derive(Debug)]
pub(super) struct Session {
    end: EarlierEnd,
    earlier: Option<LaterEnd>,
    /// Told where the stage before is gone; closed when the stream that holds the session is dropped.
    left: oneshot::Receiver<String>,
    /// Told why the session ended.
    ended: oneshot::Sender<String>,
    _taken: Taken,
}

/// A session that was offered. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Offered {
    pub session: StageSession,
    ended: oneshot::Receiver<String>,
    /// Of the stage before.
    earlier: Option<OpenStage>,
    left: oneshot::Sender<String>,
}

impl Offered {
    /// Waits for the session's end, and says why it came.
    pub async fn ended(mut self) -> SessionError {
        let why = tokio::select! {
            // What the thread says is nearer to the cause.
            biased;
            why = self.ended => why.unwrap_or_else(|_| "the stage stopped".to_owned()),
            error = lost(&mut self.earlier) => {
                let why = error.to_string();
                // A thread that has ended the session meanwhile knows why.
                let _ = self.left.send(why.clone());
                why
            }
        };
        SessionError::Gone(why)
    }
}

impl Sessions {
    /// Offers a channel to the stage after, once the ones before are there.
    pub async fn offer(&self, later: &LaterStage) -> Result<Offered, SessionError> {
        self.check(later)?;
        let taken = self.take()?;
        let (open, earlier) = match &self.before {
            Some(endpoint) => {
                let (open, end) = reach(endpoint, &self.own).await?;
                (Some(open), Some(end))
            }
            None => (None, None),
        };
        let mut stages = open
            .iter()
            .flat_map(|open| &open.session().stages)
            .cloned()
            .collect::<Vec<_>>();
        stages.push(self.description.clone());
        let ours = available(None);
        let transport = choose(&ours, &later.transports).ok_or_else(|| {
            let theirs = &later.transports;
            let words = format!(
                "one stage can do {ours:?}, the next {theirs:?}: there is no way between them"
            );
            SessionError::Mismatch(words)
        })?;
        let shape = link_shape(later);
        shape
            .check()
            .map_err(|error| SessionError::Mismatch(error.to_string()))?;
        let offer = tensor_channel::offer(transport, link_spec(&shape), &self.options, None);
        let offer = offer.map_err(|error| SessionError::Gone(words(&error)))?;
        let channel = offer.descriptor().clone();
        let (end_sender, ended) = oneshot::channel();
        let (left, left_receiver) = oneshot::channel();
        let sessions = self.sessions.clone();
        self.waiting
            .spawn_blocking(move || match accept(offer, shape) {
                Ok(end) => {
                    tracing::info!(%transport, "the stage after attached");
                    // Where the thread is gone the session goes with the message.
                    let _sent = sessions.send(Session {
                        end,
                        earlier,
                        left: left_receiver,
                        ended: end_sender,
                        _taken: taken,
                    });
                }
                Err(why) => {
                    tracing::debug!(why, "the stage after did not attach");
                    // Nobody listens where the stream was dropped.
                    let _ = end_sender.send(why);
                }
            });
        Ok(Offered {
            session: StageSession { channel, stages },
            ended,
            earlier: open,
            left,
        })
    }

    fn take(&self) -> Result<Taken, SessionError> {
        // Acquire; pairs with the Release in `Taken::drop`.
        if self.is_taken.swap(true, Ordering::Acquire) {
            let words = "the stage still serves another target".to_owned();
            return Err(SessionError::Gone(words));
        }
        Ok(Taken(Arc::clone(&self.is_taken)))
    }

    /// Holds the stage after against this one, and names both values where they differ.
    fn check(&self, later: &LaterStage) -> Result<(), SessionError> {
        let (own, end) = (&self.own, u64::from(self.description.end_layer));
        for (what, theirs, ours) in [
            ("bytes of the model file", later.file_bytes, own.file_bytes),
            (
                "layers of the model",
                later.num_layers.into(),
                own.num_layers.into(),
            ),
            (
                "hidden size",
                later.hidden_size.into(),
                own.hidden_size.into(),
            ),
            (
                "first layer of the stage after",
                later.first_layer.into(),
                end,
            ),
            ("tokens of all sequences", later.max_tokens, own.max_tokens),
            (
                "sequences",
                later.max_sequences.into(),
                own.max_sequences.into(),
            ),
            (
                "rows of a batch",
                later.max_batch_rows.into(),
                own.max_batch_rows.into(),
            ),
        ] {
            if theirs != ours {
                return Err(SessionError::Mismatch(format!(
                    "two stages are set up for different {what}: {theirs} and {ours}"
                )));
            }
        }
        Ok(())
    }
}

fn accept(offer: Offer, shape: LinkShape) -> Result<EarlierEnd, String> {
    let ends = offer.accept(PATIENCE).map_err(|error| words(&error))?;
    EarlierEnd::new(ends, shape).map_err(|error| error.to_string())
}

fn words(error: &ChannelError) -> String {
    unattached(error).to_string()
}

/// Serves one session after another until `stop`, or until the device breaks. `name` is what the stage is called in messages.
pub(super) fn serve_all(
    mut model: Model,
    name: &str,
    sessions: &Receiver<Session>,
    stop: &CancellationToken,
) {
    while !stop.is_cancelled() {
        match sessions.recv_timeout(WAIT) {
            Ok(session) => {
                if let Some(error) = serve(&mut model, name, session, stop) {
                    tracing::error!(stage = name, %error, "the device is of no use any more");
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Serves a session to its end. What the device has against going on, if anything.
fn serve(
    model: &mut Model,
    name: &str,
    session: Session,
    stop: &CancellationToken,
) -> Option<ModelError> {
    let Session {
        mut end,
        earlier,
        mut left,
        ended,
        _taken: taken,
    } = session;
    model.set_earlier(earlier.map(|earlier| Box::new(earlier) as _));
    let (why, error) = loop {
        if stop.is_cancelled() {
            break (format!("{name} is shutting down"), None);
        }
        match left.try_recv() {
            Err(TryRecvError::Empty) => {}
            Ok(why) => break (why, None),
            Err(TryRecvError::Closed) => break ("the session was given up".to_owned(), None),
        }
        if let Err(error) = end.serve(model, WAIT) {
            let why = match &error {
                // It has said which stage it is.
                LinkError::Model(ModelError::EarlierLayers(error)) => error.to_string(),
                error => format!("{name}: {error}"),
            };
            break (why, Some(error));
        }
    };
    tracing::info!(why, "session ended");
    end.end(model, Some(&why));
    model.set_earlier(None);
    drop(taken);
    // Nobody listens where the stream was dropped.
    let _ = ended.send(why);
    match error {
        Some(LinkError::Model(error @ ModelError::Device(_))) => Some(error),
        _ => None,
    }
}
