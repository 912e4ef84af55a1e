//! Operations on single rows: norm, embedding, gather.

use kernels::{LinearArgs, Norm, Projection};
use tensor::DType;

use crate::data::{
    Noise, SameBits, bytes_of, decoded, devices, download, load, relative_error, same_bits, upload,
    zeros,
};
use crate::reference::rms_norm;

/// The f32 identity lets a row pass through a product unchanged, so the norm in front of it shows bit for bit.
#[test]
fn the_norm_of_a_product_is_the_root_mean_square_norm() {
    let mut noise = Noise(37);
    for len in [16, 100, 576] {
        let mut identity = vec![0.0; len * len];
        (0..len).for_each(|i| identity[i * len + i] = 1.0);
        let (gamma, eps) = (noise.values(len), 1e-5);
        let x = noise.values(5 * len);
        let want: Vec<f64> = x
            .chunks_exact(len)
            .flat_map(|x| {
                let x: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
                rms_norm(&x, &gamma, eps)
            })
            .collect();
        let mut same = SameBits::default();
        for device in devices().iter().map(AsRef::as_ref) {
            let identity = load(device, DType::F32, len, len, &bytes_of(&identity));
            let gamma = upload(device, &gamma);
            let run = |x: &[f32]| {
                let mut out = zeros(device, x.len());
                device.linear(LinearArgs {
                    num_rows: x.len() / len,
                    x: &upload(device, x),
                    norm: Some(Norm { gamma: &gamma, eps }),
                    projections: &mut [Projection {
                        weight: &identity,
                        out: &mut out,
                    }],
                    accumulate: false,
                });
                download(device, &out)
            };
            let got = run(&x);
            // One rounding each for the sum, its root, the quotient and two products.
            let error = relative_error(&got, &want);
            assert!(error < 5e-7, "{len} on {}: {error:e}", device.name());
            let alone: Vec<f32> = x.chunks_exact(len).flat_map(run).collect();
            assert!(same_bits(&got, &alone), "{len} on {}", device.name());
            same.check(device, got, &device.name());
        }
    }
}

#[test]
fn embedding_rows_are_the_decoded_rows() {
    let mut noise = Noise(13);
    for &dtype in DType::ALL {
        let (rows, cols) = (19, 256);
        let bytes = noise.weights(dtype, rows, cols);
        let reference = decoded(dtype, cols, &bytes);
        for device in devices().iter().map(AsRef::as_ref) {
            let matrix = load(device, dtype, rows, cols, &bytes);
            let mut out = zeros(device, 2 * cols);
            device.embed(&matrix, &[18, 3], &mut out);
            let got = download(device, &out);
            for (got, want) in got.iter().zip(reference[18].iter().chain(&reference[3])) {
                // `d s q - m t` may be associated in two ways.
                assert!(
                    (got - want).abs() <= 1e-6 * want.abs().max(1e-3),
                    "{dtype}: {got} against {want}"
                );
            }
        }
    }
}

#[test]
fn gathered_rows_are_copies() {
    let x = Noise(41).values(6 * 24);
    for device in devices().iter().map(AsRef::as_ref) {
        let mut out = zeros(device, 3 * 24);
        device.gather_rows(&upload(device, &x), 24, &[5, 0, 5], &mut out);
        let want = [&x[120..144], &x[..24], &x[120..144]].concat();
        assert!(same_bits(&download(device, &out), &want));
    }
}

#[test]
fn a_buffer_copies_its_own_values_forwards_and_backwards() {
    let values = Noise(41).values(40);
    for device in devices().iter().map(AsRef::as_ref) {
        for (from, to) in [(0..7, 30), (33..40, 2), (5..10, 10), (4..4, 40)] {
            let mut buffer = upload(device, &values);
            buffer.copy_own(from.clone(), to);
            let mut want = values.clone();
            want.copy_within(from, to);
            assert!(
                same_bits(&download(device, &buffer), &want),
                "{}",
                device.name()
            );
        }
    }
}
