//! A draft in another process, as the engine sees it.

use std::time::Duration;

use draft_link::{LinkError, TargetEnd};
use engine::{Ask, DraftShape, Drafted, Drafter, DrafterError};
use models::FeatureRows;

/// A draft at the other end of a link.
#[derive(Debug)]
pub(crate) struct RemoteDrafter {
    end: TargetEnd,
    shape: DraftShape,
}

impl RemoteDrafter {
    pub(crate) fn new(end: TargetEnd, shape: DraftShape) -> Self {
        Self { end, shape }
    }
}

impl Drafter for RemoteDrafter {
    fn shape(&self) -> &DraftShape {
        &self.shape
    }

    fn feed(
        &mut self,
        sequence: u64,
        first_position: usize,
        rows: FeatureRows<'_>,
    ) -> Result<usize, DrafterError> {
        let part = |range| rows.slice(range).span();
        self.end
            .feed(sequence, first_position, rows.num_rows(), part)
            .map_err(gone)
    }

    fn ask(&mut self, sequence: u64, ask: Ask) -> Result<bool, DrafterError> {
        let ask = draft_link::Ask {
            anchor: ask.anchor,
            position: ask.position,
            depth: ask.depth,
            top_k: ask.top_k,
        };
        self.end.ask(sequence, ask).map_err(gone)
    }

    fn receive(&mut self, patience: Duration) -> Result<Option<Drafted>, DrafterError> {
        let Some(answer) = self.end.receive(patience).map_err(gone)? else {
            return Ok(None);
        };
        let proposal = answer.proposal.unwrap_or_else(|refusal| {
            tracing::debug!(
                sequence = answer.sequence,
                position = answer.position,
                ?refusal,
                "no proposal"
            );
            // Without any position: the sequence goes on without a draft.
            speculative::Proposal::default()
        });
        Ok(Some(Drafted {
            sequence: answer.sequence,
            position: answer.position,
            proposal,
            draft_time: answer.draft_time,
        }))
    }

    fn forget(&mut self, sequence: u64) -> Result<bool, DrafterError> {
        self.end.forget(sequence).map_err(gone)
    }
}

/// The engine needs the words only.
fn gone(error: LinkError) -> DrafterError {
    DrafterError(error.to_string())
}
