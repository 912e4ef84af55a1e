use std::time::Duration;

use api_types::AnthropicEvent;
use generation::FinishReason;
use serde_json::{Value, json};

use super::{Blocks, Content};
use crate::answer::{CallDelta, CallStart, Piece};

fn reasoning(text: &str) -> Piece {
    Piece {
        reasoning: text.to_owned(),
        ..Piece::default()
    }
}

fn text(text: &str) -> Piece {
    Piece {
        content: text.to_owned(),
        ..Piece::default()
    }
}

fn call(index: usize, name: Option<&str>, arguments: &str) -> Piece {
    let start = name.map(|name| CallStart {
        id: format!("call_{index}"),
        name: name.to_owned(),
    });
    Piece {
        calls: vec![CallDelta {
            index,
            start,
            arguments: arguments.to_owned(),
        }],
        ..Piece::default()
    }
}

fn end() -> Piece {
    Piece {
        finish: Some(FinishReason::Stop),
        ..Piece::default()
    }
}

/// Each event in a few letters: `+` and the block that begins, `.` and what is new in it, `-` at its end.
fn short(event: &AnthropicEvent) -> String {
    let event = serde_json::to_value(event).unwrap();
    let index = &event["index"];
    match event["type"].as_str().unwrap() {
        "content_block_start" => {
            let kind = event["content_block"]["type"].as_str().unwrap();
            format!("{index}+{kind}")
        }
        "content_block_delta" => {
            let delta = event["delta"].as_object().unwrap();
            let (_, new) = delta.iter().find(|(key, _)| *key != "type").unwrap();
            format!("{index}.{}", new.as_str().unwrap())
        }
        "content_block_stop" => format!("{index}-"),
        other => panic!("{other}"),
    }
}

fn events(blocks: &mut Blocks, pieces: Vec<Piece>) -> Vec<String> {
    let events = pieces.into_iter().flat_map(|piece| blocks.push(piece));
    events.map(|event| short(&event)).collect()
}

#[test]
fn blocks_follow_each_other_and_hold_something() {
    for (pieces, expected) in [
        (vec![end()], vec![]),
        (
            vec![text(""), text("a"), text("b"), end()],
            vec!["0+text", "0.a", "0.b", "0-"],
        ),
        (
            vec![reasoning("r"), text("t"), end()],
            vec![
                "0+thinking",
                "0.r",
                "0.dGFuZGVt",
                "0-",
                "1+text",
                "1.t",
                "1-",
            ],
        ),
        (
            vec![reasoning("r"), end()],
            vec!["0+thinking", "0.r", "0.dGFuZGVt", "0-"],
        ),
        (
            vec![
                text("t"),
                call(0, Some("f"), ""),
                call(0, None, "{\"a\":"),
                call(0, None, "1}"),
                call(1, Some("g"), "{}"),
                end(),
            ],
            vec![
                "0+text",
                "0.t",
                "0-",
                "1+tool_use",
                "1.{\"a\":",
                "1.1}",
                "1-",
                "2+tool_use",
                "2.{}",
                "2-",
            ],
        ),
        // White space alone is no text; before text it belongs to it.
        (
            vec![
                reasoning("r"),
                text("\n\n"),
                call(0, Some("f"), "{}"),
                text("\n"),
                end(),
            ],
            vec![
                "0+thinking",
                "0.r",
                "0.dGFuZGVt",
                "0-",
                "1+tool_use",
                "1.{}",
                "1-",
            ],
        ),
        (
            vec![
                call(0, Some("f"), "{}"),
                text("\n"),
                text("t"),
                text(" "),
                end(),
            ],
            vec!["0+tool_use", "0.{}", "0-", "1+text", "1.\nt", "1. ", "1-"],
        ),
    ] {
        assert_eq!(events(&mut Blocks::new(false), pieces), expected);
    }
}

#[test]
fn what_comes_whole_is_what_the_events_come_to() {
    let mut blocks = Blocks::new(true);
    let mut content = Content::default();
    let mut take = |piece| blocks.push(piece).into_iter().for_each(|e| content.take(e));
    take(reasoning("why"));
    take(text("be"));
    take(text("cause"));
    take(call(0, Some("f"), "{\"a\":"));
    take(call(0, None, "[1]}"));
    take(call(1, Some("cut off"), "{\"a\":"));
    take(end());
    assert!(blocks.has_calls());
    let expected = json!([
        { "type": "thinking", "thinking": "why", "signature": "dGFuZGVt" },
        { "type": "text", "text": "because" },
        { "type": "tool_use", "id": "toolu_0", "name": "f", "input": { "a": [1] } },
        { "type": "tool_use", "id": "toolu_1", "name": "cut off", "input": {} },
    ]);
    let found: Value = serde_json::to_value(content.into_blocks()).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn after_two_minutes_of_nothing_there_is_content_every_minute() {
    for (thinks, kind) in [(true, "0+thinking"), (false, "0+text")] {
        let mut blocks = Blocks::new(thinks);
        let mut said = Vec::new();
        for seconds in (15..=330).step_by(15) {
            let events = blocks.wait(Duration::from_secs(seconds));
            said.extend(events.iter().map(|e| (seconds, short(e))));
        }
        let expected = [
            (120, kind),
            (120, "0."),
            (180, "0."),
            (240, "0."),
            (300, "0."),
        ];
        let said: Vec<_> = said.iter().map(|(at, e)| (*at, e.as_str())).collect();
        assert_eq!(said, expected);
        // What comes then goes on in that block, or closes it.
        let more = events(&mut blocks, vec![text("t"), end()]);
        if thinks {
            assert_eq!(more, ["0.dGFuZGVt", "0-", "1+text", "1.t", "1-"]);
        } else {
            assert_eq!(more, ["0.t", "0-"]);
        }
    }
}

#[test]
fn a_block_that_is_open_is_kept_alive_as_what_it_is() {
    let mut blocks = Blocks::new(true);
    blocks.push(call(0, Some("f"), "{"));
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    assert!(blocks.wait(minutes(1)).is_empty());
    let event = serde_json::to_value(&blocks.wait(minutes(2))[0]).unwrap();
    let nothing = json!({ "type": "input_json_delta", "partial_json": "" });
    assert_eq!(event["delta"], nothing);
    blocks.push(call(0, None, "}"));
    assert!(blocks.wait(minutes(1)).is_empty(), "there was content");
    assert_eq!(blocks.wait(minutes(2)).len(), 1);
}
