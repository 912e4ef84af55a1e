//! Which rows go into the next step. Pure: sizes in, sizes out.

/// Rows that a sequence can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// One row for the latest token.
    Decode,
    /// Up to this many rows for the rest of the prompt.
    Prefill { tokens: usize },
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
    let decoding = needs.iter().filter(|need| **need == Need::Decode).count();
    let free_rows = limits.max_batch_rows.saturating_sub(decoding);
    let mut chunk = limits.prefill_chunk_tokens.min(free_rows);
    let mut shares = Vec::with_capacity(needs.len());
    for (sequence, need) in needs.iter().enumerate() {
        let rows = match *need {
            Need::Decode => 1,
            Need::Prefill { tokens } => {
                let rows = tokens.min(chunk);
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

#[cfg(test)]
mod tests;
