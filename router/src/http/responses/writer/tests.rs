use std::collections::HashMap;

use api_types::{DeclaredTool, ResponseUsage, ResponsesRequest};
use generation::FinishReason;
use sampling::SamplingParams;
use serde_json::{Value, json};

use super::Writer;
use crate::answer::{CallDelta, CallStart, Piece};
use crate::http::responses::empty_response;

fn writer() -> Writer {
    let body = br#"{"input": "x"}"#;
    let request = ResponsesRequest::from_body(body).unwrap();
    let tool = |name: &str, namespace: Option<&str>, takes_text| DeclaredTool {
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
        takes_text,
    };
    let tools = HashMap::from([
        ("files__read".to_owned(), tool("read", Some("files"), false)),
        ("patch".to_owned(), tool("patch", None, true)),
    ]);
    let response = empty_response(
        "demo",
        request.asked,
        &request.chat,
        &SamplingParams::default(),
    );
    Writer::new(response, tools, false)
}

fn said(content: &str) -> Piece {
    Piece {
        content: content.to_owned(),
        ..Piece::default()
    }
}

fn begun(index: usize, name: &str, arguments: &str) -> CallDelta {
    CallDelta {
        index,
        start: Some(CallStart {
            id: format!("call_{index}"),
            name: name.to_owned(),
        }),
        arguments: arguments.to_owned(),
    }
}

fn more(index: usize, arguments: &str) -> CallDelta {
    CallDelta {
        index,
        start: None,
        arguments: arguments.to_owned(),
    }
}

fn called(content: &str, calls: Vec<CallDelta>) -> Piece {
    Piece {
        calls,
        ..said(content)
    }
}

/// The events by name, with their texts, and the answer.
fn written(pieces: Vec<Piece>, finish: FinishReason) -> (Vec<String>, Value) {
    let mut writer = writer();
    writer.open();
    for piece in pieces {
        writer.piece(piece);
    }
    writer.piece(Piece {
        finish: Some(finish),
        ..Piece::default()
    });
    writer.close(ResponseUsage::default());
    let events = writer.events().into_iter().map(|event| {
        let json = serde_json::to_value(&event).unwrap();
        let name = event.kind.name().strip_prefix("response.").unwrap();
        match json["delta"].as_str() {
            Some(delta) => format!("{name} {delta}"),
            None => name.to_owned(),
        }
    });
    (
        events.collect(),
        serde_json::to_value(writer.response()).unwrap(),
    )
}

#[test]
fn a_call_is_an_item_that_grows() {
    let pieces = vec![
        said("I look.\n"),
        called("", vec![begun(0, "files__read", "{")]),
        called("", vec![more(0, "\"x\": 1}")]),
    ];
    let (events, response) = written(pieces, FinishReason::Stop);
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta I look.\n",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta {",
        "function_call_arguments.delta \"x\": 1}",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(events, expected);
    let mut call = response["output"][1].clone();
    let id = call.as_object_mut().unwrap().remove("id").unwrap();
    assert!(id.as_str().unwrap().starts_with("fc_"));
    let expected = json!({ "type": "function_call", "status": "completed", "call_id": "call_0",
        "name": "read", "namespace": "files", "arguments": "{\"x\": 1}" });
    assert_eq!(call, expected);
}

#[test]
fn text_around_calls_is_kept_and_blanks_are_not() {
    let pieces = vec![
        said("\n"),
        called("", vec![begun(0, "patch", "{\"input\": \"a")]),
        // One piece with the end of a call, text and the next call.
        called("\n then ", vec![more(0, "\\nb\"}"), begun(1, "f", "{}")]),
        said("\n\n"),
        called("", vec![begun(2, "g", "")]),
        said(" done"),
    ];
    let (events, response) = written(pieces, FinishReason::Stop);
    let deltas: Vec<&str> = events
        .iter()
        .filter_map(|event| event.split_once(".delta ").map(|(_, delta)| delta))
        .collect();
    assert_eq!(deltas, ["a", "\nb", "\n then ", "{}", " done"]);
    let output = response["output"].as_array().unwrap();
    let kinds: Vec<&str> = output
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    let expected = [
        "custom_tool_call",
        "message",
        "function_call",
        "function_call",
        "message",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(output[0]["input"], "a\nb");
    assert_eq!(output[2]["name"], "f");
    assert_eq!(output[3]["arguments"], "");
    for (place, event) in output.iter().enumerate() {
        assert_eq!(event["status"], "completed", "{place}");
    }
}

#[test]
fn a_call_that_is_cut_is_incomplete() {
    let pieces = vec![called("", vec![begun(0, "f", "{\"x\"")])];
    let (events, response) = written(pieces, FinishReason::Length);
    assert_eq!(events.last().unwrap(), "incomplete");
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!(response["completed_at"], json!(null));
}

#[test]
fn an_answer_without_anything_is_an_empty_message() {
    let (events, response) = written(vec![said("\n")], FinishReason::Stop);
    assert!(events.contains(&"output_text.delta \n".to_owned()));
    assert_eq!(response["output"][0]["content"][0]["text"], "\n");
}
