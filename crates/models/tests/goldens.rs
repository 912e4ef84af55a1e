//! Every test model against the exact reference: 40 rows of prefill, then 8 decode steps.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use models::Batch;

use common::golden::Golden;
use common::{chain, data, open};

/// Measures one file; returns what broke its gates.
fn check(folder: &Path, name: &str) -> Vec<String> {
    let golden = Golden::open(folder, name);
    let mut model = open(folder.join(format!("{name}.gguf")));
    let sequence = model.create_sequence().unwrap();
    let (mut logits, mut features) = (Vec::new(), Vec::new());
    let steps = std::iter::once(golden.prompt.as_slice()).chain(golden.decode.chunks(1));
    for tokens in steps {
        let batch = Batch {
            segments: vec![chain(sequence, tokens)],
            capture_layers: golden.layers(),
        };
        logits.extend(model.forward(&batch).unwrap().logits);
        features.extend(model.features(0..tokens.len()));
    }
    assert_eq!(
        logits.len(),
        golden.tokens().len() * model.config().vocab_size
    );
    golden.broken(&logits, &features)
}

fn check_folder(folder: &Path) {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| {
            Some(
                entry
                    .unwrap()
                    .file_name()
                    .to_str()?
                    .strip_suffix(".gguf")?
                    .to_owned(),
            )
        })
        .collect();
    names.sort();
    assert!(!names.is_empty());
    let broken: Vec<String> = names.iter().flat_map(|name| check(folder, name)).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn models_of_the_repository() {
    check_folder(&data());
}

#[test]
fn models_of_the_shared_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/goldens/models");
    if folder.is_dir() {
        check_folder(&folder);
    } else {
        println!("skip: {} does not exist", folder.display());
    }
}
