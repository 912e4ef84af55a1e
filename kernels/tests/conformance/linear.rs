//! Products with weights of every element type.
//!
//! Against f64 loops on the decoded weights the tolerance is that of 8-bit activations: 1.5 % of the norm of the
//! output. Float weights read f32 activations: 1e-5.

use kernels::{Device, FeedForwardArgs, GatedLinearArgs, LinearArgs, Matrix, Norm, Projection};
use tensor::DType;

use crate::data::{
    Noise, SameBits, decoded, devices, download, for_each_dtype, is_small, load, relative_error,
    same_bits, upload, zeros,
};
use crate::reference::{dot, silu};

fn tolerance(dtype: DType) -> f64 {
    if dtype.is_quantised() { 1.5e-2 } else { 1e-5 }
}

/// Columns that are whole quant blocks, and more than one.
fn columns(dtype: DType) -> usize {
    if dtype.block_len() == 256 { 768 } else { 96 }
}

fn product(device: &dyn Device, matrix: &Matrix, x: &[f32]) -> Vec<f32> {
    normed_product(device, matrix, x, None)
}

fn normed_product(
    device: &dyn Device,
    matrix: &Matrix,
    x: &[f32],
    norm: Option<Norm<'_>>,
) -> Vec<f32> {
    let num_rows = x.len() / matrix.cols();
    let mut out = zeros(device, num_rows * matrix.rows());
    device.linear(LinearArgs {
        num_rows,
        x: &upload(device, x),
        norm,
        projections: &mut [Projection {
            weight: matrix,
            out: &mut out,
        }],
        accumulate: false,
    });
    download(device, &out)
}

#[test]
fn products_agree_with_decoded_weights_and_between_instruction_sets() {
    for_each_dtype(|dtype| {
        let mut noise = Noise(7);
        let cols = columns(dtype);
        for (rows, batch) in [(1, 13), (16, 1), (37, 13), (37, 41)] {
            let bytes = noise.weights(dtype, rows, cols);
            let reference = decoded(dtype, cols, &bytes);
            let x = noise.values(batch * cols);
            let want: Vec<f64> = x
                .chunks_exact(cols)
                .flat_map(|x| reference.iter().map(move |w| dot(w, x)))
                .collect();
            let mut same = SameBits::default();
            for device in devices().iter().map(AsRef::as_ref) {
                let what = format!("{dtype} {rows}x{cols}, {batch} rows on {}", device.name());
                let got = product(device, &load(device, dtype, rows, cols, &bytes), &x);
                let error = relative_error(&got, &want);
                assert!(error < tolerance(dtype), "{what}: {error:e}");
                same.check(device, got, &what);
            }
        }
    });
}

/// Activations are rounded to the same integers everywhere, so only the order of the float additions may tell devices apart, and, with
/// weights of 16 bits, how much of the activations is read.
/// Rows are long enough for every slice, and end inside of a tile.
#[test]
fn products_of_long_rows_differ_by_roundings_alone() {
    for_each_dtype(|dtype| {
        let mut noise = Noise(53);
        let cols = columns(dtype) + 2560;
        let (rows, batch) = (21, 11);
        let bytes = noise.weights(dtype, rows, cols);
        let x = noise.values(batch * cols);
        let cpu = kernels::CpuDevice::with_tier(1, kernels::Tier::Scalar).expect("plain loops");
        let want = product(&cpu, &load(&cpu, dtype, rows, cols, &bytes), &x);
        let want: Vec<f64> = want.into_iter().map(f64::from).collect();
        for device in devices().iter().map(AsRef::as_ref) {
            let got = product(device, &load(device, dtype, rows, cols, &bytes), &x);
            let error = relative_error(&got, &want);
            // Where weights have 16 bits, a GPU reads activations to 2^-18, which is 2.1e-6 in the root mean square.
            let has_short_weights = matches!(dtype, DType::F16 | DType::BF16);
            let is_cpu = device.name().starts_with("cpu");
            let tolerance = if has_short_weights && !is_cpu {
                2.5e-6
            } else {
                2e-6
            };
            assert!(error < tolerance, "{dtype} on {}: {error:e}", device.name());
        }
    });
}

