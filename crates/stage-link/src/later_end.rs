//! The later stage's side: commands out, rows in.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use models::{Batch, EarlierLayers, EarlierLayersError, SequenceId, StageOutput};
use tensor_channel::Ends;

use crate::error::{LinkError, foreign};
use crate::message::{Answer, Command, Rows, encode_batch, unnumbered, word};
use crate::shape::{LinkShape, MAX_CAPTURES, check_spec, link_spec};

/// Longest silence of a stage that is there: kernels that a device compiles first, or a long prompt on a slow processor. One
/// that ended or was stopped is noticed by the channel, within a second.
const PATIENCE: Duration = Duration::from_secs(300);

/// The layers before a stage, at the other end of a link.
#[derive(Debug)]
pub struct LaterEnd {
    /// For messages.
    peer: String,
    compiles_kernels: bool,
    ends: Ends,
    shape: LinkShape,
    /// Values of a slot of rows.
    slot_len: usize,
    numbers: HashMap<SequenceId, u64>,
    next_number: u64,
    step: u64,
    words: Vec<u32>,
}

impl LaterEnd {
    /// `peer` names the other stage in errors; `compiles_kernels`: see [`EarlierLayers::compiles_kernels`].
    ///
    /// # Errors
    /// [`LinkError::Shape`]; [`LinkError::Foreign`] where the channels are of another shape.
    pub fn new(
        ends: Ends,
        shape: LinkShape,
        peer: String,
        compiles_kernels: bool,
    ) -> Result<Self, LinkError> {
        shape.check()?;
        let spec = link_spec(&shape);
        check_spec("commands", ends.sender.spec(), spec.inbound)?;
        check_spec("rows", ends.receiver.spec(), spec.outbound)?;
        Ok(Self {
            peer,
            compiles_kernels,
            ends,
            shape,
            slot_len: spec.outbound.slot_rows * shape.hidden_size,
            numbers: HashMap::new(),
            next_number: 0,
            step: 0,
            words: Vec::with_capacity(shape.command_words()),
        })
    }

    /// Sends a command with what stands in `words`.
    fn send(&mut self, command: Command) -> Result<(), LinkError> {
        let most = self.shape.command_words();
        if self.words.len() > most {
            return Err(LinkError::Unsendable {
                field: "words of a command",
                got: self.words.len(),
                expected: format!("at most {most}"),
            });
        }
        let payload = bytemuck::cast_slice(&self.words);
        let sent = self.ends.sender.send(command.encode(), payload, PATIENCE);
        match sent {
            Ok(()) => Ok(()),
            // What it said last tells more than that it is gone.
            Err(error) => Err(self.last_words().unwrap_or_else(|| error.into())),
        }
    }

    fn last_words(&mut self) -> Option<LinkError> {
        let mut slot = vec![0.0; self.slot_len];
        loop {
            match self.receive(&mut slot, Instant::now()) {
                Ok(_) => {}
                Err(error @ LinkError::Failed(_)) => return Some(error),
                Err(_) => return None,
            }
        }
    }

