//! The draft's part of a step: feeding it, asking it, and what its proposals become.
//!
//! Nothing here changes a token. Whatever happens to the draft, the worst is that the next tokens come one by one.

mod asking;
mod drafting;
mod features;
mod feeding;

use std::time::{Duration, Instant};

use generation::{SpeculationConfig, SpeculationMode};
use models::FeatureBlock;
use speculative::{DraftTree, Planner, RoundOutcome};

use asking::Asked;
pub(crate) use drafting::{Drafting, Round, ms, us};
use features::FeatureTail;
pub(crate) use features::KeptFeatures;

use crate::counters::SpeculationCounters;
use crate::drafter::{Drafted, DrafterError};
use crate::lease::Offered;
use crate::sequence::Sequence;

/// Wait for the first proposals of a draft, whose pace is not known.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);
/// Wait for proposals beyond four times their usual time: an interrupted process is not a hung one.
const SLACK: Duration = Duration::from_millis(20);

/// Works for all sequences of an engine.
#[derive(Debug)]
pub(crate) struct Speculator {
    config: SpeculationConfig,
    planner: Planner,
    draft: Option<Attached>,
    /// What the last draft wanted to see; captured on, since it may come back.
    capture_layers: Vec<usize>,
    /// Values of a feature row.
    row_len: usize,
    hidden_size: usize,
    vocab_size: usize,
    next_id: u64,
    /// Memory of sequences that have ended.
    spare: Vec<FeatureBlock>,
}

/// A draft that is there.
#[derive(Debug)]
struct Attached {
    offered: Offered,
    /// It let a wait pass without an answer; not asked again before it gives one.
    is_late: bool,
    /// Sequences that it could not be told the end of yet.
    to_forget: Vec<u64>,
    /// It failed where nothing could be done about it yet.
    fault: Option<DrafterError>,
    asked: Option<Asked>,
}

impl Speculator {
    pub fn new(config: SpeculationConfig, hidden_size: usize, vocab_size: usize) -> Self {
        Self {
            config,
            planner: Planner::new(),
            draft: None,
            capture_layers: Vec::new(),
            row_len: 0,
            hidden_size,
            vocab_size,
            next_id: 0,
            spare: Vec::new(),
        }
    }

    /// The state of a new sequence, with drafts used as it asks for and as the engine allows.
    pub fn start(&mut self, asked: Option<SpeculationConfig>) -> Drafting {
        self.next_id += 1;
        let config = match asked {
            Some(asked) if self.config.mode != SpeculationMode::Off => asked,
            _ => self.config,
        };
        let max_nodes = config.max_rows().min(self.config.max_rows());
        Drafting::new(self.next_id, config, max_nodes, self.planner.new_text())
    }

    /// Layers whose output the draft wants to see.
    pub fn capture_layers(&self) -> &[usize] {
        &self.capture_layers
    }

    /// Takes a draft in, in place of the one that is there.
    pub fn attach(
        &mut self,
        offered: Offered,
        counters: &SpeculationCounters,
        running: &mut [Sequence],
    ) {
        if self.config.mode == SpeculationMode::Off {
            tracing::warn!("a draft was offered, but speculation is off");
            return;
        }
        self.detach(running);
        let shape = offered.drafter.shape();
        self.capture_layers.clone_from(&shape.capture_layers);
        self.row_len = shape.capture_layers.len() * self.hidden_size;
        self.draft = Some(Attached {
            offered,
            is_late: false,
            to_forget: Vec::new(),
            fault: None,
            asked: None,
        });
        counters.update(|stats| stats.draft_attached = true);
        tracing::info!("a draft is attached");
    }

    /// Lets go of a draft whose lease was dropped.
    pub fn check_lease(&mut self, counters: &SpeculationCounters, running: &mut [Sequence]) {
        let is_returned = |draft: &Attached| draft.offered.is_returned();
        if self.draft.as_ref().is_some_and(is_returned) {
            tracing::info!("the draft was taken away");
            self.lose(counters, running);
        }
    }

