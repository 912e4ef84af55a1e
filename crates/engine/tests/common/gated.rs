//! A device behind a gate that every forward pass goes through.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use kernels::{
    AttentionArgs, Buffer, DeltaLayerArgs, DeltaNetArgs, DeltaNetCommitArgs, Device, DeviceError,
    FeedForwardArgs, GatedLinearArgs, KvAppendArgs, KvCommitArgs, KvType, LinearArgs, Matrix,
    MatrixSource, SparseAttentionArgs, Step, StoreColumnsArgs, TailProductsArgs, TailWeightsArgs,
    TopKArgs,
};

use super::device;

#[derive(Debug, Default)]
struct State {
    /// Rows of each step that came to the gate.
    rows: Vec<usize>,
    /// Steps that may pass, counted from the start; `None`: all.
    may_pass: Option<usize>,
    broken: bool,
    /// No weights find room.
    full: bool,
    /// Matrices brought to the device.
    loads: usize,
}

/// Stops steps before they compute. Open at first.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Lets `steps` steps pass, counted from the start.
    pub fn pass(&self, steps: usize) {
        self.change(|state| state.may_pass = Some(steps));
    }

    /// Lets every step pass.
    pub fn open(&self) {
        self.change(|state| state.may_pass = None);
    }

    /// Makes the next step that passes panic.
    pub fn break_down(&self) {
        self.change(|state| state.broken = true);
    }

    /// Lets no more weights come to the device, or does again.
    pub fn fill(&self, is_full: bool) {
        self.change(|state| state.full = is_full);
    }

    /// Matrices brought to the device so far.
    pub fn loads(&self) -> usize {
        self.state().loads
    }

    fn load(&self) -> Result<(), DeviceError> {
        let mut state = self.state();
        // The first ones find room: there is something to give back.
        if state.full && state.loads % 10 == 9 {
            return Err(DeviceError::OutOfMemory { bytes: 77 });
        }
        state.loads += 1;
        Ok(())
    }

    /// Returns when the step number `steps`, counted from 1, stands at the gate or has passed it.
    pub fn wait_for(&self, steps: usize) {
        let _state = self
            .changed
            .wait_while(self.state(), |state| state.rows.len() < steps)
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// Rows of each step so far.
    pub fn rows(&self) -> Vec<usize> {
        self.state().rows.clone()
    }

    fn step(&self, rows: usize) {
        self.change(|state| state.rows.push(rows));
        let stopped = |state: &mut State| {
            let step = state.rows.len();
            state.may_pass.is_some_and(|may_pass| step > may_pass)
        };
        let state = self
            .changed
            .wait_while(self.state(), stopped)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(
            !state.broken,
            "the device broke down, as the test asked for"
        );
    }
}

/// A device whose forward passes wait at a gate.
pub struct GatedDevice {
    inner: Arc<dyn Device>,
    gate: Arc<Gate>,
}

impl GatedDevice {
    pub fn new(gate: Arc<Gate>) -> Self {
        Self {
            inner: device(),
            gate,
        }
    }
}

impl Device for GatedDevice {
    fn step(&self, step: &Step<'_>, work: &mut dyn FnMut()) {
        self.gate.step(step.tokens.len());
        self.inner.step(step, work);
    }

    fn embed(&self, table: &Matrix, ids: &[u32], out: &mut Buffer) {
        self.inner.embed(table, ids, out);
    }

    fn release_working_memory(&self) {
        self.inner.release_working_memory();
    }

    fn restore_working_memory(&self) -> Result<(), DeviceError> {
        self.inner.restore_working_memory()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn read_bandwidth(&self) -> f64 {
        self.inner.read_bandwidth()
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Matrix, DeviceError> {
        self.gate.load()?;
        self.inner.load_matrix(source)
    }

    fn zeros(&self, len: usize) -> Result<Buffer, DeviceError> {
        self.inner.zeros(len)
    }

    fn kv_zeros(&self, len: usize, kv_type: KvType) -> Result<Buffer, DeviceError> {
        self.inner.kv_zeros(len, kv_type)
    }

    fn free_memory(&self) -> Option<u64> {
        self.inner.free_memory()
    }

    fn limit_memory(&self, bytes: u64) {
        self.inner.limit_memory(bytes);
    }

    fn finish(&self) -> Result<(), DeviceError> {
        self.inner.finish()
    }

    fn store_columns(&self, args: StoreColumnsArgs<'_>) {
        self.inner.store_columns(args);
    }

    fn write(&self, buffer: &mut Buffer, offset: usize, values: &[f32]) {
        self.inner.write(buffer, offset, values);
    }

    fn read(&self, buffer: &Buffer, offset: usize, values: &mut [f32]) {
        self.inner.read(buffer, offset, values);
    }

    fn gather_rows(&self, x: &Buffer, row_len: usize, rows: &[usize], out: &mut Buffer) {
        self.inner.gather_rows(x, row_len, rows, out);
    }

    fn linear(&self, args: LinearArgs<'_, '_>) {
        self.inner.linear(args);
    }

    fn gated_linear(&self, args: GatedLinearArgs<'_>) {
        self.inner.gated_linear(args);
    }

    fn feed_forward(&self, args: FeedForwardArgs<'_>) {
        self.inner.feed_forward(args);
    }

    fn attention(&self, args: AttentionArgs<'_>) {
        self.inner.attention(args);
    }

    fn kv_append(&self, args: KvAppendArgs<'_>) {
        self.inner.kv_append(args);
    }

    fn kv_commit(&self, args: KvCommitArgs<'_>) {
        self.inner.kv_commit(args);
    }

    fn delta_layer(&self, args: DeltaLayerArgs<'_>) {
        self.inner.delta_layer(args);
    }

    fn delta_net(&self, args: DeltaNetArgs<'_>) {
        self.inner.delta_net(args);
    }

    fn sparse_attention(&self, args: SparseAttentionArgs<'_>) {
        self.inner.sparse_attention(args);
    }

    fn tail_products(&self, args: TailProductsArgs<'_>) {
        self.inner.tail_products(args);
    }

    fn tail_weights(&self, args: TailWeightsArgs<'_>) {
        self.inner.tail_weights(args);
    }

    fn delta_net_commit(&self, args: DeltaNetCommitArgs<'_>) {
        self.inner.delta_net_commit(args);
    }

    fn seek_top(&self, logits: &Buffer, vocab_size: usize, k: usize) {
        self.inner.seek_top(logits, vocab_size, k);
    }

    fn top_k(&self, args: TopKArgs<'_>) {
        self.inner.top_k(args);
    }
}
