//! A whole step of one row in one launch: see gpu/megakernel.cu.
//!
//! It is made from the operations of the step itself, told to a [`Recorder`] once, so a graph knows nothing of it; what it does not
//! know is launched piece by piece as before. Both ways give the same bits.

mod choice;
mod phases;
mod pieces;
mod recorder;
mod remembered;

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tensor::DType;

use crate::device::DeltaNetShape;
use crate::error::DeviceError;
use crate::gpu::attention::HeadShape;
use crate::gpu::delta_net;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Driver, Launch, Source};
use crate::gpu::linear::dtypes;
pub(super) use crate::gpu::megakernel::choice::{Choice, Way};
use crate::gpu::megakernel::phases::{PackedPhase, Share, StepArgs};
use crate::gpu::megakernel::pieces::{Piece, piece_bytes};
pub(super) use crate::gpu::megakernel::recorder::Recorder;
pub(super) use crate::gpu::megakernel::remembered::{Remembered, StepId};
use crate::gpu::memory::DeviceMemory;
use crate::gpu::rows::Embedding;
use crate::gpu::tables::TablePtrs;
use crate::kv::{KvType, KvTypes};

/// Pieces of the ring at most.
const MOST_STAGES: usize = 64;
/// Bytes of the ring for a piece beside its own: what it is and what comes next; and its barriers.
const STAGE_LISTS: usize = 2 * size_of::<Piece>();
const STAGE_BARRIERS: usize = 16;
/// Shared memory of the kernel beside what launches ask for, and what the runtime takes.
const STATIC_BYTES: usize = 1536;
/// What the kernel keeps of a step in shared memory.
const CONTEXT_BYTES: usize = 256;
/// Warps that attend together, and what combining splits takes.
const ATTENDING: usize = 8;
const COMBINE_BYTES: usize = 16 * 32 * 20;

/// Warps of a block, by the shared memory that it can have: its ring is to hold some tiles for each. By lanes, more than eight
/// have not the registers.
pub(super) fn block_warps(shared_bytes: usize, copies_by_lanes: bool) -> usize {
    if shared_bytes >= 160 << 10 && !copies_by_lanes {
        16
    } else {
        8
    }
}

/// The kernel for steps with such weights, and with such layers where there are some.
fn source(
    types: u32,
    warps: usize,
    stages: usize,
    copies_by_lanes: bool,
    delta: Option<&DeltaNetShape>,
    heads: Option<&HeadShape>,
) -> Source {
    let mut defines = vec![
        ("COPIES_BY_LANES", u32::from(copies_by_lanes).to_string()),
        ("TYPES", types.to_string()),
        ("BLOCK_WARPS", warps.to_string()),
        ("STAGES", stages.to_string()),
        ("HAS_DELTA", u32::from(delta.is_some()).to_string()),
        ("HAS_ATTENTION", u32::from(heads.is_some()).to_string()),
    ];
    defines.extend(delta.map(delta_net::defines).unwrap_or_default());
    defines.extend(heads.map_or_else(Vec::new, HeadShape::megakernel_defines));
    Source {
        name: "megakernel.cu",
        text: include_str!("../../gpu/megakernel.cu"),
        defines,
    }
}

