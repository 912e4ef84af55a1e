//! A draft model in the engine's own process: what a draft worker computes, without the worker.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::{Ask, DraftShape, Drafted, Drafter, DrafterError};
use gguf::GgufFile;
use models::{
    DraftBlock, DraftFile, DraftModel, DraftOptions, FeatureRows, SequenceId, load_draft,
};

pub fn demo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/demo")
        .join(name)
}

#[derive(Debug)]
pub struct InProcess {
    shape: DraftShape,
    model: DraftModel,
    sequences: HashMap<u64, SequenceId>,
    answers: VecDeque<Drafted>,
}

impl InProcess {
    pub fn open(draft: &Path, target: &Path, max_sequences: usize) -> Self {
        let options = DraftOptions {
            max_sequences,
            max_context_tokens: 512,
            ..DraftOptions::default()
        };
        let draft = DraftFile::open(draft).unwrap();
        let target = GgufFile::open(target).unwrap();
        let model = load_draft(&draft, &target, super::device(), options, &mut |_| {}).unwrap();
        Self {
            shape: DraftShape {
                capture_layers: model.config().capture_layers.clone(),
                depth: model.config().max_depth(),
                max_top_k: 64,
            },
            model,
            sequences: HashMap::new(),
            answers: VecDeque::new(),
        }
    }
}

impl Drafter for InProcess {
    fn shape(&self) -> &DraftShape {
        &self.shape
    }

    fn feed(
        &mut self,
        sequence: u64,
        first_position: usize,
        rows: FeatureRows<'_>,
    ) -> Result<usize, DrafterError> {
        let model = &mut self.model;
        let id = *self
            .sequences
            .entry(sequence)
            .or_insert_with(|| model.create_sequence().unwrap());
        if model.next_position(id).unwrap() != first_position {
            model.reset_sequence(id, first_position).unwrap();
        }
        // Its device is another one, if of the same chip.
        model.append(id, &rows.to_vec()).unwrap();
        Ok(rows.num_rows())
    }

    fn ask(&mut self, sequence: u64, ask: Ask) -> Result<bool, DrafterError> {
        let block = DraftBlock {
            sequence: self.sequences[&sequence],
            anchor: ask.anchor,
            depth: ask.depth,
        };
        let mut proposals = self.model.propose(&[block], ask.top_k).unwrap();
        self.answers.push_back(Drafted {
            sequence,
            position: ask.position,
            proposal: proposals.remove(0),
            draft_time: Duration::ZERO,
        });
        Ok(true)
    }

    fn receive(&mut self, _patience: Duration) -> Result<Option<Drafted>, DrafterError> {
        Ok(self.answers.pop_front())
    }

    fn forget(&mut self, sequence: u64) -> Result<bool, DrafterError> {
        if let Some(id) = self.sequences.remove(&sequence) {
            self.model.free_sequence(id).unwrap();
        }
        Ok(true)
    }
}
