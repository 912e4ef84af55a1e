//! Whole steps of one row in one launch: see gpu/megakernel.cu.
//!
//! A step is made from the operations of the step itself, told to a [`Recorder`] once, so a graph knows nothing of it; what it does not
//! know is launched piece by piece as before. Both ways give the same bits.

mod choice;
mod mail;
mod phases;
mod pieces;
mod recorder;
mod remembered;
mod shares;
mod source;

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::device::PAGE_TOKENS;
use crate::error::DeviceError;
use crate::gpu::delta_net;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::linear::{LINE_BYTES, dtypes};
pub(super) use crate::gpu::megakernel::choice::{Choice, Way};
use crate::gpu::megakernel::mail::Mailbox;
pub(super) use crate::gpu::megakernel::mail::StuckFlag;
use crate::gpu::megakernel::phases::{Embed, PackedPhase, Phase, StepArgs};
use crate::gpu::megakernel::pieces::{Piece, piece_bytes};
pub(super) use crate::gpu::megakernel::recorder::Recorder;
pub(super) use crate::gpu::megakernel::remembered::{Remembered, StepId};
use crate::gpu::megakernel::source::Constants;
pub(super) use crate::gpu::megakernel::source::sources;
use crate::gpu::memory::DeviceMemory;
use crate::gpu::tables::{HostTables, TablePtrs};
use crate::gpu::top_k::{LISTED, Logits, Sought, merging_bytes};

/// Pieces of the ring at most.
const MOST_STAGES: usize = 64;
/// Bytes of the ring for a piece beside its own: what it is and what comes next; and its barriers.
const STAGE_LISTS: usize = 2 * size_of::<Piece>();
const STAGE_BARRIERS: usize = 16;
/// Shared memory of a row's norm: see gpu/row_norm.h.
const NORM_BYTES: usize = 1020;
/// What the kernel keeps of a step in shared memory.
const CONTEXT_BYTES: usize = 256;
/// Warps that mix values together, and what combining splits takes.
const MIXERS: usize = 8;
const COMBINE_BYTES: usize = 16 * 32 * 12;

/// Bytes of shared memory that the end of a token takes of what its phases work with.
const END_BYTES: usize = 384;
/// What each byte of a row's place holds until a value comes.
const ABSENT: u8 = 0xff;
/// Tokens of a launch, which so ends soon for whoever else wants the device.
const MOST_TOKENS: u32 = 16;
/// What is waited for.
const ANSWER: &str = "an answer of the megakernel";

/// Warps of a block, by the shared memory that it can have: its ring is to hold some tiles for each. By lanes, more than eight
/// have not the registers.
pub(super) fn block_warps(shared_bytes: usize, copies_by_lanes: bool) -> usize {
    if shared_bytes >= 160 << 10 && !copies_by_lanes {
        16
    } else {
        8
    }
}

/// How a launch goes, and how often it may look back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// That are not launched, though the others wait for them.
    pub lost_blocks: u32,
    /// How long the launch waits to be asked for another token; nothing: it is for one.
    pub patience: Option<Duration>,
}

/// What was asked last.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// The token.
    number: u32,
    /// Whether its inputs have been taken, for all that is known.
    is_taken: bool,
    /// Tokens that the launch may do still.
    left: u32,
}

/// Steps that are parts of one launch.
#[derive(Debug)]
pub(super) struct Program {
    source: Source,
    /// How steps like it are known from one start to the next.
    pub id: StepId,
    /// What is told of a token's logits.
    pub sought: Option<Sought>,
    launch: Launch,
    /// But for its token and manner.
    args: StepArgs,
    /// The lists of launches for several tokens.
    pieces_anew: DevicePtr,
    /// Phases, shares, pieces, where those begin, what blocks say at the end of a token, and all that goes between phases.
    _memory: Vec<DeviceMemory>,
    /// Given back after device memory, for which a launch is waited for.
    mail: Mailbox,
    asked: Mutex<Asked>,
}

