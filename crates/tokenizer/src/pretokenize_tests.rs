//! Hand-derived pieces for every pattern.

use super::*;

fn split(pre: Option<&str>, text: &str) -> Vec<String> {
    split_with(&PreTokenizer::new(pre).unwrap(), text)
}

fn split_with(pre: &PreTokenizer, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    pre.split(text, |piece| out.push(piece.to_owned()));
    assert_eq!(out.concat(), text);
    assert!(out.iter().all(|piece| !piece.is_empty()));
    out
}

/// Text, then its pieces for each pre-tokenizer.
fn check(pre: Option<&str>, cases: &[(&str, &[&str])]) {
    for (text, want) in cases {
        assert_eq!(split(pre, text), *want, "{pre:?} {text:?}");
    }
}

#[test]
fn common_to_all() {
    let cases: &[(&str, &[&str])] = &[
        ("", &[]),
        (" ", &[" "]),
        ("  ", &["  "]),
        ("\n", &["\n"]),
        ("\n\n\n", &["\n\n\n"]),
        ("Hello", &["Hello"]),
        (" Hello", &[" Hello"]),
        ("Hello  world", &["Hello", " ", " world"]),
        ("Hello   world   ", &["Hello", "  ", " world", "   "]),
        ("   leading", &["  ", " leading"]),
        ("!!!???...", &["!!!???..."]),
        ("don't", &["don", "'t"]),
        ("Привет, мир!", &["Привет", ",", " мир", "!"]),
        ("\u{1F600}\u{1F680}", &["\u{1F600}\u{1F680}"]),
    ];
    for pre in [
        None,
        Some("smollm"),
        Some("qwen2"),
        Some("qwen35"),
        Some("llama-bpe"),
    ] {
        check(pre, cases);
    }
}

#[test]
fn gpt2() {
    check(
        None,
        &[
            (" \n ", &[" \n "]),
            ("1234567890", &["1234567890"]),
            (
                "3.14159 and 2,718",
                &["3", ".", "14159", " and", " 2", ",", "718"],
            ),
            ("A1B2", &["A", "1", "B", "2"]),
            ("don't DON'T", &["don", "'t", " DON", "'", "T"]),
            ("x\n y\n  z", &["x", "\n", " y", "\n ", " z"]),
            ("a\n\n\nb", &["a", "\n\n", "\n", "b"]),
            ("\t\tif (a)", &["\t", "\t", "if", " (", "a", ")"]),
            ("cafe\u{301} x", &["cafe", "\u{301}", " x"]),
            ("}\r\n", &["}", "\r\n"]),
            ("<div class", &["<", "div", " class"]),
        ],
    );
}

#[test]
fn smollm() {
    check(
        Some("smollm"),
        &[
            ("1234", &["1", "2", "3", "4"]),
            ("a  5", &["a", "  ", "5"]),
            ("a 5", &["a", " ", "5"]),
            ("3.14 and 2", &["3", ".", "1", "4", " and", " ", "2"]),
            ("DON'T", &["DON", "'", "T"]),
            ("'s 'S 't 'RE", &["'s", " '", "S", " '", "t", " '", "RE"]),
            ("½ ² Ⅷ ٣٤", &["½", " ", "²", " ", "Ⅷ", " ", "٣", "٤"]),
            ("x=1;y", &["x", "=", "1", ";", "y"]),
            ("  \n  \n\tin", &["  \n  \n", "\t", "in"]),
            ("\n\ny", &["\n", "\n", "y"]),
            ("v1.2-rc", &["v", "1", ".", "2", "-", "rc"]),
        ],
    );
}