    fn lose(&mut self, counters: &SpeculationCounters, running: &mut [Sequence]) {
        self.detach(running);
        counters.update(|stats| {
            stats.draft_attached = false;
            stats.drafts_lost += 1;
        });
    }

    fn detach(&mut self, running: &mut [Sequence]) {
        self.draft = None;
        for sequence in running {
            sequence.drafting.start_anew();
        }
    }

    fn failed(
        &mut self,
        error: &DrafterError,
        counters: &SpeculationCounters,
        running: &mut [Sequence],
    ) {
        tracing::warn!(%error, "the draft is lost; decoding goes on without");
        self.lose(counters, running);
    }

    /// Receives what was asked for, and gives the sequences the trees that the next step verifies, of at most
    /// `free_rows` nodes together.
    pub fn plan(
        &mut self,
        counters: &SpeculationCounters,
        running: &mut [Sequence],
        free_rows: usize,
    ) {
        if let Err(error) = self.receive(counters, running) {
            self.failed(&error, counters, running);
        }
        self.grow_trees(counters, running, free_rows);
    }

    fn receive(
        &mut self,
        counters: &SpeculationCounters,
        running: &mut [Sequence],
    ) -> Result<(), DrafterError> {
        let Some(draft) = &mut self.draft else {
            return Ok(());
        };
        let asked = draft.asked.take().unwrap_or(Asked {
            at: Instant::now(),
            proposals: 0,
            is_usual: false,
            commit_time: Duration::ZERO,
        });
        let proposals = asked.proposals;
        let patience = if proposals > 0 {
            let usual_ms = self.planner.drafts_ms(proposals);
            usual_ms.map_or(FIRST_PATIENCE, |ms| {
                Duration::from_secs_f64(4.0 * ms / 1e3) + SLACK
            })
        } else {
            Duration::ZERO
        };
        let deadline = asked.at + patience;
        let mut outstanding = running
            .iter()
            .filter(|sequence| sequence.drafting.asked_at.is_some())
            .count();
        let (mut draft_time, mut answered) = (Duration::ZERO, Vec::new());
        while outstanding > 0 || draft.is_late {
            let left = if draft.is_late {
                Duration::ZERO
            } else {
                deadline.saturating_duration_since(Instant::now())
            };
            let Some(answer) = draft.offered.drafter.receive(left)? else {
                break;
            };
            draft.is_late = false;
            draft_time = draft_time.max(answer.draft_time);
            if let Some(place) = deliver(answer, running, self.vocab_size) {
                answered.push(place);
                outstanding -= 1;
            }
        }
        let waited = asked.at.elapsed();
        if outstanding == 0 && proposals > 0 && asked.is_usual {
            self.planner.note_drafts(proposals, ms(waited));
        }
        if outstanding > 0 && proposals > 0 && !draft.is_late {
            draft.is_late = true;
            tracing::debug!(outstanding, waited_ms = ms(waited), "proposals are late");
            counters.update(|stats| stats.draft_timeouts += outstanding as u64);
            let late = running.iter_mut().filter(|s| s.drafting.asked_at.is_some());
            late.for_each(|s| Planner::note_wait(&mut s.drafting.text, ms(waited)));
        }
        if !answered.is_empty() {
            let channel_time = waited.saturating_sub(draft_time + asked.commit_time);
            for place in answered {
                let drafting = &mut running[place].drafting;
                drafting.note_draft(draft_time, channel_time);
                Planner::note_wait(&mut drafting.text, ms(waited));
            }
            counters.update(|stats| {
                stats.draft_us += us(draft_time);
                stats.channel_us += us(channel_time);
            });
        }
        Ok(())
    }

