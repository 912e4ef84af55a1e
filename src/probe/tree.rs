//! `tandem probe tree`: the draft tree that logits make.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use speculative::{DraftTree, Proposal, TreeOptions};

/// Reads logits and writes the tree of at most `options.budget` nodes.
pub(super) fn run(
    logits: &Path,
    tensor: Option<&str>,
    options: TreeOptions,
    out: &Path,
) -> Result<()> {
    let file = || format!("{}", logits.display());
    let bytes = fs::read(logits).with_context(|| format!("reading {}", file()))?;
    let tensors = SafeTensors::deserialize(&bytes).with_context(file)?;
    let name = match (tensor, tensors.names().as_slice()) {
        (Some(name), _) => name.to_owned(),
        (None, [only]) => (*only).to_owned(),
        (None, names) => anyhow::bail!(
            "{} holds {} tensors, expected one; choose with --tensor: {}",
            file(),
            names.len(),
            names.join(", ")
        ),
    };
    let tensor = || format!("{}, tensor `{name}`", file());
    let view = tensors.tensor(&name).with_context(tensor)?;
    let (values, vocab_size) = rows(&view).with_context(tensor)?;
    let proposal = Proposal::from_logits(&values, vocab_size, options.budget);
    let tree = DraftTree::grow(&proposal, options);
    let text = json!({
        "tokens": tree.tokens(),
        "depths": tree.depths(),
        "parents": tree.parents(),
    });
    fs::write(out, text.to_string()).with_context(|| format!("writing {}", out.display()))
}

/// Values \[rows, row length\] and the length of a row.
fn rows(view: &TensorView<'_>) -> Result<(Vec<f32>, usize)> {
    ensure!(
        view.dtype() == Dtype::F32,
        "its type is {:?}, expected F32",
        view.dtype()
    );
    let &[_, vocab_size] = view.shape() else {
        anyhow::bail!(
            "its shape is {:?}, expected [positions, vocab]",
            view.shape()
        );
    };
    ensure!(vocab_size > 0, "its rows are empty");
    let (words, _) = view.data().as_chunks();
    let values = words.iter().map(|word| f32::from_le_bytes(*word));
    Ok((values.collect(), vocab_size))
}
