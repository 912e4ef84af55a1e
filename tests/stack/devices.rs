//! A target and a draft on GPUs, in processes of their own. `TANDEM_TEST_DEVICES` names them, the target's first and the
//! draft's last; without it both are emulated.

use std::env;

use serde_json::Value;

use crate::http::completion;
use crate::set::Set;

const PROMPT: &str = "def f";
const TOKENS: u32 = 6;
/// Answers after which a draft has had its time.
const MOST_ANSWERS: usize = 40;

/// The answer of a set, and what `/props` says of its draft.
fn answer(target: &str, draft: Option<&str>) -> (String, Value) {
    // Small sizes, for an emulated device takes its time for each row.
    let sizes = [
        "--prefill-chunk",
        "8",
        "--parallel",
        "1",
        "--ctx-size",
        "128",
    ];
    let device = ["--target-device", target];
    let drafts = match draft {
        None => vec!["--speculation", "off"],
        Some(draft) => vec![
            "--speculation",
            "tree",
            "--ddtree-budget",
            "4",
            "--draft-device",
            draft,
        ],
    };
    let set = Set::start(&[&sizes[..], &device, &drafts].concat());
    let client = set.client();
    if draft.is_some() {
        client.wait_until_attached();
    }
    let mut body = completion(PROMPT, TOKENS);
    body["ignore_eos"] = true.into();
    let ask = || {
        let answer = client.post("/v1/completions", &body).ok();
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let text = ask();
    // The first proposals wait for kernels that are compiled, and such short answers do not wait for them.
    for _ in 0..MOST_ANSWERS {
        if draft.is_none() || client.metric("tandem_speculation_rounds", &[]) > 0.0 {
            break;
        }
        assert_eq!(ask(), text);
    }
    let said = client.get("/props").ok()["speculative"]["draft"].take();
    if draft.is_some() {
        assert!(client.metric("tandem_speculation_rounds", &[]) > 0.0);
        assert_eq!(client.metric("tandem_drafts_lost", &[]), 0.0);
    }
    assert!(set.stop().success());
    (text, said)
}

#[test]
fn drafts_go_from_device_to_device_and_change_no_token() {
    let asked = env::var("TANDEM_TEST_DEVICES").unwrap_or_else(|_| "emulated".to_owned());
    let target = asked.split(',').next().unwrap();
    let draft = asked.split(',').next_back().unwrap();
    let own = format!("{}-ipc", target.split(':').next().unwrap());
    let (plain, _) = answer(target, None);
    for (draft, transport) in [(draft, &*own), ("cpu", "shm")] {
        let (text, said) = answer(target, Some(draft));
        assert_eq!(said["transport"], transport, "{target} and {draft}: {said}");
        assert_eq!(text, plain, "{target} and {draft}");
    }
}
