use api_types::{Effort, ThinkingOptions};

use super::{Allowance, Source, ThinkingRules};
use crate::card::Card;
use crate::config::LengthLimits;
use crate::tiers::EffortTiers;

const ROOM: u32 = 200_000;

fn card() -> Card {
    Card::find("Qwen3.6-27B", None).unwrap().unwrap()
}

fn rules(limits: LengthLimits) -> ThinkingRules {
    ThinkingRules::new(&limits, Some(&card()), Some("qwen35"))
}

fn effort(effort: Effort) -> ThinkingOptions {
    ThinkingOptions {
        wanted: Some(true),
        effort: Some(effort),
        ..ThinkingOptions::default()
    }
}

fn budget(tokens: u32) -> ThinkingOptions {
    ThinkingOptions {
        budget_tokens: Some(tokens),
        ..effort(Effort::High)
    }
}

fn tiers(rules: &ThinkingRules) -> [u32; 5] {
    Effort::ALL.map(|effort| rules.tier(effort, 1_000_000))
}

#[test]
fn values_come_from_the_configuration_then_the_card_then_the_family() {
    let none = LengthLimits::default();
    let of_card = rules(none);
    assert_eq!(tiers(&of_card), [4032, 16_128, 32_256, 56_832, 81_408]);
    assert_eq!(
        (of_card.default_max_tokens, of_card.reply_budget),
        (32_768, 4096)
    );
    assert_eq!(
        (of_card.source, of_card.max_tokens_cap),
        (Source::Card, None)
    );
    let said = rules(LengthLimits {
        default_max_tokens: Some(9000),
        reply_budget: Some(300),
        efforts: EffortTiers {
            low: Some(20_000),
            x_high: Some(40_000),
            ..EffortTiers::default()
        },
        ..none
    });
    assert_eq!(tiers(&said), [20_000, 20_000, 32_256, 40_000, 81_408]);
    assert_eq!((said.default_max_tokens, said.reply_budget), (9000, 300));
    let bounded = rules(LengthLimits {
        think_max_tokens: Some(10_000),
        ..none
    });
    assert_eq!(tiers(&bounded), [4032, 10_000, 10_000, 10_000, 10_000]);
    let family = ThinkingRules::new(&none, None, Some("qwen35"));
    assert_eq!(tiers(&family), [4096, 16_384, 32_768, 32_768, 32_768]);
    assert_eq!(
        (family.default_max_tokens, family.source),
        (32_768, Source::Family)
    );
    let unknown = ThinkingRules::new(&none, None, Some("mamba"));
    assert_eq!(tiers(&unknown), [2000, 8000, 16_000, 16_000, 16_000]);
    assert_eq!(
        (unknown.default_max_tokens, unknown.source),
        (16_000, Source::Fixed)
    );
    // What complex problems take, without tiers.
    let mut derived = card();
    derived.reasoning_effort_tiers = EffortTiers::default();
    let derived = ThinkingRules::new(&none, Some(&derived), None);
    assert_eq!(tiers(&derived), [4096, 16_384, 32_768, 55_296, 77_824]);
    assert_eq!(derived.tier(Effort::High, 8192), 4096, "a short context");
}

#[test]
fn a_request_gets_what_it_wants_within_what_there_is() {
    let plain = ThinkingOptions::default();
    let rules = rules(LengthLimits::default());
    let cases = [
        // What asks for no reasoning has no budget.
        (plain, None, ROOM, (32_768, None)),
        (plain, Some(100), ROOM, (100, None)),
        (plain, Some(300_000), ROOM, (200_000, None)),
        (plain, None, 50, (50, None)),
        // A tier, and the default where there is room for it.
        (effort(Effort::Low), None, ROOM, (32_768, Some(4032))),
        (effort(Effort::Max), None, ROOM, (85_504, Some(81_408))),
        // A tier in what the request allows beside the reply.
        (
            effort(Effort::High),
            Some(32_000),
            ROOM,
            (32_000, Some(27_904)),
        ),
        (
            effort(Effort::Low),
            Some(100_000),
            ROOM,
            (100_000, Some(4032)),
        ),
        // Half of what is little is the answer's.
        (effort(Effort::High), Some(1000), ROOM, (1000, Some(500))),
        (effort(Effort::High), None, 600, (600, Some(300))),
        // Tokens beat the word, and there is a most.
        (budget(1024), None, ROOM, (32_768, Some(1024))),
        (budget(1024), Some(16_000), ROOM, (16_000, Some(1024))),
        (budget(500_000), None, ROOM, (85_504, Some(81_408))),
        // What agents send: all but one token for the reasoning.
        (budget(31_999), Some(32_000), ROOM, (32_000, Some(27_904))),
        (budget(5), Some(1), ROOM, (1, Some(1))),
    ];
    for (thinking, max_tokens, room, (length, budget)) in cases {
        let expected = Allowance {
            max_tokens: length,
            budget,
        };
        let got = rules.allow(&thinking, max_tokens, room);
        assert_eq!(got, expected, "{thinking:?}, {max_tokens:?}, {room}");
    }
    let reply = |tokens| ThinkingOptions {
        reply_budget: Some(tokens),
        ..budget(31_999)
    };
    let kept = |tokens| rules.allow(&reply(tokens), Some(32_000), ROOM).budget;
    assert_eq!(kept(0), Some(31_999));
    assert_eq!(kept(8000), Some(24_000));
    assert_eq!(kept(u32::MAX), Some(16_000));
}

#[test]
fn the_configuration_caps_and_switches_off() {
    let capped = rules(LengthLimits {
        default_max_tokens: Some(8192),
        ..LengthLimits::default()
    });
    let plain = ThinkingOptions::default();
    assert_eq!(capped.allow(&plain, None, ROOM).max_tokens, 8192);
    assert_eq!(capped.allow(&plain, Some(32_000), ROOM).max_tokens, 8192);
    let high = capped.allow(&effort(Effort::High), None, ROOM);
    assert_eq!((high.max_tokens, high.budget), (8192, Some(4096)));
    let unforced = rules(LengthLimits {
        reply_budget: Some(0),
        ..LengthLimits::default()
    });
    let free = unforced.allow(&budget(10), None, ROOM);
    assert_eq!((free.max_tokens, free.budget), (32_768, None));
}
