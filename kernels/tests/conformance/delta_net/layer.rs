//! Whole layers: their inputs and what follows them.

use kernels::{
    Buffer, DeltaLayerArgs, DeltaNetArgs, DeltaNetShape, DeltaNetState, Device, LinearArgs, Matrix,
    Norm, Projection, Segment,
};
use tensor::DType;

use super::{SEQUENCES, model};
use crate::data::{Noise, devices, download, load, same_bits, upload, zeros};
use crate::reference::DeltaModel;

const OF_SMALL: [DType; 4] = [DType::Q6K, DType::Q4K, DType::Q8_0, DType::Q8_0];
const WITH_FLOATS: [DType; 4] = [DType::Q4K, DType::Q4K, DType::F32, DType::F32];
/// Heads, their dim and types of weights: those whose columns clusters of eight, four and two blocks share, with one strip or two each, and those that
/// are nobody's.
const LAYERS: &[(usize, usize, [DType; 4])] = &[
    (1, 128, [DType::Q4K; 4]),
    (1, 64, [DType::Q8_0; 4]),
    (1, 32, OF_SMALL),
    (2, 48, [DType::Q8_0; 4]),
    (16, 128, WITH_FLOATS),
    (16, 128, [DType::Q8_0; 4]),
    (8, 128, [DType::BF16; 4]),
];

/// What a layer is made of, and what it works with.
struct WholeLayer {
    shape: DeltaNetShape,
    weights: [Matrix; 4],
    output: Matrix,
    constants: [Buffer; 5],
    state: DeltaNetState,
    h: Buffer,
    inputs: [Buffer; 4],
    answers: Buffer,
}

impl WholeLayer {
    fn new(
        device: &dyn Device,
        model: &DeltaModel,
        types: [DType; 4],
        (size, most_rows): (usize, usize),
        noise: &mut Noise,
    ) -> Self {
        let shape = model.shape;
        let (heads, width) = (shape.num_v_heads, shape.num_v_heads * shape.v_dim);
        let heights = [shape.conv_channels(), width, heads, heads];
        let mut matrix = |dtype: DType, rows, cols| {
            let bytes = noise.weights(dtype, rows, cols);
            load(device, dtype, rows, cols, &bytes)
        };
        Self {
            shape,
            weights: [0, 1, 2, 3].map(|i| matrix(types[i], heights[i], size)),
            output: matrix(DType::Q8_0, size, width),
            constants: [
                upload(device, &model.conv),
                upload(device, &model.a),
                upload(device, &model.dt_bias),
                upload(device, &model.gamma),
                upload(device, &noise.values(size)),
            ],
            state: DeltaNetState {
                recurrent: zeros(device, SEQUENCES * shape.state_len()),
                conv: zeros(device, SEQUENCES * shape.conv_len()),
            },
            h: upload(device, &noise.values(most_rows * size)),
            inputs: heights.map(|rows| zeros(device, most_rows * rows)),
            answers: zeros(device, most_rows * width),
        }
    }

    fn run(&mut self, device: &dyn Device, parents: &[i32], advance: bool, as_one: bool) {
        let segments = [Segment {
            first_row: 0,
            parents,
            committed_len: 0,
            first_position: 0,
            pages: &[],
            state_index: 1,
            advance,
            window: None,
        }];
        let [conv_weight, a, dt_bias, head_gamma, gamma] = &self.constants;
        let norm = |gamma| Norm { gamma, eps: 1e-6 };
        if as_one {
            return device.delta_layer(DeltaLayerArgs {
                shape: self.shape,
                h: &mut self.h,
                norm: norm(gamma),
                weights: self.weights.each_ref(),
                inputs: self.inputs.each_mut(),
                conv_weight,
                a,
                dt_bias,
                head_norm: norm(head_gamma),
                state: &mut self.state,
                segments: &segments,
                answers: &mut self.answers,
                output: &self.output,
            });
        }
        let outs = self.inputs.iter_mut().zip(&self.weights);
        let mut projections: Vec<_> = outs
            .map(|(out, weight)| Projection { weight, out })
            .collect();
        device.linear(LinearArgs {
            num_rows: parents.len(),
            x: &self.h,
            norm: Some(norm(gamma)),
            projections: &mut projections,
            accumulate: false,
        });
        let [qkv, z, alpha, beta] = &self.inputs;
        device.delta_net(DeltaNetArgs {
            shape: self.shape,
            qkv,
            z,
            alpha,
            beta,
            conv_weight,
            a,
            dt_bias,
            norm: norm(head_gamma),
            state: &mut self.state,
            segments: &segments,
            answers: &mut self.answers,
            output: &self.output,
            out: &mut self.h,
        });
    }

    fn values(&self, device: &dyn Device) -> [Vec<f32>; 3] {
        [&self.h, &self.state.recurrent, &self.state.conv].map(|buffer| download(device, buffer))
    }
}

/// Rows alone, chains and trees: to the bit, with weights of each form, alike and side by side.
#[test]
fn a_layer_is_its_inputs_and_what_follows_them() {
    const SIZE: usize = 512;
    let steps: [(&[i32], bool); 5] = [
        (&[-1, 0, 1], true),
        (&[-1], true),
        (&[-1], true),
        (&[-1, 0, 0], false),
        (&[-1], false),
    ];
    for device in devices().iter().map(AsRef::as_ref) {
        for &(heads, dim, types) in LAYERS {
            let shape = DeltaNetShape {
                num_k_heads: heads,
                num_v_heads: heads,
                k_dim: dim,
                v_dim: dim,
                conv_taps: 4,
            };
            let model = model(shape, &mut Noise(43));
            let make = || WholeLayer::new(device, &model, types, (SIZE, 3), &mut Noise(47));
            let (mut one, mut two) = (make(), make());
            for (parents, advance) in steps {
                one.run(device, parents, advance, true);
                two.run(device, parents, advance, false);
                let what = format!("{shape:?}, {types:?} on {}", device.name());
                let (got, want) = (one.values(device), two.values(device));
                for (got, want) in got.iter().zip(&want) {
                    assert!(want.iter().any(|v| *v != 0.0), "{what}: nothing");
                    assert!(same_bits(got, want), "{what}, {parents:?}");
                }
            }
        }
    }
}
