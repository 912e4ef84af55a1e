//! Reads request bodies up to a limit.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::request::Parts;
use tokio::time::{Instant, timeout_at};
use tokio_stream::StreamExt;

use crate::error::RouterError;

/// How much of a body beyond the limit is read and dropped: a client that is still sending may not see the answer.
const DROPPED_LIMITS: usize = 8;
/// How long a body may take, from the first look at it; zero: as long as it likes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyTime(pub Duration);

/// How long the dropping may take.
const DROPPING: Duration = Duration::from_secs(10);

/// The whole body.
pub(super) async fn read(parts: &Parts, body: Body, limit: usize) -> Result<Vec<u8>, RouterError> {
    let too_large = RouterError::BodyTooLarge { limit };
    let mut stream = body.into_data_stream();
    let announced = announced_len(parts);
    if announced.is_some_and(|len| len > limit) && parts.headers.contains_key(EXPECT) {
        // The client waits for leave to send, and does not get it.
        return Err(too_large);
    }
    let time = parts.extensions.get::<BodyTime>().map(|time| time.0);
    let time = time.filter(|time| !time.is_zero());
    let end = time.and_then(|time| Instant::now().checked_add(time));
    let mut bytes = Vec::with_capacity(announced.unwrap_or(0).min(limit));
    loop {
        let next = match end {
            Some(end) => timeout_at(end, stream.next()).await,
            None => Ok(stream.next().await),
        };
        let Some(chunk) = next.map_err(|_| RouterError::BodyTooSlow {
            limit_seconds: time.unwrap_or_default().as_secs(),
        })?
        else {
            return Ok(bytes);
        };
        let chunk = chunk.map_err(|_| RouterError::BodyCut)?;
        if bytes.len() + chunk.len() <= limit {
            bytes.extend_from_slice(&chunk);
            continue;
        }
        drop(bytes);
        let mut left = limit.saturating_mul(DROPPED_LIMITS);
        let dropping = async {
            while let Some(Ok(chunk)) = stream.next().await {
                left = left.saturating_sub(chunk.len());
                if left == 0 {
                    break;
                }
            }
        };
        // Whether it came to its end or not, the answer is the same.
        let _ = tokio::time::timeout(DROPPING, dropping).await;
        return Err(too_large);
    }
}

fn announced_len(parts: &Parts) -> Option<usize> {
    let length = parts.headers.get(CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}