    fn grow_trees(
        &mut self,
        counters: &SpeculationCounters,
        running: &mut [Sequence],
        free_rows: usize,
    ) {
        let started = Instant::now();
        let decoding = running.iter().filter(|s| s.is_decoding()).count();
        let mut trees = Vec::new();
        for (place, sequence) in running.iter_mut().enumerate() {
            if let Some(proposal) = sequence.drafting.proposal.take() {
                trees.push((place, sequence.grow(&proposal)));
            }
        }
        if trees.is_empty() {
            return;
        }
        let nodes = self.nodes(&trees, running, decoding);
        let share = free_rows / trees.len();
        let is_too_much = nodes.iter().sum::<usize>() > free_rows;
        let tree_time = started.elapsed();
        for ((place, mut tree), nodes) in trees.into_iter().zip(nodes) {
            tree.truncate(if is_too_much { nodes.min(share) } else { nodes });
            running[place].drafting.note_tree(tree, tree_time);
        }
        counters.update(|stats| stats.tree_us += us(tree_time));
    }

    /// Nodes of each tree that are verified: all, or as many as pay.
    fn nodes(
        &self,
        trees: &[(usize, DraftTree)],
        running: &[Sequence],
        decoding: usize,
    ) -> Vec<usize> {
        let is_adaptive = |place: usize| running[place].drafting.is_adaptive();
        let adaptive: Vec<_> = trees
            .iter()
            .filter(|(place, _)| is_adaptive(*place))
            .map(|(place, tree)| (running[*place].drafting.text, tree))
            .collect();
        let fixed = trees.iter().filter(|(place, _)| !is_adaptive(*place));
        let fixed_nodes: usize = fixed.map(|(_, tree)| tree.num_nodes()).sum();
        let others = decoding - adaptive.len() + fixed_nodes;
        let mut adapted = self.planner.nodes(&adaptive, others).into_iter();
        trees
            .iter()
            .map(|(place, tree)| {
                let adapted = is_adaptive(*place).then(|| adapted.next()).flatten();
                adapted.unwrap_or(tree.num_nodes())
            })
            .collect()
    }

    /// A step of `rows` rows and nothing but decoding in it took this long.
    pub fn note_step(&mut self, rows: usize, time: Duration) {
        self.planner.note_step(rows, ms(time));
    }

    /// A sequence decoded without a draft.
    pub fn note_plain(&self, sequence: &mut Sequence, time: Duration) {
        if self.draft.is_some() {
            self.planner
                .note_plain(&mut sequence.drafting.text, ms(time));
        }
    }

    /// A sequence's `tree` was verified.
    pub fn note_round(&mut self, sequence: &mut Sequence, tree: &DraftTree, round: RoundOutcome) {
        self.planner
            .note_round(&mut sequence.drafting.text, tree, round);
    }

    /// A sequence has ended.
    pub fn forget(&mut self, sequence: &mut Sequence) {
        self.planner.end_text(&sequence.drafting.text);
        let tail = sequence.drafting.tail.take();
        self.spare.extend(tail.map(FeatureTail::into_block));
        if let Some(draft) = &mut self.draft
            && sequence.drafting.fed_to > 0
        {
            draft.to_forget.push(sequence.drafting.id);
        }
    }
}

/// Gives an answer to its sequence; which that is. `None` where the sequence is gone.
fn deliver(answer: Drafted, running: &mut [Sequence], vocab_size: usize) -> Option<usize> {
    let place = running
        .iter()
        .position(|sequence| sequence.drafting.id == answer.sequence)?;
    let sequence = &mut running[place];
    let asked_at = sequence.drafting.asked_at.take()?;
    let proposal = answer.proposal;
    let is_whole = proposal.ids.len() == proposal.log_probs.len()
        && proposal.ids.iter().all(|&id| (id as usize) < vocab_size);
    // A late answer is about a token that others have followed since.
    let is_current = asked_at == answer.position && asked_at == sequence.anchor().0;
    if is_whole && is_current && proposal.depth() > 0 {
        sequence.drafting.proposal = Some(proposal);
    }
    Some(place)
}
