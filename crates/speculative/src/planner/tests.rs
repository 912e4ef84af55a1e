//! A simulated device: what a planner makes of costs and drafts that it can only measure.

use super::{Planner, RoundOutcome};
use crate::{DraftTree, Proposal, TreeOptions};

/// A device, and a draft whose tokens are right with a chance of `skill` at each position.
struct World {
    step_ms: fn(usize) -> f64,
    draft_ms: f64,
    skill: f64,
    /// What the draft says its chance is.
    claim: f64,
    random: u64,
}

impl World {
    fn chance(&mut self) -> f64 {
        // Knuth's linear congruential generator.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn accepted(&mut self, nodes: usize) -> usize {
        (0..nodes)
            .take_while(|_| self.chance() < self.skill)
            .count()
    }

    fn tree(&self) -> DraftTree {
        let proposal = Proposal {
            top_k: 1,
            ids: (0..15).collect(),
            log_probs: vec![self.claim.ln() as f32; 15],
        };
        let options = TreeOptions {
            budget: 15,
            chain_seed: false,
        };
        DraftTree::grow(&proposal, options)
    }
}

/// Milliseconds per token over `tokens` tokens, the first of which may be spent on measuring.
fn ms_per_token(planner: &mut Planner, world: &mut World, tokens: usize) -> f64 {
    let mut text = planner.new_text();
    let (mut total_ms, mut generated) = (0.0, 0);
    while generated < tokens {
        if planner.wanted(&[text], 0)[0] {
            planner.note_drafts(1, world.draft_ms);
            Planner::note_wait(&mut text, world.draft_ms);
            let mut tree = world.tree();
            let nodes = planner.nodes(&[(text, &tree)], 0)[0];
            tree.truncate(nodes);
            let ms = (world.step_ms)(1 + nodes);
            planner.note_step(1 + nodes, ms);
            let accepted = world.accepted(nodes);
            let round = RoundOutcome {
                accepted,
                ms,
                sequences: 1,
            };
            planner.note_round(&mut text, &tree, round);
            total_ms += world.draft_ms + ms;
            generated += accepted + 1;
        } else {
            let ms = (world.step_ms)(1);
            planner.note_step(1, ms);
            planner.note_plain(&mut text, ms);
            total_ms += ms;
            generated += 1;
        }
    }
    planner.end_text(&text);
    total_ms / generated as f64
}

fn settled(world: &mut World) -> Planner {
    let mut planner = Planner::new();
    ms_per_token(&mut planner, world, 500);
    planner
}

const MEMORY_BOUND: fn(usize) -> f64 = |rows| 10.0 + 0.05 * rows as f64;
const COMPUTE_BOUND: fn(usize) -> f64 = |rows| 0.4 + 0.6 * rows as f64;

fn world(step_ms: fn(usize) -> f64, skill: f64, claim: f64) -> World {
    World {
        step_ms,
        draft_ms: 1.0,
        skill,
        claim,
        random: 7,
    }
}

#[test]
fn a_draft_that_is_always_wrong_costs_less_than_three_percent() {
    for step_ms in [MEMORY_BOUND, COMPUTE_BOUND] {
        // It is sure of itself, too.
        let mut world = world(step_ms, 0.0, 0.95);
        let mut planner = settled(&mut world);
        for _ in 0..10 {
            let mean = (0..5).map(|_| ms_per_token(&mut planner, &mut world, 200));
            let ms = mean.sum::<f64>() / 5.0;
            assert!(ms <= 1.03 * step_ms(1), "{ms} ms, plain {}", step_ms(1));
        }
    }
}

#[test]
fn a_draft_that_is_right_is_used_to_the_full_where_rows_are_cheap() {
    let mut world = world(MEMORY_BOUND, 0.8, 0.8);
    let mut planner = settled(&mut world);
    let ms = ms_per_token(&mut planner, &mut world, 2000);
    // 4.86 tokens of 15 nodes in the mean.
    let best = (1.0 + MEMORY_BOUND(16)) / 4.86;
    assert!(ms < 1.05 * best, "{ms} ms, the best is {best}");
}

#[test]
fn where_rows_are_dear_only_the_likely_tokens_are_verified() {
    let mut world = world(COMPUTE_BOUND, 0.9, 0.9);
    world.draft_ms = 0.2;
    let mut planner = settled(&mut world);
    let ms = ms_per_token(&mut planner, &mut world, 2000);
    let everything = (0.2 + COMPUTE_BOUND(16)) / 8.15;
    assert!(ms <= 1.03 * COMPUTE_BOUND(1), "{ms} ms");
    assert!(
        ms < everything,
        "{ms} ms, verifying everything {everything}"
    );
}

#[test]
fn a_draft_that_becomes_good_is_taken_up_again() {
    let mut world = world(MEMORY_BOUND, 0.0, 0.8);
    let mut planner = settled(&mut world);
    world.skill = 0.8;
    ms_per_token(&mut planner, &mut world, 2000);
    let ms = ms_per_token(&mut planner, &mut world, 2000);
    assert!(ms < 0.3 * MEMORY_BOUND(1), "{ms} ms");
}

#[test]
fn short_texts_find_out_that_a_draft_became_good() {
    let mut world = world(MEMORY_BOUND, 0.0, 0.8);
    let mut planner = settled(&mut world);
    world.skill = 0.8;
    for _ in 0..100 {
        ms_per_token(&mut planner, &mut world, 20);
    }
    let ms = ms_per_token(&mut planner, &mut world, 20);
    assert!(ms < 0.5 * MEMORY_BOUND(1), "{ms} ms");
}

#[test]
fn a_draft_that_is_good_on_the_whole_is_kept_through_bad_luck() {
    // A round takes as long as 3.9 plain steps and gives 4.86 tokens in the mean, most often fewer than 3.9.
    let mut world = world(|rows| if rows == 1 { 2.0 } else { 4.8 }, 0.8, 0.8);
    world.draft_ms = 3.0;
    let mut planner = settled(&mut world);
    let ms = ms_per_token(&mut planner, &mut world, 20_000);
    let best = 7.8 / 4.86;
    assert!(ms < 1.05 * best, "{ms} ms, the best is {best}, plain 2");
}

#[test]
fn of_several_texts_those_that_draft_well_are_drafted() {
    let mut planner = Planner::new();
    for _ in 0..2 {
        for rows in [2, 10, 18, 34] {
            planner.note_step(rows, 2.0 + 0.1 * rows as f64);
        }
        planner.note_drafts(1, 0.5);
    }
    planner.note_drafts(2, 1.0);
    let (mut good, mut poor) = (planner.new_text(), planner.new_text());
    (good.tokens, poor.tokens) = (6.0, 1.0);
    assert_eq!(planner.wanted(&[poor, good], 0), [false, true]);
}
