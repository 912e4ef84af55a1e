//! A device whose steps are counted, and which can be kept from repeating recordings of them. It says that it compiles kernels, and notes for how
//! many rows.

#![allow(dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernels::{
    AttentionArgs, Buffer, DeltaLayerArgs, DeltaNetArgs, DeltaNetCommitArgs, Device, DeviceError,
    FeedForwardArgs, GatedLinearArgs, KvAppendArgs, KvCommitArgs, KvType, LinearArgs, Matrix,
    MatrixSource, SparseAttentionArgs, Step, StoreColumnsArgs, TailProductsArgs, TailWeightsArgs,
    TopKArgs,
};

pub struct Watched {
    inner: Arc<dyn Device>,
    /// Steps may be recorded and repeated; otherwise the device does not learn that there are steps.
    repeats: bool,
    steps: AtomicUsize,
    /// Steps whose operations were called.
    called: AtomicUsize,
    compiled_for: AtomicUsize,
}

impl Watched {
    pub fn new(inner: Arc<dyn Device>, repeats: bool) -> Self {
        Self {
            inner,
            repeats,
            steps: AtomicUsize::new(0),
            called: AtomicUsize::new(0),
            compiled_for: AtomicUsize::new(0),
        }
    }

    /// Rows that it was last asked to compile kernels for; 0: it was not.
    pub fn compiled_for(&self) -> usize {
        self.compiled_for.load(Ordering::Relaxed)
    }

    /// Steps that a recording did the work of.
    pub fn repeated(&self) -> usize {
        self.steps.load(Ordering::Relaxed) - self.called.load(Ordering::Relaxed)
    }
}

impl Device for Watched {
    fn step(&self, step: &Step<'_>, work: &mut dyn FnMut()) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        let mut counted = || {
            self.called.fetch_add(1, Ordering::Relaxed);
            work();
        };
        if self.repeats {
            self.inner.step(step, &mut counted);
        } else {
            counted();
        }
    }

    fn compiles_kernels(&self) -> bool {
        true
    }

    fn compile_for_rows(&self, most: usize) {
        self.compiled_for.store(most, Ordering::Relaxed);
        self.inner.compile_for_rows(most);
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

    fn free_memory(&self) -> Option<u64> {
        self.inner.free_memory()
    }

    fn limit_memory(&self, bytes: u64) {
        self.inner.limit_memory(bytes);
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Matrix, DeviceError> {
        self.inner.load_matrix(source)
    }

    fn zeros(&self, len: usize) -> Result<Buffer, DeviceError> {
        self.inner.zeros(len)
    }

    fn kv_zeros(&self, len: usize, kv_type: KvType) -> Result<Buffer, DeviceError> {
        self.inner.kv_zeros(len, kv_type)
    }

    fn write(&self, buffer: &mut Buffer, offset: usize, values: &[f32]) {
        self.inner.write(buffer, offset, values);
    }

    fn read(&self, buffer: &Buffer, offset: usize, values: &mut [f32]) {
        self.inner.read(buffer, offset, values);
    }

    fn finish(&self) -> Result<(), DeviceError> {
        self.inner.finish()
    }

    fn gather_rows(&self, x: &Buffer, row_len: usize, rows: &[usize], out: &mut Buffer) {
        self.inner.gather_rows(x, row_len, rows, out);
    }

    fn embed(&self, table: &Matrix, ids: &[u32], out: &mut Buffer) {
        self.inner.embed(table, ids, out);
    }

    fn store_columns(&self, args: StoreColumnsArgs<'_>) {
        self.inner.store_columns(args);
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

    fn kv_commit(&self, args: KvCommitArgs<'_>) {
        self.inner.kv_commit(args);
    }

    fn kv_append(&self, args: KvAppendArgs<'_>) {
        self.inner.kv_append(args);
    }

    fn seek_top(&self, logits: &Buffer, vocab_size: usize, k: usize) {
        self.inner.seek_top(logits, vocab_size, k);
    }

    fn top_k(&self, args: TopKArgs<'_>) {
        self.inner.top_k(args);
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
}
