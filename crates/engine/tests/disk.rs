//! Conversations that go on from prefixes in files: the tokens and log-probabilities of cold runs, to the bit.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::conversations::{
    AT_ONCE, COLD, ROOMY, Rng, TREE, converse, tiny, tiny_draft, tiny_model, tiny_with,
};
use common::gated::Gate;
use common::in_process::{InProcess, demo};
use common::{FIBONACCI, Stand, collect, describe, device, request, within};
use engine::{DiskCacheConfig, Engine, EngineConfig, Fingerprinter, PrefixCacheConfig};
use generation::{DiskCacheStats, RefusedFiles};
use models::load_path;

/// Longer than any flush here.
const GRACE: Duration = Duration::from_secs(60);

/// All is written at once.
fn disk(dir: &Path) -> DiskCacheConfig {
    disk_of(dir, "model", 1 << 30)
}

fn disk_of(dir: &Path, name: &str, budget_bytes: u64) -> DiskCacheConfig {
    let mut fingerprint = Fingerprinter::default();
    fingerprint.add(name);
    DiskCacheConfig {
        dir: dir.to_owned(),
        budget_bytes,
        min_tokens: 1,
        settle: Duration::ZERO,
        fingerprint: fingerprint.finish(),
    }
}

fn warm(dir: &Path, prefix_cache: PrefixCacheConfig) -> Stand {
    let config = EngineConfig {
        prefix_cache,
        speculation: TREE,
        ..COLD
    };
    tiny_with(config, Some(60), Some(disk(dir)))
}

fn stats(stand: &Stand) -> DiskCacheStats {
    stand.handle.stats().prefix_cache.disk
}

/// Conversations with these numbers, some at a time.
async fn all_converse(numbers: std::ops::Range<usize>, cold: &Stand, warm: &Stand) {
    for first in numbers.step_by(AT_ONCE) {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| converse(first + i, cold, warm));
        within(async { tokio::join!(a, b, c, d) }).await;
    }
}

#[tokio::test]
async fn conversations_go_on_from_files_after_restarts_as_if_computed_anew() {
    let dir = tempfile::tempdir().unwrap();
    let cold = tiny(COLD, None);
    let mut hits = 0;
    // The same ones each time, with fewer places in memory, so that ever more comes from files.
    for slots in [64, 8, 2, 1] {
        let prefix_cache = PrefixCacheConfig { slots, ..ROOMY };
        let mut stand = warm(dir.path(), prefix_cache);
        let _lease = tiny_draft(&stand);
        let before = stats(&stand);
        all_converse(0..40, &cold, &stand).await;
        stand.shutdown(GRACE).await;
        let stats = stats(&stand);
        println!("{slots} slots: {stats:?}");
        assert_eq!(stats.refused, RefusedFiles::default());
        assert_eq!(before.prefixes > 0, slots < 64);
        assert!(stats.hits > 0 || slots == 64, "{stats:?}");
        hits += stats.hits;
    }
    // Some 310 where nothing is held up. What is found in memory in place of files is a matter of which ones are under way at a time.
    assert!(hits > 100, "{hits}");
}

#[tokio::test]
async fn conversations_are_the_same_where_files_go_as_quickly_as_they_come() {
    let dir = tempfile::tempdir().unwrap();
    let cold = tiny(COLD, None);
    let config = EngineConfig {
        prefix_cache: PrefixCacheConfig { slots: 2, ..ROOMY },
        ..COLD
    };
    let budget_bytes = 2 << 20;
    // Two engines on one folder.
    let [one, two] = [0, 1].map(|_| {
        let disk = disk_of(dir.path(), "model", budget_bytes);
        tiny_with(config, Some(24), Some(disk))
    });
    for first in (0..40).step_by(2) {
        let both = async {
            tokio::join!(
                converse(first, &cold, &one),
                converse(first + 1, &cold, &two),
                converse(first + 1, &cold, &one),
                converse(first, &cold, &two),
            )
        };
        within(both).await;
    }
    let stats = [&one, &two].map(stats);
    println!("{stats:?}");
    for stats in stats {
        assert!(
            stats.bytes <= budget_bytes && stats.evictions > 0,
            "{stats:?}"
        );
        assert!(stats.hits > 0);
        assert_eq!((stats.refused.damaged, stats.refused.foreign), (0, 0));
    }
}

/// Lengths around a page's and a step's end.
#[tokio::test]
async fn whatever_the_length_of_a_prefix_what_follows_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let cold = tiny(COLD, None);
    let prompt = Rng(7).text(200);
    let lens = [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192];
    let config = EngineConfig {
        prefix_cache: ROOMY,
        ..COLD
    };
    for len in lens {
        let root = dir.path().join(len.to_string());
        let mut stand = tiny_with(config, None, Some(disk(&root)));
        // The model has seen all but the answer's last token.
        stand.answer(&request(&prompt[..len], 1)).await;
        stand.shutdown(GRACE).await;
        let stand = tiny_with(config, None, Some(disk(&root)));
        let asked = generation::GenerateRequest {
            logprobs: true,
            ..request(&prompt, 8)
        };
        let [expected, answer] = [cold.answer(&asked).await, stand.answer(&asked).await];
        assert_eq!(answer.tokens, expected.tokens, "{len}");
        assert_eq!(answer.started, Some((200, len as u32)));
        assert_eq!(stats(&stand).hits, 1, "{len}");
    }
    // Nothing is left to compute of a prompt that is in files as a whole: it goes on from less, or from nothing.
    let root = dir.path().join("64");
    let stand = tiny_with(config, None, Some(disk(&root)));
    let short = request(&prompt[..64], 4);
    assert_eq!(
        stand.answer(&short).await.ids(),
        cold.answer(&short).await.ids()
    );
    assert_eq!(stats(&stand).hits, 0);
}