/// The largest integers there are, where a narrow accumulator would saturate.
#[test]
fn extreme_weights_and_activations_agree_between_instruction_sets() {
    for_each_dtype(|dtype| {
        let (rows, cols, batch) = (16, 512, 32);
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let mut bytes = Noise(43).weights(dtype, rows, cols);
            // Scales stay as they are: 0x14 and its like in the high byte of an f16 are finite.
            let scaled = bytes.clone();
            bytes.fill(byte);
            for (i, (b, s)) in bytes.iter_mut().zip(&scaled).enumerate() {
                let at = i % dtype.block_bytes();
                let fields = match dtype {
                    DType::Q2K => 80..84,
                    DType::Q3K => 108..110,
                    DType::Q6K => 208..210,
                    DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => 0..4,
                    _ => 0..2,
                };
                if fields.contains(&at) || !dtype.is_quantised() {
                    *b = *s;
                }
            }
            let x: Vec<f32> = (0..batch * cols)
                .map(|i| if i / cols % 2 == 0 { 1.0 } else { -1.0 })
                .collect();
            let mut same = SameBits::default();
            for device in devices().iter().map(AsRef::as_ref) {
                let matrix = load(device, dtype, rows, cols, &bytes);
                same.check(
                    device,
                    product(device, &matrix, &x),
                    &format!("{dtype} {byte:#x}"),
                );
            }
        }
    });
}

/// With a norm and without: rows that are alone may be made ready elsewhere.
#[test]
fn a_row_does_not_depend_on_its_company() {
    let counts = match is_small() {
        true => &[2, 9, 23][..],
        false => &[2, 7, 8, 9, 16, 23, 33, 64],
    };
    let most = counts.last().copied().unwrap_or_default();
    // Of those that are held against what they are alone.
    let apart = if is_small() { 7 } else { 1 };
    for_each_dtype(|dtype| {
        for device in devices().iter().map(AsRef::as_ref) {
            let mut noise = Noise(11);
            let (rows, cols) = (48, 768);
            let bytes = noise.weights(dtype, rows, cols);
            let matrix = load(device, dtype, rows, cols, &bytes);
            let gamma = upload(device, &noise.values(cols));
            let x = noise.values(most * cols);
            let norm = Norm {
                gamma: &gamma,
                eps: 1e-6,
            };
            for norm in [None, Some(norm)] {
                let alone: Vec<Vec<f32>> = x
                    .chunks_exact(cols)
                    .step_by(apart)
                    .map(|x| normed_product(device, &matrix, x, norm))
                    .collect();
                for &count in counts {
                    let got = normed_product(device, &matrix, &x[..count * cols], norm);
                    for (row, alone) in got.chunks_exact(rows).step_by(apart).zip(&alone) {
                        assert!(
                            same_bits(row, alone),
                            "{dtype}: {count} rows together on {}",
                            device.name()
                        );
                    }
                }
            }
        }
    });
}

/// Lengths that are no whole number of 16 bytes, with floats that have no quant blocks.
#[test]
fn rows_of_any_length_are_normed_and_multiplied() {
    let mut noise = Noise(29);
    for (cols, count) in [(3, 1), (70, 1), (70, 3), (1030, 1), (1030, 9)] {
        let rows = 21;
        let bytes = noise.weights(DType::F32, rows, cols);
        let weights = decoded(DType::F32, cols, &bytes);
        let (x, gamma) = (noise.values(count * cols), noise.values(cols));
        let eps = 1e-5;
        let want: Vec<f64> = x
            .chunks_exact(cols)
            .flat_map(|x| {
                let squares: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
                let by = (squares / cols as f64 + f64::from(eps)).sqrt().recip();
                let normed = x
                    .iter()
                    .zip(&gamma)
                    .map(|(v, g)| (f64::from(v * g) * by) as f32);
                let normed: Vec<f32> = normed.collect();
                weights
                    .iter()
                    .map(move |w| dot(w, &normed))
                    .collect::<Vec<_>>()
            })
            .collect();
        for device in devices().iter().map(AsRef::as_ref) {
            let matrix = load(device, DType::F32, rows, cols, &bytes);
            let gamma = upload(device, &gamma);
            let norm = Norm { gamma: &gamma, eps };
            let got = normed_product(device, &matrix, &x, Some(norm));
            let error = relative_error(&got, &want);
            assert!(
                error < 1e-5,
                "{count} of {cols} on {}: {error:e}",
                device.name()
            );
        }
    }
}

#[test]
fn projections_of_one_call_are_those_of_several_and_accumulate_adds() {
    let mut noise = Noise(47);
    let (cols, batch) = (512, 19);
    let shapes = [
        (DType::Q4K, 40),
        (DType::Q8_0, 17),
        (DType::F32, 5),
        (DType::Q6K, 64),
    ];
    let weights = shapes.map(|(dtype, rows)| noise.weights(dtype, rows, cols));
    let x = noise.values(batch * cols);
    for device in devices().iter().map(AsRef::as_ref) {
        let matrices: Vec<Matrix> = shapes
            .iter()
            .zip(&weights)
            .map(|((dtype, rows), bytes)| load(device, *dtype, *rows, cols, bytes))
            .collect();
        let start: Vec<f32> = (0..batch * 64).map(|i| i as f32).collect();
        let mut outs: Vec<_> = shapes
            .iter()
            .map(|(_, rows)| upload(device, &start[..batch * rows]))
            .collect();
        let mut projections: Vec<_> = matrices
            .iter()
            .zip(&mut outs)
            .map(|(weight, out)| Projection { weight, out })
            .collect();
        device.linear(LinearArgs {
            num_rows: batch,
            x: &upload(device, &x),
            norm: None,
            projections: &mut projections,
            accumulate: true,
        });
        for (matrix, out) in matrices.iter().zip(&outs) {
            let want: Vec<f32> = product(device, matrix, &x)
                .iter()
                .zip(&start)
                .map(|(a, b)| b + a)
                .collect();
            assert!(same_bits(&download(device, out), &want));
        }
    }
}

