//! A row's bits depend on its ancestors only: not on batch, tree, commit or snapshot.

#![allow(clippy::unwrap_used)]

mod common;

use models::{Answer, BatchSegment, KvType, LogitsWanted, Model, ModelError, SequenceId};

use common::{batch, chain, data, open_with, tree};

/// A file, and how its keys and values are kept.
type Case = (&'static str, KvType);

const MODELS: [Case; 13] = [
    ("qwen35-nano-Q4_0.gguf", KvType::F32),
    ("qwen35-nano-Q4_0.gguf", KvType::F16),
    ("qwen35-heads-Q8_0.gguf", KvType::F32),
    ("qwen3-tiny-Q5_K_M.gguf", KvType::F32),
    ("llama-nano-F16.gguf", KvType::F32),
    ("llama-nano-F16.gguf", KvType::F16),
    ("llama-nano-F16.gguf", KvType::Bf16),
    ("qwen35-heads-Q8_0.gguf", KvType::Q8_0),
    ("qwen3-tiny-Q5_K_M.gguf", KvType::Q5_1),
    ("qwen35-nano-Q4_0.gguf", KvType::Q5_0),
    ("llama-nano-F16.gguf", KvType::Q4_1),
    ("qwen35-heads-Q8_0.gguf", KvType::Q4_0),
    ("qwen35-nano-Q4_0.gguf", KvType::Tq3_0),
];

fn open_case((name, kv_type): Case) -> Model {
    open_with(data().join(name), kv_type)
}

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| (i * 37 + seed * 101 + i * i * 7) % 500)
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Feeds tokens one at a time; all logits.
fn one_by_one(model: &mut Model, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    for token in tokens {
        logits.extend(
            model
                .forward(&batch(vec![chain(sequence, &[*token])]))
                .unwrap()
                .logits,
        );
    }
    logits
}

fn prefill(model: &mut Model, tokens: &[u32]) -> SequenceId {
    let sequence = model.create_sequence().unwrap();
    model
        .forward(&batch(vec![chain(sequence, tokens)]))
        .unwrap();
    sequence
}

#[test]
fn prefill_in_one_batch_equals_decode() {
    for case in MODELS {
        let mut model = open_case(case);
        let prompt = tokens(40, 1);
        let together = model.create_sequence().unwrap();
        let apart = model.create_sequence().unwrap();
        let output = model
            .forward(&batch(vec![chain(together, &prompt)]))
            .unwrap();
        let logits = one_by_one(&mut model, apart, &prompt);
        assert_eq!(bits(&output.logits), bits(&logits), "{case:?}");
        assert!(
            model.snapshot(together).unwrap() == model.snapshot(apart).unwrap(),
            "{case:?}"
        );
    }
}

#[test]
fn sequences_of_a_batch_equal_solo_runs() {
    for case in MODELS {
        let mut model = open_case(case);
        let prompts = [tokens(19, 2), tokens(33, 3)];
        let mut solo = Vec::new();
        for prompt in &prompts {
            let sequence = model.create_sequence().unwrap();
            solo.extend(
                model
                    .forward(&batch(vec![chain(sequence, prompt)]))
                    .unwrap()
                    .logits,
            );
            model.free_sequence(sequence).unwrap();
        }
        let segments = prompts
            .iter()
            .map(|prompt| chain(model.create_sequence().unwrap(), prompt))
            .collect();
        let output = model.forward(&batch(segments)).unwrap();
        assert_eq!(bits(&output.logits), bits(&solo), "{case:?}");
    }
}

