//! What share of a text is kept.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The share of a text to keep, by its length.
#[derive(Debug, Clone, PartialEq)]
pub enum Keep {
    /// The same for all lengths.
    Ratio(f64),
    /// Pairs of tokens and share, by increasing tokens: linear between them, constant outside.
    Curve(Vec<(u32, f64)>),
}

/// What is no share, or no curve.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum KeepError {
    /// A share that is none.
    #[error("{0} is no share to keep; expected a number above 0 and up to 1")]
    Ratio(String),
    /// A point that is none.
    #[error("`{0}` is no point of a curve; expected TOKENS:SHARE, such as 32000:0.1")]
    Point(String),
    /// Points out of order.
    #[error("{1} tokens after {0}; the points of a curve go by increasing tokens")]
    Order(u32, u32),
    /// No points.
    #[error("the curve has no points; expected TOKENS:SHARE, such as 32000:0.1 128000:0.02")]
    Empty,
}

impl Keep {
    /// The same share for all lengths.
    ///
    /// # Errors
    /// It is not above 0 and up to 1.
    pub fn ratio(ratio: f64) -> Result<Self, KeepError> {
        check(ratio).map(Self::Ratio)
    }

    /// The share of a text of `tokens` tokens.
    #[must_use]
    pub fn of(&self, tokens: usize) -> f64 {
        let points = match self {
            Self::Ratio(ratio) => return *ratio,
            Self::Curve(points) => points,
        };
        let tokens = tokens as f64;
        let mut last: Option<(f64, f64)> = None;
        for &(at, ratio) in points {
            let at = f64::from(at);
            if tokens <= at {
                return match last {
                    None => ratio,
                    Some((before, from)) => {
                        from + (ratio - from) * (tokens - before) / (at - before)
                    }
                };
            }
            last = Some((at, ratio));
        }
        last.map_or(1.0, |(_, ratio)| ratio)
    }
}

impl FromStr for Keep {
    type Err = KeepError;

    /// A curve: `TOKENS:SHARE` and more of them, with white space or commas between.
    fn from_str(text: &str) -> Result<Self, KeepError> {
        let mut points: Vec<(u32, f64)> = Vec::new();
        let words = text.split(|c: char| c.is_whitespace() || c == ',');
        for word in words.filter(|word| !word.is_empty()) {
            let point = word.split_once(':').and_then(|(tokens, ratio)| {
                Some((tokens.parse::<u32>().ok()?, ratio.parse::<f64>().ok()?))
            });
            let (tokens, ratio) = point.ok_or_else(|| KeepError::Point(word.to_owned()))?;
            if let Some(&(last, _)) = points.last()
                && tokens <= last
            {
                return Err(KeepError::Order(last, tokens));
            }
            points.push((tokens, check(ratio)?));
        }
        if points.is_empty() {
            return Err(KeepError::Empty);
        }
        Ok(Self::Curve(points))
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(ratio) => write!(f, "{ratio}"),
            Self::Curve(points) => {
                let points = points.iter().map(|(at, ratio)| format!("{at}:{ratio}"));
                f.write_str(&points.collect::<Vec<_>>().join(" "))
            }
        }
    }
}

fn check(ratio: f64) -> Result<f64, KeepError> {
    if ratio > 0.0 && ratio <= 1.0 {
        Ok(ratio)
    } else {
        Err(KeepError::Ratio(ratio.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::Keep;

    #[test]
    fn a_curve_is_linear_between_its_points_and_constant_outside() {
        let curve: Keep = "8000:0.5 32000:0.1, 128000:0.02".parse().unwrap();
        for (tokens, expected) in [
            (0, 0.5),
            (8_000, 0.5),
            (20_000, 0.3),
            (32_000, 0.1),
            (80_000, 0.06),
            (128_000, 0.02),
            (1_000_000, 0.02),
        ] {
            let ratio = curve.of(tokens);
            assert!((ratio - expected).abs() < 1e-6, "{tokens}: {ratio}");
        }
        assert_eq!(curve.to_string(), "8000:0.5 32000:0.1 128000:0.02");
        assert_eq!(Keep::ratio(0.25).unwrap().of(7), 0.25);
    }

    #[test]
    fn what_is_no_share_or_curve_is_named() {
        for (text, part) in [
            ("", "no points"),
            ("8000", "`8000` is no point"),
            ("8000:half", "`8000:half`"),
            ("-1:0.5", "`-1:0.5`"),
            ("8000:0", "0 is no share"),
            ("8000:1.5", "1.5 is no share"),
            ("8000:NaN", "NaN is no share"),
            ("8000:0.5 8000:0.1", "8000 tokens after 8000"),
        ] {
            let error = text.parse::<Keep>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(Keep::ratio(0.0).is_err());
    }
}