impl Program {
    /// # Errors
    /// The step is none that is known, or there is no room for it.
    pub fn new(
        device: &GpuDevice,
        recorder: Recorder,
        tables: TablePtrs,
        is_stuck: DevicePtr,
    ) -> Result<Self, DeviceError> {
        let (recorder, phases, mut memory) = recorder.finish()?;
        let driver = &device.driver;
        let packed: Vec<PackedPhase> = (1..).zip(&phases).map(|(n, p)| p.pack(n)).collect();
        let warps = recorder.plan.warps();
        let delta = recorder.delta.as_ref();
        let heads = recorder.splits.as_ref().map(|splits| &splits.shape);
        let blocks = recorder.plan.blocks();
        let work = [
            END_BYTES.max(merging_bytes(blocks)),
            recorder.form_bytes,
            delta.map_or(0, delta_net::staged_bytes),
            heads.map_or(0, |shape| shape.megakernel_bytes(warps / MIXERS)),
            heads.map_or(0, |_| COMBINE_BYTES),
        ];
        let work_bytes = work.into_iter().max().unwrap_or(0).next_multiple_of(128);
        let answers = recorder.most_answers * size_of::<f32>();
        let slot_bytes = recorder.plan.slot_bytes().max(answers);
        let slot_bytes = slot_bytes.next_multiple_of(128);
        let fixed = NORM_BYTES + work_bytes + slot_bytes + CONTEXT_BYTES + size_of_val(&packed[..]);
        let stage = dtypes(recorder.types).map(piece_bytes).max().unwrap_or(1);
        let room = device.facts().shared_bytes_per_block as usize;
        let stages =
            room.saturating_sub(fixed + 2 * LINE_BYTES) / (stage + STAGE_LISTS + STAGE_BARRIERS);
        if stages < warps {
            return Err(DeviceError::Driver {
                what: format!(
                    "the megakernel's {fixed} bytes of shared memory leave room for {stages} \
                     pieces of weights, {warps} are needed"
                ),
            });
        }
        let stages = stages.min(MOST_STAGES);
        // The ring begins with a line of shared memory, and so does what comes behind it.
        let lines = |bytes: usize| bytes.next_multiple_of(LINE_BYTES) - bytes;
        let barriers = stages * STAGE_BARRIERS;
        let ring = stages * (stage + STAGE_LISTS);
        let shared = fixed + barriers + lines(barriers + NORM_BYTES) + ring + lines(ring);
        let (pieces, first_piece) = recorder.plan.lists(stages, false);
        let (pieces_anew, _) = recorder.plan.lists(stages, true);
        let mut upload = |bytes: &[u8]| -> Result<_, DeviceError> {
            let there = DeviceMemory::new(driver, bytes.len())?;
            there.write(0, bytes);
            let ptr = there.ptr();
            memory.push(there);
            Ok(ptr)
        };
        let mail = Mailbox::new(driver, recorder.most_seen.div_ceil(PAGE_TOKENS))?;
        let last = logits_of(&phases);
        let sought = recorder.sought.filter(|sought| Some(sought.logits) == last);
        let top_k = sought.map_or(0, |sought| sought.k);
        let listed = top_k.min(LISTED);
        let args = StepArgs {
            phases: upload(bytemuck::cast_slice(&packed))?,
            shares: upload(bytemuck::cast_slice(&recorder.plan.shares()))?,
            pieces: upload(bytemuck::cast_slice(&pieces))?,
            first_piece: upload(bytemuck::cast_slice(&first_piece))?,
            tables,
            is_stuck,
            mail: mail.ptr(),
            lists: upload(&vec![0; blocks * listed * size_of::<u64>()])?,
            ended: upload(&vec![0; blocks * size_of::<u32>()])?,
            said: upload(&[0; size_of::<u32>()])?,
            rows: upload(&vec![ABSENT; 2 * recorder.rows_bytes])?,
            embed: recorder
                .embed
                .map_or_else(Embed::default, |(embed, _)| embed),
            top_k: top_k as u32,
            num_tokens: 1,
            patience: 0,
            last_epoch: 0,
            listed: listed as u32,
            num_phases: packed.len() as u32,
            epoch: 0,
            rows_bytes: recorder.rows_bytes as u32,
            unused: 0,
        };
        let pieces_anew = upload(bytemuck::cast_slice(&pieces_anew))?;
        let source = Constants {
            types: recorder.types,
            warps,
            stages,
            work_bytes,
            slot_bytes,
            copies_by_lanes: device.one_row.setting().copies_by_lanes,
            embedded: recorder.embed.map(|(_, dtype)| dtype),
            delta,
            heads,
        }
        .source();
        let step = format!(
            "{:?}, {} places",
            recorder.plan.matrices(),
            recorder.most_seen
        );
        let program = Self {
            id: StepId::new(device.facts(), &source, &step),
            source,
            sought,
            launch: Launch {
                grid: [blocks as u32, 1, 1],
                threads: (warps * 32) as u32,
                shared_bytes: shared as u32,
            },
            args,
            pieces_anew,
            _memory: memory,
            mail,
            asked: Mutex::new(Asked {
                // Such that the first token's is none that memory begins with.
                number: 1,
                is_taken: true,
                left: 0,
            }),
        };
        // Compiled now, and not by the first step.
        let (source, shared) = (&program.source, program.launch.shared_bytes);
        device.modules.function(source, "step", shared)?;
        tracing::debug!(
            phases = program.args.num_phases,
            stages,
            shared,
            pieces = pieces.len(),
            "a step is one launch"
        );
        Ok(program)
    }

