//! Every way of writing calls that is understood, and what is none.

use serde_json::{Value, json};
use tool_calls::{CallEvent, CallParser, Ending};

use crate::read::{Found, ONE_TOOL, TOOLS, read_all_ways};

/// What `found` says and calls, with arguments as values.
fn values(found: &Found) -> (String, Vec<(String, Value)>) {
    let parse =
        |json: &str| serde_json::from_str(json).unwrap_or_else(|_| panic!("{json:?} is no JSON"));
    let calls = found.calls.iter();
    let calls = calls.map(|(name, json)| (name.clone(), parse(json)));
    (found.text.clone(), calls.collect())
}

fn check(text: &str, said: &str, calls: &[(&str, Value)]) {
    let found = values(&read_all_ways(&TOOLS, text, Ending::Complete));
    let calls = calls
        .iter()
        .map(|(name, json)| ((*name).to_owned(), json.clone()));
    assert_eq!(found, (said.to_owned(), calls.collect()), "{text:?}");
}

/// Everything is text, as it stands.
fn is_text(text: &str) {
    check(text, text, &[]);
}

#[test]
fn one_call_in_each_dialect() {
    let paris = [("get_weather", json!({ "city": "Paris", "days": 3 }))];
    for text in [
        // Qwen's elements.
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=get_weather><parameter=city>Paris</parameter><parameter=days>3</parameter></function></tool_call>",
        // Without the outer element, without end tags.
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>",
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>Paris<parameter=days>3</tool_call>",
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_",
        // Kin of it.
        "<function=get_weather(city=\"Paris\", days=3)></function>",
        "<tool_call>\n<function=get_weather(city='Paris', days=3)>\n</function>\n</tool_call>",
        "<function get_weather><parameter=city>Paris</parameter><parameter=days>3</parameter></function>",
        "<function name=\"get_weather\"><parameter name=\"city\">Paris</parameter><parameter name=\"days\">3</parameter></function>",
        "<funcname>get_weather<parameter=city>Paris</parameter><parameter=days>3</parameter></function>",
        "<parameter name=\"get_weather\"><parameter name=\"city\">Paris</parameter><parameter name=\"days\">3</parameter></function>",
        "<function=get_weather>{\"city\": \"Paris\", \"days\": 3}</function>",
        // An element of the tool's name.
        "<get_weather><parameter=city>Paris</parameter><parameter=days>3</parameter></get_weather>",
        "<get_weather>\n<city>Paris</city>\n<days>3</days>\n</get_weather>",
        // Hermes' JSON.
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>",
        "<tool_call>{\"arguments\": {\"city\": \"Paris\", \"days\": 3}, \"name\": \"get_weather\"}</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\", \\\"days\\\": 3}\"}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}, \"id\": \"c1\"}",
        "<tool_call>\n{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}}\n</tool_call>",
        "<tool_call>\n{'name': 0, \"name\": \"get_weather\"}\n</tool_call>",
        "<tool_code>{\"name\": \"get_weather\", \"args\": {\"city\": \"Paris\", \"days\": 3}}</tool_code>",
        "<tool_code>get_weather(city=\"Paris\", days=3)</tool_code>",
        "<function_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}</function_call>",
        // Llama's.
        "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}<|eom_id|>",
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 3}}",
        "\n{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}}\n",
        "{\"function\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}",
        "[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}]",
        // Gemma's.
        "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|>",
        "call:weather:get_weather{city: \"Paris\", days: 3}",
        "call:get_weather{\"city\": 'Paris', days: 3}",
        // Laguna's.
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "get_weather\n<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>3</arg_value>",
        // DeepSeek's.
        "<function_calls>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n</function_calls>",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "<invoke name=\"get_weather\"><parameter name=\"city\">Paris</parameter><parameter name=\"days\">3</parameter></invoke>",
    ] {
        if text.contains("'name': 0") {
            is_text(text);
            continue;
        }
        check(text, "", &paris);
    }
}

