//! [`Device`] for GPUs: memory, launches, steps; what steps read and the operations are in files of their own.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use half::f16;
use half::slice::HalfFloatSliceExt;
use tensor_channel::ChannelDevice;

use crate::buffer::{Buffer, NOT_F16};
use crate::decode_path::DecodePath;
use crate::device::{
    AttentionArgs, DeltaLayerArgs, DeltaNetArgs, DeltaNetCommitArgs, Device, FeedForwardArgs,
    GatedLinearArgs, KvAppendArgs, KvCommitArgs, LinearArgs, Matrix, MatrixSource, Step,
    StoreColumnsArgs, TopKArgs,
};
use crate::error::DeviceError;
use crate::gpu::cuda::Cuda;
use crate::gpu::driver::{DeviceFacts, DevicePtr, Driver, Launch, Source};
use crate::gpu::emulation::Emulation;
use crate::gpu::hip::HipDriver;
use crate::gpu::inputs::Inputs;
use crate::gpu::linear::Choices;
use crate::gpu::memory::DeviceMemory;
use crate::gpu::modules::Modules;
use crate::gpu::one_row::OneRow;
use crate::gpu::rope::TurnTables;
use crate::gpu::scratch::{Scratch, ScratchMemory};
use crate::gpu::steps::{Next, Recorded, Recording, Shape, Steps};
use crate::gpu::tables::HostTables;
use crate::gpu::top_k::{Logits, MOST_SOUGHT, Results, Sought};
use crate::kv::KvType;
use crate::prompt::{SparseAttentionArgs, TailProductsArgs, TailWeightsArgs};

/// Values of a buffer on a GPU.
#[derive(Debug)]
pub(crate) struct GpuValues {
    pub memory: DeviceMemory,
    pub len: usize,
    pub kv_type: KvType,
}

/// A GPU.
#[derive(Debug)]
pub struct GpuDevice {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) modules: Modules,
    pub(super) inputs: Inputs,
    scratch: Mutex<ScratchMemory>,
    pub(super) results: Results,
    /// Counts the times that scratch memory or tables moved.
    pub(super) moves: AtomicU64,
    steps: Mutex<Steps>,
    pub(super) one_row: OneRow,
    /// Of how products are shared.
    pub(super) choices: Choices,
    /// Steps have launches of clusters for single rows, beside which others find places.
    pub(super) has_clusters: AtomicBool,
    /// Rows' keys and values are stored by other operations than attention.
    pub(super) appends: AtomicBool,
    /// Angles of rotary embeddings.
    pub(super) turns: TurnTables,
    /// The first thing that went wrong in an operation, which has no way to say so.
    fault: Mutex<Option<DeviceError>>,
}

impl GpuDevice {
    /// The emulation of a GPU on the host: slow, for tests of the kernels where there is no GPU.
    ///
    /// # Errors
    /// None at present.
    pub fn emulated() -> Result<Self, DeviceError> {
        Self::new(Arc::new(Emulation::new()))
    }

    /// NVIDIA's GPU number `ordinal`, of those that this process sees.
    ///
    /// # Errors
    /// No driver, no such device, or the driver's own.
    pub fn cuda(ordinal: usize) -> Result<Self, DeviceError> {
        Self::new(Arc::new(Cuda::open(ordinal)?))
    }

    /// AMD's GPU number `ordinal`, of those that this process sees. Never tested on hardware.
    ///
    /// # Errors
    /// No runtime, no such device, one that kernels are not written for, or the runtime's own.
    pub fn hip(ordinal: usize) -> Result<Self, DeviceError> {
        Self::new(Arc::new(HipDriver::open(ordinal)?))
    }

    pub(super) fn new(driver: Arc<dyn Driver>) -> Result<Self, DeviceError> {
        Ok(Self {
            modules: Modules::new(Arc::clone(&driver)),
            inputs: Inputs::new(&driver)?,
            scratch: Mutex::new(ScratchMemory::new(&driver)?),
            results: Results::default(),
            moves: AtomicU64::new(0),
            steps: Mutex::new(Steps::new(Arc::clone(&driver))),
            one_row: OneRow::new(driver.facts()),
            choices: Choices::default(),
            has_clusters: AtomicBool::new(false),
            appends: AtomicBool::new(false),
            turns: TurnTables::default(),
            fault: Mutex::default(),
            driver,
        })
    }

