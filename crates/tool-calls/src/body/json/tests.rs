//! Nearly JSON in, JSON out, in any two chunks.

use super::{Relaxed, Until};

/// What comes of `chunks`, with marks taken as text, and whether the object was complete before the end.
fn read(mut relaxed: Relaxed, chunks: &[&str]) -> (String, bool) {
    let mut json = String::new();
    let mut held = String::new();
    let mut done = false;
    for chunk in chunks {
        held += chunk;
        loop {
            let (len, until) = relaxed.push(&held, &mut json);
            held.drain(..len);
            done = until == Until::Done;
            if until != Until::Mark {
                break;
            }
            relaxed.push_mark(&mut json);
            held.drain(..1);
        }
    }
    relaxed.finish(&held, &mut json);
    (json, done)
}

#[test]
fn what_is_nearly_json_becomes_json() {
    for (text, expected, done) in [
        (r#"{"a": "b"}"#, r#"{"a":"b"}"#, true),
        ("{ }", "{}", true),
        (
            r#"{"a": [1, [], {}, -2.5e3, true, null]}"#,
            r#"{"a":[1,[],{},-2.5e3,true,null]}"#,
            true,
        ),
        (
            r#"{"a": "q \" \\ \u00e9 \n"}"#,
            r#"{"a":"q \" \\ \u00e9 \n"}"#,
            true,
        ),
        ("{\"a\": \"two\nlines\"}", r#"{"a":"two\nlines"}"#, true),
        (r#"{"a": "\d+ \u12 \'"}"#, r#"{"a":"\\d+ \\u12 '"}"#, true),
        (
            r#"{'a': 'it\'s "so"', 'b': True, 'c': None}"#,
            r#"{"a":"it's \"so\"","b":true,"c":null}"#,
            true,
        ),
        (
            "{city: New York, n: 3}",
            r#"{"city":"New York","n":3}"#,
            true,
        ),
        (
            "{city:<|\"|>a \"b\" <c><|\"|>}",
            r#"{"city":"a \"b\" <c>"}"#,
            true,
        ),
        (r#"{"a": [1, 2,], }"#, r#"{"a":[1,2]}"#, true),
        (r#"{"a": {"b": [1"#, r#"{"a":{"b":[1]}}"#, false),
        (r#"{"a": {"b": 1}"#, r#"{"a":{"b":1}}"#, false),
        (r#"{"a""#, r#"{"a":null}"#, false),
        (r#"{"a": "open"#, r#"{"a":"open"#, false),
        (
            r#"{"a": "said "no" twice"}"#,
            r#"{"a":"said "no" twice"}"#,
            false,
        ),
        (
            r#"{"a": 12345678901234567890123}"#,
            r#"{"a":12345678901234567890123}"#,
            true,
        ),
        ("{\"é\": \"🚀\"}", "{\"é\":\"🚀\"}", true),
    ] {
        let places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        for at in places {
            let chunks = [&text[..at], &text[at..]];
            let found = read(Relaxed::object(), &chunks);
            assert_eq!(found, (expected.to_owned(), done), "{chunks:?}");
        }
    }
    let signature = read(Relaxed::signature(), &["a=\"x\", b = [1], c=True)"]);
    assert_eq!(signature, (r#""a":"x","b":[1],"c":true}"#.to_owned(), true));
}

#[test]
fn depth_is_bounded() {
    let deep = "{\"a\":".to_owned() + &"[".repeat(100_000);
    let (json, done) = read(Relaxed::object(), &[&deep]);
    assert!(!done);
    assert_eq!(json.len(), deep.len());
}
