//! Files of the exact reference: what a model must give for tokens that are given, and by how much it may differ.

#![allow(clippy::unwrap_used, dead_code)]

use std::path::Path;

use safetensors::SafeTensors;

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

/// Tokens, and what the reference computes for them.
pub struct Golden {
    name: String,
    /// What it computed at once.
    pub prompt: Vec<u32>,
    /// What followed one by one.
    pub decode: Vec<u32>,
    /// \[rows, vocab\].
    exact: Vec<f32>,
    /// Outputs of layers, \[rows, E\], where they are there.
    hidden: Vec<(usize, Vec<f32>)>,
}

impl Golden {
    pub fn open(folder: &Path, name: &str) -> Self {
        let bytes = std::fs::read(folder.join(format!("{name}.logits.safetensors"))).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let hidden = |layer: usize| {
            let values = words(&tensors, &format!("hidden_{layer}"), f32::from_le_bytes)?;
            Some((layer, values))
        };
        Self {
            name: name.to_owned(),
            prompt: words(&tensors, "prompt_ids", u32::from_le_bytes).unwrap(),
            decode: words(&tensors, "decode_ids", u32::from_le_bytes).unwrap(),
            exact: words(&tensors, "logits", f32::from_le_bytes).unwrap(),
            hidden: (0..64).filter_map(hidden).collect(),
        }
    }

    /// All tokens.
    pub fn tokens(&self) -> Vec<u32> {
        [self.prompt.as_slice(), &self.decode].concat()
    }

    /// Layers whose outputs are there.
    pub fn layers(&self) -> Vec<usize> {
        self.hidden.iter().map(|(layer, _)| *layer).collect()
    }

    /// Holds the first rows against the reference: logits \[rows, vocab\] and features \[rows, layers, E\]; returns what broke
    /// the gates.
    pub fn broken(&self, logits: &[f32], features: &[f32]) -> Vec<String> {
        let name = &self.name;
        let all_rows = self.prompt.len() + self.decode.len();
        let vocab = self.exact.len() / all_rows;
        let exact = &self.exact[..logits.len()];
        let worst = max_abs(exact, logits);
        let rows = || exact.chunks(vocab).zip(logits.chunks(vocab));
        let kls: Vec<f64> = rows().map(|(p, q)| kl(p, q)).collect();
        let kl_mean = kls.iter().sum::<f64>() / kls.len() as f64;
        let kl_max = kls.iter().copied().fold(0.0, f64::max);
        let clear_misses = rows()
            .filter(|(p, q)| top1(p).1 > 0.1 && top1(p).0 != top1(q).0)
            .count();
        let top1_hits = rows().filter(|(p, q)| top1(p).0 == top1(q).0).count();
        let hidden_worst = self.hidden_worst(kls.len(), features);
        println!(
            "{name}: max abs {worst:.2e}, kl mean {kl_mean:.2e} max {kl_max:.2e}, top-1 {top1_hits}/{}, \
             hidden {hidden_worst:.2e} over {} layers",
            kls.len(),
            self.hidden.len(),
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

    /// The largest difference of a layer's output, of its largest value.
    fn hidden_worst(&self, rows: usize, features: &[f32]) -> f32 {
        let all_rows = self.prompt.len() + self.decode.len();
        let mut worst = 0.0_f32;
        for (tap, (_, want)) in self.hidden.iter().enumerate() {
            let size = want.len() / all_rows;
            let parts = features.chunks_exact(size).skip(tap);
            let got: Vec<f32> = parts
                .step_by(self.hidden.len())
                .flatten()
                .copied()
                .collect();
            let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            worst = worst.max(max_abs(&want[..rows * size], &got) / largest);
        }
        worst
    }
}
