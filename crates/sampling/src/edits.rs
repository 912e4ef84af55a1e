//! Changes to the logits before any cut: bias, then repetition, then frequency and presence.

use crate::SamplingParams;

/// Applies them to `row`. `window` is scratch for counting the latest generated tokens.
pub(crate) fn apply(
    params: &SamplingParams,
    generated: &[u32],
    row: &mut [f32],
    window: &mut Vec<u32>,
) {
    for &(token, bias) in &params.logit_bias {
        if let Some(x) = row.get_mut(token as usize) {
            *x += bias;
        }
    }
    if !params.penalises() {
        return;
    }
    let start = generated.len().saturating_sub(params.repetition_window);
    window.clear();
    window.extend_from_slice(&generated[start..]);
    window.sort_unstable();
    for run in window.chunk_by(|a, b| a == b) {
        let Some(x) = row.get_mut(run[0] as usize) else {
            continue;
        };
        if *x > 0.0 {
            *x /= params.repetition_penalty;
        } else {
            *x *= params.repetition_penalty;
        }
        *x -= run.len() as f32 * params.frequency_penalty + params.presence_penalty;
    }
}
