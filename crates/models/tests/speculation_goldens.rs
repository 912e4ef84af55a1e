//! Whole runs of speculative decoding against those of the reference loops: DFlash's chains (z-lab/dflash) and DDTree's
//! trees (liranringel/ddtree), round for round.

#![allow(clippy::unwrap_used)]

mod common;

use gguf::GgufFile;
use models::{
    Batch, BatchSegment, DraftBlock, DraftModel, KvType, KvTypes, LoadOptions, LogitsWanted, Model,
    SequenceId, load,
};
use serde_json::Value;
use speculative::{DraftTree, TreeOptions, accepted_path};

use common::drafts::{OPTIONS, gguf_draft, path, try_load};
use common::{data, device};

const PAIRS: [(&str, &str); 2] = [
    ("qwen3-nano-BF16.gguf", "dflash-qwen3-nano"),
    ("qwen35-nano-F32.gguf", "dflash-qwen35-nano"),
];

fn argmax(row: &[f32]) -> u32 {
    let best = |a: usize, b: usize| if row[b] > row[a] { b } else { a };
    (0..row.len()).reduce(best).unwrap() as u32
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap();
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn lengths(value: &Value) -> Vec<usize> {
    ids(value).into_iter().map(|id| id as usize).collect()
}

/// A round as the reference tells it.
struct Round {
    start: usize,
    tree: DraftTree,
    /// The target's own token after each node.
    posterior: Vec<u32>,
    path: Vec<usize>,
}

/// The loop of models.md 4.9 and 5.4, greedy, with no stop token.
struct Loop {
    target: Model,
    draft: DraftModel,
    captures: Vec<usize>,
}

impl Loop {
    fn open(target_name: &str, draft_name: &str) -> Self {
        let file = GgufFile::open(data().join(target_name)).unwrap();
        let draft = try_load(&gguf_draft(draft_name), &file, OPTIONS).unwrap();
        let options = LoadOptions {
            max_tokens: 512,
            max_sequences: 1,
            max_batch_rows: 80,
            kv_type: Some(KvTypes::both(KvType::F32)),
        };
        Self {
            target: load(&file, device(2), options, &mut |_| {}).unwrap(),
            captures: draft.config().capture_layers.clone(),
            draft,
        }
    }

    /// Computes rows; logits and features of all of them.
    fn forward(
        &mut self,
        sequence: SequenceId,
        tokens: Vec<u32>,
        parents: Vec<i32>,
        advance: bool,
    ) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let rows = tokens.len();
        let segment = BatchSegment {
            sequence,
            tokens,
            parents,
            advance,
            logits: LogitsWanted::All,
        };
        let output = self.target.forward(&Batch {
            segments: vec![segment],
            capture_layers: self.captures.clone(),
        });
        let output = output.unwrap();
        let vocab = self.target.config().vocab_size;
        let logits = output.logits.chunks_exact(vocab).map(<[f32]>::to_vec);
        let features = (0..rows).map(|row| self.target.features([row]));
        (logits.collect(), features.collect())
    }

    /// Generates at least `max_new` tokens; `budget`: nodes of a tree, or a chain.
    fn run(
        &mut self,
        prompt: &[u32],
        max_new: usize,
        budget: Option<usize>,
    ) -> (Vec<u32>, Vec<Round>) {
        let sequence = self.target.create_sequence().unwrap();
        let context = self.draft.create_sequence().unwrap();
        let (logits, features) = self.forward(sequence, prompt.to_vec(), Vec::new(), true);
        self.draft.append(context, &features.concat()).unwrap();
        let mut output = vec![argmax(logits.last().unwrap())];
        let mut rounds = Vec::new();
        let mut start = prompt.len();
        while start < prompt.len() + max_new {
            let anchor = *output.last().unwrap();
            let block = DraftBlock {
                sequence: context,
                anchor,
                depth: self.draft.config().max_depth(),
            };
            let top_k = budget.unwrap_or(1);
            let proposal = self.draft.propose(&[block], top_k).unwrap().remove(0);
            let tree = match budget {
                Some(budget) => {
                    let options = TreeOptions {
                        budget,
                        chain_seed: false,
                    };
                    DraftTree::grow(&proposal, options)
                }
                None => DraftTree::chain(&proposal),
            };
            let tokens = [&[anchor], tree.tokens()].concat();
            let (logits, features) = self.forward(sequence, tokens, tree.parents().to_vec(), false);
            let posterior: Vec<u32> = logits.iter().map(|row| argmax(row)).collect();
            let path = accepted_path(&tree, |node| {
                output.push(posterior[node]);
                Some(posterior[node])
            });
            self.target.commit(sequence, &path).unwrap();
            for &node in &path {
                self.draft.append(context, &features[node]).unwrap();
            }
            let next = start + path.len();
            rounds.push(Round {
                start,
                tree,
                posterior,
                path,
            });
            start = next;
        }
        self.target.free_sequence(sequence).unwrap();
        self.draft.free_sequence(context).unwrap();
        (output, rounds)
    }
}

