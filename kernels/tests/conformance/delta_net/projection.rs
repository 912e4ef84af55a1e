//! Answers and their output projection.

use kernels::{LinearArgs, Matrix, Projection};
use tensor::DType;

use super::{HEIGHT, Layer, Part, SHAPES, TREE, model, rows};
use crate::data::{Noise, devices, download, load, same_bits, upload, zeros};

/// Of rows alone and of a tree: the projection has the bits of a product of the answers, for weights of each form that rows are read in.
#[test]
fn the_output_projection_is_a_product_of_the_answers() {
    let shape = SHAPES[2];
    let width = shape.num_v_heads * shape.v_dim;
    let mut noise = Noise(41);
    let model = model(shape, &mut noise);
    let tree = rows(shape, TREE.len(), &mut noise);
    let weights = [DType::Q4K, DType::Q8_0, DType::BF16]
        .map(|dtype| (dtype, noise.weights(dtype, HEIGHT, width)));
    for device in devices().iter().map(AsRef::as_ref) {
        let nodes = Part {
            sequence: 0,
            parents: TREE,
            rows: &tree,
            advance: false,
        };
        let root = Part {
            sequence: 0,
            parents: &TREE[..1],
            rows: &tree[..1],
            advance: false,
        };
        for part in [&nodes, &root] {
            let run = |output: Option<Matrix>| {
                let mut layer = Layer::new(device, &model);
                if let Some(output) = output {
                    layer.output = output;
                }
                layer.run(std::slice::from_ref(part), None)
            };
            let answers = upload(device, &run(None));
            for (dtype, bytes) in &weights {
                let matrix = load(device, *dtype, HEIGHT, width, bytes);
                let mut out = zeros(device, part.rows.len() * matrix.rows());
                device.linear(LinearArgs {
                    num_rows: part.rows.len(),
                    x: &answers,
                    norm: None,
                    projections: &mut [Projection {
                        weight: &matrix,
                        out: &mut out,
                    }],
                    accumulate: true,
                });
                let want = download(device, &out);
                let got = run(Some(matrix));
                let what = format!("{dtype}, {} rows on {}", part.rows.len(), device.name());
                assert!(same_bits(&got, &want), "{what}");
            }
        }
    }
}