    /// What is known of the device.
    #[must_use]
    pub fn facts(&self) -> &DeviceFacts {
        self.driver.facts()
    }

    /// Launches kernel `name` of `source` with the struct that it takes.
    pub(super) fn launch<A: Copy>(
        &self,
        source: &Source,
        name: &'static str,
        launch: Launch,
        args: &A,
    ) -> Result<(), DeviceError> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        self.one_row.end();
        let function = self.modules.function(source, name, launch.shared_bytes)?;
        // SAFETY: each operation passes its kernel's struct, with addresses of buffers that it checked.
        unsafe {
            self.driver.launch(
                function,
                launch,
                std::ptr::from_ref(args).cast::<c_void>(),
                size_of::<A>(),
            )
        };
        Ok(())
    }

    /// Runs a step, or repeats the recording of one like it.
    fn run_step(&self, step: &Step<'_>, work: &mut dyn FnMut()) -> Result<(), DeviceError> {
        let tables = HostTables::new(step.segments, step.visibility);
        let most_seen = tables.most_seen();
        // Before it is asked whether something moved.
        self.reserve_inputs(&tables, step.tokens.len())?;
        let moves = self.moves.load(Ordering::Relaxed);
        let shape = Shape::of(step, most_seen);
        // Not in the match, which would hold the lock to its end.
        let next = shape.as_ref().map(|shape| self.steps().next(shape, moves));
        if let Some(Next::Replay(recording)) = next {
            return self.run_either(step, tables, &recording);
        }
        self.one_row.end();
        match (next, shape) {
            (Some(Next::Record), Some(shape)) => {
                self.record(step, shape, most_seen, tables, work)?;
            }
            _ => {
                self.copy_inputs(tables, step.tokens)?;
                work();
            }
        }
        Ok(())
    }

    /// Records a step and runs it; as if there were no recordings where that cannot be.
    fn record(
        &self,
        step: &Step<'_>,
        shape: Shape,
        most_seen: usize,
        tables: HostTables,
        work: &mut dyn FnMut(),
    ) -> Result<(), DeviceError> {
        let moves = self.moves.load(Ordering::Relaxed);
        let number = self.put_inputs(tables.clone(), step.tokens)?;
        let mut sought = None;
        let recorded = self.driver.begin_capture().then(|| {
            self.note(self.take_inputs());
            work();
            sought = self.one_row.sought();
            if let Some(sought) = sought {
                self.note(self.look_for_sought(sought));
            }
            self.driver.end_capture()
        });
        match recorded {
            // An operation of it failed: nothing of it runs, and `finish` says why. Or memory moved on the way: launches before point to
            // where it was.
            Some(Ok(graph))
                if self.fault().is_some() || self.moves.load(Ordering::Relaxed) != moves =>
            {
                self.driver.drop_graph(graph);
            }
            Some(Ok(graph)) => {
                let recording = Recording {
                    graph,
                    sought,
                    launch: self.one_launch(step, most_seen, work),
                };
                self.replay(&recording, number);
                self.steps().put(&shape, moves, Recorded::Graph(recording));
                return Ok(());
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "a step could not be recorded, and is launched piece by piece");
                self.steps().put(&shape, moves, Recorded::Never);
            }
            None => {}
        }
        self.forget_inputs();
        if self.fault().is_none() {
            self.copy_inputs(tables, step.tokens)?;
            work();
        }
        Ok(())
    }

    fn fault(&self) -> MutexGuard<'_, Option<DeviceError>> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At least `bytes` of scratch memory, with unknown contents unless they are tickets.
    pub(super) fn scratch(&self, which: Scratch, bytes: usize) -> Result<DevicePtr, DeviceError> {
        let mut scratch = self.scratch_memory();
        if scratch.bytes(which) < bytes {
            if which != Scratch::Commit {
                self.moves.fetch_add(1, Ordering::Relaxed);
            }
            scratch.grow(which, bytes)?;
        }
        Ok(scratch.ptr(which))
    }

    fn scratch_memory(&self) -> MutexGuard<'_, ScratchMemory> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the first error of an operation for [`Device::finish`].
    fn note(&self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            // The first one counts; what follows from it would only hide it.
            self.fault().get_or_insert(error);
        }
    }
}

