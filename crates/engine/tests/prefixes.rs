//! Conversations that go on from prefixes: the tokens and log-probabilities of cold runs, to the bit.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::conversations::{AT_ONCE, COLD, ROOMY, Rng, TREE, converse, tiny, tiny_draft};
use common::gated::Gate;
use common::in_process::{InProcess, demo};
use common::{
    Answer, FIBONACCI, Stand, collect, device, expect_start, next_token, request, start_with,
    within,
};
use engine::{DrafterLease, EngineConfig, PrefixCacheConfig};
use generation::{PrefixCacheStats, SpeculationTimings};
use models::load_path;

/// 200 conversations, some at a time.
async fn all_converse(warm: &Stand) -> PrefixCacheStats {
    let cold = tiny(COLD, None);
    for first in (0..200).step_by(AT_ONCE) {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| converse(first + i, &cold, warm));
        within(async { tokio::join!(a, b, c, d) }).await;
    }
    let stats = warm.handle.stats();
    let cold = cold.handle.stats();
    println!("{stats:?}");
    let reused = stats.prefix_cache.reused_tokens;
    assert_eq!(stats.prompt_tokens + reused, cold.prompt_tokens);
    stats.prefix_cache
}

#[tokio::test]
async fn conversations_go_on_from_what_is_kept_as_if_computed_anew() {
    let warm = tiny(
        EngineConfig {
            prefix_cache: ROOMY,
            ..COLD
        },
        Some(500),
    );
    let stats = all_converse(&warm).await;
    assert!(stats.hits > 600, "{stats:?}");
    assert_eq!(stats.prefixes, 64);
}

#[tokio::test]
async fn conversations_with_drafts_are_the_same() {
    let warm = tiny(
        EngineConfig {
            prefix_cache: ROOMY,
            speculation: TREE,
            ..COLD
        },
        Some(500),
    );
    let _lease = tiny_draft(&warm);
    let stats = all_converse(&warm).await;
    assert!(stats.hits > 600, "{stats:?}");
    assert!(warm.handle.stats().speculation.rounds > 0);
}

#[tokio::test]
async fn conversations_that_drive_each_other_out_are_the_same() {
    // Pages for little more than one context, and few prefixes.
    for (slots, max_bytes) in [(1, usize::MAX), (64, 1 << 20)] {
        let config = EngineConfig {
            prefix_cache: PrefixCacheConfig { slots, max_bytes },
            speculation: TREE,
            ..COLD
        };
        let warm = tiny(config, Some(10));
        let _lease = tiny_draft(&warm);
        let stats = all_converse(&warm).await;
        assert!(stats.hits > 0 && stats.evictions > 0, "{stats:?}");
        assert!(stats.prefixes <= slots as u64 && stats.bytes <= max_bytes as u64);
    }
}

#[tokio::test]
async fn plain_decoding_beside_what_is_kept_finds_nothing_else() {
    let config = EngineConfig {
        prefix_cache: ROOMY,
        speculation: TREE,
        verify_lossless: true,
        ..COLD
    };
    let (cold, warm) = (tiny(COLD, None), tiny(config, None));
    let _lease = tiny_draft(&warm);
    for number in 0..10 {
        within(converse(number, &cold, &warm)).await;
    }
    let stats = warm.handle.stats();
    assert!(stats.prefix_cache.hits > 20, "{stats:?}");
    assert!(stats.speculation.checked_tokens > 100, "{stats:?}");
    assert_eq!(stats.speculation.mismatched_tokens, 0);
}

/// The demo pair, whose drafts are often right.
fn demo_pair(prefix_cache: PrefixCacheConfig) -> (Stand, DrafterLease) {
    let config = EngineConfig {
        prefix_cache,
        speculation: TREE,
        ..COLD
    };
    let [target, draft] = ["demo-target.gguf", "demo-draft.gguf"].map(demo);
    let options = config.load_options(None);
    let model = load_path(&target, device(), options, &mut |_| {}).unwrap();
    let stand = start_with(model, config, Arc::new(Gate::default()));
    let draft = InProcess::open(&draft, &target, 2 * AT_ONCE);
    let lease = stand.handle.set_drafter(Box::new(draft));
    (stand, lease)
}

/// An answer's cached tokens, and what speculation did for it but for times.
fn rounds(answer: &Answer) -> (u32, [u32; 3]) {
    let SpeculationTimings {
        rounds,
        draft_tokens,
        accepted_tokens,
        ..
    } = answer.end.clone().unwrap().1.speculation;
    let cached = answer.started.unwrap().1;
    (cached, [rounds, draft_tokens, accepted_tokens])
}

#[tokio::test]
async fn a_draft_accepts_after_a_prefix_what_it_accepts_after_a_cold_prompt() {
    let (cold, _cold_lease) = demo_pair(PrefixCacheConfig::OFF);
    let (warm, _warm_lease) = demo_pair(ROOMY);
    // Twice: the second time both turns are known, and the first turn is gone on from in two ways.
    for more in [&FIBONACCI[..], &FIBONACCI[1..3]] {
        let mut history = FIBONACCI.to_vec();
        for turn in 0..3 {
            let request = request(&history, 40);
            let [expected, answer] = [cold.answer(&request).await, warm.answer(&request).await];
            assert_eq!(answer.ids(), expected.ids());
            let ((_, expected), (cached, got)) = (rounds(&expected), rounds(&answer));
            assert_eq!(got, expected, "turn {turn}, {cached} cached");
            assert!(got[0] > 0);
            // All but the answer's last token, which the model has not seen.
            assert!(turn == 0 || cached as usize + 1 >= history.len() - more.len());
            history.extend(answer.ids());
            history.extend(more);
        }
    }
}

#[tokio::test]
async fn an_answer_given_up_is_gone_on_from_and_no_request_waits_for_what_is_kept() {
    let config = EngineConfig {
        prefix_cache: ROOMY,
        ..COLD
    };
    let stand = tiny(config, Some(8));
    let prompt = Rng(1).text(400);
    // Seven steps of its prompt, two more of its answer.
    stand.gate.pass(9);
    let mut stream = stand.handle.generate(request(&prompt, 100)).unwrap();
    expect_start(&mut stream).await;
    for _ in 0..3 {
        next_token(&mut stream).await;
    }
    drop(stream);
    stand.gate.open();
    stand
        .until("what is given up is kept", |s| s.cancelled_requests == 1)
        .await;
    let again = collect(stand.handle.generate(request(&prompt, 4)).unwrap()).await;
    assert_eq!(again.started.unwrap().0, 400);
    assert!(again.started.unwrap().1 >= 320);
    // All pages are of another text now.
    let other = stand.answer(&request(&Rng(2).text(400), 100)).await;
    assert_eq!((other.started.unwrap().1, other.tokens.len()), (0, 100));
    assert!(stand.handle.stats().prefix_cache.evictions > 0);
}
