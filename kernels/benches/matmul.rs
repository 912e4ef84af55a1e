//! Products on every instruction set of this machine: `cargo bench -p kernels --bench matmul [-- THREADS]`; each figure is
//! the median of interleaved rounds, so that other load on the machine falls on all alike.
//!
//! With a device in `TANDEM_BENCH_DEVICE`, products of the shapes of models on it instead: time of a call, weights read a
//! second, operations a second, and ratio to the call with one row; once for a call each, and once with eight matrices in a
//! call, where the time that launches take hardly counts. An argument of numbers, `1,24`, tells the rows of the batch; any
//! other picks shapes that have it in their name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::{
    Buffer, CpuDevice, Device, GatedLinearArgs, LinearArgs, Matrix, MatrixSource, Projection, Tier,
    open_device,
};
use tensor::DType;

/// Outputs and inputs: a projection of a model of some two thousand dimensions.
const ROWS: usize = 2048;
const COLS: usize = 2048;
const ROUNDS: usize = 15;
const BATCHES: &[usize] = &[1, 8, 16, 32, 64, 128, 512];
const DTYPES: &[DType] = &[
    DType::Q4_0,
    DType::Q4_1,
    DType::Q8_0,
    DType::Q4K,
    DType::Q6K,
];

/// One instruction set with its matrix and rows.
struct Bench {
    device: CpuDevice,
    matrix: Matrix,
    x: Buffer,
    out: Buffer,
    seconds: Vec<f64>,
}

impl Bench {
    fn new(tier: Tier, threads: usize, dtype: DType, batch: usize) -> Self {
        let device = CpuDevice::with_tier(threads, tier).expect("an available tier");
        let bytes = vec![0x15; ROWS * dtype.row_bytes(COLS).expect("whole blocks")];
        let matrix = device
            .load_matrix(MatrixSource {
                dtype,
                rows: ROWS,
                cols: COLS,
                bytes: &bytes,
            })
            .expect("a matrix that loads");
        let mut x = device.zeros(batch * COLS).expect("memory");
        let values: Vec<f32> = (0..x.len()).map(|i| (i % 251) as f32 - 125.0).collect();
        device.write(&mut x, 0, &values);
        let out = device.zeros(batch * ROWS).expect("memory");
        Self {
            device,
            matrix,
            x,
            out,
            seconds: Vec::new(),
        }
    }

    fn run(&mut self) {
        let started = Instant::now();
        self.device.linear(LinearArgs {
            num_rows: self.x.len() / COLS,
            x: &self.x,
            norm: None,
            projections: &mut [Projection {
                weight: &self.matrix,
                out: &mut self.out,
            }],
            accumulate: false,
        });
        self.seconds.push(started.elapsed().as_secs_f64());
    }

    fn median(&mut self) -> f64 {
        self.seconds.sort_by(f64::total_cmp);
        self.seconds[self.seconds.len() / 2]
    }
}

/// Variable that names the device.
const DEVICE: &str = "TANDEM_BENCH_DEVICE";
/// Rows of the batch: a step, checks of trees, a piece of a prompt.
const ROWS_OF_BATCH: &[usize] = &[1, 24, 64, 512];
/// Of a prompt, only the last row has logits.
const MOST_LOGITS: usize = 1 << 26;
/// More than a cache holds; copies of a matrix are read in turn.
const COLD_BYTES: usize = 256 << 20;
/// What a figure is measured over, at least.
const MEASURED: Duration = Duration::from_millis(25);
/// Type, outputs, inputs, and whether there are two of them, gate and up.
const SHAPES: &[(DType, usize, usize, bool)] = &[
    (DType::Q5K, 10240, 5120, false),
    (DType::Q6K, 10240, 5120, false),
    (DType::Q4K, 6144, 5120, false),
    (DType::Q4K, 5120, 6144, false),
    (DType::Q4K, 17408, 5120, true),
    (DType::Q4K, 5120, 17408, false),
    (DType::Q6K, 5120, 17408, false),
    (DType::Q6K, 248_320, 5120, false),
    (DType::Q8_0, 10240, 5120, false),
    (DType::BF16, 6144, 1024, false),
    (DType::BF16, 2048, 1024, false),
    (DType::BF16, 3584, 1024, true),
    (DType::BF16, 1024, 3584, false),
    (DType::BF16, 248_320, 1024, false),
];

fn open(name: &str) -> Arc<dyn Device> {
    open_device(name.parse().expect("a device's name"), 2).expect("a device")
}

/// Matrices of one shape that are read in turn.
struct Turns<'a> {
    device: &'a dyn Device,
    matrices: Vec<Matrix>,
    outs: Vec<Buffer>,
    gated: bool,
    next: usize,
}

