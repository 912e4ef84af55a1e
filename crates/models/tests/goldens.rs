//! Every test model against the exact reference: 40 rows of prefill, then 8 decode steps.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use models::Batch;
use safetensors::SafeTensors;

use common::{chain, data, open};

/// What a file's activations are allowed to differ by.
#[derive(Debug)]
enum Gate {
    /// Float activations.
    Exact,
    /// 16-bit activations.
    Half,
    /// 8-bit activations.
    Quantised,
}

fn gate(name: &str) -> Gate {
    match name.rsplit_once('-').unwrap().1 {
        "F32" => Gate::Exact,
        "F16" | "BF16" => Gate::Half,
        _ => Gate::Quantised,
    }
}

fn words<T>(tensors: &SafeTensors<'_>, name: &str, convert: fn([u8; 4]) -> T) -> Option<Vec<T>> {
    let tensor = tensors.tensor(name).ok()?;
    Some(
        tensor
            .data()
            .chunks_exact(4)
            .map(|b| convert(b.try_into().unwrap()))
            .collect(),
    )
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - top).exp()).sum();
    logits
        .iter()
        .map(|&x| f64::from(x - top) - sum.ln())
        .collect()
}

fn kl(exact: &[f32], got: &[f32]) -> f64 {
    let pairs = log_softmax(exact).into_iter().zip(log_softmax(got));
    pairs.map(|(p, q)| p.exp() * (p - q)).sum()
}

/// Largest index and its lead over the runner-up.
fn top1(logits: &[f32]) -> (usize, f32) {
    let best = (0..logits.len())
        .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
        .unwrap();
    let rest = logits
        .iter()
        .enumerate()
        .filter(|(i, _)| *i != best)
        .map(|(_, &x)| x);
    (best, logits[best] - rest.fold(f32::NEG_INFINITY, f32::max))
}

fn max_abs(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .fold(0.0, |most, (x, y)| most.max((x - y).abs()))
}

/// Measures one file; returns what broke its gates.
fn check(folder: &Path, name: &str) -> Vec<String> {
    let bytes = std::fs::read(folder.join(format!("{name}.logits.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let prompt = words(&tensors, "prompt_ids", u32::from_le_bytes).unwrap();
    let decode = words(&tensors, "decode_ids", u32::from_le_bytes).unwrap();
    let exact = words(&tensors, "logits", f32::from_le_bytes).unwrap();
    let mut model = open(folder.join(format!("{name}.gguf")));
    let vocab = model.config().vocab_size;
    let layers: Vec<(usize, Vec<f32>)> = (0..model.config().num_layers)
        .filter_map(|layer| {
            Some((
                layer,
                words(&tensors, &format!("hidden_{layer}"), f32::from_le_bytes)?,
            ))
        })
        .collect();
    let capture_layers: Vec<usize> = layers.iter().map(|(layer, _)| *layer).collect();

    let sequence = model.create_sequence().unwrap();
    let mut logits = Vec::new();
    let mut hidden = vec![Vec::new(); layers.len()];
    let steps = std::iter::once(prompt.as_slice()).chain(decode.chunks(1));
    for tokens in steps {
        let segments = vec![chain(sequence, tokens)];
        let batch = Batch {
            segments,
            capture_layers: capture_layers.clone(),
        };
        let output = model.forward(&batch).unwrap();
        logits.extend(output.logits);
        let features = model.features(0..tokens.len());
        let size = model.config().hidden_size;
        for (part, new) in features.chunks_exact(size).enumerate() {
            hidden[part % layers.len()].extend_from_slice(new);
        }
    }

    let worst = max_abs(&exact, &logits);
    let rows = || exact.chunks(vocab).zip(logits.chunks(vocab));
    let kls: Vec<f64> = rows().map(|(p, q)| kl(p, q)).collect();
    let kl_mean = kls.iter().sum::<f64>() / kls.len() as f64;
    let kl_max = kls.iter().copied().fold(0.0, f64::max);
    let clear_misses = rows()
        .filter(|(p, q)| top1(p).1 > 0.1 && top1(p).0 != top1(q).0)
        .count();
    let top1_hits = rows().filter(|(p, q)| top1(p).0 == top1(q).0).count();
    let hidden_worst = layers
        .iter()
        .zip(&hidden)
        .fold(0.0f32, |most, ((_, want), got)| {
            let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            most.max(max_abs(want, got) / largest)
        });
    println!(
        "{name}: max abs {worst:.2e}, kl mean {kl_mean:.2e} max {kl_max:.2e}, top-1 {top1_hits}/{}, \
         hidden {hidden_worst:.2e} over {} layers",
        kls.len(),
        layers.len(),
    );
    let gates = match gate(name) {
        Gate::Exact => vec![("max abs", worst <= 1e-4), ("hidden", hidden_worst <= 1e-4)],
        Gate::Half => vec![("max abs", worst <= 0.05), ("kl mean", kl_mean <= 1e-5)],
        Gate::Quantised => {
            vec![
                ("kl mean", kl_mean <= 5e-4),
                ("kl max", kl_max <= 1e-2),
                ("top-1", clear_misses == 0),
            ]
        }
    };
    let broken = gates.into_iter().filter(|(_, holds)| !holds);
    broken
        .map(|(what, _)| format!("{name}: {what} out of bounds ({:?})", gate(name)))
        .collect()
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
