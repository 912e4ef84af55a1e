//! The earlier stage's side: commands in, rows out.

use std::collections::HashMap;
use std::time::Duration;

use models::{Model, SequenceId};
use tensor_channel::Ends;

use crate::error::{LinkError, foreign};
use crate::message::{Answer, Command, Rows, decode_batch, unknown};
use crate::shape::{LinkShape, check_spec, link_spec};
use crate::words::WORD_BYTES;

/// Longest wait for the later stage to read; it waits for the rows itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// The stage after a model's layers, at the other end of a link.
#[derive(Debug)]
pub struct EarlierEnd {
    ends: Ends,
    shape: LinkShape,
    /// A command's payload.
    words: Vec<u32>,
    /// The model's sequences by their numbers on the link.
    sequences: HashMap<u64, SequenceId>,
}

impl EarlierEnd {
    /// # Errors
    /// [`LinkError::Shape`]; [`LinkError::Foreign`] where the channels are of another shape.
    pub fn new(ends: Ends, shape: LinkShape) -> Result<Self, LinkError> {
        shape.check()?;
        let spec = link_spec(&shape);
        check_spec("commands", ends.receiver.spec(), spec.inbound)?;
        check_spec("rows", ends.sender.spec(), spec.outbound)?;
        Ok(Self {
            ends,
            shape,
            words: vec![0; spec.inbound.slot_rows],
            sequences: HashMap::new(),
        })
    }

    /// Has `model` do what the later stage says next; waits at most `patience` for it. `false`: nothing came.
    ///
    /// # Errors
    /// The later stage is gone or said what cannot be, or the model could not do it: the link is over, and
    /// [`EarlierEnd::end`] has to follow.
    pub fn serve(&mut self, model: &mut Model, patience: Duration) -> Result<bool, LinkError> {
        let payload = bytemuck::cast_slice_mut(&mut self.words);
        let Some((tag, len)) = self.ends.receiver.receive(payload, patience)? else {
            return Ok(false);
        };
        self.run(model, Command::decode(tag)?, len / WORD_BYTES)?;
        Ok(true)
    }

    /// Frees what the later stage holds of `model`. With `why` it is told why, and may be there to read it.
    pub fn end(mut self, model: &mut Model, why: Option<&str>) {
        for (_, sequence) in self.sequences.drain() {
            // It exists; earlier layers that are gone hold nothing.
            let _freed = model.free_sequence(sequence);
        }
        let Some(why) = why else {
            return;
        };
        let spec = self.ends.sender.spec();
        let mut len = why.len().min(spec.slot_bytes());
        while !why.is_char_boundary(len) {
            len -= 1;
        }
        let mut payload = why.as_bytes()[..len].to_vec();
        payload.resize(len.next_multiple_of(spec.row_bytes()), 0);
        let tag = Answer::Failed { len: len as u64 }.encode();
        // Where nobody reads, nobody misses it.
        let _sent = self.ends.sender.send(tag, &payload, Duration::ZERO);
    }

    fn run(&mut self, model: &mut Model, command: Command, words: usize) -> Result<(), LinkError> {
        match command {
            Command::Create { sequence } => {
                check_empty(words)?;
                self.check_new(sequence)?;
                self.sequences.insert(sequence, model.create_sequence()?);
                Ok(())
            }
            Command::Fork { sequence, fork } => {
                check_empty(words)?;
                self.check_new(fork)?;
                let id = self.sequence(sequence)?;
                self.sequences.insert(fork, model.fork_sequence(id)?);
                Ok(())
            }
            Command::Free { sequence } => {
                check_empty(words)?;
                let id = self.sequences.remove(&sequence);
                Ok(model.free_sequence(id.ok_or_else(|| unknown(sequence))?)?)
            }
            Command::Commit { sequence } => {
                let id = self.sequence(sequence)?;
                let path: Vec<usize> = self.words[..words]
                    .iter()
                    .map(|&node| node as usize)
                    .collect();
                Ok(model.commit(id, &path)?)
            }
            Command::Forward {
                step,
                captures,
                segments,
            } => {
                let sequence = |number| self.sequences.get(&number).copied();
                let words = &self.words[..words];
                let batch = decode_batch(words, captures, segments, &self.shape, sequence)?;
                model.forward(&batch)?;
                let rows = batch.segments.iter().map(|s| s.tokens.len()).sum();
                let output = model.stage_output(rows)?;
                self.send(Rows::Hidden, step, &output.hidden)?;
                self.send(Rows::Features, step, &output.features)
            }
        }
    }

    fn sequence(&self, number: u64) -> Result<SequenceId, LinkError> {
        let id = self.sequences.get(&number).copied();
        id.ok_or_else(|| unknown(number))
    }

    fn check_new(&self, number: u64) -> Result<(), LinkError> {
        if self.sequences.contains_key(&number) {
            return Err(foreign("command", "sequence", number, "a new one"));
        }
        Ok(())
    }

    fn send(&mut self, rows: Rows, step: u64, values: &[f32]) -> Result<(), LinkError> {
        let slot_rows = self.ends.sender.spec().slot_rows;
        let slots = values.chunks(slot_rows * self.shape.hidden_size);
        for (first, slot) in (0..).step_by(slot_rows).zip(slots) {
            let tag = Answer::Rows { rows, step, first }.encode();
            let payload = bytemuck::cast_slice(slot);
            self.ends.sender.send(tag, payload, PATIENCE)?;
        }
        Ok(())
    }
}

fn check_empty(words: usize) -> Result<(), LinkError> {
    match words {
        0 => Ok(()),
        words => Err(foreign("command", "length", words, "0")),
    }
}
