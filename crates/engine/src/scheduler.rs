//! Which rows go into the next step. Pure: sizes in, sizes out.

use models::PAGE_TOKENS;

/// Rows that a sequence can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Rows for the latest token and for the draft that follows it.
    Decode { rows: usize },
    /// Up to this many rows for the rest of the prompt, whose first is at this position.
    Prefill { tokens: usize, position: usize },
}

/// Bounds of a step. `max_batch_rows` is at least the number of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLimits {
    /// Rows of the whole step.
    pub max_batch_rows: usize,
    /// Prompt tokens of the whole step.
    pub prefill_chunk_tokens: usize,
}

/// Rows that a sequence gets; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Its index among the needs.
    pub sequence: usize,
    /// Rows.
    pub rows: usize,
}

/// Shares out a step. Every decoding sequence has its row, whatever prompts there are; prompts share the chunk in
/// order of arrival, so the oldest finishes first.
pub(crate) fn share_rows(needs: &[Need], limits: StepLimits) -> Vec<Share> {
    let decoding: usize = needs.iter().map(decode_rows).sum();
    let free_rows = limits.max_batch_rows.saturating_sub(decoding);
    let mut chunk = limits.prefill_chunk_tokens.min(free_rows);
    let mut shares = Vec::with_capacity(needs.len());
    for (sequence, need) in needs.iter().enumerate() {
        let rows = match *need {
            Need::Decode { rows } => rows,
            Need::Prefill { tokens, position } => {
                let rows = piece_rows(tokens, position, chunk);
                chunk -= rows;
                rows
            }
        };
        if rows > 0 {
            shares.push(Share { sequence, rows });
        }
    }
    shares
}

/// Rows of a prompt's next piece: all, or as many as fit, up to the end of a page where that is among them: states are kept there.
fn piece_rows(tokens: usize, position: usize, most: usize) -> usize {
    if tokens <= most {
        return tokens;
    }
    let page_end = (position + most) / PAGE_TOKENS * PAGE_TOKENS;
    match page_end.saturating_sub(position) {
        0 => most,
        rows => rows,
    }
}

fn decode_rows(need: &Need) -> usize {
    match *need {
        Need::Decode { rows } => rows,
        Need::Prefill { .. } => 0,
    }
}

/// Rows that drafts can have: what is left when every decoding sequence has its row and the prompts have theirs.
pub(crate) fn rows_for_drafts(needs: &[Need], limits: StepLimits) -> usize {
    let taken = |need: &Need| match *need {
        Need::Decode { .. } => (1, 0),
        Need::Prefill { tokens, .. } => (0, tokens),
    };
    let (decoding, prompts) = needs
        .iter()
        .map(taken)
        .fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    let prompts = prompts.min(limits.prefill_chunk_tokens);
    limits.max_batch_rows.saturating_sub(decoding + prompts)
}

#[cfg(test)]
mod tests;
