//! Prompts with facts hidden in them: made by seed, the same on every machine.

use std::fmt::Write as _;
use std::ops::Range;

use fastrand::Rng;

/// Words that the demo models' training used for the names of facts, and for code around them.
const ADJECTIVES: [&str; 20] = [
    "amber", "brave", "calm", "dusty", "early", "gentle", "hollow", "icy", "jolly", "lunar",
    "mellow", "noble", "polar", "quiet", "rapid", "silent", "tidy", "urban", "vivid", "warm",
];
const NOUNS: [&str; 24] = [
    "anchor", "badger", "canyon", "dragon", "engine", "forest", "garden", "harbor", "island",
    "jacket", "kernel", "ladder", "magnet", "orchid", "parrot", "quartz", "river", "saddle",
    "temple", "valley", "walnut", "beacon", "castle", "lantern",
];
const VERBS: [&str; 16] = [
    "load", "merge", "split", "count", "filter", "update", "remove", "insert", "parse", "render",
    "check", "build", "send", "store", "find", "reset",
];
const NAMES: [&str; 16] = [
    "items", "path", "options", "buffer", "values", "entries", "node", "index", "name", "limit",
    "result", "queue", "handler", "message", "offset", "key",
];
const WAYS: [&str; 4] = [
    "# The access code for {key} is {value}.\n",
    "# NOTE: the access code for {key} is {value}.\n",
    "ACCESS_CODES[\"{key}\"] = \"{value}\"\n",
    "The access code for {key} is {value}.\n",
];

/// A prompt, the facts in it, and what is asked.
#[derive(Debug)]
pub(super) struct Case {
    /// Of the user's message.
    pub text: String,
    /// Those asked for.
    pub facts: Vec<Fact>,
}

/// `The access code for KEY is VALUE.`
#[derive(Debug)]
pub(super) struct Fact {
    pub value: String,
    /// From the key to the value, in bytes of the text.
    pub place: Range<usize>,
}

/// Facts that nobody asks for, which look like those.
const OTHERS: usize = 3;

impl Case {
    /// Asks for `asked` facts. `length`: of the text, which code fills; somewhat more than so many bytes.
    pub(super) fn new(seed: u64, asked: usize, length: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut keys: Vec<String> = Vec::new();
        while keys.len() < asked + OTHERS {
            let key = format!("{}_{}", word(&mut rng, &ADJECTIVES), word(&mut rng, &NOUNS));
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let question = question(&keys[..asked]);
        // (where at the earliest, which fact)
        let mut places: Vec<(usize, usize)> = (0..keys.len())
            .map(|fact| {
                (
                    rng.usize(..length.saturating_sub(question.len()).max(1)),
                    fact,
                )
            })
            .collect();
        places.sort_unstable();
        let mut facts: Vec<Option<Fact>> = (0..asked).map(|_| None).collect();
        let mut text = String::new();
        let mut places = places.into_iter().peekable();
        while text.len() + question.len() < length || places.peek().is_some() {
            for line in code(&mut rng).split_inclusive('\n') {
                text.push_str(line);
                while let Some((_, fact)) = places.next_if(|&(at, _)| at <= text.len()) {
                    let value = rng.u32(10_000..100_000).to_string();
                    let said = WAYS[rng.usize(..WAYS.len())]
                        .replace("{key}", &keys[fact])
                        .replace("{value}", &value);
                    let (key, end) = (said.find(&keys[fact]), said.rfind(&value));
                    let start = text.len() + key.unwrap_or(0);
                    let place = start..text.len() + end.unwrap_or(0) + value.len();
                    text.push_str(&said);
                    if let Some(known) = facts.get_mut(fact) {
                        *known = Some(Fact { value, place });
                    }
                }
            }
        }
        text.push_str(&question);
        Self {
            text,
            facts: facts.into_iter().flatten().collect(),
        }
    }

    /// Whether an answer has all that was asked.
    pub(super) fn is_answered(&self, answer: &str) -> bool {
        self.facts.iter().all(|fact| answer.contains(&fact.value))
    }
}

fn question(keys: &[String]) -> String {
    match keys {
        [key] => format!("\n\nWhat is the access code for {key}?"),
        keys => format!("\n\nWhat are the access codes for {}?", keys.join(", ")),
    }
}

fn word<'a>(rng: &mut Rng, words: &[&'a str]) -> &'a str {
    words[rng.usize(..words.len())]
}

