//! Gated DeltaNet along chains and trees, and its commit by replay.

mod layer;
mod projection;

use kernels::{
    DeltaNetArgs, DeltaNetCommitArgs, DeltaNetCommitLayer, DeltaNetShape, DeltaNetState, Device,
    Matrix, Norm, Segment,
};
use tensor::DType;

use crate::data::{
    Noise, SameBits, bytes_of, devices, download, load, relative_error, same_bits, upload, zeros,
};
use crate::reference::{DeltaModel, DeltaRow};

/// f32 sums of up to 128 terms, carried on over some fifteen steps by a decaying state: 3e-7 was measured, and ten
/// times that is far below any mistake of index or order.
const TOLERANCE: f64 = 3e-6;

const SEQUENCES: usize = 3;

/// Rows of output projections.
const HEIGHT: usize = 80;

/// Two branches, one five deep: deeper than the convolution reaches back.
const TREE: &[i32] = &[-1, 0, 0, 1, 1, 3, 3, 2, 7, 8];
const PATH: &[usize] = &[0, 2, 7, 8, 9];

const SHAPES: &[DeltaNetShape] = &[
    // Value heads share key heads; 80 columns are four vectors and one.
    DeltaNetShape {
        num_k_heads: 2,
        num_v_heads: 4,
        k_dim: 32,
        v_dim: 80,
        conv_taps: 4,
    },
    DeltaNetShape {
        num_k_heads: 1,
        num_v_heads: 3,
        k_dim: 24,
        v_dim: 16,
        conv_taps: 3,
    },
    DeltaNetShape {
        num_k_heads: 2,
        num_v_heads: 2,
        k_dim: 128,
        v_dim: 128,
        conv_taps: 4,
    },
    // An emulated GPU, which has few multiprocessors, walks these with two columns a lane, those before with four, one and four.
    DeltaNetShape {
        num_k_heads: 1,
        num_v_heads: 2,
        k_dim: 32,
        v_dim: 64,
        conv_taps: 4,
    },
];
/// The largest value head there may be.
const LARGEST: DeltaNetShape = DeltaNetShape {
    num_k_heads: 1,
    num_v_heads: 1,
    k_dim: 64,
    v_dim: 256,
    conv_taps: 4,
};

fn model(shape: DeltaNetShape, noise: &mut Noise) -> DeltaModel {
    let heads = shape.num_v_heads;
    DeltaModel {
        shape,
        conv: noise.values(shape.conv_channels() * shape.conv_taps),
        a: noise.values(heads).iter().map(|v| v - 1.0).collect(),
        dt_bias: noise.values(heads),
        gamma: noise.values(shape.v_dim),
        eps: 1e-6,
    }
}

fn rows(shape: DeltaNetShape, count: usize, noise: &mut Noise) -> Vec<DeltaRow> {
    let heads = shape.num_v_heads;
    (0..count)
        .map(|_| {
            [shape.conv_channels(), heads * shape.v_dim, heads, heads].map(|n| noise.values(n))
        })
        .collect()
}

fn chain(len: usize) -> Vec<i32> {
    (0..len as i32).map(|i| i - 1).collect()
}

struct Part<'a> {
    sequence: usize,
    parents: &'a [i32],
    rows: &'a [DeltaRow],
    advance: bool,
}

/// One layer on one device.
struct Layer<'a> {
    device: &'a dyn Device,
    model: &'a DeltaModel,
    state: DeltaNetState,
    /// The identity, whose products are the answers to the bit, unless a test has another.
    output: Matrix,
}

fn identity(device: &dyn Device, size: usize) -> Matrix {
    let mut values = vec![0.0; size * size];
    values.iter_mut().step_by(size + 1).for_each(|v| *v = 1.0);
    load(device, DType::F32, size, size, &bytes_of(&values))
}

impl<'a> Layer<'a> {
    fn new(device: &'a dyn Device, model: &'a DeltaModel) -> Self {
        Self {
            device,
            model,
            state: DeltaNetState {
                recurrent: zeros(device, SEQUENCES * model.shape.state_len()),
                conv: zeros(device, SEQUENCES * model.shape.conv_len()),
            },
            output: identity(device, model.shape.num_v_heads * model.shape.v_dim),
        }
    }

