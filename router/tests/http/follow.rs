//! A strict reader of the events of the Responses API.

use serde_json::{Map, Value, json};

use crate::client::Reply;

/// Checks every event of a stream against those before it. The names without `response.`, of several in a row one, and the answer at
/// the end.
pub fn follow(reply: &Reply) -> (Vec<String>, Value) {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let mut stream = Stream::default();
    let mut names: Vec<String> = Vec::new();
    for (number, event) in reply.text().split_terminator("\n\n").enumerate() {
        let (name, data) = event.split_once('\n').expect("two lines");
        let name = name.strip_prefix("event: ").expect("a name");
        let data = data.strip_prefix("data: ").expect("data");
        let event: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(event["type"], name);
        assert_eq!(event["sequence_number"], number, "{event}");
        assert!(stream.last.is_none(), "{name} after the end");
        let name = name.strip_prefix("response.").expect("a name of this API");
        stream.take(name, &event);
        if names.last().is_none_or(|last| last != name) {
            names.push(name.to_owned());
        }
    }
    (names, stream.last.expect("an end"))
}

#[derive(Default)]
struct Stream {
    id: Option<Value>,
    /// Items that are done.
    output: Vec<Value>,
    /// The item that grows, and what came of it: texts by the names of their events.
    open: Option<Value>,
    texts: Map<String, Value>,
    logprobs: Vec<Value>,
    last: Option<Value>,
}

impl Stream {
    fn take(&mut self, name: &str, event: &Value) {
        match name {
            "created" => {
                assert!(self.id.is_none());
                assert_eq!(event["response"]["output"], json!([]));
                self.id = Some(event["response"]["id"].clone());
            }
            "in_progress" => assert_eq!(event["response"]["status"], "in_progress"),
            "output_item.added" => {
                assert!(self.open.is_none(), "one item at a time");
                self.place(event);
                let item = &event["item"];
                assert_eq!(item["status"], "in_progress");
                for empty in ["arguments", "input"] {
                    assert!(item.get(empty).is_none_or(|text| text == ""), "{item}");
                }
                self.open = Some(item.clone());
                self.texts.clear();
                self.logprobs.clear();
            }
            "output_item.done" => {
                self.place(event);
                let open = self.open.take().expect("an item");
                let item = event["item"].clone();
                assert_eq!((&item["id"], &item["type"]), (&open["id"], &open["type"]));
                assert_ne!(item["status"], "in_progress");
                self.compare(&item);
                self.output.push(item);
            }
            "completed" | "incomplete" | "failed" => {
                let response = event["response"].clone();
                assert_eq!(response["status"], name);
                assert_eq!(Some(&response["id"]), self.id.as_ref());
                assert_eq!(response["output"], json!(self.output));
                // Only what breaks off leaves an item open.
                assert!(self.open.is_none() || name == "failed");
                self.last = Some(response);
            }
            _ => {
                self.place(event);
                let open = self.open.as_ref().expect("an item");
                assert_eq!(event["item_id"], open["id"], "{event}");
                for index in ["content_index", "summary_index"] {
                    assert!(event.get(index).is_none_or(|index| *index == 0), "{event}");
                }
                self.part(name, event);
            }
        }
    }

    fn place(&self, event: &Value) {
        assert_eq!(event["output_index"], self.output.len(), "{event}");
    }

    fn part(&mut self, name: &str, event: &Value) {
        let (kind, step) = name.rsplit_once('.').expect("a kind and a step");
        match step {
            "added" => {}
            "delta" => {
                let new = event["delta"].as_str().expect("text");
                assert!(
                    !new.is_empty() || !event["logprobs"].as_array().unwrap().is_empty(),
                    "{event}"
                );
                let text = self.texts.entry(kind).or_insert_with(|| json!(""));
                *text = json!(format!("{}{new}", text.as_str().unwrap()));
                let logprobs = event["logprobs"].as_array().cloned();
                self.logprobs.extend(logprobs.unwrap_or_default());
            }
            "done" if kind.ends_with("_part") => {
                let text = self.texts.values().next().cloned().unwrap_or(json!(""));
                assert_eq!(event["part"]["text"], text);
            }
            "done" => {
                let names = ["text", "arguments", "input"];
                let whole = names
                    .iter()
                    .find_map(|name| event.get(name))
                    .expect("the whole");
                let text = self.texts.entry(kind).or_insert_with(|| json!(""));
                assert_eq!(whole, text);
            }
            other => panic!("{other}"),
        }
    }

    /// Holds an item against what came of it.
    fn compare(&self, item: &Value) {
        let part = |kind: &str| {
            let parts = item[kind].as_array().expect("parts");
            parts
                .iter()
                .map(|part| part["text"].as_str().expect("text"))
                .collect::<String>()
        };
        let text = |kind: &str| {
            self.texts
                .get(kind)
                .and_then(Value::as_str)
                .unwrap_or("")
                .to_owned()
        };
        match item["type"].as_str().expect("a type") {
            "reasoning" => {
                assert_eq!(part("content"), text("reasoning_text"));
                assert_eq!(part("summary"), text("reasoning_summary_text"));
            }
            "message" => {
                assert_eq!(part("content"), text("output_text"));
                assert_eq!(item["content"][0]["logprobs"], json!(self.logprobs));
            }
            "function_call" => assert_eq!(item["arguments"], text("function_call_arguments")),
            "custom_tool_call" => assert_eq!(item["input"], text("custom_tool_call_input")),
            other => panic!("{other}"),
        }
    }
}