/// A function or a class of Python, one that nobody wrote.
fn code(rng: &mut Rng) -> String {
    let (verb, noun, adjective) = (word(rng, &VERBS), word(rng, &NOUNS), word(rng, &ADJECTIVES));
    let [a, b, c] = [0; 3].map(|_| word(rng, &NAMES));
    let (d, number) = (word(rng, &NOUNS), rng.u32(2..400));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = match rng.u32(..5) {
        0 => write!(
            text,
            "def {verb}_{noun}({a}, {b}=None):\n    \"\"\"{verb} the {adjective} {noun} of {a}.\"\"\"\n    if {b} is None:\n        {b} = {number}\n    \
             for {d} in {a}:\n        if {d}.{c} > {b}:\n            yield {d}.{c}\n\n\n"
        ),
        1 => write!(
            text,
            "class {}{}:\n    def __init__(self, {a}, {b}={number}):\n        self.{a} = {a}\n        self._{b} = {b}\n\n    def {verb}(self, {c}):\n        \
             if {c} not in self.{a}:\n            raise KeyError({c})\n        return self.{a}[{c}]\n\n\n",
            capital(adjective),
            capital(noun)
        ),
        2 => write!(
            text,
            "def {verb}_{adjective}_{noun}({a}):\n    {d} = {{}}\n    for {c}, {b} in enumerate({a}):\n        {d}.setdefault({b}, []).append({c})\n    \
             return sorted({d}.items())[:{number}]\n\n\n"
        ),
        3 => write!(
            text,
            "# {} {noun}: {a} before {b}\n{}_{} = {number}\n\n\n",
            capital(verb),
            adjective.to_uppercase(),
            d.to_uppercase()
        ),
        _ => write!(
            text,
            "def is_{adjective}({a}, {b}):\n    try:\n        {c} = {a}.{verb}({b})\n    except (KeyError, ValueError):\n        return False\n    \
             return len({c}) < {number}\n\n\n"
        ),
    };
    text
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_holds_its_facts_where_it_says_and_is_as_long_as_asked() {
        for seed in 0..50 {
            for (asked, length) in [(1, 400), (1, 8000), (3, 30_000)] {
                let case = Case::new(seed, asked, length);
                assert_eq!(case.facts.len(), asked);
                for fact in &case.facts {
                    let said = &case.text[fact.place.clone()];
                    let (key, _) = said.split_once([' ', '"']).unwrap();
                    assert!(said.ends_with(&fact.value), "{said}");
                    assert!(
                        case.text.ends_with('?') && case.text.rfind(key) > Some(fact.place.end)
                    );
                }
                assert!(case.text.len() >= length, "{}", case.text.len());
                assert!(case.text.len() < length + 1000, "{}", case.text.len());
                assert!(case.text.ends_with('?'));
            }
        }
    }

    #[test]
    fn a_seed_makes_one_case_and_another_makes_another() {
        assert_eq!(Case::new(3, 1, 2000).text, Case::new(3, 1, 2000).text);
        assert_ne!(Case::new(3, 1, 2000).text, Case::new(4, 1, 2000).text);
    }

    #[test]
    fn an_answer_has_all_values_or_is_wrong() {
        let case = Case::new(5, 2, 2000);
        let both = format!("{} and {}", case.facts[0].value, case.facts[1].value);
        assert!(case.is_answered(&both));
        assert!(!case.is_answered(&case.facts[0].value));
    }
}