#[test]
fn qwen2() {
    let cases: &[(&str, &[&str])] = &[
        (" \n ", &[" \n", " "]),
        ("123", &["1", "2", "3"]),
        ("3.14 and 2", &["3", ".", "1", "4", " and", " ", "2"]),
        ("don't DON'T", &["don", "'t", " DON", "'T"]),
        (
            "you'RE we'll they'VE",
            &["you", "'RE", " we", "'ll", " they", "'VE"],
        ),
        ("x\n y\n  z", &["x", "\n", " y", "\n", " ", " z"]),
        ("a\n\n\nb", &["a", "\n\n\n", "b"]),
        (
            "\t\tif (a) {\n\t\t\tb",
            &["\t", "\tif", " (", "a", ")", " {\n", "\t\t", "\tb"],
        ),
        ("}\r\nx", &["}\r\n", "x"]),
        ("a/b\\c", &["a", "/b", "\\c"]),
        ("<div class=\"x\">", &["<div", " class", "=\"", "x", "\">"]),
        ("\u{200b}\u{200b}zero", &["\u{200b}\u{200b}", "zero"]),
        ("a\u{a0}nbsp\u{3000}x", &["a", "\u{a0}nbsp", "\u{3000}x"]),
        ("a \u{3000}!", &["a", " ", "\u{3000}", "!"]),
        ("你好，世界。", &["你好", "，世界", "。"]),
    ];
    for pre in ["qwen2", "deepseek-r1-qwen", "megrez", "qwen35"] {
        check(Some(pre), cases);
    }
    check(
        Some("qwen2"),
        &[
            ("cafe\u{301} x", &["cafe", "\u{301}", " x"]),
            ("e\u{301}\u{301} z", &["e", "\u{301}\u{301}", " z"]),
            ("x\u{301}y", &["x", "\u{301}y"]),
            ("!\u{301}\u{301}", &["!\u{301}\u{301}"]),
        ],
    );
}

#[test]
fn qwen35_keeps_marks_with_letters() {
    check(
        Some("qwen35"),
        &[
            ("cafe\u{301} x", &["cafe\u{301}", " x"]),
            ("e\u{301}\u{301} z", &["e\u{301}\u{301}", " z"]),
            ("x\u{301}y", &["x\u{301}y"]),
            ("!\u{301}\u{301}", &["!\u{301}\u{301}"]),
            ("!!\u{301}", &["!!", "\u{301}"]),
            ("नमस्ते दुनिया", &["नमस्ते", " दुनिया"]),
            ("❤\u{fe0f}", &["❤\u{fe0f}"]),
            ("5\u{301}", &["5", "\u{301}"]),
        ],
    );
}

#[test]
fn llama3_groups_digits() {
    let cases: &[(&str, &[&str])] = &[
        ("1234567890", &["123", "456", "789", "0"]),
        ("a 5", &["a", " ", "5"]),
        ("3.14159", &["3", ".", "141", "59"]),
        ("don't DON'T", &["don", "'t", " DON", "'T"]),
        ("x\n y\n  z", &["x", "\n", " y", "\n", " ", " z"]),
        ("C++20 C# .NET", &["C", "++", "20", " C", "#", " .", "NET"]),
    ];
    for pre in ["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"] {
        check(Some(pre), cases);
    }
}

#[test]
fn agrees_with_the_published_look_ahead() {
    let c = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
    let qwen2 = format!(
        r"{c}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    let gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    let alphabet = [
        ' ', ' ', '\n', '\r', '\t', '\u{3000}', 'a', 'S', '\'', '!', '7', '\u{301}',
    ];
    let mut state = 5u64;
    for (pre, pattern) in [(None, gpt2), (Some("qwen2"), qwen2.as_str())] {
        let ours = PreTokenizer::new(pre).unwrap();
        let published = Regex::new(pattern).unwrap();
        for _ in 0..5000 {
            let mut text = String::new();
            for _ in 0..9 {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                text.push(alphabet[(state >> 33) as usize % alphabet.len()]);
            }
            let want: Vec<&str> = published
                .find_iter(&text)
                .map(|m| m.unwrap().as_str())
                .collect();
            assert_eq!(split_with(&ours, &text), want, "{pre:?} {text:?}");
        }
    }
}

#[test]
fn long_runs_are_linear() {
    for unit in ["a", " ", "\n", "!", "7", " \n", "\u{301}"] {
        let text = format!("{}x", unit.repeat(200_000));
        for pre in [None, Some("smollm"), Some("qwen35"), Some("llama-bpe")] {
            split(pre, &text);
        }
    }
}

#[test]
fn unknown_names_are_refused() {
    let error = PreTokenizer::new(Some("tekken")).unwrap_err();
    assert_eq!(error.to_string(), "pre-tokenizer 'tekken' is not supported");
}
