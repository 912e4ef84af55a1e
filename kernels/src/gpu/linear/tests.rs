//! However work is shared, it is the same work.

use super::*;
use crate::device::{Device, MatrixSource, Norm, Projection};
use crate::gpu::driver::DeviceFacts;
use crate::gpu::linear::work::Work;

const COLS: usize = 2304;

/// Weights of a type, with scales that are finite.
fn matrix(device: &GpuDevice, dtype: DType, rows: usize) -> crate::device::Matrix {
    let len = rows * dtype.row_bytes(COLS).expect("whole blocks");
    let bytes: Vec<u8> = (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x3b)
        .collect();
    let source = MatrixSource {
        dtype,
        rows,
        cols: COLS,
        bytes: &bytes,
    };
    device.load_matrix(source).expect("a matrix")
}

/// However the work is shared, results are those of rows alone, to the bit.
#[test]
fn no_shape_changes_a_bit() {
    let device = GpuDevice::emulated().expect("an emulation");
    let gamma: Vec<f32> = (0..COLS).map(|i| 0.5 + (i % 97) as f32 / 64.0).collect();
    let mut given_gamma = device.zeros(COLS).expect("memory");
    device.write(&mut given_gamma, 0, &gamma);
    let norm = Norm {
        gamma: &given_gamma,
        eps: 1e-6,
    };
    let mut in_clusters = Vec::new();
    for (dtype, up, most_rows, norm) in [
        (DType::Q4K, None, 75, Some(norm)),
        (DType::Q8_0, Some(DType::Q6K), 19, None),
        (DType::Q6K, Some(DType::Q5K), 43, None),
        (DType::Q4K, Some(DType::Q4K), 27, Some(norm)),
        (DType::Q2K, Some(DType::Q3K), 11, None),
        (DType::Iq4Xs, None, 30, None),
        (DType::Q8_0, None, 12, None),
        (DType::BF16, None, 67, Some(norm)),
    ] {
        let values: Vec<f32> = (0..most_rows * COLS)
            .map(|i| ((i * 37) % 257) as f32 - 128.0)
            .collect();
        let rows = 150;
        let weight = matrix(&device, dtype, rows);
        let up = up.map(|dtype| matrix(&device, dtype, rows));
        let run = |choose: &dyn Fn(&Work<'_>) -> Vec<Shape>, first: usize, num_rows: usize| {
            let mut part = device.zeros(num_rows * COLS).expect("memory");
            device.write(&mut part, 0, &values[first * COLS..][..num_rows * COLS]);
            let out = device.zeros(num_rows * rows).expect("memory");
            let product = Product {
                weight: weight.on_gpu(),
                up: up.as_ref().map(|up| up.on_gpu()),
                out: out.on_gpu().memory.ptr(),
            };
            let given = Rows {
                num_rows,
                x: &part,
                before: norm.map_or(Before::Nothing, Before::Norm),
                accumulate: false,
            };
            let products = [product];
            let shapes = work_of(&given, &products, choose).expect("products");
            let run = |shape: Shape| {
                device
                    .multiply_in(shape, &given, &products)
                    .expect("products");
                let mut got = vec![0.0; num_rows * rows];
                device.read(&out, 0, &mut got);
                let bits = got.into_iter().map(f32::to_bits);
                (shape, bits.collect::<Vec<_>>())
            };
            shapes.into_iter().map(run).collect::<Vec<_>>()
        };
        let usual = |work: &Work<'_>| Shape::of(work, device.facts()).into_iter().collect();
        let alone: Vec<u32> = (0..most_rows)
            .flat_map(|row| run(&usual, row, 1).remove(0).1)
            .collect();
        for num_rows in [1, 5, most_rows] {
            // On a smaller chip, each block has more to do; on a larger one, less than its warps can take.
            for multiprocessors in if num_rows > 8 { &[3][..] } else { &[2, 40] } {
                let facts = DeviceFacts {
                    multiprocessors: *multiprocessors,
                    ..device.facts().clone()
                };
                // Many: some of each sort.
                let some = match (num_rows, multiprocessors) {
                    (9.., _) => 9,
                    (_, 40) => 3,
                    _ => 1,
                };
                let is_clustered =
                    |shape: &Shape| matches!(shape, Shape::Wide(wide) if wide.cluster > 1);
                let all = |work: &Work<'_>| {
                    let shapes = Shape::all(work, &facts).into_iter();
                    let (clustered, others): (Vec<_>, Vec<_>) = shapes.partition(is_clustered);
                    let clustered = clustered.into_iter().step_by(some / 2 + 1);
                    clustered.chain(others.into_iter().step_by(some)).collect()
                };
                for (shape, got) in run(&all, 0, num_rows) {
                    let what = format!("{dtype}, {num_rows} rows: {shape:?}");
                    assert!(got == alone[..got.len()], "{what}");
                    if is_clustered(&shape) {
                        in_clusters.push(dtype);
                    }
                }
            }
        }
    }
    for dtype in [DType::Iq4Xs, DType::Q8_0] {
        assert!(in_clusters.contains(&dtype), "{dtype}: {in_clusters:?}");
    }
}

/// A block has room for the squares of so many inputs.
#[test]
fn a_norm_of_too_many_inputs_is_an_error() {
    let device = GpuDevice::emulated().expect("an emulation");
    let cols = MOST_NORMED_COLS + 256;
    let source = MatrixSource {
        dtype: DType::BF16,
        rows: 1,
        cols,
        bytes: &vec![0; 2 * cols],
    };
    let weight = device.load_matrix(source).expect("a matrix");
    let zeros = |len| device.zeros(len).expect("memory");
    let (x, gamma, mut out) = (zeros(2 * cols), zeros(cols), zeros(2));
    for num_rows in [1, 2] {
        let args = LinearArgs {
            num_rows,
            x: &x,
            norm: Some(Norm {
                gamma: &gamma,
                eps: 1e-6,
            }),
            projections: &mut [Projection {
                weight: &weight,
                out: &mut out,
            }],
            accumulate: false,
        };
        let error = device.linear_op(args).expect_err("too many inputs");
        let (op, most) = ("linear", MOST_NORMED_COLS);
        let DeviceError::Shape {
            op: of, expected, ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((of, expected), (op, most));
    }
}
