//! Questions to the draft, and what it is told beside them.

use std::time::{Duration, Instant};

use crate::counters::SpeculationCounters;
use crate::drafter::{Ask, DrafterError};
use crate::sequence::Sequence;
use crate::speculation::Speculator;
use crate::speculation::feeding::feed;

/// Rows of features that a proposal may wait for without its time being taken for the usual one.
const USUAL_ROWS: usize = 64;

/// What a draft was asked last.
#[derive(Debug)]
pub(super) struct Asked {
    pub at: Instant,
    pub proposals: usize,
    /// Whether the time until they come measures its pace.
    pub is_usual: bool,
    /// What commits took of that time.
    pub commit_time: Duration,
}

impl Speculator {
    /// Asks the draft for the next round, after feeding it what it has not seen.
    pub fn ask(&mut self, counters: &SpeculationCounters, running: &mut [Sequence]) {
        if let Err(error) = self.try_ask(running) {
            self.failed(&error, counters, running);
        }
    }

    fn try_ask(&mut self, running: &mut [Sequence]) -> Result<(), DrafterError> {
        let Some(draft) = &mut self.draft else {
            return Ok(());
        };
        if let Some(fault) = draft.fault.take() {
            return Err(fault);
        }
        let drafter = &mut draft.offered.drafter;
        if draft.is_late {
            return Ok(());
        }
        let decoding = running.iter().filter(|s| s.is_decoding()).count();
        let mut eligible: Vec<&mut Sequence> =
            running.iter_mut().filter(|s| s.can_be_drafted()).collect();
        if eligible.is_empty() {
            return Ok(());
        }
        let texts: Vec<_> = eligible
            .iter()
            .filter(|s| s.drafting.is_adaptive())
            .map(|s| s.drafting.text)
            .collect();
        let wanted = self.planner.wanted(&texts, decoding - texts.len());
        let mut wanted = wanted.into_iter();
        eligible.retain(|s| !s.drafting.is_adaptive() || wanted.next() == Some(true));
        let (mut proposals, mut is_usual) = (0, true);
        let asked_at = Instant::now();
        for sequence in eligible {
            let (position, anchor) = sequence.anchor();
            let is_constrained = sequence.is_constrained();
            let draftable = sequence.draftable();
            let drafting = &mut sequence.drafting;
            let Some(tail) = drafting.tail.as_ref().filter(|tail| tail.end() == position) else {
                continue;
            };
            is_usual &= position - tail.since(drafting.fed_to).0 <= USUAL_ROWS;
            drafting.fed_to = feed(&mut **drafter, drafting.id, tail, drafting.fed_to)?;
            let shape = drafter.shape();
            let ask = Ask {
                anchor,
                position,
                depth: shape.depth.min(draftable),
                top_k: drafting.top_k(is_constrained).min(shape.max_top_k),
            };
            if drafting.fed_to == position && drafter.ask(drafting.id, ask)? {
                drafting.asked_at = Some(position);
                proposals += 1;
            }
        }
        draft.asked = (proposals > 0).then_some(Asked {
            at: asked_at,
            proposals,
            is_usual,
            commit_time: Duration::ZERO,
        });
        Ok(())
    }

    /// A commit took this long, while the draft has been asked already.
    pub fn note_commit(&mut self, time: Duration) {
        let draft = self.draft.as_mut();
        if let Some(asked) = draft.and_then(|draft| draft.asked.as_mut()) {
            asked.commit_time += time;
        }
    }

    /// Has the draft forget sequences that have ended.
    pub fn tell_endings(&mut self, counters: &SpeculationCounters, running: &mut [Sequence]) {
        let Some(draft) = &mut self.draft else {
            return;
        };
        while let Some(&id) = draft.to_forget.last() {
            match draft.offered.drafter.forget(id) {
                Ok(true) => draft.to_forget.pop(),
                Ok(false) => return,
                Err(error) => return self.failed(&error, counters, running),
            };
        }
    }

    /// Steps pause: answers that come meanwhile say nothing of the draft's pace.
    pub fn forget_pace(&mut self) {
        if let Some(draft) = &mut self.draft {
            draft.asked = None;
        }
    }
}
