//! How much of a draft pays.
//!
//! A step that verifies n draft tokens gives more tokens than a plain one and takes longer. Both are measured as they
//! happen: the time by the number of rows, what drafts of a text are worth by what became of the last ones. Nothing
//! decided here changes a token, only when it comes.

use crate::costs::Costs;
use crate::tree::DraftTree;

/// Share of the time spent without drafts that trying one again may cost.
const PROBE_SHARE: f64 = 0.007;
/// Rounds after which a plain step is taken, to know what it would take.
const ROUNDS_PER_PLAIN_STEP: u32 = 64;
/// Nodes verified when a draft is tried again, and first of all.
const PROBE_NODES: usize = 8;
/// Measurements that make a cost known: the first is a cold one.
const ENOUGH_SAMPLES: u32 = 2;
/// Rounds that what a text begins with counts as. With fewer, a little bad luck ends a good draft.
const TEXT_PRIOR: u32 = 3;
/// The same for what is typical, which begins as a guess.
const TYPICAL_PRIOR: u32 = 1;
/// Rounds that are remembered of a text, which changes as it goes on.
const TEXT_ROUNDS: u32 = 40;
/// Rounds that are remembered of all texts.
const TYPICAL_ROUNDS: u32 = 100;
/// How much of what sets a text apart a plain step forgets.
const FORGOTTEN: f64 = 0.005;

/// What drafts of one text have been worth.
#[derive(Clone, Copy, Debug)]
pub struct Acceptance {
    /// Tokens that a round gives, the target's own included.
    tokens: f64,
    /// Nodes that a round verifies.
    nodes: f64,
    /// Draft tokens accepted over those that the draft's own probabilities promise.
    calibration: f64,
    /// Rounds that this is the mean of, beside what it began with. Every plain step takes one away: the text moves on.
    rounds: u32,
    /// Milliseconds that trying the draft may cost; negative: what it has cost beyond its share of the time.
    credit_ms: f64,
}

/// What became of a tree.
#[derive(Clone, Copy, Debug)]
pub struct RoundOutcome {
    /// Draft tokens that the target accepted.
    pub accepted: usize,
    /// Milliseconds from the proposal to the tokens. A commit lies beside the wait for the next proposal, and counts there.
    pub ms: f64,
    /// Sequences that were in the step.
    pub sequences: usize,
}

/// Decides for all sequences of a device.
#[derive(Clone, Debug)]
pub struct Planner {
    /// Steps of the target by rows.
    steps: Costs,
    /// The wait for proposals by their number.
    drafts: Costs,
    /// What a new text begins with.
    typical: Acceptance,
    /// What texts that have ended left of their credit: short texts, too, add up to one that tries.
    credit_ms: f64,
    rounds_since_plain_step: u32,
}

impl Default for Planner {
    fn default() -> Self {
        Self::new()
    }
}

impl Planner {
    /// Knows nothing yet: the first steps measure.
    #[must_use]
    pub fn new() -> Self {
        Self {
            steps: Costs::default(),
            drafts: Costs::default(),
            // A guess between a poor draft and a good one; a few rounds correct it.
            typical: Acceptance {
                tokens: 3.0,
                nodes: PROBE_NODES as f64,
                calibration: 1.0,
                rounds: 0,
                credit_ms: 0.0,
            },
            credit_ms: 0.0,
            rounds_since_plain_step: 0,
        }
    }

    /// What is known of a text before its first round.
    #[must_use]
    pub fn new_text(&mut self) -> Acceptance {
        Acceptance {
            rounds: 0,
            credit_ms: std::mem::take(&mut self.credit_ms),
            ..self.typical
        }
    }

    /// A text has ended.
    pub fn end_text(&mut self, text: &Acceptance) {
        self.credit_ms += text.credit_ms;
    }

    /// Which of these sequences to ask the draft for, where `others` decode plainly beside them.
    #[must_use]
    pub fn wanted(&mut self, texts: &[Acceptance], others: usize) -> Vec<bool> {
        let all = |answer| vec![answer; texts.len()];
        let rows = texts.len() + others;
        let plain_is_due = self.rounds_since_plain_step >= ROUNDS_PER_PLAIN_STEP;
        if self.steps.samples(rows) < ENOUGH_SAMPLES || plain_is_due {
            self.rounds_since_plain_step = 0;
            return all(false);
        }
        let (Some(plain_ms), Some(_)) = (self.steps.ms(rows), self.drafts.ms(1)) else {
            return all(true);
        };
        let mut wanted = self.best_set(texts, rows, plain_ms);
        for (wanted, text) in wanted.iter_mut().zip(texts) {
            *wanted |= text.credit_ms > 0.0 && text.credit_ms >= self.probe_ms(rows, plain_ms);
        }
        wanted
    }

    /// The sequences that give the most tokens in the time, the likeliest first.
    fn best_set(&self, texts: &[Acceptance], rows: usize, plain_ms: f64) -> Vec<bool> {
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by(|&a, &b| texts[b].tokens.total_cmp(&texts[a].tokens));
        let (mut tokens, mut verified) = (rows as f64, 0.0);
        let (mut best_rate, mut best_len) = (tokens / plain_ms, 0);
        for (len, &text) in (1..).zip(&order) {
            tokens += texts[text].tokens - 1.0;
            verified += texts[text].nodes;
            let rate = tokens / self.round_ms(len, rows + verified as usize);
            if rate > best_rate {
                (best_rate, best_len) = (rate, len);
            }
        }
        let mut wanted = vec![false; texts.len()];
        for &text in &order[..best_len] {
            wanted[text] = true;
        }
        wanted
    }

