//! What a grammar costs, over a vocabulary of the size that models have:
//! `TANDEM_QWEN35_VOCAB_GGUF=$(.ci/fetch-qwen35-vocab) cargo bench -p grammar`.
//!
//! Milliseconds of sorting the vocabulary and of reading each grammar; then, over answers that are chosen at random,
//! microseconds of telling what is allowed and of masking a row with it, of taking a token in, and of trying one out.

use std::time::{Duration, Instant};

use generation::Grammar;
use gguf::GgufFile;
use grammar::Grammars;
use vocabulary::Vocabulary;

const FILE: &str = "TANDEM_QWEN35_VOCAB_GGUF";
/// Answers under each grammar, and tokens of each at most.
const WALKS: usize = 20;
const TOKENS: usize = 100;
/// Tokens tried out at each place, as many as a draft tree asks for.
const TRIES: usize = 22;

fn grammars() -> Vec<(&'static str, Grammar)> {
    let person = r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "age", "tags"],
        "additionalProperties": false}"#;
    let fields: Vec<String> = (0..100)
        .map(|i| format!(r#""field_{i}": {{"type": ["string", "null"], "maxLength": 40}}"#))
        .collect();
    let many = format!(
        r#"{{"type": "object", "properties": {{{}}}, "additionalProperties": false}}"#,
        fields.join(", ")
    );
    vec![
        (
            "any object",
            Grammar::JsonSchema(r#"{"type": "object"}"#.to_owned()),
        ),
        ("a person", Grammar::JsonSchema(person.to_owned())),
        ("100 fields", Grammar::JsonSchema(many)),
        (
            "a regex",
            Grammar::Regex(r"[A-Z][a-z ,]{10,200}\.".to_owned()),
        ),
    ]
}

fn main() {
    let Ok(path) = std::env::var(FILE) else {
        println!("{FILE} names no file with a vocabulary");
        return;
    };
    let file = GgufFile::open(&path).expect("the file");
    let started = Instant::now();
    let vocabulary = Vocabulary::from_gguf(file.metadata()).expect("a vocabulary");
    println!(
        "{} tokens, read in {:.0} ms",
        vocabulary.num_tokens(),
        ms(started.elapsed())
    );
    let rows = vocabulary.num_tokens().next_multiple_of(256);
    let started = Instant::now();
    let all = Grammars::new(&vocabulary, rows).expect("grammars");
    println!(
        "sorted in {:.0} ms; rows of {rows} logits",
        ms(started.elapsed())
    );
    for (name, grammar) in grammars() {
        measure(&all, name, &grammar, rows);
    }
}

fn measure(all: &Grammars, name: &str, grammar: &Grammar, rows: usize) {
    let started = Instant::now();
    all.compile(grammar).expect("a grammar");
    let first = started.elapsed();
    let started = Instant::now();
    all.compile(grammar).expect("a grammar");
    println!(
        "{name}: read in {:.2} ms, remembered in {:.2} ms",
        ms(first),
        ms(started.elapsed())
    );
    let logits = vec![0.5; rows];
    let mut masked = Vec::new();
    let mut random = fastrand::Rng::with_seed(7);
    let [mut sets, mut masks, mut steps, mut tries] = [const { Vec::new() }; 4];
    for _ in 0..WALKS {
        let mut matcher = all.compile(grammar).expect("a grammar");
        for _ in 0..TOKENS {
            if matcher.can_only_end() {
                break;
            }
            let started = Instant::now();
            let allowed = matcher.allowed().expect("something");
            sets.push(started.elapsed());
            let started = Instant::now();
            allowed.mask(&logits, &mut masked);
            masks.push(started.elapsed());
            let started = Instant::now();
            let mut branch = matcher.branch();
            for _ in 0..TRIES {
                branch.allows(&[], random.u32(..rows as u32));
            }
            tries.push(started.elapsed() / TRIES as u32);
            let choices: Vec<u32> = (0..rows as u32)
                .filter(|&id| allowed.contains(id))
                .collect();
            let Some(&token) = random.choice(&choices) else {
                break;
            };
            let started = Instant::now();
            matcher.advance(token).expect("what is allowed");
            steps.push(started.elapsed());
        }
    }
    print(
        &format!("  what is allowed, of {} places", sets.len()),
        sets,
    );
    print("  masking a row", masks);
    print("  taking a token in", steps);
    print("  trying one out, of 22", tries);
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    let (p50, p99, most) = (at(0.5), at(0.99), at(1.0));
    println!("{what}: p50 {p50:.0} us, p99 {p99:.0} us, most {most:.0} us");
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
