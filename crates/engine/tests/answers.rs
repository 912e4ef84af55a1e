//! What one request gets: where answers end, what comes beside tokens, what is refused.

#![allow(clippy::unwrap_used)]

mod common;

use common::{CONFIG, FIBONACCI, FIBONACCI_ANSWER, IM_END, prompt, request, start};
use generation::{FinishReason, GenerateError, GenerateRequest, TopToken};
use sampling::SamplingError;

#[tokio::test]
async fn the_demo_answer_equals_llama_cpp_and_ends_with_its_stop_token() {
    let stand = start(CONFIG);
    let answer = stand
        .answer(&GenerateRequest {
            stop_ids: vec![3, IM_END],
            ..request(&FIBONACCI, 100)
        })
        .await;
    assert_eq!(answer.ids(), FIBONACCI_ANSWER);
    let (reason, timings) = answer.end.unwrap();
    assert_eq!(reason, FinishReason::Stop);
    assert_eq!(answer.started, Some((8, 0)));
    assert_eq!((timings.prompt_tokens, timings.generated_tokens), (8, 50));
    assert!(timings.prompt_ms > 0.0 && timings.generated_ms > 0.0);
}

#[tokio::test]
async fn max_tokens_is_the_length_of_the_answer() {
    let stand = start(CONFIG);
    for max_tokens in [0, 1, 2] {
        let answer = stand.answer(&request(&FIBONACCI, max_tokens)).await;
        assert_eq!(answer.ids(), FIBONACCI_ANSWER[..max_tokens as usize]);
        assert_eq!(answer.reason(), FinishReason::Length);
        assert_eq!(answer.started, Some((8, 0)));
    }
    let stats = stand.handle.stats();
    assert_eq!(stats.finished_requests, 3);
    // One of the prompt for each that wants a token, and one more row for the second token.
    assert_eq!((stats.prompt_tokens, stats.steps), (16, 3));
}

#[tokio::test]
async fn a_full_context_ends_the_answer() {
    let stand = start(CONFIG);
    for (len, room) in [(255, 1), (254, 2), (200, 56)] {
        let answer = stand.answer(&request(&prompt(len, 1), u32::MAX)).await;
        assert_eq!(answer.tokens.len(), room);
        assert_eq!(answer.reason(), FinishReason::Length);
    }
}

#[tokio::test]
async fn a_stop_token_does_not_come_before_min_tokens() {
    let stand = start(CONFIG);
    let stop = FIBONACCI_ANSWER[3];
    let mut request = GenerateRequest {
        stop_ids: vec![stop],
        ..request(&FIBONACCI, 12)
    };
    let answer = stand.answer(&request).await;
    assert_eq!(answer.ids(), FIBONACCI_ANSWER[..4]);
    assert_eq!(answer.reason(), FinishReason::Stop);
    // It is the fourth token, so three before it are no obstacle, but four are.
    request.min_tokens = 3;
    assert_eq!(stand.answer(&request).await.ids(), FIBONACCI_ANSWER[..4]);
    request.min_tokens = 12;
    let answer = stand.answer(&request).await;
    assert_eq!(answer.ids()[..3], FIBONACCI_ANSWER[..3]);
    assert!(!answer.ids().contains(&stop));
    assert_eq!(
        (answer.tokens.len(), answer.reason()),
        (12, FinishReason::Length)
    );
}

#[tokio::test]
async fn log_probabilities_come_where_they_are_wanted() {
    let stand = start(CONFIG);
    let bare = request(&FIBONACCI, 6);
    let wanted = GenerateRequest {
        logprobs: true,
        top_logprobs: 20,
        ..bare.clone()
    };
    let answer = stand.answer(&wanted).await;
    for token in &answer.tokens {
        let mass: f64 = token
            .top
            .iter()
            .map(|top| f64::from(top.logprob).exp())
            .sum();
        // The model is sure of this text: twenty of 8192 tokens hold nearly all of the probability.
        assert!((0.9..=1.0 + 1e-5).contains(&mass), "{mass}");
        assert_eq!(token.top.len(), 20);
        let (id, logprob) = (token.id, token.logprob);
        assert_eq!(token.top[0], TopToken { id, logprob });
        assert!(token.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
    }
    let without = stand.answer(&bare).await;
    assert_eq!(without.ids(), answer.ids());
    assert!(
        without
            .tokens
            .iter()
            .all(|token| token.logprob == 0.0 && token.top.is_empty())
    );
}

#[tokio::test]
async fn what_cannot_run_is_refused_at_once() {
    let stand = start(CONFIG);
    let refusal = |request| stand.handle.generate(request).unwrap_err();
    assert_eq!(refusal(request(&[], 1)), GenerateError::EmptyPrompt);
    assert_eq!(
        refusal(request(&prompt(256, 0), 1)),
        GenerateError::PromptTooLong {
            prompt_tokens: 256,
            context_length: 256
        }
    );
    assert_eq!(
        refusal(request(&[1, 8192], 1)),
        GenerateError::UnknownToken {
            field: "prompt",
            token: 8192,
            vocab_size: 8192
        }
    );
    let mut hot = request(&[1], 1);
    hot.sampling.temperature = 3.0;
    assert!(matches!(
        refusal(hot),
        GenerateError::Sampling(SamplingError::OutOfRange {
            field: "temperature",
            ..
        })
    ));
    let mut wordy = request(&[1], 1);
    wordy.top_logprobs = 21;
    assert_eq!(
        refusal(wordy),
        GenerateError::TooManyTopLogprobs {
            wanted: 21,
            limit: 20
        }
    );
    let stats = stand.handle.stats();
    assert_eq!((stats.running_sequences, stats.queued_requests), (0, 0));
}
