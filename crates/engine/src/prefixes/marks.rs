//! Where the state of a prompt is kept. Pure: positions in, a yes or no out.
//!
//! Recurrent states cannot be cut back, so a request can go on only where a state was kept. Each costs memory, so that few must
//! do. A conversation goes on where the history in its prompt ends, which the router says: templates put an opening behind it that
//! the next turn may not have. The prompt's last piece begins there. Where prompts part shows what else they have in common, so
//! nobody has to say where other messages end. Those states, and that near the end where nothing was said, stand at the end of a
//! step and of a page: no step is made for them, and no page is copied.

use models::PAGE_TOKENS;

use crate::prefixes::PrefixId;

/// Tokens at the end of a prompt that the next turn may not have, where nothing is said of it.
const ANSWER_PREFIX_TOKENS: usize = 16;
/// Tokens that are rather computed again than a state kept for them, with a step of its own.
const TOKENS_OF_A_STEP: usize = 32;
/// Tokens between states that are kept for prompts that part somewhere else for the first time.
const STRIDE_TOKENS: usize = 1024;

/// What a prefix is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// A text may go on from it.
    Own,
    /// A text has gone on from it and a later state is kept of that, or it is one of many on the way. First to go, unless texts
    /// part there.
    Step,
}

/// What decides where the state of a prompt is kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    /// The prefix that the sequence went on from.
    pub origin: Option<PrefixId>,
    /// Leading tokens of the prompt that were known when it came, with a state there or not.
    pub common: usize,
    /// Leading tokens of the prompt that the next turn begins with as well; 0: not known.
    pub history: usize,
    /// Where the latest state stands.
    pub last: usize,
}

impl Marks {
    /// Where the next piece of a prompt has to end, if its first `fed` tokens are computed.
    pub fn stop(&self, fed: usize, prompt_tokens: usize) -> usize {
        if self.is_worth_a_step() && (fed + 1..prompt_tokens).contains(&self.history) {
            self.history
        } else {
            prompt_tokens
        }
    }

    fn is_worth_a_step(&self) -> bool {
        self.history >= self.last + TOKENS_OF_A_STEP
    }

    /// Whether to keep the state after the first `fed` tokens of a prompt, where steps have `step_tokens` tokens at most.
    pub fn worth(&self, fed: usize, prompt_tokens: usize, step_tokens: usize) -> Option<Worth> {
        if fed >= prompt_tokens || fed <= self.last {
            return None;
        }
        if fed == self.history && self.is_worth_a_step() {
            return Some(Worth::Own);
        }
        if !fed.is_multiple_of(PAGE_TOKENS) {
            return None;
        }
        let step_tokens = step_tokens.max(PAGE_TOKENS);
        let end = prompt_tokens - fed;
        let may_end_next = self.history == 0 && end < step_tokens + ANSWER_PREFIX_TOKENS;
        let parts_next = (fed..fed + step_tokens).contains(&self.common);
        if may_end_next || parts_next {
            Some(Worth::Own)
        } else {
            (fed - self.last >= STRIDE_TOKENS).then_some(Worth::Step)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where states of a prompt are kept, with steps of `step_tokens` from `last` on.
    fn kept(marks: Marks, prompt_tokens: usize, step_tokens: usize) -> Vec<(usize, Worth)> {
        let (mut marks, mut kept) = (marks, Vec::new());
        for fed in (marks.last..prompt_tokens).step_by(step_tokens).skip(1) {
            if let Some(worth) = marks.worth(fed, prompt_tokens, step_tokens) {
                kept.push((fed, worth));
                marks.last = fed;
            }
        }
        kept
    }

    #[test]
    fn states_are_kept_near_the_end_where_prompts_part_and_now_and_then() {
        use Worth::{Own, Step};
        let cold = Marks::default();
        assert_eq!(kept(cold, 100, 128), []);
        assert_eq!(kept(cold, 200, 128), [(128, Own)]);
        // The next turn may not have the last tokens.
        assert_eq!(kept(cold, 260, 128), [(128, Own), (256, Own)]);
        assert_eq!(
            kept(cold, 2500, 128),
            [(1024, Step), (2048, Step), (2432, Own)]
        );
        let parts = Marks {
            common: 700,
            ..cold
        };
        assert_eq!(kept(parts, 1000, 128), [(640, Own), (896, Own)]);
        let resumed = Marks {
            last: 640,
            common: 640,
            ..cold
        };
        assert_eq!(kept(resumed, 1100, 128), [(1024, Own)]);
        // Steps that end within a page leave no state there, but where the next turn is known to go on.
        assert_eq!(kept(cold, 200, 48), [(192, Own)]);
        let told = Marks {
            history: 96,
            ..cold
        };
        assert_eq!(kept(told, 200, 48), [(96, Own)]);
        let stops = [0, 95, 96, 150].map(|fed| told.stop(fed, 200));
        assert_eq!(stops, [96, 96, 200, 200]);
        // What is no part of the prompt is not known, and a few tokens more are not worth it.
        assert_eq!((told.stop(0, 96), cold.stop(0, 200)), (96, 200));
        let near = Marks { last: 70, ..told };
        assert_eq!((near.stop(70, 200), near.worth(96, 200, 48)), (200, None));
    }
}
