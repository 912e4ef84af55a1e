//! Weights of a whole row: e^((logit - maximum) / temperature), as loops that compile to vectors.
//!
//! A vocabulary has a quarter of a million tokens, and a draw looks at all of them: what is done to each decides how long a draw takes.

use crate::candidates::Candidate;

/// Logits that are looked at together.
const RUN: usize = 64;

/// Weights of a row at a temperature.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weights<'a> {
    row: &'a [f32],
    max: f32,
    /// One by the temperature.
    cold: f32,
    /// Less than this counts as nothing; the best weight is 1.
    least: f32,
}

impl<'a> Weights<'a> {
    /// `max` is the row's [`crate::row::maximum`], which is larger than minus infinity.
    pub fn new(row: &'a [f32], max: f32, temperature: f32, least: f32) -> Self {
        Self {
            row,
            max,
            cold: 1.0 / temperature,
            least,
        }
    }

    /// What is missing in the last run weighs nothing.
    fn of_run(self, run: &[f32]) -> [f32; RUN] {
        let mut weights = [f32::NAN; RUN];
        weights[..run.len()].copy_from_slice(run);
        for w in &mut weights {
            let weight = weight(*w, self.max, self.cold);
            *w = if weight >= self.least { weight } else { 0.0 };
        }
        weights
    }

    /// The sum of all.
    pub fn total(self) -> f64 {
        let runs = self.row.chunks(RUN);
        runs.map(|run| sum(&self.of_run(run))).sum()
    }
}

/// Weights of a row, in runs that begin at every 64th token.
#[derive(Debug, Default)]
pub(crate) struct Weighed {
    runs: Vec<[f32; RUN]>,
    sums: Vec<f64>,
}

impl Weighed {
    /// Takes the place of the last row. The sum of all.
    pub fn fill(&mut self, weights: Weights<'_>) -> f64 {
        self.runs.clear();
        let runs = weights.row.chunks(RUN);
        self.runs.extend(runs.map(|run| weights.of_run(run)));
        self.sums.clear();
        self.sums.extend(self.runs.iter().map(sum));
        self.sums.iter().sum()
    }

    /// The token at which the sum of those up to it exceeds `left`, or the last one that weighs anything.
    pub fn token_at(&self, mut left: f64) -> Option<u32> {
        let mut run = self.sums.iter().rposition(|sum| *sum > 0.0)?;
        for (at, sum) in self.sums[..run].iter().enumerate() {
            if left < *sum {
                run = at;
                break;
            }
            left -= sum;
        }
        let mut last = None;
        for (token, weight) in tokens_of(run).zip(self.runs[run]) {
            if weight > 0.0 {
                left -= f64::from(weight);
                last = Some(token);
                if left < 0.0 {
                    break;
                }
            }
        }
        last
    }

    /// Fills `kept` by id with all tokens of at least some weight, low enough for their sum to reach `target`, for few tokens have
    /// most of it as a rule.
    pub fn keep_heaviest(&self, kept: &mut Vec<Candidate>, target: f64) {
        let reaches = |bound: &f32| {
            let heavy = self.runs.iter().map(|run| {
                let heavy = run.map(|weight| if weight >= *bound { weight } else { 0.0 });
                sum(&heavy)
            });
            heavy.sum::<f64>() >= target
        };
        let mut bounds = [1.0 / 64.0, 1.0 / 4096.0].into_iter();
        let bound = bounds.find(reaches).unwrap_or(f32::MIN_POSITIVE);
        kept.clear();
        for (number, run) in self.runs.iter().enumerate() {
            if run
                .iter()
                .fold(false, |any, &weight| any | (weight >= bound))
            {
                let heavy = tokens_of(number).zip(*run);
                let heavy = heavy.filter(|(_, weight)| *weight >= bound);
                kept.extend(heavy.map(|(token, value)| Candidate { value, token }));
            }
        }
    }
}

fn tokens_of(run: usize) -> impl Iterator<Item = u32> {
    (run * RUN) as u32..
}

/// Eight sums side by side, then those.
fn sum(weights: &[f32; RUN]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    for eight in weights.chunks_exact(8) {
        for (lane, weight) in lanes.iter_mut().zip(eight) {
            *lane += f64::from(*weight);
        }
    }
    lanes.iter().sum()
}

/// `exp((x - max) / temperature)`, defined for infinite logits too; 0 for what is no number.
pub(crate) fn weight(x: f32, max: f32, cold: f32) -> f32 {
    let weight = exp((x - max) * cold);
    let below = if x < max { weight } else { 0.0 };
    if x == max { 1.0 } else { below }
}

/// e^x for x of at most 0, to two units in the last place; 0 where that is no normal number, and where x is none. It is made of sums and
/// products alone: the same on every machine.
fn exp(x: f32) -> f32 {
    const LEAST: f32 = -87.0;
    // Added, it leaves a number's integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 as a number of few bits, and the rest.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // 1 / n!, from 7 on.
    const SERIES: [f32; 6] = [
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
    ];
    let y = if x > LEAST { x } else { LEAST };
    let shifted = y * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = y - n * LN_2[0] - n * LN_2[1];
    let series = SERIES.iter().fold(0.0, |sum, factor| sum * r + factor);
    let of_rest = series * r * r + r + 1.0;
    let exponent = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127);
    let weight = of_rest * f32::from_bits(exponent << 23);
    if x > LEAST { weight } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_good_to_two_units_in_the_last_place() {
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let (got, expected) = (f64::from(exp(x)), f64::from(x).exp());
            let unit = f64::from(f32::EPSILON) * expected;
            assert!(
                (got - expected).abs() <= 2.0 * unit,
                "{x}: {got}, {expected}"
            );
        }
        assert_eq!((exp(0.0), exp(-0.0), exp(-1e-9)), (1.0, 1.0, 1.0));
        for x in [-87.0, -1e30, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp(x), 0.0, "{x}");
        }
    }

    #[test]
    fn odd_logits_weigh_something_or_nothing() {
        let inf = f32::INFINITY;
        for (x, max, expected) in [
            (1.0, 1.0, 1.0),
            (inf, inf, 1.0),
            (3.0, inf, 0.0),
            (-inf, 1.0, 0.0),
            (f32::NAN, 1.0, 0.0),
            (f32::NAN, inf, 0.0),
        ] {
            assert_eq!(weight(x, max, 0.7), expected, "{x} of {max}");
        }
    }
}
