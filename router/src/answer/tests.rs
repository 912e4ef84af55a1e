//! Events in, pieces out, with a vocabulary in which the marks around the reasoning are control tokens.

use std::sync::Arc;

use chat::ReasoningStart;
use generation::{FinishReason, GenerateEvent, Timings, Token};
use tokenizer::{TokenType, Tokenizer, TokenizerSpec};

use super::{Answer, AnswerPlan, Piece, Tally};

const WORDS: [&str; 6] = ["a", "b", "Ã", "©", "<think>", "</think>"];
/// The id that ends answers; the first two are letters, the next two the bytes of é.
const END: u32 = 6;
const OPEN: u32 = 4;
const CLOSE: u32 = 5;

fn tokenizer() -> Arc<Tokenizer> {
    let words = WORDS.iter().chain(&["<end>"]);
    let control = |word: &str| word.starts_with('<');
    let kind = |word: &&str| match control(word) {
        true => TokenType::Control,
        false => TokenType::Normal,
    };
    let spec = TokenizerSpec {
        model: "gpt2".to_owned(),
        tokens: words.clone().map(|&word| word.to_owned()).collect(),
        token_types: words.map(kind).collect(),
        eos: Some(END),
        ..TokenizerSpec::default()
    };
    Arc::new(Tokenizer::new(spec).unwrap())
}

fn plan(stop: &[&str], reasoning: Option<ReasoningStart>) -> AnswerPlan {
    AnswerPlan {
        stop: stop.iter().map(|&s| s.to_owned()).collect(),
        include_stop: false,
        stop_ids: vec![END],
        reasoning,
        calls: None,
        logprobs: true,
    }
}

fn run(plan: &AnswerPlan, ids: &[u32], reason: FinishReason) -> (Piece, Tally) {
    let mut answer = Answer::new(tokenizer(), plan, None);
    let token = |&id: &u32| {
        GenerateEvent::Token(Token {
            id,
            logprob: f32::NEG_INFINITY,
            top: Vec::new(),
        })
    };
    let started = GenerateEvent::Started {
        prompt_tokens: 5,
        cached_tokens: 2,
    };
    let finished = GenerateEvent::Finished {
        reason,
        timings: Timings::default(),
    };
    let mut whole = Piece::default();
    for event in std::iter::once(started)
        .chain(ids.iter().map(token))
        .chain([finished])
    {
        for piece in answer.push(event) {
            assert!(whole.finish.is_none(), "nothing comes after the end");
            whole.append(piece);
        }
    }
    (whole, answer.tally())
}

#[test]
fn text_reasoning_and_entries_of_each_kind_of_answer() {
    use FinishReason::{Length, Stop};
    use ReasoningStart::{Before, Inside};
    type Row<'r> = (
        &'r [&'r str],
        Option<ReasoningStart>,
        &'r [u32],
        FinishReason,
        (&'r str, &'r str, &'r [usize], u32, FinishReason),
    );
    let rows: [Row; 8] = [
        (
            &[],
            None,
            &[0, 2, 3, END],
            Stop,
            ("", "aé", &[0, 1, 1], 0, Stop),
        ),
        (
            &[],
            None,
            &[0, 2],
            Length,
            ("", "a\u{fffd}", &[0, 1], 0, Length),
        ),
        (
            &[],
            Some(Inside),
            &[0, CLOSE, 1, END],
            Stop,
            ("a", "b", &[9], 2, Stop),
        ),
        (
            &[],
            Some(Before),
            &[OPEN, 0, CLOSE, 1],
            Length,
            ("a", "b", &[16], 3, Length),
        ),
        (
            &[],
            Some(Before),
            &[0, 1],
            Length,
            ("", "ab", &[0, 1], 0, Length),
        ),
        (
            &[],
            Some(Inside),
            &[0, 0],
            Length,
            ("aa", "", &[], 2, Length),
        ),
        (
            &["ba"],
            None,
            &[0, 1, 0, 1],
            Length,
            ("", "a", &[0, 1, 2], 0, Stop),
        ),
        (
            &["ba"],
            None,
            &[0, 1],
            Length,
            ("", "ab", &[0, 1], 0, Length),
        ),
    ];
    for (stop, reasoning, ids, reason, (thought, content, offsets, thoughts, finish)) in rows {
        let (piece, tally) = run(&plan(stop, reasoning), ids, reason);
        let found: Vec<usize> = piece.logprobs.iter().map(|e| e.text_offset).collect();
        assert_eq!(
            (
                &*piece.reasoning,
                &*piece.content,
                &*found,
                tally.reasoning_tokens,
                piece.finish
            ),
            (thought, content, offsets, thoughts, Some(finish)),
            "{ids:?}"
        );
        assert_eq!(tally.cached_tokens, 2);
        assert!(
            piece
                .logprobs
                .iter()
                .all(|entry| entry.chosen.logprob.is_finite())
        );
    }
}

#[test]
fn an_answer_cut_by_a_stop_string_has_timings_of_its_own() {
    let (_, tally) = run(&plan(&["b"], None), &[0, 0, 1, 1], FinishReason::Stop);
    assert_eq!(tally.completion_tokens, 3);
    assert_eq!(tally.timings.generated_tokens, 3);
    assert_eq!(tally.timings.prompt_tokens, 3);
}
