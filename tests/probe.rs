//! What `tandem probe` and `tandem run` print, against other implementations.
#![allow(clippy::unwrap_used, reason = "helpers outside test functions")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

fn run(args: &[&str], input: &str) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_tandem"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tandem starts");
    let mut stdin = process.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("tandem reads");
    drop(stdin);
    process.wait_with_output().expect("tandem ends")
}

fn tandem(args: &[&str], input: &str) -> Output {
    let output = run(args, input);
    assert!(
        output.status.success(),
        "tandem {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn demo_cases() -> Vec<Value> {
    let text = std::fs::read_to_string(repository("deploy/demo/goldens.json")).unwrap();
    let mut golden: Value = serde_json::from_str(&text).unwrap();
    let Value::Array(cases) = golden["cases"].take() else {
        panic!("cases are a list");
    };
    cases
}

fn words<T>(tensors: &SafeTensors<'_>, name: &str, convert: fn([u8; 4]) -> T) -> Vec<T> {
    let tensor = tensors.tensor(name).unwrap();
    let (chunks, rest) = tensor.data().as_chunks();
    assert!(rest.is_empty(), "{name}");
    chunks.iter().copied().map(convert).collect()
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - top).exp()).sum();
    logits
        .iter()
        .map(|&x| f64::from(x - top) - sum.ln())
        .collect()
}

/// Gates of `goldens/README.md`: 8-bit activations have a KL of 5e-4 in the mean and 1e-2 at most, 16-bit ones of 1e-5.
#[test]
fn probed_logits_and_features_are_those_of_the_exact_reference() {
    let folder = repository("crates/models/tests/data");
    let out = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let model = entry.unwrap().path();
        if model
            .extension()
            .is_none_or(|extension| extension != "gguf")
        {
            continue;
        }
        let name = model.file_stem().unwrap().to_str().unwrap().to_owned();
        let bytes = std::fs::read(folder.join(format!("{name}.logits.safetensors"))).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let mut ids = words(&golden, "prompt_ids", u32::from_le_bytes);
        ids.extend(words(&golden, "decode_ids", u32::from_le_bytes));
        let tokens = out.path().join("ids.json");
        std::fs::write(&tokens, json!(ids).to_string()).unwrap();
        let layers: Vec<String> = golden
            .names()
            .iter()
            .filter_map(|name| name.strip_prefix("hidden_").map(str::to_owned))
            .collect();
        let written = out.path().join("out.safetensors");
        let mut args = vec!["probe", "target", "-m", model.to_str().unwrap()];
        args.extend(["--tokens", tokens.to_str().unwrap()]);
        args.extend(["--out", written.to_str().unwrap()]);
        let features = layers.join(",");
        if !layers.is_empty() {
            args.extend(["--features", &features]);
        }
        tandem(&args, "");

        let bytes = std::fs::read(&written).unwrap();
        let probed = SafeTensors::deserialize(&bytes).unwrap();
        let exact = words(&golden, "logits", f32::from_le_bytes);
        let got = words(&probed, "logits", f32::from_le_bytes);
        assert_eq!(exact.len(), got.len(), "{name}");
        args.extend(["--rows", "1"]);
        tandem(&args, "");
        assert!(
            std::fs::read(&written).unwrap() == bytes,
            "{name}: one token a step gives other values"
        );
        let vocab = exact.len() / ids.len();
        let kls: Vec<f64> = exact
            .chunks(vocab)
            .zip(got.chunks(vocab))
            .map(|(exact, got)| {
                let pairs = log_softmax(exact).into_iter().zip(log_softmax(got));
                pairs.map(|(p, q)| p.exp() * (p - q)).sum()
            })
            .collect();
        let mean = kls.iter().sum::<f64>() / kls.len() as f64;
        let most = kls.iter().copied().fold(0.0, f64::max);
        let (mean_gate, most_gate) = if name.ends_with("F16") {
            (1e-5, 1e-4)
        } else {
            (5e-4, 1e-2)
        };
        assert!(mean <= mean_gate, "{name}: KL mean {mean:e}");
        assert!(most <= most_gate, "{name}: KL max {most:e}");
        for layer in layers {
            let exact = words(&golden, &format!("hidden_{layer}"), f32::from_le_bytes);
            let got = words(&probed, &format!("hidden.{layer}"), f32::from_le_bytes);
            let largest = exact.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            let error = exact
                .iter()
                .zip(&got)
                .fold(0.0_f32, |most, (x, y)| most.max((x - y).abs()));
            assert_eq!(exact.len(), got.len(), "{name}, layer {layer}");
            // 8-bit activations move a residual stream by a few per cent of its largest entry.
            assert!(
                error <= 0.05 * largest,
                "{name}, layer {layer}: {error} of {largest}"
            );
        }
        checked += 1;
    }
    assert!(checked >= 6, "{checked} models");
}

#[test]
fn probed_tokens_are_those_of_the_demo_models_goldens() {
    let cases = demo_cases();
    assert!(!cases.is_empty());
    for case in cases.iter().step_by(cases.len().div_ceil(8)) {
        let output = tandem(&["probe", "tokenize"], case["prompt"].as_str().unwrap());
        let ids: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(ids, case["prompt_ids"], "{}", case["messages"]);
    }
}