    /// A round with `drafts` proposals and `rows` rows in its step.
    fn round_ms(&self, drafts: usize, rows: usize) -> f64 {
        let parts = (self.drafts.ms(drafts), self.steps.ms(rows));
        parts.0.unwrap_or(0.0) + parts.1.unwrap_or(0.0)
    }

    /// What a round costs that gives no more than a plain step.
    fn probe_ms(&self, rows: usize, plain_ms: f64) -> f64 {
        self.round_ms(1, rows + PROBE_NODES) - plain_ms
    }

    /// How many nodes of each tree to verify, where `others` rows are in the step beside the roots.
    #[must_use]
    pub fn nodes(&self, drafts: &[(Acceptance, &DraftTree)], others: usize) -> Vec<usize> {
        let sizes = || drafts.iter().map(|(_, tree)| tree.num_nodes());
        let rows = drafts.len() + others;
        if let Some(nodes) = self.unmeasured(rows, sizes().max().unwrap_or(0)) {
            return sizes().map(|size| size.min(nodes)).collect();
        }
        let mut candidates: Vec<(f64, usize)> = Vec::new();
        for (place, (text, tree)) in drafts.iter().enumerate() {
            let chance = |log_prob: &f64| (text.calibration * log_prob.exp()).min(1.0);
            candidates.extend(tree.log_probs().iter().map(|p| (chance(p), place)));
        }
        // Stable, so each tree's nodes stay in its own order.
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut tokens = rows as f64;
        let rate =
            |tokens: f64, verified: usize| tokens / self.round_ms(drafts.len(), rows + verified);
        let (mut best_rate, mut best_len) = (rate(tokens, 0), 0);
        for (len, (chance, _)) in (1..).zip(&candidates) {
            tokens += chance;
            let rate = rate(tokens, len);
            if rate > best_rate {
                (best_rate, best_len) = (rate, len);
            }
        }
        let mut nodes = vec![0; drafts.len()];
        for (_, place) in &candidates[..best_len] {
            nodes[*place] += 1;
        }
        nodes
    }

    /// A number of nodes whose cost is not known yet.
    fn unmeasured(&self, rows: usize, largest: usize) -> Option<usize> {
        [PROBE_NODES, 2 * PROBE_NODES, largest]
            .into_iter()
            .filter(|&nodes| nodes <= largest && nodes > 0)
            .find(|&nodes| self.steps.samples(rows + nodes) < ENOUGH_SAMPLES)
    }

    /// A step of `rows` rows, nothing else in it, took this long.
    pub fn note_step(&mut self, rows: usize, ms: f64) {
        self.steps.note(rows, ms);
    }

    /// Milliseconds that so many proposals take to come; `None` where none has come yet.
    #[must_use]
    pub fn drafts_ms(&self, drafts: usize) -> Option<f64> {
        self.drafts.ms(drafts)
    }

    /// `drafts` proposals came this long after they were asked for.
    pub fn note_drafts(&mut self, drafts: usize, ms: f64) {
        self.drafts.note(drafts, ms);
    }

    /// A sequence waited this long for its draft, whatever came of it.
    pub fn note_wait(text: &mut Acceptance, ms: f64) {
        text.credit_ms -= ms;
    }

    /// A plain step of a sequence took this long.
    pub fn note_plain(&self, text: &mut Acceptance, ms: f64) {
        text.credit_ms += PROBE_SHARE * ms;
        text.rounds = text.rounds.saturating_sub(1);
        text.tokens += FORGOTTEN * (self.typical.tokens - text.tokens);
    }

    /// `round` verified `tree`.
    pub fn note_round(&mut self, text: &mut Acceptance, tree: &DraftTree, round: RoundOutcome) {
        self.rounds_since_plain_step = self.rounds_since_plain_step.saturating_add(1);
        let accepted = round.accepted;
        if let Some(plain_ms) = self.steps.ms(round.sequences) {
            let gain_ms = (accepted + 1) as f64 * plain_ms - round.ms;
            // A round that pays earns nothing for those that don't.
            text.credit_ms = (text.credit_ms + gain_ms).min(0.0);
        }
        text.learn(TEXT_PRIOR, TEXT_ROUNDS, tree, accepted);
        self.typical
            .learn(TYPICAL_PRIOR, TYPICAL_ROUNDS, tree, accepted);
    }
}

impl Acceptance {
    /// Takes a round into the mean of the last `remembered` ones, of which the first stand for `prior`.
    fn learn(&mut self, prior: u32, remembered: u32, tree: &DraftTree, accepted: usize) {
        self.rounds = (self.rounds + 1).min(remembered - prior);
        let weight = 1.0 / f64::from(prior + self.rounds);
        let accepted = accepted as f64;
        self.tokens += weight * (accepted + 1.0 - self.tokens);
        self.nodes += weight * (tree.num_nodes() as f64 - self.nodes);
        let promised: f64 = tree.log_probs().iter().map(|p| p.exp()).sum();
        // One token's worth of trust keeps a single round from saying never.
        let seen = (accepted + 1.0) / (promised + 1.0);
        self.calibration += weight * (seen - self.calibration);
    }
}

#[cfg(test)]
mod tests;
