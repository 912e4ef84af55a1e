//! What something takes by its size: measured as it happens, interpolated between.

/// Sizes whose measurements are kept apart. Fine where steps are small and a row more or less matters.
const KNOTS: [usize; 18] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512,
];
/// Weight of a new measurement: some ten of them make a change of conditions felt.
const WEIGHT: f64 = 0.15;
/// A measurement beyond this multiple of what is known counts as this multiple: one interrupted step says little.
const OUTLIER: f64 = 2.0;

/// Milliseconds by size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// By size; at most one for each knot.
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    knot: usize,
    size: f64,
    ms: f64,
    samples: u32,
}

impl Costs {
    /// Takes a measurement in.
    pub fn note(&mut self, size: usize, ms: f64) {
        let knot = knot(size);
        let (size, ms) = (size as f64, ms.max(1e-6));
        let found = self.points.binary_search_by_key(&knot, |point| point.knot);
        match found {
            // The first time is a cold one.
            Ok(place) if self.points[place].samples == 1 => {
                let point = &mut self.points[place];
                point.ms = point.ms.min(ms);
                point.size = size;
                point.samples = 2;
            }
            Ok(place) => {
                let point = &mut self.points[place];
                let ms = ms.clamp(point.ms / OUTLIER, point.ms * OUTLIER);
                point.ms += WEIGHT * (ms - point.ms);
                point.size += WEIGHT * (size - point.size);
                point.samples = point.samples.saturating_add(1);
            }
            Err(place) => {
                let point = Point {
                    knot,
                    size,
                    ms,
                    samples: 1,
                };
                self.points.insert(place, point);
            }
        }
    }

    /// Measurements of about this size.
    pub fn samples(&self, size: usize) -> u32 {
        let found = self
            .points
            .binary_search_by_key(&knot(size), |point| point.knot);
        found.map_or(0, |place| self.points[place].samples)
    }

    /// What this size takes; `None` where nothing has been measured. Below the smallest size measured it is taken to
    /// cost as much, above the largest to grow as it did last.
    pub fn ms(&self, size: usize) -> Option<f64> {
        let size = size as f64;
        let above = self.points.iter().position(|point| point.size >= size);
        Some(match above {
            Some(0) => self.points[0].ms,
            Some(place) => line(&self.points[place - 1], &self.points[place], size),
            None => match self.points.as_slice() {
                [] => return None,
                [only] => only.ms * size / only.size,
                [.., before, last] => line(before, last, size).max(last.ms),
            },
        })
    }
}

/// The largest knot that `size` reaches.
fn knot(size: usize) -> usize {
    let above = KNOTS.partition_point(|&knot| knot <= size);
    KNOTS[above.saturating_sub(1)]
}

fn line(a: &Point, b: &Point, size: f64) -> f64 {
    let run = b.size - a.size;
    if run <= 0.0 {
        return b.ms;
    }
    a.ms + (b.ms - a.ms) * (size - a.size) / run
}

#[cfg(test)]
mod tests {
    use super::Costs;

    fn measured(points: &[(usize, f64)]) -> Costs {
        let mut costs = Costs::default();
        for &(size, ms) in points {
            costs.note(size, ms);
            costs.note(size, ms);
        }
        costs
    }

    #[test]
    fn between_measurements_it_is_a_line() {
        let costs = measured(&[(1, 1.0), (8, 2.0), (16, 4.0)]);
        for (size, ms) in [(1, 1.0), (8, 2.0), (12, 3.0), (16, 4.0), (24, 6.0)] {
            assert!((costs.ms(size).unwrap() - ms).abs() < 1e-9, "{size}");
        }
    }

    #[test]
    fn nothing_measured_is_nothing_known() {
        assert_eq!(Costs::default().ms(1), None);
        assert_eq!(measured(&[(4, 1.0)]).ms(8), Some(2.0));
        assert_eq!(measured(&[(4, 1.0)]).ms(1), Some(1.0));
    }

    #[test]
    fn a_cold_first_time_and_an_interrupted_step_say_little() {
        let mut costs = Costs::default();
        costs.note(1, 100.0);
        costs.note(1, 1.0);
        assert_eq!(costs.ms(1), Some(1.0));
        costs.note(1, 1000.0);
        assert!(costs.ms(1).unwrap() < 1.2);
        for _ in 0..100 {
            costs.note(1, 3.0);
        }
        assert!((costs.ms(1).unwrap() - 3.0).abs() < 0.01);
    }
}