    /// Asks for a token, of the launch that waits for it, or else of another. Its number, and whether there was a launch.
    ///
    /// # Errors
    /// The blocks do not fit on the device at a time; nothing has happened then. Or the device failed.
    pub fn ask(
        &self,
        device: &GpuDevice,
        id: u32,
        (tables, known_pages): (&HostTables, usize),
        manner: Manner,
    ) -> Result<(u32, bool), DeviceError> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if !asked.is_taken {
            device.wait_until(ANSWER, || self.mail.is_taken(asked.number))?;
        }
        // An odd number, by which tokens' rows take turns.
        let apart = (self.args.num_phases + 2) | 1;
        let number = asked.number.wrapping_add(apart);
        self.mail.ask(number, id, tables, known_pages);
        if asked.left > 0 {
            device.wait_until(ANSWER, || {
                self.mail.is_taken(number) || self.mail.is_left(number)
            })?;
            if self.mail.is_taken(number) {
                asked.number = number;
                asked.left -= 1;
                return Ok((number, false));
            }
            asked.left = 0;
        }
        let (num_tokens, pieces) = match manner.patience {
            Some(_) => (MOST_TOKENS, self.pieces_anew),
            None => (1, self.args.pieces),
        };
        let args = StepArgs {
            pieces,
            epoch: number,
            num_tokens,
            last_epoch: number.wrapping_add((num_tokens - 1) * apart),
            patience: manner.patience.map_or(0, |time| time.as_nanos() as u64),
            ..self.args
        };
        let shared = self.launch.shared_bytes;
        let function = device.modules.function(&self.source, "step", shared)?;
        let mut launch = self.launch;
        launch.grid[0] -= manner.lost_blocks;
        // SAFETY: the kernel's struct; what it points to lives as long as this and as the recording that it belongs to.
        unsafe {
            device.driver.launch_together(
                function,
                launch,
                std::ptr::from_ref(&args).cast::<c_void>(),
                size_of::<StepArgs>(),
            )?;
        }
        *asked = Asked {
            number,
            is_taken: false,
            left: num_tokens - 1,
        };
        Ok((number, true))
    }

    /// What was sought of a token that was asked for: ids, and their values' bits; waits for it.
    ///
    /// # Errors
    /// The device failed.
    pub fn top(&self, device: &GpuDevice, number: u32) -> Result<Vec<u32>, DeviceError> {
        device.wait_until(ANSWER, || self.mail.is_answered(number))?;
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_taken = true;
        Ok(self.mail.top(self.args.top_k as usize))
    }

    /// Nothing more is asked of a launch that waits.
    pub fn dismiss(&self) {
        self.mail.dismiss();
    }
}

/// Where the last phase leaves a row by itself.
fn logits_of(phases: &[Phase]) -> Option<Logits> {
    let Some(Phase::Product(product)) = phases.last() else {
        return None;
    };
    let [output, ..] = product.outputs;
    let is_one =
        product.num_outputs == 1 && product.gated == 0 && product.add.at == DevicePtr::NULL;
    is_one.then_some(Logits {
        at: output.to.plain,
        len: output.rows as usize,
    })
}