    /// Rows to the front of `to`, which has room for a slot: which ones, and the number of their values.
    fn receive(
        &mut self,
        to: &mut [f32],
        deadline: Instant,
    ) -> Result<(Rows, u64, u64, usize), LinkError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let payload: &mut [u8] = bytemuck::cast_slice_mut(to);
        let received = self.ends.receiver.receive(payload, left)?;
        let (tag, len) = received.ok_or(LinkError::Silent {
            waited_s: PATIENCE.as_secs(),
        })?;
        match Answer::decode(tag)? {
            Answer::Rows { rows, step, first } => Ok((rows, step, first, len / size_of::<f32>())),
            Answer::Failed { len: said } => {
                let said = usize::try_from(said).unwrap_or(usize::MAX).min(len);
                let words = String::from_utf8_lossy(&payload[..said]).into_owned();
                Err(LinkError::Failed(words))
            }
        }
    }

    /// `rows` rows of one kind, in order.
    fn receive_all(
        &mut self,
        wanted: Rows,
        rows: usize,
        values: &mut Vec<f32>,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let hidden_size = self.shape.hidden_size;
        let all = rows * hidden_size;
        let mut filled = 0;
        // Each message needs room for a slot.
        values.resize(all + self.slot_len, 0.0);
        while filled < all {
            let (rows, step, first, len) = self.receive(&mut values[filled..], deadline)?;
            let next = (filled / hidden_size) as u64;
            for (field, got, expected) in [
                ("kind of rows", rows as u64, wanted as u64),
                ("step", step, self.step),
                ("first row", first, next),
            ] {
                if got != expected {
                    return Err(foreign("answer", field, got, expected.to_string()));
                }
            }
            filled += len;
            if len == 0 || filled > all {
                let expected = format!("1 to {} values", all + len - filled);
                return Err(foreign("answer", "length", len, expected));
            }
        }
        values.truncate(all);
        Ok(())
    }

    fn number(&self, sequence: SequenceId) -> Result<u64, LinkError> {
        let number = self.numbers.get(&sequence).copied();
        number.ok_or_else(unnumbered)
    }

    /// A number for a new sequence.
    fn next(&mut self, sequence: SequenceId) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(sequence, number);
        number
    }

    fn create(&mut self, sequence: SequenceId) -> Result<(), LinkError> {
        let sequence = self.next(sequence);
        self.words.clear();
        self.send(Command::Create { sequence })
    }

    fn fork(&mut self, sequence: SequenceId, fork: SequenceId) -> Result<(), LinkError> {
        let sequence = self.number(sequence)?;
        let fork = self.next(fork);
        self.words.clear();
        self.send(Command::Fork { sequence, fork })
    }

    fn free(&mut self, sequence: SequenceId) -> Result<(), LinkError> {
        let number = self.number(sequence)?;
        self.numbers.remove(&sequence);
        self.words.clear();
        self.send(Command::Free { sequence: number })
    }

    fn commit_path(&mut self, sequence: SequenceId, path: &[usize]) -> Result<(), LinkError> {
        let sequence = self.number(sequence)?;
        self.words.clear();
        for &node in path {
            self.words.push(word("node of a path", node)?);
        }
        self.send(Command::Commit { sequence })
    }

    fn compute(&mut self, batch: &Batch, output: &mut StageOutput) -> Result<(), LinkError> {
        let captures = batch.capture_layers.len();
        if captures > MAX_CAPTURES {
            return Err(LinkError::Unsendable {
                field: "number of captured layers",
                got: captures,
                expected: format!("at most {MAX_CAPTURES}"),
            });
        }
        let mut words = std::mem::take(&mut self.words);
        let encoded = encode_batch(batch, &mut words, |id| self.numbers.get(&id).copied());
        self.words = words;
        encoded?;
        self.step += 1;
        self.send(Command::Forward {
            step: self.step,
            captures: word("number of captured layers", captures)?,
            segments: word("number of segments", batch.segments.len())?,
        })?;
        let rows: usize = batch.segments.iter().map(|s| s.tokens.len()).sum();
        let deadline = Instant::now() + PATIENCE;
        self.receive_all(Rows::Hidden, rows, &mut output.hidden, deadline)?;
        self.receive_all(
            Rows::Features,
            rows * captures,
            &mut output.features,
            deadline,
        )
    }

    fn gone(&self, error: LinkError) -> EarlierLayersError {
        // A stage that failed has said its own name, or that of one before it.
        EarlierLayersError(match error {
            LinkError::Failed(words) => words,
            error => format!("{}: {error}", self.peer),
        })
    }
}

impl EarlierLayers for LaterEnd {
    fn compiles_kernels(&self) -> bool {
        self.compiles_kernels
    }

    fn create_sequence(&mut self, sequence: SequenceId) -> Result<(), EarlierLayersError> {
        self.create(sequence).map_err(|error| self.gone(error))
    }

    fn fork_sequence(
        &mut self,
        sequence: SequenceId,
        fork: SequenceId,
    ) -> Result<(), EarlierLayersError> {
        self.fork(sequence, fork).map_err(|error| self.gone(error))
    }

    fn free_sequence(&mut self, sequence: SequenceId) -> Result<(), EarlierLayersError> {
        self.free(sequence).map_err(|error| self.gone(error))
    }

    fn forward(
        &mut self,
        batch: &Batch,
        output: &mut StageOutput,
    ) -> Result<(), EarlierLayersError> {
        self.compute(batch, output)
            .map_err(|error| self.gone(error))
    }

    fn commit(&mut self, sequence: SequenceId, path: &[usize]) -> Result<(), EarlierLayersError> {
        self.commit_path(sequence, path)
            .map_err(|error| self.gone(error))
    }
}