impl Device for GpuDevice {
    fn name(&self) -> String {
        let facts = self.driver.facts();
        format!("{} ({})", facts.name, facts.arch)
    }

    fn arithmetic(&self) -> String {
        let (facts, compiler) = (self.driver.facts(), self.driver.compiler());
        // Without a compiler the kernels are those compiled before.
        let compiler = compiler.unwrap_or_default();
        format!(
            "{} {} {} {compiler}",
            facts.name, facts.arch, facts.driver_version
        )
    }

    fn read_bandwidth(&self) -> f64 {
        let measured = self.measure_read_bandwidth();
        let speed = *measured.as_ref().unwrap_or(&0.0);
        self.note(measured.map(drop));
        speed
    }

    fn channel_device(&self) -> Option<&dyn ChannelDevice> {
        Some(self)
    }

    fn compiles_kernels(&self) -> bool {
        true
    }

    fn compile_for_rows(&self, most: usize) {
        self.compile_products(most);
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        let facts = self.facts();
        facts.arch.starts_with("sm_").then_some(facts.uuid)
    }

    fn free_memory(&self) -> Option<u64> {
        let free = self.driver.free_memory().ok()?;
        Some(self.driver.budget().left_of(free))
    }

    fn set_decode_path(&self, path: DecodePath) {
        self.one_row.setting().path = path;
    }

