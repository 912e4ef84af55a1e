//! A model in stages, all of them in this process.

#![allow(clippy::unwrap_used, dead_code)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use gguf::GgufFile;
use kernels::{Device, KvType, KvTypes};
use models::{
    Batch, EarlierLayers, EarlierLayersError, Model, SequenceId, StageOutput, load_stage,
};

use super::OPTIONS;

/// Layers before a stage's, with names of their own for the sequences.
#[derive(Debug)]
pub struct InProcess {
    model: Model,
    names: HashMap<SequenceId, SequenceId>,
}

impl InProcess {
    pub fn new(model: Model) -> Self {
        Self {
            model,
            names: HashMap::new(),
        }
    }
}

impl EarlierLayers for InProcess {
    fn compiles_kernels(&self) -> bool {
        self.model.compiles_kernels()
    }

    fn create_sequence(&mut self, sequence: SequenceId) -> Result<(), EarlierLayersError> {
        let own = self.model.create_sequence().unwrap();
        assert_eq!(self.names.insert(sequence, own), None);
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
        let mut batch = batch.clone();
        let mut rows = 0;
        for segment in &mut batch.segments {
            segment.sequence = self.names[&segment.sequence];
            rows += segment.tokens.len();
        }
        assert!(self.model.forward(&batch).unwrap().logits.is_empty());
        *output = self.model.stage_output(rows).unwrap();
        Ok(())
    }

    fn commit(&mut self, sequence: SequenceId, path: &[usize]) -> Result<(), EarlierLayersError> {
        self.model.commit(self.names[&sequence], path).unwrap();
        Ok(())
    }
}

/// Opens a file in stages that begin at the layers 0 and `cuts`, one for each device.
pub fn open_stages(
    path: impl AsRef<Path>,
    kv_type: KvType,
    cuts: &[usize],
    devices: &[Arc<dyn Device>],
) -> Model {
    let file = GgufFile::open(path).unwrap();
    let layers = num_layers(&file);
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([layers]);
    let options = models::LoadOptions {
        kv_type: Some(KvTypes::both(kv_type)),
        ..OPTIONS
    };
    let mut stages = starts.zip(ends).zip(devices).map(|((start, end), device)| {
        load_stage(&file, start..end, Arc::clone(device), options, &mut |_| {}).unwrap()
    });
    let first = stages.next().unwrap();
    stages.fold(first, |earlier, mut model| {
        model.set_earlier(Some(Box::new(InProcess::new(earlier))));
        model
    })
}

/// Layers of a file, without prediction blocks.
pub fn num_layers(file: &GgufFile) -> usize {
    models::split_layers(file, &[1.0]).unwrap()[0].end
}
