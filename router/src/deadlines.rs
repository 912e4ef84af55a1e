//! How long a request's answers may still take.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use generation::GenerateEvent;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::TimeLimits;
use crate::error::RouterError;

/// What an answer is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The target has others.
    Queue,
    /// It reads the prompt.
    FirstToken,
    /// It decodes.
    NextToken,
    /// The whole of it.
    Request,
}

impl Wait {
    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::FirstToken => "first_token",
            Self::NextToken => "next_token",
            Self::Request => "request",
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queue => "the request waited in the queue",
            Self::FirstToken => "the prompt took",
            Self::NextToken => "a token took",
            Self::Request => "the request took",
        })
    }
}

/// The limits of one request, and where its answers stand.
#[derive(Debug)]
pub(crate) struct Deadlines {
    limits: TimeLimits,
    started: Instant,
    /// What each answer is waited for, and since when; `None`: it is complete.
    answers: Vec<Option<(Wait, Instant)>>,
    sleep: Pin<Box<Sleep>>,
}

impl Deadlines {
    /// Of `answers` answers that the target was asked for just now, to a request that came at `started`.
    pub fn new(limits: TimeLimits, answers: usize, started: std::time::Instant) -> Self {
        let now = Instant::now();
        Self {
            limits,
            started: Instant::from_std(started),
            answers: vec![Some((Wait::Queue, now)); answers],
            sleep: Box::pin(sleep_until(now)),
        }
    }

    /// Something came for answer `index`.
    pub fn note(&mut self, index: usize, event: &GenerateEvent) {
        let wait = match event {
            GenerateEvent::Started { .. } => Wait::FirstToken,
            // A prompt that goes forward is waited for from its beginning on.
            GenerateEvent::Progress { .. } => return,
            GenerateEvent::Token(_) => Wait::NextToken,
            GenerateEvent::Finished { .. } => return self.complete(index),
        };
        self.answers[index] = Some((wait, Instant::now()));
    }

    /// Nothing more is waited for in answer `index`.
    pub fn complete(&mut self, index: usize) {
        self.answers[index] = None;
    }

    /// Ready, when something has taken too long.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RouterError> {
        let Some((end, wait, limit)) = self.next() else {
            return Poll::Pending;
        };
        if self.sleep.deadline() != end {
            self.sleep.as_mut().reset(end);
        }
        let error = RouterError::TooLong {
            wait,
            limit_seconds: limit.as_secs(),
        };
        self.sleep.as_mut().poll(cx).map(|()| error)
    }

    /// What is up first.
    fn next(&self) -> Option<(Instant, Wait, Duration)> {
        let limits = &self.limits;
        let limit = |wait| match wait {
            Wait::Queue => limits.queue,
            Wait::FirstToken => limits.first_token,
            Wait::NextToken => limits.between_tokens,
            Wait::Request => limits.request,
        };
        let waits = self.answers.iter().flatten().copied();
        waits
            .chain([(Wait::Request, self.started)])
            .map(|(wait, since)| (since, wait, limit(wait)))
            .filter(|(_, _, limit)| !limit.is_zero())
            .filter_map(|(since, wait, limit)| Some((since.checked_add(limit)?, wait, limit)))
            .min_by_key(|(end, ..)| *end)
    }
}
