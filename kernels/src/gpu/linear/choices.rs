//! How work is shared, remembered: to weigh some hundreds of shapes against each other takes as long as several launches do.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::error::DeviceError;
use crate::gpu::linear::work::{Shape, Work};

/// Some 2 MB. A model has a few kinds of work for each number of rows that a step may have.
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
        work: Work,
        choose: impl FnOnce(&Work) -> Result<Shape, DeviceError>,
    ) -> Result<Shape, DeviceError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shape) = known.get(&work) {
            return Ok(*shape);
        }
        let shape = choose(&work)?;
        // Whatever is still in use is soon known again.
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(work, shape);
        Ok(shape)
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
            let choose = |work: &Work| {
                asked += 1;
                Shape::of(work, &facts)
            };
            assert_eq!(choices.of(work, choose).expect("a shape"), want);
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
    fn what_cannot_be_chosen_is_asked_for_again() {
        let choices = Choices::default();
        let refuse = |_: &Work| {
            Err(DeviceError::Driver {
                what: "no".to_owned(),
            })
        };
        choices.of(work(16), refuse).expect_err("no shape");
        let shape = choices.of(work(16), |work| Shape::of(work, &facts(132, 227)));
        shape.expect("a shape");
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let (choices, facts) = (Choices::default(), facts(132, 227));
        let shape = Shape::of(&work(16), &facts).expect("a shape");
        for num_rows in 0..=MOST_KNOWN {
            choices.of(work(num_rows), |_| Ok(shape)).expect("a shape");
        }
        let known = choices.known.lock().expect("a lock");
        assert_eq!(known.len(), 1);
    }
}