#[test]
fn text_around_calls_is_kept() {
    let weather = |city: &str| ("get_weather", json!({ "city": city }));
    let xml = |city: &str| {
        format!(
            "<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"
        )
    };
    let json = |city: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>"
        )
    };
    for call in [&xml as &dyn Fn(&str) -> String, &json] {
        let (a, b) = (call("A"), call("B"));
        check(
            &format!("Let me see.\n\n{a}"),
            "Let me see.",
            &[weather("A")],
        );
        check(&format!("{a}\n\nDone.\n"), "Done.\n", &[weather("A")]);
        check(&format!("{a}\n{b}\n"), "", &[weather("A"), weather("B")]);
        check(
            &format!("One {a} and\n{b}\nthree"),
            "One and\nthree",
            &[weather("A"), weather("B")],
        );
    }
    let inner = "<function=now>\n</function>\n";
    check(
        &format!("<tool_call>\n{inner}{inner}</tool_call>"),
        "",
        &[("now", json!({})), ("now", json!({}))],
    );
    let object = "{\"name\": \"now\", \"arguments\": {}}";
    let two = [("now", json!({})), ("now", json!({}))];
    for text in [
        format!("<tool_call>\n{object}\n{object}\n</tool_call>"),
        format!("<tool_call>[{object}, {object}]</tool_call>"),
        format!("<|python_tag|>{object}; {object}"),
        format!("{object}; {object}"),
        format!("{object}\n{object}"),
        format!("[{object}, {object}]"),
        "call:now{}call:now{}".to_owned(),
        "<tool_call>now</tool_call><tool_call>now</tool_call>".to_owned(),
    ] {
        check(&text, "", &two);
    }
    check(
        "I say {x}.\n{\"name\": \"now\", \"arguments\": {}}",
        "I say {x}.",
        &two[..1],
    );
}

#[test]
fn what_is_no_call_is_text() {
    for text in [
        "",
        " \n",
        "plain < text > with <b>marks</b> & {braces} [1] call me, call: you\n",
        "<tool_call>\nnot json\n</tool_call>",
        "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {\"a\": 1}}\n</tool_call>\n",
        "<tool_call>\n<function=unknown>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": [1]}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": \"not json\"}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\"}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"argu",
        "<tool_call>\n<function=get_weather>\nParis, please\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>",
        "<tool_call>",
        "<tool_call",
        "<function=",
        "use <get_weather> for that",
        "{\"name\": \"get_weather\"}",
        "{\"name\": \"Ann\", \"arguments\": {}}",
        "{\"name\": \"get_weather\", \"arguments\": {}, \"score\": 1}x",
        "{\"city\": \"Paris\"}",
        "see {\"name\": \"now\", \"arguments\": {}}",
        "```json\n{\"name\": \"now\", \"arguments\": {}}\n```",
        "recall:now{}",
        "get_weather is a tool",
        "[1, 2]",
        "[{\"a\": 1}]",
    ] {
        if text.contains("score") {
            // The call was certain before the member that calls do not have.
            continue;
        }
        is_text(text);
    }
}

#[test]
fn values_keep_every_byte() {
    let file = "#include <stdio.h>\n// \"quotes\" & 'more' \\n <b>é 🚀</b>\n\tif (a < b && c > d) {}\n</parameter> no end\n<function=x>\n\n";
    let text = format!(
        "<tool_call>\n<function=write_file>\n<parameter=path>\na b.c\n</parameter>\n<parameter=content>\n{file}\n</parameter>\n</function>\n</tool_call>"
    );
    check(
        &text,
        "",
        &[("write_file", json!({ "path": "a b.c", "content": file }))],
    );
    let page = "<html>\n<parameter=zoom>\n<city>\n</html>";
    let text = format!(
        "<write_file><parameter=path>p</parameter><parameter=content>{page}</parameter></write_file>"
    );
    check(
        &text,
        "",
        &[("write_file", json!({ "path": "p", "content": page }))],
    );
    let object = json!({ "name": "write_file", "arguments": { "path": "p", "content": file } });
    check(
        &format!("<tool_call>\n{object}\n</tool_call>"),
        "",
        &[("write_file", json!({ "path": "p", "content": file }))],
    );
    let nested = json!({ "steps": [1, { "a": ["x", null] }], "options": { "deep": { "er": "</tool_call>" } } });
    let object = json!({ "name": "plan", "arguments": nested });
    check(
        &format!("<tool_call>{object}</tool_call>"),
        "",
        &[("plan", nested.clone())],
    );
    let text = format!(
        "<tool_call>\n<function=plan>\n<parameter=steps>\n{}\n</parameter>\n<parameter=options>\n{}\n</parameter>\n</function>\n</tool_call>",
        nested["steps"], nested["options"]
    );
    check(&text, "", &[("plan", nested)]);
    let big = "<function=get_weather><parameter=city>x</parameter><parameter=days>98765432109876543210</parameter></function>";
    let found = read_all_ways(&TOOLS, big, Ending::Complete);
    assert_eq!(
        found.calls[0].1,
        r#"{"city":"x","days":98765432109876543210}"#
    );
    check(
        "<tool_call>\n<function=mcp__files__read-file>\n<parameter=path>\n/\n</parameter>\n</function>\n</tool_call>",
        "",
        &[("mcp__files__read-file", json!({ "path": "/" }))],
    );
}

