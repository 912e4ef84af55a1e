//! Grammars over a real vocabulary, followed by choosing at random among what is allowed.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::LazyLock;

use generation::Grammar;
use gguf::GgufFile;
use grammar::{GrammarError, Grammars, Matcher};
use serde_json::Value;
use vocabulary::Vocabulary;

/// Rows of logits that the model has behind its last token.
const PADDING: usize = 64;

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/demo/demo-target.gguf");
    Vocabulary::from_gguf(GgufFile::open(path).unwrap().metadata()).unwrap()
});

static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| Grammars::new(&VOCABULARY, rows()).unwrap());

fn rows() -> usize {
    VOCABULARY.num_tokens() + PADDING
}

fn compile(grammar: &Grammar) -> Matcher {
    GRAMMARS.compile(grammar).unwrap()
}

fn schema(text: &str) -> Grammar {
    Grammar::JsonSchema(text.to_owned())
}

fn regex(text: &str) -> Grammar {
    Grammar::Regex(text.to_owned())
}

fn lark(text: &str) -> Grammar {
    Grammar::Lark(text.to_owned())
}

fn text(tokens: &[u32]) -> String {
    let bytes = tokens
        .iter()
        .flat_map(|&token| VOCABULARY.bytes(token, true).unwrap().into_owned());
    String::from_utf8(bytes.collect()).unwrap()
}

fn token(text: &str) -> u32 {
    let place = VOCABULARY.texts().iter().position(|other| other == text);
    place.unwrap() as u32
}

/// Chooses among what is allowed, and ends where that is possible, now and then. `None`: it was not at its end yet.
fn walk(mut matcher: Matcher, random: &mut fastrand::Rng, most: usize) -> Option<Vec<u32>> {
    let mut tokens = Vec::new();
    while tokens.len() < most {
        if matcher.can_only_end() || (matcher.may_end() && random.u8(..) < 64) {
            return Some(tokens);
        }
        let allowed = matcher.allowed().unwrap();
        let choices: Vec<u32> = (0..rows() as u32)
            .filter(|&t| allowed.contains(t))
            .collect();
        assert_eq!(choices.len(), allowed.num_tokens());
        let chosen = random.choice(&choices).copied().unwrap();
        matcher.advance(chosen).unwrap();
        tokens.push(chosen);
    }
    None
}