    /// Outputs of all nodes, part by part; then, where wanted, the commit of `path` of the last part.
    fn run(&mut self, parts: &[Part<'_>], path: Option<&[usize]>) -> Vec<f32> {
        let (device, model) = (self.device, self.model);
        let shape = model.shape;
        let mut first_row = 0;
        let mut segments = Vec::new();
        for part in parts {
            segments.push(Segment {
                first_row,
                parents: part.parents,
                committed_len: 0,
                first_position: 0,
                pages: &[],
                state_index: part.sequence,
                advance: part.advance,
                window: None,
            });
            first_row += part.rows.len();
        }
        let [qkv, z, alpha, beta] = [0, 1, 2, 3].map(|field| {
            let all = parts.iter().flat_map(|p| p.rows);
            let values: Vec<f32> = all.flat_map(|row| &row[field]).copied().collect();
            upload(device, &values)
        });
        let conv_weight = upload(device, &model.conv);
        let a = upload(device, &model.a);
        let dt_bias = upload(device, &model.dt_bias);
        let gamma = upload(device, &model.gamma);
        let mut answers = zeros(device, first_row * shape.num_v_heads * shape.v_dim);
        let mut out = zeros(device, first_row * self.output.rows());
        device.delta_net(DeltaNetArgs {
            shape,
            qkv: &qkv,
            z: &z,
            alpha: &alpha,
            beta: &beta,
            conv_weight: &conv_weight,
            a: &a,
            dt_bias: &dt_bias,
            norm: Norm {
                gamma: &gamma,
                eps: model.eps,
            },
            state: &mut self.state,
            segments: &segments,
            answers: &mut answers,
            output: &self.output,
            out: &mut out,
        });
        if let (Some(path), Some(last)) = (path, segments.last()) {
            let rows: Vec<usize> = path.iter().map(|node| last.first_row + node).collect();
            device.delta_net_commit(DeltaNetCommitArgs {
                shape,
                layers: vec![DeltaNetCommitLayer {
                    qkv: &qkv,
                    alpha: &alpha,
                    beta: &beta,
                    conv_weight: &conv_weight,
                    a: &a,
                    dt_bias: &dt_bias,
                    state: &mut self.state,
                }],
                state_index: last.state_index,
                rows: &rows,
            });
        }
        download(device, &out)
    }

    fn states(&self, sequence: usize) -> (Vec<f32>, Vec<f32>) {
        let shape = self.model.shape;
        let mut recurrent = vec![0.0; shape.state_len()];
        let mut conv = vec![0.0; shape.conv_len()];
        self.device.read(
            &self.state.recurrent,
            sequence * recurrent.len(),
            &mut recurrent,
        );
        self.device
            .read(&self.state.conv, sequence * conv.len(), &mut conv);
        (recurrent, conv)
    }
}

#[test]
fn chains_trees_and_commits_agree_with_plain_loops_and_between_instruction_sets() {
    for &shape in SHAPES {
        let mut noise = Noise(29);
        let model = model(shape, &mut noise);
        // More than a walk has on its way at a time.
        let prompts = [rows(shape, 21, &mut noise), rows(shape, 2, &mut noise)];
        let tree = rows(shape, TREE.len(), &mut noise);

        let mut states = [model.start(), model.start()];
        let mut want = Vec::new();
        for (state, prompt) in states.iter_mut().zip(&prompts) {
            prompt
                .iter()
                .for_each(|row| want.extend(model.step(state, row)));
        }
        want.extend(model.segment(&states[1], TREE, &tree));
        for &node in PATH {
            model.step(&mut states[1], &tree[node]);
        }
        let mut same = SameBits::default();
        for device in devices().iter().map(AsRef::as_ref) {
            let mut layer = Layer::new(device, &model);
            let (long, short) = (chain(21), chain(2));
            let prefill = |sequence, parents, rows| Part {
                sequence,
                parents,
                rows,
                advance: true,
            };
            let mut got = layer.run(
                &[
                    prefill(2, &long, &prompts[0]),
                    prefill(0, &short, &prompts[1]),
                ],
                None,
            );
            let verify = Part {
                sequence: 0,
                parents: TREE,
                rows: &tree,
                advance: false,
            };
            got.extend(layer.run(&[verify], Some(PATH)));
            let what = format!("{shape:?} on {}", device.name());
            let error = relative_error(&got, &want);
            assert!(error < TOLERANCE, "{what}: {error:e}");
            for (sequence, state) in [2, 0].into_iter().zip(&states) {
                let (recurrent, conv) = layer.states(sequence);
                let error = relative_error(&recurrent, &state.recurrent);
                assert!(error < TOLERANCE, "{what}, state: {error:e}");
                assert!(same_bits(&conv, &state.history.concat()), "{what}: history");
                got.extend(recurrent);
            }
            assert!(layer.states(1).0.iter().all(|v| *v == 0.0), "{what}: idle");
            same.check(device, got, &what);
        }
    }
}

/// Chunked or not, in company or alone, walked as a tree and replayed: the same bits.
#[test]
fn a_node_and_the_states_have_the_same_bits_on_every_way() {
    for device in devices().iter().map(AsRef::as_ref) {
        for &shape in SHAPES.iter().chain([&LARGEST]) {
            let mut noise = Noise(31);
            let model = model(shape, &mut noise);
            let prompt = rows(shape, 6, &mut noise);
            let other = rows(shape, 4, &mut noise);
            let tree = rows(shape, TREE.len(), &mut noise);
            let width = shape.num_v_heads * shape.v_dim;

            let mut plain = Layer::new(device, &model);
            let mut decoded = Vec::new();
            for row in prompt.iter().chain(PATH.iter().map(|&node| &tree[node])) {
                let part = Part {
                    sequence: 1,
                    parents: &[-1],
                    rows: std::slice::from_ref(row),
                    advance: true,
                };
                decoded.extend(plain.run(&[part], None));
            }

            let mut layer = Layer::new(device, &model);
            let (six, four) = (chain(6), chain(4));
            let part = |sequence, parents, rows, advance| Part {
                sequence,
                parents,
                rows,
                advance,
            };
            let mut got = layer.run(&[part(1, &six, &prompt, true)], None);
            let mut answers = layer.run(
                &[part(0, &four, &other, true), part(1, TREE, &tree, false)],
                Some(PATH),
            );
            answers.drain(..4 * width);
            for node in PATH {
                got.extend_from_slice(&answers[node * width..][..width]);
            }
            let what = format!("{shape:?} on {}", device.name());
            assert!(same_bits(&got, &decoded), "{what}: answers");
            let (states, expected) = (layer.states(1), plain.states(1));
            assert!(same_bits(&states.0, &expected.0), "{what}: state");
            assert!(same_bits(&states.1, &expected.1), "{what}: history");
        }
    }
}

/// 31 nodes, each inner one with two children: a walk depth first has four branches open at a time.
fn bushy() -> Vec<i32> {
    (0..31).map(|i| (i + 1) / 2 - 1).collect()
}

/// Trees with many branches open at a time, with two roots, and beside each other.
#[test]
fn bushy_trees_agree_with_plain_loops_and_with_themselves_alone() {
    let bushy = bushy();
    let mut two_roots: Vec<i32> = bushy[..15].to_vec();
    two_roots.extend(bushy[..15].iter().map(|&p| if p < 0 { p } else { p + 15 }));
    for &shape in SHAPES {
        let mut noise = Noise(37);
        let model = model(shape, &mut noise);
        let prompt = rows(shape, 5, &mut noise);
        let trees = [
            (0, &bushy, rows(shape, bushy.len(), &mut noise)),
            (2, &two_roots, rows(shape, two_roots.len(), &mut noise)),
        ];
        let mut state = model.start();
        prompt.iter().for_each(|row| {
            model.step(&mut state, row);
        });
        for device in devices().iter().map(AsRef::as_ref) {
            let what = format!("{shape:?} on {}", device.name());
            let mut layer = Layer::new(device, &model);
            let five = chain(5);
            let part = |sequence, parents, rows, advance| Part {
                sequence,
                parents,
                rows,
                advance,
            };
            layer.run(
                &[part(0, &five, &prompt, true), part(2, &five, &prompt, true)],
                None,
            );
            let trees = trees
                .each_ref()
                .map(|(sequence, parents, rows)| part(*sequence, parents, rows, false));
            let mut alone = Vec::new();
            for tree in &trees {
                let got = layer.run(std::slice::from_ref(tree), None);
                let want = model.segment(&state, tree.parents, tree.rows);
                let error = relative_error(&got, &want);
                assert!(error < TOLERANCE, "{what}: {error:e}");
                alone.extend(got);
            }
            let together = layer.run(&trees, None);
            assert!(same_bits(&together, &alone), "{what}");
        }
    }
}
