//! Features on their way from the target's rows to the draft.

use models::Model;

use crate::drafter::{Drafter, DrafterError};
use crate::sequence::Sequence;
use crate::speculation::Speculator;
use crate::speculation::drafting::Drafting;
use crate::speculation::features::{FeatureTail, KeptFeatures};

impl Speculator {
    /// Keeps the features of a sequence's accepted rows, the first of which is of `position`.
    pub fn keep_features(
        &mut self,
        sequence: &mut Sequence,
        model: &mut Model,
        position: usize,
        rows: impl Iterator<Item = usize>,
    ) {
        // A sequence that takes no draft needs none kept.
        if self.capture_layers.is_empty() || sequence.drafting.max_nodes == 0 {
            return;
        }
        let Some(tail) = self.tail(&mut sequence.drafting, model, position) else {
            return;
        };
        let rows: Vec<usize> = rows.collect();
        tail.extend(rows.len(), |range, block, at| {
            model.copy_features(&rows[range], block, at);
        });
    }

    /// The rows kept of a sequence, which end at `position`; `None` where there is no memory for them, and then no draft.
    fn tail<'a>(
        &mut self,
        drafting: &'a mut Drafting,
        model: &Model,
        position: usize,
    ) -> Option<&'a mut FeatureTail> {
        let row_len = self.row_len;
        let continues = |tail: &FeatureTail| tail.row_len() == row_len && tail.end() == position;
        if !drafting.tail.as_ref().is_some_and(continues) {
            self.spare.retain(|block| block.row_len() == row_len);
            let used = drafting.tail.take().map(FeatureTail::into_block);
            let used = used.filter(|block| block.row_len() == row_len);
            let block = used.or_else(|| self.spare.pop()).map_or_else(
                || model.feature_block(FeatureTail::capacity(row_len), row_len),
                Ok,
            );
            match block {
                Ok(block) => drafting.tail = Some(FeatureTail::new(block, position)),
                Err(error) => {
                    tracing::warn!(%error, "no memory for what a draft needs; decoding goes on without");
                    drafting.max_nodes = 0;
                }
            }
        }
        drafting.tail.as_mut()
    }

    /// What a draft has to see of a sequence, to go on with where it stands.
    pub fn kept_features(&self, drafting: &Drafting, model: &Model) -> Option<KeptFeatures> {
        let tail = drafting.tail.as_ref()?;
        let kept = tail.keep(model, &self.capture_layers);
        kept.inspect_err(|error| tracing::debug!(%error, "no features kept"))
            .ok()
    }

    /// Has a new sequence begin with features of another, so that its draft has a context at once.
    pub fn restore_features(
        &mut self,
        drafting: &mut Drafting,
        model: &Model,
        kept: &KeptFeatures,
    ) {
        if kept.layers != self.capture_layers || drafting.max_nodes == 0 {
            return;
        }
        if let Some(tail) = self.tail(drafting, model, kept.first) {
            kept.restore(tail);
        }
    }

    /// Gives the draft what a round has accepted, if it has all that came before: on a device it takes it in while the
    /// target commits.
    pub fn feed_round(&mut self, sequence: &mut Sequence) {
        let Some(draft) = self.draft.as_mut().filter(|draft| !draft.is_late) else {
            return;
        };
        let (position, drafting) = (sequence.fed(), &mut sequence.drafting);
        let Some(tail) = drafting
            .tail
            .as_ref()
            .filter(|_| drafting.fed_to == position)
        else {
            return;
        };
        match feed(&mut *draft.offered.drafter, drafting.id, tail, position) {
            Ok(fed_to) => drafting.fed_to = fed_to,
            Err(error) => draft.fault = Some(error),
        }
    }
}

/// Gives the draft what it has not seen of a sequence, and the position up to which it has then.
pub(super) fn feed(
    drafter: &mut dyn Drafter,
    id: u64,
    tail: &FeatureTail,
    fed_to: usize,
) -> Result<usize, DrafterError> {
    let mut fed_to = fed_to;
    loop {
        let (first, rows) = tail.since(fed_to);
        let taken = drafter.feed(id, first, rows)?;
        fed_to = first + taken;
        if taken < rows.num_rows() || fed_to == tail.end() {
            return Ok(fed_to);
        }
    }
}