#[test]
fn what_is_walked_is_in_the_language() {
    let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok();
    let is_word = |text: &str| {
        let (letters, digits) = text.split_once('-').unwrap();
        (2..=4).contains(&letters.len())
            && letters.bytes().all(|b| b.is_ascii_lowercase())
            && digits.len() == 3
    };
    let is_sum = |text: &str| text.split('+').all(|n| n.parse::<u64>().is_ok());
    type Matches<'a> = &'a dyn Fn(&str) -> bool;
    let cases: [(Grammar, Matches<'_>); 4] = [
        (
            schema(r#"{"type": ["object", "array", "integer"], "maxItems": 3}"#),
            &is_json,
        ),
        (regex("[a-z]{2,4}-[0-9]{3}"), &is_word),
        (lark("start: n (\"+\" n)*\nn: /[0-9]{1,3}/"), &is_sum),
        (lark("start: \"yes\" | \"no\" | \"a\\nb\""), &|text| {
            ["yes", "no", "a\nb"].contains(&text)
        }),
    ];
    let mut random = fastrand::Rng::with_seed(3);
    for (grammar, is_in) in cases {
        let mut ended = 0;
        for _ in 0..40 {
            if let Some(tokens) = walk(compile(&grammar), &mut random, 60) {
                let text = text(&tokens);
                assert!(is_in(&text), "{grammar:?}: {text}");
                ended += 1;
            }
        }
        assert!(ended > 20, "{grammar:?}: {ended} of 40 ended");
    }
}

#[test]
fn white_space_between_tokens_of_json_has_a_bound() {
    let mut matcher = compile(&schema(r#"{"type": "object"}"#));
    for byte in ["{", "Ċ"] {
        matcher.advance(token(byte)).unwrap();
    }
    let space = token("Ġ");
    let mut spaces = 0;
    while matcher.allowed().unwrap().contains(space) {
        matcher.advance(space).unwrap();
        spaces += 1;
    }
    assert_eq!(spaces, 40);
    assert!(!matcher.allowed().unwrap().contains(token("Ċ")));
    assert!(matcher.allowed().unwrap().contains(token("}")));
}

#[test]
fn control_tokens_and_padding_come_only_where_a_grammar_names_them() {
    let end = token("<|im_end|>");
    let mut anything = compile(&regex("(?s:.*)"));
    let allowed = anything.allowed().unwrap();
    assert!(!allowed.contains(end));
    assert!((VOCABULARY.num_tokens()..rows() + 100).all(|id| !allowed.contains(id as u32)));
    assert!(allowed.num_tokens() > 5000);
    // Every byte can be said, by itself where it is not whole.
    let is_text = |id: u32| std::str::from_utf8(&VOCABULARY.bytes(id, false).unwrap()).is_ok();
    for id in (0..VOCABULARY.num_tokens() as u32).filter(|&id| is_text(id)) {
        let is_control = VOCABULARY.bytes(id, false).unwrap().is_empty();
        assert_eq!(
            allowed.contains(id),
            !is_control,
            "{:?}",
            VOCABULARY.text(id)
        );
    }
    let mut named = compile(&lark("start: \"a\" <|im_end|> \"b\""));
    named.advance(token("a")).unwrap();
    let allowed = named.allowed().unwrap();
    assert!(allowed.contains(end) && allowed.num_tokens() == 1);
    named.advance(end).unwrap();
    assert!(named.allowed().unwrap().contains(token("b")));
}

#[test]
fn an_answer_may_end_where_it_is_whole_and_ends_where_nothing_may_follow() {
    let mut matcher = compile(&regex("ab?"));
    assert!(!matcher.may_end() && !matcher.can_only_end());
    matcher.advance(token("a")).unwrap();
    assert!(matcher.may_end() && !matcher.can_only_end());
    matcher.advance(token("b")).unwrap();
    assert!(matcher.may_end() && matcher.can_only_end());
    let mut object = compile(&schema(r#"{"const": {}}"#));
    object.advance(token("{")).unwrap();
    assert!(!object.may_end());
    object.advance(token("}")).unwrap();
    assert!(object.can_only_end());
    assert!(compile(&lark("start: \"\"")).can_only_end());
}

#[test]
fn what_is_not_allowed_cannot_be_taken_in() {
    let mut matcher = compile(&regex("ab"));
    assert!(!matcher.allowed().unwrap().contains(token("b")));
    assert!(matcher.advance(token("b")).is_err());
    let mut other = compile(&regex("ab"));
    assert!(
        other.advance(token("a")).is_ok(),
        "the next one begins anew"
    );
}

/// A branch says of each token what the set says.
#[test]
fn a_branch_agrees_with_what_is_allowed() {
    let grammar = schema(
        r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}}, "required": ["name"]}"#,
    );
    let mut random = fastrand::Rng::with_seed(11);
    let mut matcher = compile(&grammar);
    let mut path: Vec<u32> = Vec::new();
    let mut branch = matcher.branch();
    for _ in 0..30 {
        if matcher.can_only_end() {
            break;
        }
        let allowed = matcher.allowed().unwrap();
        for id in (0..rows() as u32 + 5).step_by(7) {
            assert_eq!(
                branch.allows(&path, id),
                allowed.contains(id),
                "{path:?}, {id}"
            );
        }
        // Elsewhere and back.
        branch.allows(&path[..path.len() / 2], 0);
        let choices: Vec<u32> = (0..rows() as u32)
            .filter(|&t| allowed.contains(t))
            .collect();
        let chosen = random.choice(&choices).copied().unwrap();
        assert!(branch.allows(&path, chosen));
        matcher.advance(chosen).unwrap();
        path.push(chosen);
    }
    assert!(path.len() > 4);
    // What a branch tried out is not known to the matcher.
    assert!(compile(&grammar).allowed().unwrap().contains(token("{")));
}

#[test]
fn what_is_no_grammar_is_refused_in_words() {
    let refused = |grammar: Grammar, words: &str| {
        let error = GRAMMARS.compile(&grammar).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(words), "{grammar:?}: {text}");
        assert!(!text.contains('\n') && text.len() < 500, "{text}");
    };
    refused(schema("{"), "no JSON");
    refused(schema("3"), "neither an object nor true or false");
    refused(schema("false"), "nothing fits");
    refused(schema(r#"{"type": "object", "not": {}}"#), "not");
    refused(regex("("), "unclosed");
    refused(lark("start: nowhere"), "nowhere");
    refused(lark(""), "");
}

/// What a client sends may be made to hurt. It has to be refused, or followed, within a bound.
#[test]
fn huge_grammars_are_refused_or_read_in_bounded_time() {
    let deep = format!(
        "{}{}",
        r#"{"items":"#.repeat(100),
        "{}".to_owned() + &"}".repeat(100)
    );
    let nested = |levels: usize| {
        let mut text = r#"{"type":"integer"}"#.to_owned();
        for _ in 0..levels {
            text = format!(r#"{{"type":"array","minItems":1000,"maxItems":1000,"items":{text}}}"#);
        }
        text
    };
    let names: Vec<String> = (0..3000)
        .map(|i| format!(r#""name_{i}":{{"type":"string"}}"#))
        .collect();
    for grammar in [
        schema(&deep),
        schema(&nested(4)),
        schema(&format!(r#"{{"properties":{{{}}}}}"#, names.join(","))),
        schema(r#"{"type":"string","minLength":1000000000}"#),
        schema(r#"{"type":"string","pattern":"^(a|b|ab)*c{1,1000}(d{1,1000}){1,100}$"}"#),
        regex("((a{1,100}){1,100}){1,100}"),
        regex("(x+x+)+y"),
        lark("start: a\na: a a | \"x\" |"),
    ] {
        let started = std::time::Instant::now();
        let read = GRAMMARS.compile(&grammar);
        if let Ok(mut matcher) = read {
            // Whatever it says, it says it.
            let _said = matcher.allowed();
        }
        let seconds = started.elapsed().as_secs();
        assert!(seconds < 20, "{seconds} s for {:.60}", grammar.text());
    }
}

#[test]
fn a_vocabulary_larger_than_the_model_is_refused() {
    let error = Grammars::new(&VOCABULARY, VOCABULARY.num_tokens() - 1).unwrap_err();
    assert!(matches!(error, GrammarError::NoVocabulary(_)), "{error}");
}