/// Verifies a tree after 60 tokens (so that it crosses a page), commits `path`, and goes on decoding.
fn verify_equals_decode(case: Case, nodes: &[u32], parents: &[i32], path: &[usize]) {
    let mut model = open_case(case);
    let prompt = tokens(60, 4);
    let sequence = prefill(&mut model, &prompt);
    let before = model.snapshot(sequence).unwrap();
    // A second sequence in the same batch moves on meanwhile.
    let other = model.create_sequence().unwrap();
    let segments = vec![chain(other, &tokens(3, 5)), tree(sequence, nodes, parents)];
    let output = model.forward(&batch(segments)).unwrap();
    assert!(
        model.snapshot(sequence).unwrap() == before,
        "{case:?}: verify moved the sequence"
    );
    for node in 0..nodes.len() {
        let mut ancestors = vec![nodes[node]];
        let mut at = node;
        while let Ok(parent) = usize::try_from(parents[at]) {
            ancestors.insert(0, nodes[parent]);
            at = parent;
        }
        let twin = model_twin(case, &prompt, &ancestors);
        assert_eq!(
            bits(output.logits_of(1, node).unwrap()),
            bits(&twin),
            "{case:?}: node {node}"
        );
    }
    let wrong = model.commit(sequence, &[path.len(), 0]);
    assert!(matches!(wrong, Err(ModelError::BadPath { .. })));
    model.commit(sequence, path).unwrap();
    assert!(matches!(
        model.commit(sequence, path),
        Err(ModelError::NothingToCommit)
    ));
    let accepted: Vec<u32> = path.iter().map(|&node| nodes[node]).collect();
    let twin = prefill(&mut model, &prompt);
    one_by_one(&mut model, twin, &accepted);
    assert_eq!(model.sequence_len(sequence).unwrap(), 60 + path.len());
    assert!(
        model.snapshot(sequence).unwrap() == model.snapshot(twin).unwrap(),
        "{case:?}: state after commit"
    );
    let rest = tokens(5, 6);
    let after = one_by_one(&mut model, sequence, &rest);
    assert_eq!(
        bits(&after),
        bits(&one_by_one(&mut model, twin, &rest)),
        "{case:?}: after commit"
    );
}

/// Logits of the last of `more` after `prompt`, decoded one at a time by a model of its own.
fn model_twin(case: Case, prompt: &[u32], more: &[u32]) -> Vec<f32> {
    let mut model = open_case(case);
    let sequence = prefill(&mut model, prompt);
    let vocab = model.config().vocab_size;
    let logits = one_by_one(&mut model, sequence, more);
    logits[logits.len() - vocab..].to_vec()
}

#[test]
fn verifying_a_chain_equals_decode() {
    for case in MODELS {
        verify_equals_decode(
            case,
            &tokens(8, 7),
            &[-1, 0, 1, 2, 3, 4, 5, 6],
            &[0, 1, 2, 3, 4, 5],
        );
    }
}

#[test]
fn verifying_a_tree_equals_decode() {
    for case in MODELS {
        let parents = [-1, 0, 0, 1, 2, 2, 4, 3, 6, 0];
        verify_equals_decode(case, &tokens(10, 8), &parents, &[0, 2, 4, 6, 8]);
    }
}

#[test]
fn a_restored_sequence_continues_identically() {
    for case in MODELS {
        let mut model = open_case(case);
        let sequence = prefill(&mut model, &tokens(64, 9));
        one_by_one(&mut model, sequence, &tokens(7, 10));
        let snapshot = model.snapshot(sequence).unwrap();
        let rest = tokens(6, 11);
        let expected = one_by_one(&mut model, sequence, &rest);
        let restored = model.restore(&snapshot).unwrap();
        assert_eq!(model.sequence_len(restored).unwrap(), 71);
        assert_eq!(
            bits(&one_by_one(&mut model, restored, &rest)),
            bits(&expected),
            "{case:?}"
        );
        let mut fresh = open_case(case);
        let restored = fresh.restore(&snapshot).unwrap();
        assert_eq!(
            bits(&one_by_one(&mut fresh, restored, &rest)),
            bits(&expected),
            "{case:?}: other process"
        );
    }
}

#[test]
fn however_a_prompt_is_cut_its_state_is_the_same() {
    for case in MODELS {
        let prompt = tokens(150, 12);
        let mut model = open_case(case);
        let mut state_after = |rows: usize, len: usize| {
            let sequence = model.create_sequence().unwrap();
            for piece in prompt[..len].chunks(rows) {
                let piece = batch(vec![chain(sequence, piece)]);
                model.forward(&piece).unwrap();
            }
            let state = model.snapshot(sequence).unwrap();
            model.free_sequence(sequence).unwrap();
            state
        };
        for len in [63, 64, 65, 129] {
            let expected = state_after(64, len);
            for rows in [5, 16, 63] {
                assert!(state_after(rows, len) == expected, "{case:?} {rows} {len}");
            }
        }
    }
}