#[tokio::test]
async fn a_draft_accepts_after_a_restart_what_it_accepts_after_a_cold_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let [target, draft] = ["demo-target.gguf", "demo-draft.gguf"].map(demo);
    let start = |disk| {
        let config = EngineConfig {
            prefix_cache: ROOMY,
            speculation: TREE,
            ..COLD
        };
        let options = config.load_options(None);
        let model = load_path(&target, device(), options, &mut |_| {}).unwrap();
        let description = describe(&model, config);
        let engine = Engine::start(model, description, config, disk).unwrap();
        let stand = Stand {
            handle: engine.handle(),
            engine: Some(engine),
            gate: Arc::new(Gate::default()),
        };
        let draft = InProcess::open(&draft, &target, 2 * AT_ONCE);
        let lease = stand.handle.set_drafter(Box::new(draft));
        (stand, lease)
    };
    let mut history = FIBONACCI.to_vec();
    let (mut first, lease) = start(Some(disk(dir.path())));
    history.extend(first.answer(&request(&history, 40)).await.ids());
    first.shutdown(GRACE).await;
    drop(lease);
    history.extend(&FIBONACCI[1..]);
    let next = request(&history, 40);
    let (again, _lease) = start(Some(disk(dir.path())));
    let (cold, _cold_lease) = start(None);
    let [answer, expected] = [again.answer(&next).await, cold.answer(&next).await];
    assert_eq!(answer.ids(), expected.ids());
    let cached = answer.started.unwrap().1 as usize;
    assert_eq!(cached, history.len() - FIBONACCI.len());
    let [answer, expected] = [answer, expected].map(|a| a.end.unwrap().1.speculation);
    assert_eq!(answer.rounds, expected.rounds);
    assert_eq!(answer.accepted_tokens, expected.accepted_tokens);
    assert!(answer.accepted_tokens > 0);
}

#[tokio::test]
async fn others_go_on_while_a_prefix_is_read_and_who_leaves_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = Rng(3).text(300);
    let mut stand = warm(dir.path(), ROOMY);
    stand.answer(&request(&prompt, 1)).await;
    stand.shutdown(GRACE).await;
    let stand = warm(dir.path(), ROOMY);
    let longer = [&prompt[..], &[1, 2, 3]].concat();
    // Left before it has taken a step; the next one with the same prompt is not.
    stand.gate.pass(0);
    drop(stand.handle.generate(request(&longer, 4)).unwrap());
    stand.gate.open();
    let streams = [4, 5, 6].map(|n| stand.handle.generate(request(&longer, n)).unwrap());
    for stream in streams {
        assert_eq!(collect(stream).await.started.unwrap().1, 300);
    }
    let stats = stand.until("the one that left is counted", |s| {
        s.cancelled_requests == 1
    });
    let stats = stats.await;
    assert_eq!((stats.running_sequences, stats.finished_requests), (0, 3));
    // Once it is in memory nothing is read.
    assert!(stats.prefix_cache.disk.hits <= 2, "{stats:?}");
}

#[tokio::test]
async fn files_of_another_model_or_damaged_ones_leave_the_answer_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = Rng(5).text(150);
    let longer = request(&[&prompt[..], &[9, 8]].concat(), 6);
    let cold = tiny(COLD, None);
    let expected = cold.answer(&longer).await.ids();
    let config = EngineConfig {
        prefix_cache: ROOMY,
        ..COLD
    };
    let mut stand = tiny_with(config, None, Some(disk(dir.path())));
    stand.answer(&request(&prompt, 1)).await;
    stand.shutdown(GRACE).await;
    let other = tiny_with(config, None, Some(disk_of(dir.path(), "another", 1 << 30)));
    assert_eq!(other.answer(&longer).await.ids(), expected);
    assert_eq!(stats(&other).hits, 0);
    drop(other);
    let folders = std::fs::read_dir(dir.path()).unwrap();
    let folders = folders
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir());
    for file in folders.flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(&path, bytes).unwrap();
    }
    let mut stand = tiny_with(config, None, Some(disk(dir.path())));
    let answer = stand.answer(&longer).await;
    assert_eq!(answer.ids(), expected);
    assert_eq!((answer.started.unwrap().1, stats(&stand).hits), (0, 0));
    assert!(stats(&stand).refused.damaged > 0);
    // What was set aside is written anew.
    stand.shutdown(GRACE).await;
    let stand = tiny_with(config, None, Some(disk(dir.path())));
    assert_eq!(stand.answer(&longer).await.ids(), expected);
    assert_eq!(stats(&stand).hits, 1);
}

#[test]
fn what_files_cannot_be_kept_for_is_said_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny_model(COLD, None);
    let description = describe(&model, COLD);
    let error = Engine::start(model, description, COLD, Some(disk(dir.path()))).unwrap_err();
    assert!(
        error.to_string().contains("none are kept in memory"),
        "{error}"
    );
    let config = EngineConfig {
        prefix_cache: ROOMY,
        ..COLD
    };
    let file = dir.path().join("a file");
    std::fs::write(&file, "").unwrap();
    let model = tiny_model(config, None);
    let description = describe(&model, config);
    let error = Engine::start(model, description, config, Some(disk(&file))).unwrap_err();
    assert!(error.to_string().contains("a file"), "{error}");
}
