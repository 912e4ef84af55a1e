//! How work is shared, remembered: to weigh some hundreds of shapes against each other takes as long as several launches do.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use crate::error::DeviceError;
use crate::gpu::linear::work::{Shape, Work};

/// Some 2 MB. A model has ten kinds of work or so, each with up to some hundred column tiles.
const MOST_KNOWN: usize = 4096;

/// What was chosen for work that came before.
#[derive(Debug, Default)]
pub(in crate::gpu) struct Choices {
    known: Mutex<HashMap<Work, Shape>>,
}

impl Choices {
    /// What is known for `work`, or what `choose` gives, which is remembered.
    ///
    /// # Errors
    /// Those of `choose`.
    pub(super) fn of(
        &self,
        work: &Work,
        choose: impl FnOnce() -> Result<Shape, DeviceError>,
    ) -> Result<Shape, DeviceError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shape) = known.get(work) {
            return Ok(*shape);
        }
        let shape = choose()?;
        // Whatever is still in use is soon known again.
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(work.clone(), shape);
        Ok(shape)
    }

    /// What came with more rows than one, whatever their number; in some order that is the same each time.
    pub(super) fn kinds_of_several_rows(&self) -> BTreeSet<Work> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let several = known.keys().filter(|work| work.num_rows > 1);
        let kind = |work: &Work| Work {
            num_rows: 0,
            ..work.clone()
        };
        several.map(kind).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::linear::work::facts;

    fn work(num_rows: usize) -> Work {
        Work {
            num_rows,
            heights: vec![5120, 48],
            cols: 5120,
            matrices: 1,
            each: Vec::new(),
            types: 1 << tensor::DType::Q8_0.ggml_id(),
            is_normed: false,
            adds: false,
            beside_clusters: false,
        }
    }

    #[test]
    fn work_is_chosen_for_once_and_each_of_its_kinds_by_itself() {
        let (choices, facts) = (Choices::default(), facts(132, 227));
        let mut asked = 0;
        let mut of = |work: Work| {
            let want = Shape::of(&work, &facts).expect("a shape");
            let choose = || {
                asked += 1;
                Shape::of(&work, &facts)
            };
            assert_eq!(choices.of(&work, choose).expect("a shape"), want);
        };
        for _ in 0..2 {
            for num_rows in [1, 16, 512] {
                of(work(num_rows));
                of(Work {
                    adds: true,
                    ..work(num_rows)
                });
            }
        }
        assert_eq!(asked, 6);
    }

    #[test]
    fn kinds_are_those_of_several_rows_without_their_number() {
        let (choices, facts) = (Choices::default(), facts(132, 227));
        let adding = |num_rows| Work {
            adds: true,
            ..work(num_rows)
        };
        for work in [work(1), work(8), work(16), adding(1)] {
            let shape = choices.of(&work, || Shape::of(&work, &facts));
            shape.expect("a shape");
        }
        let kinds = choices.kinds_of_several_rows();
        assert_eq!(kinds, BTreeSet::from([work(0)]));
    }

    #[test]
    fn what_cannot_be_chosen_is_asked_for_again() {
        let choices = Choices::default();
        let refuse = || {
            Err(DeviceError::Driver {
                what: "no".to_owned(),
            })
        };
        choices.of(&work(16), refuse).expect_err("no shape");
        let shape = choices.of(&work(16), || Shape::of(&work(16), &facts(132, 227)));
        shape.expect("a shape");
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let (choices, facts) = (Choices::default(), facts(132, 227));
        let shape = Shape::of(&work(16), &facts).expect("a shape");
        for num_rows in 0..=MOST_KNOWN {
            choices.of(&work(num_rows), || Ok(shape)).expect("a shape");
        }
        let known = choices.known.lock().expect("a lock");
        assert_eq!(known.len(), 1);
    }
}