    fn limit_memory(&self, bytes: u64) {
        self.driver.budget().limit(bytes);
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Matrix, DeviceError> {
        self.load_gpu_matrix(source).map(Matrix::gpu)
    }

    fn zeros(&self, len: usize) -> Result<Buffer, DeviceError> {
        self.kv_zeros(len, KvType::F32)
    }

    fn kv_zeros(&self, len: usize, kv_type: KvType) -> Result<Buffer, DeviceError> {
        Ok(Buffer::gpu(GpuValues {
            memory: DeviceMemory::zeros(&self.driver, kv_type.bytes(len))?,
            len,
            kv_type,
        }))
    }

    fn write(&self, buffer: &mut Buffer, offset: usize, values: &[f32]) {
        self.one_row.end();
        let to = buffer.on_gpu();
        match to.kv_type {
            KvType::F32 => to.memory.write(offset * 4, bytemuck::cast_slice(values)),
            kv_type => {
                assert_eq!(kv_type, KvType::F16, "{NOT_F16}");
                let mut halves = vec![f16::ZERO; values.len()];
                halves.convert_from_f32_slice(values);
                to.memory.write(offset * 2, bytemuck::cast_slice(&halves));
            }
        }
    }

    fn read(&self, buffer: &Buffer, offset: usize, values: &mut [f32]) {
        self.one_row.end();
        let from = buffer.on_gpu();
        match from.kv_type {
            KvType::F32 => from
                .memory
                .read(offset * 4, bytemuck::cast_slice_mut(values)),
            kv_type => {
                assert_eq!(kv_type, KvType::F16, "{NOT_F16}");
                let mut halves = vec![f16::ZERO; values.len()];
                from.memory
                    .read(offset * 2, bytemuck::cast_slice_mut(&mut halves));
                halves.convert_to_f32_slice(values);
            }
        }
    }

    fn finish(&self) -> Result<(), DeviceError> {
        if !self.one_row.is_done() {
            self.driver.synchronize()?;
        }
        self.one_row.check()?;
        let mut fault = self.fault();
        match *fault {
            None => Ok(()),
            // The next operation may ask for less, or when others have given back.
            Some(DeviceError::OutOfMemory { bytes }) => {
                *fault = None;
                Err(DeviceError::OutOfMemory { bytes })
            }
            Some(ref lasting) => Err(DeviceError::Driver {
                what: lasting.to_string(),
            }),
        }
    }

    fn release_working_memory(&self) {
        // What was recorded points to it.
        self.steps().clear();
        let released = self.scratch_memory().release();
        self.note(released);
    }

    fn restore_working_memory(&self) -> Result<(), DeviceError> {
        self.scratch_memory().restore()
    }

    fn step(&self, step: &Step<'_>, work: &mut dyn FnMut()) {
        self.note(self.run_step(step, work));
    }

    fn gather_rows(&self, x: &Buffer, row_len: usize, rows: &[usize], out: &mut Buffer) {
        if self.tell(|recorder| recorder.refuse("gathered rows")) {
            return;
        }
        self.note(self.gather_rows_op(x, row_len, rows, out));
    }

    fn store_columns(&self, args: StoreColumnsArgs<'_>) {
        if self.tell(|recorder| recorder.refuse("features")) {
            return;
        }
        self.note(self.store_columns_op(args));
    }

    fn embed(&self, table: &Matrix, ids: &[u32], out: &mut Buffer) {
        if self.tell(|recorder| recorder.embed(table, ids.len(), out)) {
            return;
        }
        self.note(self.embed_op(table, ids, out));
    }

    fn linear(&self, args: LinearArgs<'_, '_>) {
        if self.tell(|recorder| recorder.linear(&args)) {
            return;
        }
        self.note(self.linear_op(args));
    }

    fn gated_linear(&self, args: GatedLinearArgs<'_>) {
        if self.tell(|recorder| recorder.gated_linear(&args)) {
            return;
        }
        self.note(self.gated_linear_op(args));
    }

    fn feed_forward(&self, mut args: FeedForwardArgs<'_>) {
        if self.tell(|recorder| recorder.gated_linear(&args.gated())) {
            args.project(|linear| self.linear(linear));
            return;
        }
        self.note(self.feed_forward_op(args));
    }

    fn attention(&self, args: AttentionArgs<'_>) {
        if self.tell(|recorder| recorder.attention(&args, &self.turns)) {
            return;
        }
        self.note(self.attention_op(args));
    }

    fn kv_commit(&self, args: KvCommitArgs<'_>) {
        if self.tell(|recorder| recorder.refuse("commits")) {
            return;
        }
        self.note(self.kv_commit_op(args));
    }

    fn kv_append(&self, args: KvAppendArgs<'_>) {
        if self.tell(|recorder| recorder.refuse("rows without queries")) {
            return;
        }
        self.note(self.kv_append_op(args));
    }

    fn seek_top(&self, logits: &Buffer, vocab_size: usize, k: usize) {
        let logits = Logits {
            at: logits.on_gpu().memory.ptr(),
            len: vocab_size,
        };
        let sought = Sought { logits, k };
        if (1..=MOST_SOUGHT).contains(&k) && !self.tell(|recorder| recorder.seek(sought)) {
            self.one_row.set_sought(sought, None);
        }
    }

    fn top_k(&self, args: TopKArgs<'_>) {
        if self.tell(|recorder| recorder.refuse("likeliest ids")) {
            return;
        }
        self.note(self.top_k_op(args));
    }

    fn delta_net(&self, args: DeltaNetArgs<'_>) {
        if self.tell(|recorder| recorder.delta_net(&args)) {
            return args.project(|linear| self.linear(linear));
        }
        self.note(self.delta_net_op(args));
    }

    fn delta_layer(&self, mut args: DeltaLayerArgs<'_>) {
        if self.tell(|recorder| args.make_inputs(|linear| recorder.linear(&linear))) {
            return self.delta_net(args.recurrence());
        }
        self.note(self.delta_layer_op(args));
    }

    fn delta_net_commit(&self, args: DeltaNetCommitArgs<'_>) {
        if self.tell(|recorder| recorder.refuse("commits")) {
            return;
        }
        self.note(self.delta_net_commit_op(args));
    }

    fn sparse_attention(&self, args: SparseAttentionArgs<'_>) {
        if self.tell(|recorder| recorder.refuse("scores of prompts")) {
            return;
        }
        self.note(self.sparse_attention_op(args));
    }

    fn tail_products(&self, args: TailProductsArgs<'_>) {
        if self.tell(|recorder| recorder.refuse("scores of prompts")) {
            return;
        }
        self.note(self.tail_products_op(args));
    }

    fn tail_weights(&self, args: TailWeightsArgs<'_>) {
        if self.tell(|recorder| recorder.refuse("scores of prompts")) {
            return;
        }
        self.note(self.tail_weights_op(args));
    }
}
