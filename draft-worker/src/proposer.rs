//! The thread that owns the draft model: gathers what the targets say, and answers their questions in one pass.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use draft_link::{Ask, DraftEnd, LinkError, Refusal, Request};
use models::{DraftBlock, DraftModel, FeatureBlock, SequenceId};
use speculative::Proposal;

use crate::contexts::{Contexts, Key};
use crate::counters::Counters;
use crate::questions::{Asked, Gathered, latest, narrowed};
use crate::session::Session;

/// Longest wait for a target. Its messages end it at once; this bounds how late a new session, or one that was dropped,
/// is seen.
const WAIT: Duration = Duration::from_millis(20);
/// The same where several targets take turns.
const TURN: Duration = Duration::from_millis(1);
/// Messages that one target has read before the others get their turn; more than a channel holds.
const MESSAGES_PER_TURN: usize = 64;

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// A target has attached.
    Serve(Session),
    /// The worker shuts down.
    Stop,
}

/// The model and the targets it serves.
pub(crate) struct Proposer {
    model: DraftModel,
    /// Features as they arrive.
    landing: FeatureBlock,
    commands: Receiver<Command>,
    counters: Arc<Counters>,
    sessions: Vec<Session>,
    contexts: Contexts,
    /// Whose turn it is to be waited for.
    turn: usize,
}