impl Turns<'_> {
    /// A call with `count` products of `num_rows` rows.
    fn call(&mut self, num_rows: usize, x: &Buffer, count: usize) {
        let pair = if self.gated { 2 } else { 1 };
        let from = self.next;
        self.next = (from + pair * count) % self.matrices.len();
        let at = |i: usize| &self.matrices[(from + i) % self.matrices.len()];
        if self.gated {
            for (i, out) in self.outs.iter_mut().enumerate().take(count) {
                self.device.gated_linear(GatedLinearArgs {
                    num_rows,
                    x,
                    norm: None,
                    gate: at(2 * i),
                    up: at(2 * i + 1),
                    out,
                });
            }
            return;
        }
        let outs = self.outs.iter_mut().enumerate().take(count);
        let mut projections: Vec<_> = outs
            .map(|(i, out)| Projection { weight: at(i), out })
            .collect();
        self.device.linear(LinearArgs {
            num_rows,
            x,
            norm: None,
            projections: &mut projections,
            accumulate: false,
        });
    }

    /// Seconds of such a call.
    fn seconds(&mut self, num_rows: usize, x: &Buffer, count: usize) -> f64 {
        let finish = |turns: &Self| turns.device.finish().expect("products");
        // Kernels are compiled when they are first asked for.
        self.call(num_rows, x, count);
        finish(self);
        let mut calls = 1;
        loop {
            let started = Instant::now();
            (0..calls).for_each(|_| self.call(num_rows, x, count));
            finish(self);
            let elapsed = started.elapsed();
            if elapsed >= MEASURED {
                return elapsed.as_secs_f64() / f64::from(calls);
            }
            calls *= 2;
        }
    }
}

fn bench_device(device: &dyn Device) {
    println!("{}", device.name());
    let mut wanted = None;
    let mut batches = ROWS_OF_BATCH.to_vec();
    // `cargo bench` passes flags of its own.
    for arg in std::env::args().skip(1).filter(|a| !a.starts_with('-')) {
        match arg.split(',').map(str::parse).collect() {
            Ok(numbers) => batches = numbers,
            Err(_) => wanted = Some(arg),
        }
    }
    for &(dtype, rows, cols, gated) in SHAPES {
        let what = if gated { "gate and up" } else { "" };
        let title = format!("{dtype} {rows} x {cols} {what}");
        if wanted.as_ref().is_some_and(|part| !title.contains(part)) {
            continue;
        }
        let bytes = noise(rows * dtype.row_bytes(cols).expect("whole blocks"));
        let pair = if gated { 2 } else { 1 };
        let copies = (COLD_BYTES / bytes.len() / pair).clamp(1, 512) * pair;
        let load = |_| {
            let source = MatrixSource {
                dtype,
                rows,
                cols,
                bytes: &bytes,
            };
            device.load_matrix(source).expect("a matrix that loads")
        };
        let mut batches = batches.clone();
        batches.retain(|&batch| batch == 1 || batch * rows <= MOST_LOGITS);
        let most = batches.iter().copied().max().unwrap_or(1);
        let company = if gated || bytes.len() > COLD_BYTES {
            1
        } else {
            8
        };
        let mut turns = Turns {
            device,
            matrices: (0..copies).map(load).collect(),
            outs: (0..company)
                .map(|_| device.zeros(most * rows).expect("memory"))
                .collect(),
            gated,
            next: 0,
        };
        let mut x = device.zeros(most * cols).expect("memory");
        let values: Vec<f32> = (0..x.len()).map(|i| (i % 251) as f32 - 125.0).collect();
        device.write(&mut x, 0, &values);
        let of_one: Vec<f64> = [1, company]
            .iter()
            .map(|&c| turns.seconds(1, &x, c))
            .collect();
        println!("{title}");
        for &num_rows in &batches {
            let figures: Vec<String> = [1, company]
                .iter()
                .zip(&of_one)
                .map(|(&count, one)| {
                    let seconds = turns.seconds(num_rows, &x, count);
                    let giga = 1e-9 * (bytes.len() * pair * count) as f64 / seconds;
                    let tera = 2e-12 * (rows * cols * pair * count * num_rows) as f64 / seconds;
                    let micros = 1e6 * seconds / count as f64;
                    format!(
                        "{micros:9.1} us {giga:6.0} GB/s {tera:6.1} TOP/s {:5.2}",
                        seconds / one
                    )
                })
                .collect();
            println!("{num_rows:>4} rows  {}", figures.join("  in company "));
        }
    }
}

/// Bytes that no compression or cache guesses.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn main() {
    if let Ok(name) = std::env::var(DEVICE) {
        return bench_device(open(&name).as_ref());
    }
    // `cargo bench` passes flags of its own.
    let threads = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(1);
    // Plain loops would take the whole time.
    let tiers: Vec<Tier> = Tier::ALL
        .iter()
        .copied()
        .filter(|t| t.is_available() && *t != Tier::Scalar)
        .collect();
    println!("{ROWS} x {COLS}, {threads} threads: GOP/s (and ms)");
    for &dtype in DTYPES {
        for &batch in BATCHES {
            let mut benches: Vec<Bench> = tiers
                .iter()
                .map(|&tier| Bench::new(tier, threads, dtype, batch))
                .collect();
            for _ in 0..ROUNDS {
                benches.iter_mut().for_each(Bench::run);
            }
            let figures: Vec<String> = benches
                .iter_mut()
                .zip(&tiers)
                .map(|(bench, tier)| {
                    let seconds = bench.median();
                    let giga = 2e-9 * (ROWS * COLS * batch) as f64 / seconds;
                    format!("{} {giga:7.1} ({:.3})", tier.name(), seconds * 1e3)
                })
                .collect();
            println!("{dtype:>6} {batch:>4} rows  {}", figures.join("  "));
        }
    }
}
