//! Products on every instruction set of this machine: `cargo bench -p kernels [-- THREADS]`.
//!
//! Each figure is the median of interleaved rounds, so that other load on the machine falls on all alike.

use std::time::Instant;

use kernels::{Buffer, CpuDevice, Device, LinearArgs, Matrix, MatrixSource, Projection, Tier};
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

fn main() {
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
