//! Gated DeltaNet layers of Qwen3.5-27B, with their output projection: `TANDEM_BENCH_DEVICE=emulated cargo bench -p kernels --bench delta_net`.
//!
//! Microseconds a layer, over as many layers as the model has, each with states of its own, so that these come from
//! memory and not from a cache.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::{
    Buffer, DeltaNetArgs, DeltaNetCommitArgs, DeltaNetCommitLayer, DeltaNetShape, DeltaNetState,
    Device, Matrix, MatrixSource, Norm, Segment, open_device,
};
use tensor::DType;

const DEVICE: &str = "TANDEM_BENCH_DEVICE";
const SHAPE: DeltaNetShape = DeltaNetShape {
    num_k_heads: 16,
    num_v_heads: 48,
    k_dim: 128,
    v_dim: 128,
    conv_taps: 4,
};
const HIDDEN_SIZE: usize = 5120;
const LAYERS: usize = 48;
const MOST_ROWS: usize = 512;
const ENOUGH: Duration = Duration::from_millis(300);

fn open() -> Arc<dyn Device> {
    let name = std::env::var(DEVICE).unwrap_or_else(|_| "cpu".to_owned());
    open_device(name.parse().expect("a device's name"), 0).expect("a device")
}

struct Bench {
    device: Arc<dyn Device>,
    states: Vec<DeltaNetState>,
    qkv: Buffer,
    z: Buffer,
    alpha: Buffer,
    beta: Buffer,
    conv_weight: Buffer,
    a: Buffer,
    dt_bias: Buffer,
    gamma: Buffer,
    answers: Buffer,
    output: Matrix,
    out: Buffer,
}

impl Bench {
    fn new(device: Arc<dyn Device>, layers: usize) -> Self {
        let zeros = |len| device.zeros(len).expect("memory");
        let values = |len: usize, scale: f32| {
            let mut buffer = zeros(len);
            let values: Vec<f32> = (0..len as u32)
                .map(|i| scale * ((i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0))
                .collect();
            device.write(&mut buffer, 0, &values);
            buffer
        };
        let (channels, heads) = (SHAPE.conv_channels(), SHAPE.num_v_heads);
        let width = heads * SHAPE.v_dim;
        let state = |_| DeltaNetState {
            recurrent: zeros(SHAPE.state_len()),
            conv: zeros(SHAPE.conv_len()),
        };
        Self {
            states: (0..layers).map(state).collect(),
            qkv: values(MOST_ROWS * channels, 1.0),
            z: values(MOST_ROWS * width, 1.0),
            alpha: values(MOST_ROWS * heads, 1.0),
            beta: values(MOST_ROWS * heads, 1.0),
            conv_weight: values(channels * SHAPE.conv_taps, 0.5),
            a: values(heads, -1.0),
            dt_bias: values(heads, 1.0),
            gamma: values(SHAPE.v_dim, 1.0),
            answers: zeros(MOST_ROWS * width),
            output: device
                .load_matrix(MatrixSource {
                    dtype: DType::Q4K,
                    rows: HIDDEN_SIZE,
                    cols: width,
                    bytes: &vec![
                        0;
                        HIDDEN_SIZE * DType::Q4K.row_bytes(width).expect("whole blocks")
                    ],
                })
                .expect("memory"),
            out: zeros(MOST_ROWS * HIDDEN_SIZE),
            device,
        }
    }

    fn forward(&mut self, parents: &[i32], advance: bool) {
        for state in &mut self.states {
            self.device.delta_net(DeltaNetArgs {
                shape: SHAPE,
                qkv: &self.qkv,
                z: &self.z,
                alpha: &self.alpha,
                beta: &self.beta,
                conv_weight: &self.conv_weight,
                a: &self.a,
                dt_bias: &self.dt_bias,
                norm: Norm {
                    gamma: &self.gamma,
                    eps: 1e-6,
                },
                state,
                segments: &[Segment {
                    first_row: 0,
                    parents,
                    committed_len: 0,
                    first_position: 0,
                    pages: &[],
                    state_index: 0,
                    advance,
                    window: None,
                }],
                answers: &mut self.answers,
                output: &self.output,
                out: &mut self.out,
            });
        }
    }

    fn commit(&mut self, rows: &[usize]) {
        let layer = |state| DeltaNetCommitLayer {
            qkv: &self.qkv,
            alpha: &self.alpha,
            beta: &self.beta,
            conv_weight: &self.conv_weight,
            a: &self.a,
            dt_bias: &self.dt_bias,
            state,
        };
        self.device.delta_net_commit(DeltaNetCommitArgs {
            shape: SHAPE,
            layers: self.states.iter_mut().map(layer).collect(),
            state_index: 0,
            rows,
        });
    }

    /// Microseconds a layer, from the second step on.
    fn time(&mut self, step: impl Fn(&mut Self)) -> f64 {
        step(self);
        self.device.finish().expect("no fault");
        let started = Instant::now();
        let mut steps = 0;
        while steps == 0 || started.elapsed() < ENOUGH {
            // The device is kept busy and the host not far ahead.
            for _ in 0..4 {
                step(self);
                steps += 1;
                if started.elapsed() > ENOUGH {
                    break;
                }
            }
            self.device.finish().expect("no fault");
        }
        1e6 * started.elapsed().as_secs_f64() / (steps * self.states.len()) as f64
    }
}

fn main() {
    let device = open();
    let name = device.name();
    println!("{name}");
    let layers = if name.starts_with("emulated") {
        1
    } else {
        LAYERS
    };
    let mut bench = Bench::new(device, layers);
    let chain = |len: i32| -> Vec<i32> { (0..len).map(|i| i - 1).collect() };
    // As drafts are: a likely path, and less likely branches beside it.
    let tree = |len: i32| -> Vec<i32> {
        let below = |i: i32| if i % 3 == 2 { i - 3 } else { i - 1 };
        (0..len).map(|i| below(i).max(i.min(1) - 1)).collect()
    };
    let one = bench.time(|bench| bench.forward(&[-1], true));
    println!("one row: {one:.1} us");
    for len in [23, 64] {
        let parents = tree(len);
        let us = bench.time(|bench| bench.forward(&parents, false));
        println!("tree of {len}: {us:.1} us");
    }
    let path: Vec<usize> = (0..16).filter(|i| i % 2 == 0).collect();
    let us = bench.time(|bench| bench.commit(&path));
    println!("commit of {}: {us:.1} us", path.len());
    let parents = chain(MOST_ROWS as i32);
    let us = bench.time(|bench| bench.forward(&parents, true));
    println!("chain of {MOST_ROWS}: {us:.1} us");
}