/// For steps of published small models: hybrid ones with several types of weights, and a dense one; see [`crate::gpu::sources`].
pub(super) fn sources() -> Vec<Source> {
    let hybrid = DeltaNetShape {
        num_k_heads: 16,
        num_v_heads: 16,
        k_dim: 128,
        v_dim: 128,
        conv_taps: 4,
    };
    let heads = |num_heads, num_kv_heads, head_dim, kv_type| HeadShape {
        num_heads,
        num_kv_heads,
        head_dim,
        types: KvTypes::both(kv_type),
    };
    let types = |dtypes: &[DType]| dtypes.iter().fold(0, |mask, d| mask | 1 << d.ggml_id());
    let of_hybrid = heads(8, 2, 256, KvType::F16);
    let of_dense = heads(16, 8, 128, KvType::Q8_0);
    let mixed = [DType::Q4K, DType::Q6K, DType::Q8_0];
    let by_bulk = [
        (types(&[DType::BF16]), 17, Some(&hybrid), of_hybrid),
        (types(&[DType::Q8_0]), 40, Some(&hybrid), of_hybrid),
        (types(&mixed), 40, Some(&hybrid), of_hybrid),
        (types(&[DType::BF16]), 17, None, of_dense),
    ]
    .map(|(types, stages, delta, heads)| source(types, 16, stages, false, delta, Some(&heads)));
    let by_lanes = [(&[DType::BF16][..], 8), (&mixed, 16)]
        .map(|(of, stages)| source(types(of), 8, stages, true, Some(&hybrid), Some(&of_hybrid)));
    by_bulk.into_iter().chain(by_lanes).collect()
}

/// A word in host memory that the device sees: set by a launch whose blocks waited for what did not come.
#[derive(Debug)]
pub(super) struct StuckFlag {
    driver: Arc<dyn Driver>,
    at: NonNull<u32>,
}

// SAFETY: a word of pinned memory, read as volatile and written by the device alone.
unsafe impl Send for StuckFlag {}
// SAFETY: as above.
unsafe impl Sync for StuckFlag {}

impl StuckFlag {
    pub fn new(driver: &Arc<dyn Driver>) -> Result<Self, DeviceError> {
        let at = driver.allocate_pinned(size_of::<u32>())?.cast::<u32>();
        let at = NonNull::new(at).ok_or(DeviceError::OutOfMemory { bytes: 4 })?;
        // SAFETY: memory of ours, aligned as pages are.
        unsafe { at.write_volatile(0) };
        Ok(Self {
            driver: Arc::clone(driver),
            at,
        })
    }

    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.at.as_ptr() as u64)
    }

    /// After the device has done what it was asked.
    pub fn is_set(&self) -> bool {
        // SAFETY: memory of ours.
        unsafe { self.at.read_volatile() != 0 }
    }
}

impl Drop for StuckFlag {
    fn drop(&mut self) {
        // SAFETY: from `allocate_pinned`; the device's owner has waited for it.
        unsafe { self.driver.free_pinned(self.at.as_ptr().cast()) };
    }
}