#[test]
fn probed_templates_are_those_of_transformers() {
    let folder = repository("crates/chat/tests/data");
    let text = std::fs::read_to_string(folder.join("chat_templates.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let template = folder.join("smollm2.jinja");
    let out = tempfile::tempdir().unwrap();
    let cases: Vec<&Value> = golden["cases"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|case| case["template"] == "smollm2")
        .collect();
    assert!(!cases.is_empty());
    for case in cases {
        let path = out.path().join("messages.json");
        std::fs::write(&path, case.to_string()).unwrap();
        let mut args = vec!["probe", "template", "--messages", path.to_str().unwrap()];
        args.extend(["--chat-template-file", template.to_str().unwrap()]);
        let output = tandem(&args, "");
        let rendered = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            rendered,
            case["rendered"].as_str().unwrap(),
            "{}",
            case["messages"]
        );
    }
}

/// Rounds of the demo's reference, whose drafts come from expanded weights: 8-bit activations may decide near ties
/// otherwise. So nine tenths must agree, and elsewhere the reference's token must be within a nat of the likeliest.
#[test]
fn probed_drafts_are_those_of_the_demo_models_goldens() {
    let text = std::fs::read_to_string(repository("deploy/demo/goldens.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let cases = demo_cases();
    let out = tempfile::tempdir().unwrap();
    let (tokens, written) = (
        out.path().join("ids.json"),
        out.path().join("out.safetensors"),
    );
    let runs = golden["speculative"].as_array().unwrap();
    let (mut drafted, mut same) = (0, 0);
    for run in runs.iter().filter(|run| run["budget"].is_null()).take(3) {
        let case = cases.iter().find(|c| c["name"] == run["name"]).unwrap();
        let round = &run["rounds"][1];
        let mut ids = case["prompt_ids"].as_array().unwrap().clone();
        ids.extend(run["ids"].as_array().unwrap().iter().cloned());
        ids.truncate(round["anchor"].as_u64().unwrap() as usize + 1);
        std::fs::write(&tokens, json!(ids).to_string()).unwrap();
        let mut args = vec!["probe", "draft", "--tokens", tokens.to_str().unwrap()];
        args.extend(["--out", written.to_str().unwrap()]);
        tandem(&args, "");
        let bytes = std::fs::read(&written).unwrap();
        let probed = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(probed.tensor("draft_logits").unwrap().shape(), [15, 8192]);
        let logits = words(&probed, "draft_logits", f32::from_le_bytes);
        let draft = round["draft"].as_array().unwrap();
        for (row, want) in logits.chunks(8192).zip(draft) {
            let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let own = row[want.as_u64().unwrap() as usize];
            assert!(top - own <= 1.0, "{}: {}", run["name"], top - own);
            same += usize::from(top == own);
            drafted += 1;
        }
    }
    assert_eq!(drafted, 45);
    assert!(same >= 40, "{same} of {drafted}");
}

/// What `tandem probe compress` says of the golden prompt of 2048 tokens.
fn probed_compression(more: &[&str]) -> Value {
    let out = tempfile::tempdir().unwrap();
    let (tokens, written) = (out.path().join("ids.json"), out.path().join("spans.json"));
    let text = std::fs::read_to_string(repository("deploy/demo/goldens.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    std::fs::write(&tokens, golden["prefill"]["ids"].to_string()).unwrap();
    let mut args = vec!["probe", "compress", "--tokens", tokens.to_str().unwrap()];
    args.extend(["--out", written.to_str().unwrap()]);
    args.extend(more);
    tandem(&args, "");
    serde_json::from_str(&std::fs::read_to_string(&written).unwrap()).unwrap()
}

#[test]
fn probed_chunk_scores_are_those_of_the_demo_models_goldens() {
    let text = std::fs::read_to_string(repository("deploy/demo/goldens.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let drafter = repository("deploy/demo/demo-prefill.gguf");
    let drafter = ["--prefill-drafter", drafter.to_str().unwrap()];
    let probed = probed_compression(&[&drafter[..], &["--positions", "rotated"]].concat());
    assert_eq!(
        (&probed["tokens"], &probed["chunk"]),
        (&json!(2048), &json!(32))
    );
    let numbers = |list: &Value| -> Vec<f64> { serde_json::from_value(list.clone()).unwrap() };
    let got = numbers(&probed["chunk_scores"]);
    let want = numbers(&golden["prefill"]["chunk_scores"]);
    assert_eq!(got.len(), want.len());
    for (chunk, (got, want)) in got.iter().zip(&want).enumerate() {
        // They are written with six digits after the point.
        assert!((got - want).abs() < 1e-6, "chunk {chunk}: {got}, {want}");
    }
}

#[test]
fn probed_spans_are_the_chunks_that_are_kept() {
    let kept = |probed: &Value| probed["kept_chunks"].as_array().unwrap().len();
    // Three that the share allows, and eight that the end of the prompt names.
    let probed = probed_compression(&["--as-served"]);
    assert_eq!((kept(&probed), &probed["kept_tokens"]), (11, &json!(352)));
    let spans: Vec<[usize; 2]> = serde_json::from_value(probed["kept_spans"].clone()).unwrap();
    assert_eq!(
        spans.iter().map(|[start, end]| end - start).sum::<usize>(),
        352
    );
    assert!(
        spans
            .iter()
            .any(|[start, end]| *start <= 1709 && 1729 <= *end),
        "{spans:?}"
    );
    assert_eq!(probed["options"]["exact"], false);
    let probed = probed_compression(&["--as-served", "--keep-ratio", "0.1", "--within-budget"]);
    assert_eq!(kept(&probed), 6);
}

/// A file with one tensor of these little-endian bytes.
fn write_tensor(path: &Path, dtype: Dtype, shape: &[usize], bytes: &[u8]) {
    let view = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    safetensors::serialize_to_file([("logits", view)], None, path).unwrap();
}

/// The tree of `logits` (\[positions, vocab\]), with these options more.
fn probed_tree(logits: &Path, more: &[&str]) -> Value {
    let out = tempfile::tempdir().unwrap();
    let written = out.path().join("tree.json");
    let mut args = vec!["probe", "tree", "--logits", logits.to_str().unwrap()];
    args.extend(["--out", written.to_str().unwrap()]);
    args.extend(more);
    tandem(&args, "");
    serde_json::from_str(&std::fs::read_to_string(&written).unwrap()).unwrap()
}

fn golden_logits() -> PathBuf {
    repository("crates/speculative/tests/data/ddtree_logits.safetensors")
}

#[test]
fn probed_trees_are_those_of_the_reference() {
    let path = repository("crates/speculative/tests/data/ddtree_trees.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 10);
    for case in cases {
        let name = case["logits"].as_str().unwrap();
        let budget = case["budget"].as_u64().unwrap().to_string();
        let tree = probed_tree(&golden_logits(), &["--tensor", name, "--budget", &budget]);
        for (field, expected) in [
            ("tokens", "node_token_ids"),
            ("depths", "node_depths"),
            ("parents", "parents"),
        ] {
            assert_eq!(tree[field], case[expected], "{name}, budget {budget}");
        }
    }
}

/// By hand: the first position says 0 with 0.525 and 1 with 0.475, the second the same. So 1 alone is likelier than 0
/// and 0 after it, unless the likeliest token of each position comes first.
#[test]
fn a_file_with_one_tensor_needs_no_name_and_a_chain_may_come_first() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("logits.safetensors");
    let logits = [3.0_f32, 2.9, 0.1, 0.0];
    let bytes: Vec<u8> = logits.iter().flat_map(|v| v.to_le_bytes()).collect();
    write_tensor(&path, Dtype::F32, &[2, 2], &bytes);
    assert_eq!(
        probed_tree(&path, &["--budget", "2"]),
        json!({ "tokens": [0, 1], "depths": [1, 1], "parents": [-1, 0, 0] })
    );
    assert_eq!(
        probed_tree(&path, &["--budget", "2", "--chain-seed"]),
        json!({ "tokens": [0, 0], "depths": [1, 2], "parents": [-1, 0, 1] })
    );
}

#[test]
fn logits_that_make_no_tree_are_refused_by_what_is_wrong() {
    let out = tempfile::tempdir().unwrap();
    let file = |name: &str| out.path().join(name);
    write_tensor(&file("type"), Dtype::F16, &[1, 3], &[0; 6]);
    write_tensor(&file("shape"), Dtype::F32, &[1, 1, 3], &[0; 12]);
    write_tensor(&file("empty"), Dtype::F32, &[2, 0], &[]);
    std::fs::write(file("junk"), "no tensors").unwrap();
    let tree = file("tree.json");
    let check = |logits: &Path, more: &[&str], words: &[&str]| {
        let logits = logits.to_str().unwrap();
        let mut args = vec!["probe", "tree", "--logits", logits, "--budget", "2"];
        args.extend(["--out", tree.to_str().unwrap()]);
        args.extend(more);
        let output = run(&args, "");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{logits}: {said}");
        assert!(said.contains(logits), "{logits}: {said}");
        for word in words {
            assert!(said.contains(word), "{logits}, {word}: {said}");
        }
        assert!(!tree.exists(), "{logits}");
    };
    let all = ["flat", "long", "one", "peaked", "smallvocab"];
    check(&golden_logits(), &[], &["holds 5 tensors", "--tensor"]);
    check(&golden_logits(), &[], &all);
    check(&golden_logits(), &["--tensor", "other"], &["`other`"]);
    check(&file("type"), &[], &["`logits`", "F16", "expected F32"]);
    check(
        &file("shape"),
        &[],
        &["`logits`", "[1, 1, 3]", "expected [positions, vocab]"],
    );
    check(&file("empty"), &[], &["`logits`", "its rows are empty"]);
    check(&file("junk"), &[], &[]);
    check(&file("none"), &[], &["reading"]);
}