impl Proposer {
    pub fn new(
        model: DraftModel,
        landing: FeatureBlock,
        commands: Receiver<Command>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            model,
            landing,
            commands,
            counters,
            sessions: Vec::new(),
            contexts: Contexts::default(),
            turn: 0,
        }
    }

    /// Runs until it is told to stop.
    pub fn run(&mut self) {
        while self.take_commands() {
            self.end_left();
            let Gathered { asked, since } = self.gather();
            if let Some(since) = since {
                self.answer(&latest(asked), since);
            }
            self.counters.sequences.set(self.contexts.len());
            self.counters.sessions.set(self.sessions.len());
        }
        self.counters.sequences.set(0);
        self.counters.sessions.set(0);
        for session in std::mem::take(&mut self.sessions) {
            session.finish("the draft leaves its device".to_owned());
        }
    }

    /// Waits for a session where there is none. `false`: stop.
    fn take_commands(&mut self) -> bool {
        loop {
            let command = if self.sessions.is_empty() {
                self.commands.recv().ok()
            } else {
                match self.commands.try_recv() {
                    Ok(command) => Some(command),
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => None,
                }
            };
            match command {
                Some(Command::Serve(session)) => self.sessions.push(session),
                Some(Command::Stop) | None => return false,
            }
        }
    }

    /// Ends the sessions that nobody holds any more.
    fn end_left(&mut self) {
        let is_left = |session: &mut Session| session.left.is_cancelled();
        let left: Vec<Session> = self.sessions.extract_if(.., is_left).collect();
        for session in left {
            self.end(session, "the session was given up".to_owned());
        }
    }

    fn end(&mut self, session: Session, why: String) {
        tracing::info!(session = session.id, why, "session ended");
        self.contexts.forget_session(&mut self.model, session.id);
        session.finish(why);
    }

    /// Reads what is there, or waits for the next message.
    fn gather(&mut self) -> Gathered {
        let mut gathered = Gathered::default();
        // From the end, as a session that broke leaves the list.
        for index in (0..self.sessions.len()).rev() {
            self.read(index, Duration::ZERO, &mut gathered);
        }
        let num_sessions = self.sessions.len();
        if gathered.since.is_none() && num_sessions > 0 {
            self.turn = (self.turn + 1) % num_sessions;
            let wait = if num_sessions == 1 { WAIT } else { TURN };
            self.read(self.turn, wait, &mut gathered);
        }
        gathered
    }

    /// Reads what a target says; waits at most `patience` for the first message.
    fn read(&mut self, index: usize, mut patience: Duration, gathered: &mut Gathered) {
        for _ in 0..MESSAGES_PER_TURN {
            match self.read_one(index, patience, gathered) {
                Ok(true) => patience = Duration::ZERO,
                Ok(false) => return,
                Err(error) => {
                    let session = self.sessions.swap_remove(index);
                    return self.end(session, error.to_string());
                }
            }
        }
    }

    /// `false`: nothing came.
    fn read_one(
        &mut self,
        index: usize,
        patience: Duration,
        gathered: &mut Gathered,
    ) -> Result<bool, LinkError> {
        let session = &mut self.sessions[index];
        let key = |sequence| Key {
            session: session.id,
            sequence,
        };
        let received = session.end.receive(&mut self.landing.room(), patience)?;
        let Some(request) = received else {
            return Ok(false);
        };
        gathered.since.get_or_insert_with(Instant::now);
        match request {
            Request::Features {
                sequence,
                first_position,
                num_rows,
            } => {
                let key = key(sequence);
                let model = &mut self.model;
                let rows = self.landing.rows(0..num_rows);
                match self.contexts.feed(model, key, first_position, rows) {
                    Ok(fed) => {
                        self.counters.feature_rows.add(num_rows);
                        self.counters.evicted_sequences.add(fed.evicted.into());
                    }
                    // Its questions are refused until it is fed anew.
                    Err(error) => tracing::warn!(%error, sequence, "features not taken"),
                }
            }
            Request::Propose(question) => gathered.asked.push(Asked {
                session: session.id,
                question,
            }),
            Request::Forget { sequence } => self.contexts.forget(&mut self.model, key(sequence)),
        }
        Ok(true)
    }

    /// Answers all questions with one forward pass.
    fn answer(&mut self, asked: &[Asked], since: Instant) {
        let mut blocks = Vec::with_capacity(asked.len());
        let mut answered = Vec::with_capacity(asked.len());
        for asked in asked {
            let sequence = match self.context_before(asked) {
                Ok(sequence) => sequence,
                Err(refusal) => {
                    self.refuse(asked, refusal);
                    continue;
                }
            };
            let Ask { anchor, depth, .. } = asked.question.ask;
            blocks.push(DraftBlock {
                sequence,
                anchor,
                depth,
            });
            answered.push(*asked);
        }
        let Some(top_k) = answered.iter().map(|asked| asked.question.ask.top_k).max() else {
            return;
        };
        match self.model.propose(&blocks, top_k) {
            Ok(proposals) => {
                self.counters.steps.add(1);
                let draft_time = since.elapsed();
                for (asked, proposal) in answered.iter().zip(proposals) {
                    let proposal = narrowed(proposal, asked.question.ask.top_k);
                    self.reply(asked, &proposal, draft_time);
                }
            }
            Err(error) => {
                tracing::error!(%error, sequences = answered.len(), "no proposals");
                for asked in &answered {
                    self.refuse(asked, Refusal::Model);
                }
            }
        }
    }

    /// The sequence's context, if it ends where the anchor is.
    fn context_before(&mut self, asked: &Asked) -> Result<SequenceId, Refusal> {
        let position = asked.question.ask.position;
        let found = self.contexts.before(&mut self.model, asked.key(), position);
        let found = found.map_err(|error| {
            tracing::error!(%error, sequence = asked.question.sequence, "features not taken");
            Refusal::Model
        });
        found?.ok_or(Refusal::Context)
    }

    fn reply(&mut self, asked: &Asked, proposal: &Proposal, draft_time: Duration) {
        self.counters.proposals.add(1);
        self.send(asked.session, |end| {
            end.reply(&asked.question, proposal, draft_time, Duration::ZERO)
        });
    }

    fn refuse(&mut self, asked: &Asked, refusal: Refusal) {
        self.counters.refusals.add(1);
        self.send(asked.session, |end| {
            end.refuse(&asked.question, refusal, Duration::ZERO)
        });
    }

    /// A target that cannot be answered, or leaves as many answers unread as the channel holds, loses its session.
    fn send(&mut self, session: u64, send: impl FnOnce(&mut DraftEnd) -> Result<(), LinkError>) {
        let found = self.sessions.iter().position(|found| found.id == session);
        let Some(index) = found else { return };
        if let Err(error) = send(&mut self.sessions[index].end) {
            let session = self.sessions.swap_remove(index);
            self.end(session, error.to_string());
        }
    }
}
