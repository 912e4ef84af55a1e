//! An engine whose model is split: the same answers, and a clear end when an earlier stage is gone.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::gated::Gate;
use common::{
    CONFIG, FIBONACCI, FIBONACCI_ANSWER, Stand, collect, device, request, start_with, within,
};
use generation::GenerateError;
use models::{
    Batch, EarlierLayers, EarlierLayersError, Model, SequenceId, StageOutput, load_stage,
};

/// The first layers, in this process, which are gone after some steps.
#[derive(Debug)]
struct Mortal {
    model: Model,
    names: HashMap<SequenceId, SequenceId>,
    steps_left: Arc<AtomicUsize>,
}

impl EarlierLayers for Mortal {
    fn compiles_kernels(&self) -> bool {
        false
    }

    fn create_sequence(&mut self, sequence: SequenceId) -> Result<(), EarlierLayersError> {
        let own = self.model.create_sequence().unwrap();
        self.names.insert(sequence, own);
        Ok(())
    }

    fn fork_sequence(
        &mut self,
        sequence: SequenceId,
        fork: SequenceId,
    ) -> Result<(), EarlierLayersError> {
        let own = self.model.fork_sequence(self.names[&sequence]).unwrap();
        assert_eq!(self.names.insert(fork, own), None);
        Ok(())
    }

    fn free_sequence(&mut self, sequence: SequenceId) -> Result<(), EarlierLayersError> {
        let own = self.names.remove(&sequence).unwrap();
        self.model.free_sequence(own).unwrap();
        Ok(())
    }

    fn forward(
        &mut self,
        batch: &Batch,
        output: &mut StageOutput,
    ) -> Result<(), EarlierLayersError> {
        let left = self.steps_left.load(Ordering::Relaxed);
        let Some(left) = left.checked_sub(1) else {
            return Err(EarlierLayersError("stage 1 of 2: out of steps".to_owned()));
        };
        self.steps_left.store(left, Ordering::Relaxed);
        let mut batch = batch.clone();
        let mut rows = 0;
        for segment in &mut batch.segments {
            segment.sequence = self.names[&segment.sequence];
            rows += segment.tokens.len();
        }
        self.model.forward(&batch).unwrap();
        *output = self.model.stage_output(rows).unwrap();
        Ok(())
    }

    fn commit(&mut self, sequence: SequenceId, path: &[usize]) -> Result<(), EarlierLayersError> {
        self.model.commit(self.names[&sequence], path).unwrap();
        Ok(())
    }
}

/// An engine over the demo model in two stages, the first of which lives for `steps` steps.
fn start_split(steps: usize) -> Stand {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/demo/demo-target.gguf");
    let file = gguf::GgufFile::open(path).unwrap();
    let stages = models::split_layers(&file, &[1.0, 1.0]).unwrap();
    let options = CONFIG.load_options(None);
    let load = |stage| load_stage(&file, stage, device(), options, &mut |_| {}).unwrap();
    let [first, last] = [0, 1].map(|stage| load(stages[stage].clone()));
    let mut model = last;
    model.set_earlier(Some(Box::new(Mortal {
        model: first,
        names: HashMap::new(),
        steps_left: Arc::new(AtomicUsize::new(steps)),
    })));
    start_with(model, CONFIG, Arc::new(Gate::default()))
}

#[tokio::test]
async fn a_split_model_answers_as_the_whole_one() {
    let stand = start_split(usize::MAX);
    let answer = stand.answer(&request(&FIBONACCI, 12)).await;
    assert_eq!(answer.ids(), FIBONACCI_ANSWER[..12]);
}

#[tokio::test]
async fn when_an_earlier_stage_is_gone_all_are_told_and_the_engine_ends() {
    let stand = start_split(5);
    let streams: Vec<_> = (0..6)
        .map(|_| stand.handle.generate(request(&FIBONACCI, 100)))
        .collect();
    let gone = GenerateError::Gone("stage 1 of 2: out of steps".to_owned());
    for stream in streams {
        let end = match stream {
            Ok(stream) => collect(stream).await.end.unwrap_err(),
            // It was gone already.
            Err(error) => error,
        };
        assert_eq!(end, gone);
    }
    within(stand.handle.closed()).await;
    let refused = stand.handle.generate(request(&FIBONACCI, 1)).unwrap_err();
    assert_eq!(refused, gone);
    let stats = stand.handle.stats();
    assert_eq!((stats.running_sequences, stats.queued_requests), (0, 0));
}
