//! Ways of sharing the work of a product among thread blocks, beside each other: `TANDEM_BENCH_DEVICE=cuda:0 cargo bench -p
//! kernels --bench product_shapes [-- ROWS PART]`, where ROWS tells the rows of the batch (`1,24`) and PART is a part of the
//! shapes' names (`Q4_K 5120`). Each product and number of rows has a table, the fastest way first; the one that is chosen
//! is marked, and of more than eight rows there are the clocks that the choice reckons with. At the end stands what better
//! choices would save.
//!
//! Rows are normed first, and matrices are read from memory: copies take turns that no cache holds together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kernels::{
    Buffer, Device, DeviceName, GatedLinearArgs, GpuDevice, LinearArgs, Matrix, MatrixSource, Norm,
    ProductShape, Projection, Step, Visibility,
};
use tensor::DType;

/// Variable that names the device.
const DEVICE: &str = "TANDEM_BENCH_DEVICE";
/// A step, some rows, checks of trees, a piece of a prompt.
const ROWS_OF_BATCH: &[usize] = &[1, 8, 23, 64, 512];
/// More than a cache holds.
const COLD_BYTES: usize = 256 << 20;
/// Calls of a recording.
const CALLS: u32 = 16;
/// What a figure is measured over, at least; the best of some.
const MEASURED: Duration = Duration::from_millis(10);
const REPETITIONS: usize = 3;
/// Type, outputs and inputs of the products of a call, and whether they are gate and up.
type Products = (&'static [(DType, usize)], usize, bool);
/// Qwen3.5-27B in Q4_K_M, its draft in Q8_0, then Qwen3.5-0.8B: its head in Q8_0, and all in BF16.
const PRODUCTS: &[Products] = &[
    (&[(DType::Q4K, 17408), (DType::Q4K, 17408)], 5120, true),
    (&[(DType::Q4K, 5120)], 17408, false),
    (&[(DType::Q6K, 5120)], 17408, false),
    (&[(DType::Q4K, 5120)], 6144, false),
    (
        &[
            (DType::Q6K, 10240),
            (DType::Q4K, 6144),
            (DType::Q4K, 48),
            (DType::Q4K, 48),
        ],
        5120,
        false,
    ),
    (
        &[(DType::Q4K, 12288), (DType::Q4K, 1024), (DType::Q6K, 1024)],
        5120,
        false,
    ),
    (&[(DType::Q6K, 248_320)], 5120, false),
    (&[(DType::Q8_0, 17408), (DType::Q8_0, 17408)], 5120, true),
    (&[(DType::Q8_0, 5120)], 17408, false),
    (&[(DType::Q8_0, 5120)], 4096, false),
    (
        &[
            (DType::Q8_0, 4096),
            (DType::Q8_0, 1024),
            (DType::Q8_0, 1024),
        ],
        5120,
        false,
    ),
    (&[(DType::Q8_0, 1024), (DType::Q8_0, 1024)], 5120, false),
    (&[(DType::Q8_0, 5120)], 25600, false),
    (&[(DType::Q8_0, 248_320)], 1024, false),
    (&[(DType::BF16, 3584), (DType::BF16, 3584)], 1024, true),
    (&[(DType::BF16, 1024)], 3584, false),
    (&[(DType::BF16, 1024)], 2048, false),
    (
        &[
            (DType::BF16, 6144),
            (DType::BF16, 2048),
            (DType::BF16, 16),
            (DType::BF16, 16),
        ],
        1024,
        false,
    ),
    (&[(DType::BF16, 248_320)], 1024, false),
];
/// Of a prompt, only the last row has logits.
const MOST_OUTPUTS: usize = 1 << 26;

fn title((products, cols, gated): &Products) -> String {
    let parts: Vec<String> = products
        .iter()
        .map(|(dtype, rows)| format!("{dtype} {rows}"))
        .collect();
    let what = if *gated { " gate and up" } else { "" };
    format!("{} x {cols}{what}", parts.join(" + "))
}

fn bytes_of((products, cols, _): &Products) -> usize {
    let bytes = |(dtype, rows): &(DType, usize)| rows * dtype.row_bytes(*cols).expect("whole");
    products.iter().map(bytes).sum()
}

/// The matrices of some calls, which are made in turn, and what they read and write.
struct Calls<'a> {
    device: &'a GpuDevice,
    calls: Vec<Vec<Matrix>>,
    outs: Vec<Buffer>,
    x: Buffer,
    gamma: Buffer,
    gated: bool,
    num_rows: usize,
    next: usize,
}

impl<'a> Calls<'a> {
    fn new(device: &'a GpuDevice, products: &Products, num_rows: usize) -> Self {
        let (parts, cols, gated) = *products;
        let load = |&(dtype, rows): &(DType, usize)| {
            let bytes = noise(rows * dtype.row_bytes(cols).expect("whole blocks"));
            let source = MatrixSource {
                dtype,
                rows,
                cols,
                bytes: &bytes,
            };
            device.load_matrix(source).expect("a matrix that loads")
        };
        let copies = (COLD_BYTES / bytes_of(products)).clamp(1, 64) + 1;
        let copies = if bytes_of(products) > COLD_BYTES {
            1
        } else {
            copies
        };
        let zeros = |len| device.zeros(len).expect("memory");
        let mut x = zeros(num_rows * cols);
        let values: Vec<f32> = (0..x.len()).map(|i| (i % 251) as f32 - 125.0).collect();
        device.write(&mut x, 0, &values);
        let mut gamma = zeros(cols);
        device.write(&mut gamma, 0, &vec![1.0; cols]);
        Self {
            calls: (0..copies)
                .map(|_| parts.iter().map(load).collect())
                .collect(),
            outs: parts
                .iter()
                .map(|(_, rows)| zeros(num_rows * rows))
                .collect(),
            device,
            x,
            gamma,
            gated,
            num_rows,
            next: 0,
        }
    }