/// A step as one launch.
#[derive(Debug)]
pub(super) struct Program {
    source: Source,
    /// How steps like it are known from one start to the next.
    pub id: StepId,
    launch: Launch,
    embedding: Option<Embedding>,
    tables: TablePtrs,
    is_stuck: DevicePtr,
    /// Phases, shares, pieces, where those begin, and all that goes between phases.
    lists: [DeviceMemory; 4],
    _between: Vec<DeviceMemory>,
    num_phases: u32,
    fixed_bytes: u32,
    work_bytes: u32,
    slot_bytes: u32,
    /// What the next launch's numbers are counted from.
    epoch: AtomicU32,
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
        let (recorder, phases, between) = recorder.finish()?;
        let driver = &device.driver;
        let packed: Vec<PackedPhase> = (1..).zip(&phases).map(|(n, p)| p.pack(n)).collect();
        let upload = |bytes: &[u8]| -> Result<_, DeviceError> {
            let memory = DeviceMemory::new(driver, bytes.len())?;
            memory.write(0, bytes);
            Ok(memory)
        };
        let warps = recorder.plan.warps();
        let delta = recorder.delta.as_ref();
        let heads = recorder.splits.as_ref().map(|splits| &splits.shape);
        let work = [
            recorder.form_bytes,
            delta.map_or(0, delta_net::staged_bytes),
            heads.map_or(0, |shape| warps / ATTENDING * shape.megakernel_bytes()),
            heads.map_or(0, |_| COMBINE_BYTES),
        ];
        let work_bytes = work.into_iter().max().unwrap_or(0).next_multiple_of(128);
        let answers = recorder.most_answers * size_of::<f32>();
        let slot_bytes = recorder.plan.slot_bytes().max(answers);
        let slot_bytes = slot_bytes.next_multiple_of(128);
        let lists_bytes = size_of_val(&packed[..]) + packed.len() * size_of::<Share>();
        let fixed_bytes = lists_bytes.next_multiple_of(16) + CONTEXT_BYTES;
        let fixed = fixed_bytes + work_bytes + slot_bytes;
        let stage = dtypes(recorder.types).map(piece_bytes).max().unwrap_or(1);
        let room = device.facts().shared_bytes_per_block as usize;
        let stages =
            room.saturating_sub(STATIC_BYTES + fixed) / (stage + STAGE_LISTS + STAGE_BARRIERS);
        if stages < warps {
            return Err(DeviceError::Driver {
                what: format!(
                    "the megakernel's {fixed} bytes of shared memory leave room for {stages} \
                     pieces of weights, {warps} are needed"
                ),
            });
        }
        let stages = stages.min(MOST_STAGES);
        let (pieces, first_piece) = recorder.plan.lists(stages);
        let lists = [
            upload(bytemuck::cast_slice(&packed))?,
            upload(bytemuck::cast_slice(&recorder.plan.shares()))?,
            upload(bytemuck::cast_slice(&pieces))?,
            upload(bytemuck::cast_slice(&first_piece))?,
        ];
        let by_lanes = device.one_row.setting().copies_by_lanes;
        let source = source(recorder.types, warps, stages, by_lanes, delta, heads);
        let step = format!(
            "{:?}, {} places",
            recorder.plan.matrices(),
            recorder.most_seen
        );
        let program = Self {
            id: StepId::new(device.facts(), &source, &step),
            source,
            launch: Launch {
                grid: [recorder.plan.blocks() as u32, 1, 1],
                threads: (warps * 32) as u32,
                shared_bytes: (fixed + stages * (stage + STAGE_LISTS)) as u32,
            },
            embedding: recorder.embedding,
            tables,
            is_stuck,
            lists,
            _between: between,
            num_phases: packed.len() as u32,
            fixed_bytes: fixed_bytes as u32,
            work_bytes: work_bytes as u32,
            slot_bytes: slot_bytes as u32,
            epoch: AtomicU32::new(0),
        };
        // Compiled now, and not by the first step.
        let (source, shared) = (&program.source, program.launch.shared_bytes);
        device.modules.function(source, "step", shared)?;
        tracing::debug!(
            phases = program.num_phases,
            stages,
            shared,
            pieces = pieces.len(),
            "a step is one launch"
        );
        Ok(program)
    }

    /// Runs the step; its tables and ids are on the device.
    ///
    /// # Errors
    /// The blocks do not fit on the device at a time; nothing has happened then.
    pub fn launch(&self, device: &GpuDevice) -> Result<(), DeviceError> {
        let [phases, shares, pieces, first_piece] = self.lists.each_ref().map(DeviceMemory::ptr);
        let epoch = self.epoch.fetch_add(self.num_phases + 1, Ordering::Relaxed);
        let args = StepArgs {
            phases,
            shares,
            pieces,
            first_piece,
            tables: self.tables,
            is_stuck: self.is_stuck,
            num_phases: self.num_phases,
            epoch,
            fixed_bytes: self.fixed_bytes,
            work_bytes: self.work_bytes,
            slot_bytes: self.slot_bytes,
        };
        let shared = self.launch.shared_bytes;
        let function = device.modules.function(&self.source, "step", shared)?;
        if let Some(embedding) = &self.embedding {
            device.launch_embedding(embedding)?;
        }
        let mut launch = self.launch;
        launch.grid[0] -= device.one_row.setting().lost_blocks as u32;
        // SAFETY: the kernel's struct; what it points to lives as long as this and as the recording that it belongs to.
        unsafe {
            device.driver.launch_together(
                function,
                launch,
                std::ptr::from_ref(&args).cast::<c_void>(),
                size_of::<StepArgs>(),
            )
        }
    }
}