#[test]
fn what_is_missing_at_the_end_is_mended_and_what_is_lost_is_shown() {
    let weather = [("get_weather", json!({ "city": "Paris" }))];
    for text in [
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {city: Paris}}\n</tool_call>",
    ] {
        check(text, "", &weather);
    }
    let text = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a \"b\" c\"}}\n</tool_call> after";
    let found = read_all_ways(&TOOLS, text, Ending::Complete);
    let lost = "{\"city\":\"a \"b\" c\"}}\n".to_owned();
    assert_eq!(found.calls, [("get_weather".to_owned(), lost)]);
    assert_eq!(found.text, "after");
}

#[test]
fn a_call_that_is_cut_off_is_left_open() {
    for (text, said, arguments) in [
        (
            "<tool_call>\n<function=write_file>\n<parameter=path>\na</par",
            "",
            Some(r#"{"path":"a</par"#),
        ),
        (
            "<function=get_weather><parameter=days>3",
            "",
            Some(r#"{"days":"#),
        ),
        (
            "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"b",
            "",
            Some(r#"{"a":"b"#),
        ),
        (
            "hi <tool_call>\n<function=now>\n</function>\n</tool",
            "hi",
            Some("{}"),
        ),
        (
            "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<t",
            "",
            Some("{}"),
        ),
        (
            "hi <tool_call>\n<function=no",
            "hi <tool_call>\n<function=no",
            None,
        ),
    ] {
        let found = read_all_ways(&TOOLS, text, Ending::Cut);
        let calls: Vec<&str> = found.calls.iter().map(|(_, json)| json.as_str()).collect();
        assert_eq!(
            (found.text.as_str(), calls),
            (said, Vec::from_iter(arguments)),
            "{text:?}"
        );
    }
}

#[test]
fn the_arguments_of_the_only_tool_may_be_the_whole_answer() {
    let call = |text: &str| values(&read_all_ways(&ONE_TOOL, text, Ending::Complete));
    let made = (
        String::new(),
        vec![("get_weather".to_owned(), json!({ "city": "Paris" }))],
    );
    assert_eq!(call("{\"city\": \"Paris\"}"), made);
    assert_eq!(call("\n {\"city\": \"Paris\"}\n"), made);
    for text in [
        "{\"city\": \"Paris\"} is what I think",
        "{\"city\": 5}",
        "{\"days\": 5}",
        "{\"city\": \"Paris\", \"zip\": 1}",
        "{\"city\": \"Paris\"",
        "so {\"city\": \"Paris\"}",
    ] {
        assert_eq!(call(text), (text.to_owned(), Vec::new()));
    }
    let mut parser = CallParser::new(ONE_TOOL.clone(), false, false);
    let text = "{\"city\": \"Paris\"}";
    assert_eq!(parser.push(text), [CallEvent::Text(text.to_owned())]);
}

#[test]
fn only_what_may_be_a_call_is_held_back() {
    let mut parser = CallParser::new(TOOLS.clone(), true, false);
    let text = |text: &str| vec![CallEvent::Text(text.to_owned())];
    let json = |json: &str| vec![CallEvent::Arguments(json.to_owned())];
    assert_eq!(parser.push("so "), text("so"));
    assert_eq!(parser.push("<"), []);
    assert_eq!(parser.push("b>a "), text(" <b>a"));
    assert_eq!(parser.push("c"), []);
    assert_eq!(parser.push("at "), text(" cat"));
    assert_eq!(
        parser.push("\n<tool_call>\n<function=write_file>\n<para"),
        []
    );
    assert_eq!(
        parser.push("meter=path>\n"),
        [
            CallEvent::Start("write_file".to_owned()),
            CallEvent::Arguments("{\"path\":\"".to_owned())
        ]
    );
    assert_eq!(parser.push("a.t"), json("a.t"));
    assert_eq!(parser.push("xt\n"), json("xt"));
    assert!(parser.is_inside());
    assert_eq!(
        parser.push("</parameter>\n<parameter=content>\nline 1 <"),
        json("\",\"content\":\"line 1 ")
    );
    assert_eq!(parser.push("b>\nline 2"), json("<b>\\nline 2"));
    assert_eq!(
        parser.push("\n</parameter>\n</function>\n</tool_call>"),
        json("\"}")
    );
    assert_eq!(parser.finish(Ending::Complete), []);
}

#[test]
fn a_single_call_ends_the_answer() {
    let mut parser = CallParser::new(TOOLS.clone(), true, true);
    let call = "<tool_call>\n<function=now>\n</function>\n";
    let events = parser.push(call);
    assert_eq!(
        events,
        [
            CallEvent::Start("now".to_owned()),
            CallEvent::Arguments("{}".to_owned())
        ]
    );
    assert!(parser.is_over());
    assert_eq!(parser.push(call), []);
    assert_eq!(parser.finish(Ending::Complete), []);
}