    /// The ways that there are, the chosen one first.
    fn shapes(&mut self) -> Vec<ProductShape> {
        self.call(None)
    }

    /// A call in a shape; without one, nothing is computed and all shapes are told.
    fn call(&mut self, shape: Option<ProductShape>) -> Vec<ProductShape> {
        let Self {
            device,
            calls,
            outs,
            x,
            gamma,
            ..
        } = self;
        self.next = (self.next + 1) % calls.len();
        let matrices = &calls[self.next];
        let norm = Some(Norm { gamma, eps: 1e-6 });
        if self.gated {
            let args = GatedLinearArgs {
                num_rows: self.num_rows,
                x,
                norm,
                gate: &matrices[0],
                up: &matrices[1],
                out: &mut outs[0],
            };
            let Some(shape) = shape else {
                return device.gated_linear_shapes(&args).expect("kernels");
            };
            device.gated_linear_in(shape, args).expect("a product");
            return Vec::new();
        }
        let mut projections: Vec<_> = matrices
            .iter()
            .zip(outs)
            .map(|(weight, out)| Projection { weight, out })
            .collect();
        let args = LinearArgs {
            num_rows: self.num_rows,
            x,
            norm,
            projections: &mut projections,
            accumulate: false,
        };
        let Some(shape) = shape else {
            return device.linear_shapes(&args).expect("kernels");
        };
        device.linear_in(shape, args).expect("products");
        Vec::new()
    }

    /// Seconds of a call, the best of some repetitions. Calls are recorded and repeated, so that no host is waited for.
    fn seconds(&mut self, shape: ProductShape) -> f64 {
        static RECORDINGS: AtomicUsize = AtomicUsize::new(0);
        let variant = RECORDINGS.fetch_add(1, Ordering::Relaxed);
        let device = self.device;
        let mut run = || {
            let step = Step {
                tokens: &[],
                segments: &[],
                visibility: Visibility::Ancestors,
                variant: &variant,
            };
            device.step(&step, &mut || {
                for _ in 0..CALLS {
                    self.call(Some(shape));
                }
            });
        };
        let finish = || device.finish().expect("products");
        // Kernels are compiled the first time, and calls are recorded the second.
        run();
        run();
        finish();
        let mut steps = 1;
        let mut times = Vec::new();
        while times.len() < REPETITIONS {
            let started = Instant::now();
            (0..steps).for_each(|_| run());
            finish();
            let elapsed = started.elapsed();
            if elapsed < MEASURED {
                steps *= 2;
            } else {
                times.push(elapsed.as_secs_f64() / f64::from(steps * CALLS));
            }
        }
        times.into_iter().fold(f64::INFINITY, f64::min)
    }
}

fn open(name: &str) -> GpuDevice {
    let device = match name.parse().expect("a device's name") {
        DeviceName::Cuda(ordinal) => GpuDevice::cuda(ordinal),
        DeviceName::Hip(ordinal) => GpuDevice::hip(ordinal),
        DeviceName::Emulated => GpuDevice::emulated(),
        DeviceName::Cpu => panic!("{DEVICE} is to name a GPU"),
    };
    device.expect("a device")
}

/// A table; the times of the chosen way and of the best.
fn compare(device: &GpuDevice, products: &Products, num_rows: usize) -> (f64, f64) {
    let mut calls = Calls::new(device, products, num_rows);
    let bytes = bytes_of(products) as f64;
    let outputs: usize = products.0.iter().map(|(_, rows)| rows).sum();
    let operations = 2.0 * (outputs * products.1 * num_rows) as f64;
    let mut lines: Vec<(f64, bool, ProductShape)> = Vec::new();
    for (i, shape) in calls.shapes().into_iter().enumerate() {
        lines.push((calls.seconds(shape), i == 0, shape));
    }
    let chosen = lines.first().map_or(0.0, |line| line.0);
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("\n{}, {num_rows} rows", title(products));
    for (seconds, is_chosen, shape) in &lines {
        println!(
            "{} {:9.1} us {:6.0} GB/s {:7.1} TOP/s {:8} clocks  {shape}",
            if *is_chosen { "*" } else { " " },
            1e6 * seconds,
            1e-9 * bytes / seconds,
            1e-12 * operations / seconds,
            shape.clocks,
        );
    }
    (chosen, lines.first().map_or(0.0, |line| line.0))
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
    let Ok(name) = std::env::var(DEVICE) else {
        println!("{DEVICE} names no device");
        return;
    };
    let device = open(&name);
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
    let mut summary = Vec::new();
    for products in PRODUCTS {
        let title = title(products);
        if wanted.as_ref().is_some_and(|part| !title.contains(part)) {
            continue;
        }
        let outputs: usize = products.0.iter().map(|(_, rows)| rows).sum();
        for &num_rows in &batches {
            if num_rows == 1 || num_rows * outputs <= MOST_OUTPUTS {
                let (chosen, best) = compare(&device, products, num_rows);
                summary.push((title.clone(), num_rows, chosen, best));
            }
        }
    }
    println!();
    for (title, num_rows, chosen, best) in summary {
        println!(
            "{num_rows:>4} rows: chosen {:8.1} us, best {:8.1} us, {:4.0} %  {title}",
            1e6 * chosen,
            1e6 * best,
            100.0 * best / chosen
        );
    }
}