/// Lengths around a page's border. Two continuations of a fork, and the sequence itself, beside each other in one batch.
#[test]
fn a_fork_and_its_source_go_their_own_ways_as_if_alone() {
    for case in MODELS {
        for len in [1, 40, 63, 64, 65, 80] {
            let prompt = tokens(len, 13);
            let rests = [14, 15, 16].map(|seed| tokens(8, seed));
            let mut model = open_case(case);
            let mut alone = Vec::new();
            for rest in &rests {
                let sequence = model.create_sequence().unwrap();
                one_by_one(&mut model, sequence, &prompt);
                alone.extend(one_by_one(&mut model, sequence, rest));
                model.free_sequence(sequence).unwrap();
            }
            let source = model.create_sequence().unwrap();
            one_by_one(&mut model, source, &prompt);
            let before = model.snapshot(source).unwrap();
            let kept = model.fork_sequence(source).unwrap();
            let forked = model.fork_sequence(kept).unwrap();
            let other = model.fork_sequence(kept).unwrap();
            let segments = [source, forked, other].into_iter().zip(&rests);
            let segments = segments.map(|(id, rest)| chain(id, rest)).collect();
            let output = model.forward(&batch(segments)).unwrap();
            assert_eq!(bits(&output.logits), bits(&alone), "{case:?} {len}");
            // What others make of it changes nothing of what is kept.
            assert!(model.snapshot(kept).unwrap() == before, "{case:?} {len}");
        }
    }
}

#[test]
fn only_wanted_rows_have_logits() {
    let mut model = open_case(MODELS[0]);
    let (a, b) = (
        model.create_sequence().unwrap(),
        model.create_sequence().unwrap(),
    );
    let mut first = chain(a, &tokens(5, 1));
    let mut second = chain(b, &tokens(6, 2));
    let all = model
        .forward(&batch(vec![first.clone(), second.clone()]))
        .unwrap();
    model.free_sequence(a).unwrap();
    model.free_sequence(b).unwrap();
    first.sequence = model.create_sequence().unwrap();
    second.sequence = model.create_sequence().unwrap();
    first.logits = LogitsWanted::None;
    second.logits = LogitsWanted::Last;
    let last = model.forward(&batch(vec![first, second])).unwrap();
    assert_eq!(last.rows.len(), 1);
    assert_eq!(bits(&last.logits), bits(all.logits_of(1, 5).unwrap()));
}

#[test]
fn the_likeliest_tokens_are_those_of_their_rows_whoever_wants_how_many() {
    let mut model = open_case(MODELS[0]);
    let wanted = [
        LogitsWanted::AllTop(5),
        LogitsWanted::LastTop(2),
        LogitsWanted::LastBest,
    ];
    let segments = |model: &mut Model, wanted: [LogitsWanted; 3]| {
        let segments = wanted.into_iter().zip(0..).map(|(logits, i)| {
            let sequence = model.create_sequence().unwrap();
            BatchSegment {
                logits,
                ..chain(sequence, &tokens(4 + i, i as u32 + 1))
            }
        });
        let batch = batch(segments.collect());
        let output = model.forward(&batch).unwrap();
        for segment in &batch.segments {
            model.free_sequence(segment.sequence).unwrap();
        }
        output
    };
    let rows = segments(&mut model, [LogitsWanted::All; 3]);
    let got = segments(&mut model, wanted);
    assert!(got.rows.is_empty());
    assert_eq!((got.tops.len(), got.best.len()), (5, 1));
    for (segment, node, k) in (0..4).map(|node| (0, node, 5)).chain([(1, 4, 2)]) {
        let row = rows.logits_of(segment, node).unwrap();
        let mut order: Vec<u32> = (0..row.len() as u32).collect();
        order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
        let best = order[..k].iter().map(|&id| (id, row[id as usize]));
        let expected: Vec<_> = best.collect();
        let answer = got.answer(segment, node);
        assert_eq!(answer, Some(Answer::Top(&expected)), "{segment}, {node}");
    }
}
