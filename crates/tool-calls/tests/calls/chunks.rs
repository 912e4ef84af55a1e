//! Any text in any pieces: the result is that of the whole, nothing panics, and no text is lost.

use proptest::prelude::*;
use tool_calls::Ending;

use crate::read::{ONE_TOOL, TOOLS, read};

/// Pieces that calls are made of, and some that they are not.
const PIECES: [&str; 62] = [
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "get_weather",
    "write_file",
    "now",
    "plan",
    ">",
    "</function>",
    "<parameter=",
    "city",
    "path",
    "content",
    "</parameter>",
    "\n",
    " ",
    "<",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    ":",
    ",",
    "name",
    "\"name\": \"now\"",
    "\"arguments\": {",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"",
    "\\",
    "\\u00",
    "e9",
    "null",
    "3",
    "1e5",
    "call:",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<invoke name=\"now\">",
    "</invoke>",
    "<parameter name=\"",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<function_calls>",
    "</function_calls>",
    "<|python_tag|>",
    ";",
    "(",
    ")",
    "=",
    "```",
    "é",
    "🚀",
    "text",
    "<tool_code>",
    "<funcname>",
    "<get_weather>",
    "\r\n",
    "{\"city\": \"Paris\"}",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chunks_do_not_matter(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        is_complete in any::<bool>(),
        has_one_tool in any::<bool>(),
    ) {
        let text = pieces.concat();
        let ending = if is_complete { Ending::Complete } else { Ending::Cut };
        let tools = if has_one_tool { &*ONE_TOOL } else { &*TOOLS };
        let whole = read(tools, &[&text], ending);
        let mut places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        places.push(text.len());
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| places[cut.index(places.len())]).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let chunks: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        prop_assert_eq!(&read(tools, &chunks, ending), &whole, "{:?}", chunks);
        if whole.calls.is_empty() {
            prop_assert_eq!(whole.text, text);
        }
    }
}

/// What took the time of a whole evening would show here.
#[test]
fn long_texts_take_no_longer_than_their_length() {
    let file = "let x = a < b; // <function=x> \"q\"\n".repeat(20_000);
    let text = format!(
        "<tool_call>\n<function=write_file>\n<parameter=path>\np\n</parameter>\n<parameter=content>\n{file}\n</parameter>\n</function>\n</tool_call>"
    );
    let pieces = |text: &str| -> Vec<String> {
        let characters: Vec<char> = text.chars().collect();
        characters.chunks(4).map(|c| c.iter().collect()).collect()
    };
    let chunks = pieces(&text);
    let found = read(
        &TOOLS,
        &chunks.iter().map(String::as_str).collect::<Vec<_>>(),
        Ending::Complete,
    );
    let arguments: serde_json::Value = serde_json::from_str(&found.calls[0].1).unwrap();
    assert_eq!(arguments["content"], file);
    // Arguments before the name are held back as a whole.
    let object =
        serde_json::json!({ "arguments": { "path": "p", "content": file }, "name": "write_file" });
    let text = format!("<tool_call>{object}</tool_call>");
    let chunks = pieces(&text);
    let found = read(
        &TOOLS,
        &chunks.iter().map(String::as_str).collect::<Vec<_>>(),
        Ending::Complete,
    );
    assert_eq!(found.calls.len(), 1);
}