#[test]
fn gate_and_up_give_swiglu() {
    let mut noise = Noise(17);
    for dtypes in [
        (DType::F32, DType::F32),
        (DType::Q4_0, DType::Q4_0),
        (DType::Q4K, DType::Q6K),
        (DType::Q8_0, DType::Q5K),
    ] {
        let (rows, cols, batch) = (40, 256, 21);
        let gate = noise.weights(dtypes.0, rows, cols);
        let up = noise.weights(dtypes.1, rows, cols);
        let x = noise.values(batch * cols);
        let (g, u) = (decoded(dtypes.0, cols, &gate), decoded(dtypes.1, cols, &up));
        let want: Vec<f64> = x
            .chunks_exact(cols)
            .flat_map(|x| {
                g.iter()
                    .zip(&u)
                    .map(move |(g, u)| silu(dot(g, x)) * dot(u, x))
            })
            .collect();
        let mut same = SameBits::default();
        for device in devices().iter().map(AsRef::as_ref) {
            let gate = load(device, dtypes.0, rows, cols, &gate);
            let up = load(device, dtypes.1, rows, cols, &up);
            let run = |x: &[f32]| {
                let num_rows = x.len() / cols;
                let mut out = zeros(device, num_rows * rows);
                device.gated_linear(GatedLinearArgs {
                    num_rows,
                    x: &upload(device, x),
                    norm: None,
                    gate: &gate,
                    up: &up,
                    out: &mut out,
                });
                download(device, &out)
            };
            let got = run(&x);
            let what = format!("{dtypes:?} on {}", device.name());
            let error = relative_error(&got, &want);
            // Two products, each with its own rounding of the activations.
            assert!(error < 2.0 * tolerance(dtypes.1), "{what}: {error:e}");
            let alone: Vec<f32> = x.chunks_exact(cols).flat_map(run).collect();
            assert!(same_bits(&got, &alone), "{what}: alone");
            same.check(device, got, &what);
        }
    }
}

/// With so many hidden values that GPUs of 4 and of 132 multiprocessors deal them out in whole blocks and a rest, whose sums meet on their way into
/// `down`.
#[test]
fn a_feed_forward_part_is_its_two_products() {
    let (hidden_rows, cols) = (17664, 256);
    let mut noise = Noise(29);
    let weights = [DType::Q4K, DType::Q4K].map(|dtype| noise.weights(dtype, hidden_rows, cols));
    let down = noise.weights(DType::Q6K, cols, hidden_rows);
    let gamma: Vec<f32> = noise.values(cols).iter().map(|v| 1.0 + 0.2 * v).collect();
    for num_rows in [1, 23, 64] {
        let h = noise.values(num_rows * cols);
        let mut same = SameBits::default();
        for device in devices().iter().map(AsRef::as_ref) {
            let [gate, up] =
                [0, 1].map(|i| load(device, DType::Q4K, hidden_rows, cols, &weights[i]));
            let down = load(device, DType::Q6K, cols, hidden_rows, &down);
            let gamma = upload(device, &gamma);
            let norm = Norm {
                gamma: &gamma,
                eps: 1e-6,
            };
            // What is not made there is no number.
            let room = || upload(device, &vec![f32::NAN; num_rows * hidden_rows]);
            let (mut whole, mut apart) = (upload(device, &h), upload(device, &h));
            device.feed_forward(FeedForwardArgs {
                num_rows,
                h: &mut whole,
                norm,
                gate: &gate,
                up: &up,
                down: &down,
                hidden: &mut room(),
            });
            let mut hidden = room();
            device.gated_linear(GatedLinearArgs {
                num_rows,
                x: &apart,
                norm: Some(norm),
                gate: &gate,
                up: &up,
                out: &mut hidden,
            });
            device.linear(LinearArgs {
                num_rows,
                x: &hidden,
                norm: None,
                projections: &mut [Projection {
                    weight: &down,
                    out: &mut apart,
                }],
                accumulate: true,
            });
            let what = format!("{num_rows} rows on {}", device.name());
            let [whole, apart] = [whole, apart].map(|out| download(device, &out));
            assert!(same_bits(&whole, &apart), "{what}");
            assert!(!same_bits(&whole, &h), "{what}: added to");
            same.check(device, whole, &what);
        }
    }
}