#[test]
fn runs_equal_those_of_the_reference_loops() {
    for (target_name, draft_name) in PAIRS {
        let text = std::fs::read(path(&format!("{draft_name}.runs.json"))).unwrap();
        let golden: Value = serde_json::from_slice(&text).unwrap();
        let mut pair = Loop::open(target_name, draft_name);
        let (mut compared, mut left_out) = (0, 0);
        for run in golden["runs"].as_array().unwrap() {
            let prompt = ids(&run["prompt_ids"]);
            let greedy = ids(&run["greedy_ids"]);
            check_chain(&mut pair, &run["dflash"], &prompt, &greedy);
            for budget in [8, 16, 22, 64] {
                let Some(case) = run.get(format!("ddtree_{budget}")) else {
                    continue;
                };
                let (all, skipped) = check_tree(&mut pair, case, &prompt, &greedy, budget);
                compared += all - skipped;
                left_out += skipped;
            }
        }
        println!("{draft_name}: {compared} trees equal, {left_out} left out as artefacts");
        assert!(compared > 20 && left_out < compared);
    }
}

fn check_chain(pair: &mut Loop, case: &Value, prompt: &[u32], greedy: &[u32]) {
    let expected = ids(&case["output_ids"]);
    let (output, rounds) = pair.run(prompt, expected.len(), None);
    assert_eq!(output[..expected.len()], expected);
    assert_eq!(
        output[..greedy.len().min(output.len())],
        greedy[..greedy.len().min(output.len())]
    );
    let accepted: Vec<usize> = rounds.iter().map(|round| round.path.len()).collect();
    assert_eq!(accepted, lengths(&case["acceptance_lengths"]));
    for (round, step) in rounds.iter().zip(case["steps"].as_array().unwrap()) {
        assert_eq!(round.start as u64, step["start"].as_u64().unwrap());
        assert_eq!(round.tree.tokens(), ids(&step["draft"]));
        assert_eq!(round.posterior, ids(&step["posterior"]));
    }
}

/// Rounds, and how many of them the reference's own loop falsifies: its last draft blocks shrink to the slots it has
/// left (models.md 5.4).
fn check_tree(
    pair: &mut Loop,
    case: &Value,
    prompt: &[u32],
    greedy: &[u32],
    budget: usize,
) -> (usize, usize) {
    let expected = ids(&case["output_ids"]);
    let (output, rounds) = pair.run(prompt, expected.len(), Some(budget));
    let common = greedy.len().min(output.len());
    assert_eq!(output[..common], greedy[..common]);
    assert_eq!(output[..expected.len()], expected);
    let slots = prompt.len() + expected.len() + budget + 1;
    let block_size = pair.draft.config().block_size;
    let is_whole = |round: &&Round| round.start + block_size <= slots;
    let whole: Vec<&Round> = rounds.iter().take_while(is_whole).collect();
    let accepted = lengths(&case["acceptance_lengths"]);
    let told = case["rounds"].as_array().unwrap();
    for ((round, told), accepted) in whole.iter().zip(told).zip(accepted) {
        let tree = &told["tree"];
        assert_eq!(round.tree.tokens(), ids(&tree["node_token_ids"]));
        assert_eq!(round.tree.depths(), lengths(&tree["node_depths"]));
        let parents: Vec<i64> = round.tree.parents().iter().map(|&p| p.into()).collect();
        let told_parents: Vec<i64> = tree["parents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p.as_i64().unwrap())
            .collect();
        assert_eq!(parents, told_parents);
        if let Some(posterior) = told.get("posterior") {
            assert_eq!(round.posterior, ids(posterior));
        }
        assert_eq!(round.path, lengths(&told["accepted_indices"]));
        assert_eq!(round.path.len(), accepted);
    }
    (rounds.len(), rounds.len() - whole.len())
}
