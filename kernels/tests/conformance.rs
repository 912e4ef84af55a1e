//! Every operation of a device against plain loops on decoded weights, over all element types and instruction sets.
//!
//! Instruction sets must agree bit for bit, and a row must not depend on the rows that share its call. Against f32
//! loops on the decoded weights the tolerance is that of 8-bit activations: 1.5 % of the norm of the output.

use kernels::{
    CpuDevice, Device, GatedLinearArgs, LinearArgs, Matrix, MatrixSource, Projection, Tier,
};
use tensor::DType;

/// A deterministic stream in -1..1 (SplitMix64).
struct Noise(u64);

impl Noise {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| (self.word() >> 40) as f32 / (1 << 23) as f32 - 1.0)
            .collect()
    }
}

/// Random bytes that are valid blocks: every f16 scale field is made small and finite.
fn weights(dtype: DType, rows: usize, cols: usize, noise: &mut Noise) -> Vec<u8> {
    let total = rows * dtype.row_bytes(cols).expect("whole blocks");
    let mut bytes: Vec<u8> = (0..total).map(|_| noise.word() as u8).collect();
    let scales: &[usize] = match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::Iq4Nl | DType::Iq4Xs => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        DType::F32 => {
            let values = noise.values(rows * cols);
            return values.iter().flat_map(|v| v.to_le_bytes()).collect();
        }
        DType::F16 | DType::BF16 => &[0],
    };
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        for &at in scales {
            // 0x14..0x1b in the high byte: f16 of 2^-10 to 2^-9, bf16 of about 1e-26 to 1e-22 is avoided below.
            block[at + 1] = if dtype == DType::BF16 {
                0x3c | (block[at + 1] & 0x81)
            } else {
                0x14 | (block[at + 1] & 0x87)
            };
        }
    }
    bytes
}

fn decoded(dtype: DType, cols: usize, bytes: &[u8]) -> Vec<Vec<f32>> {
    bytes
        .chunks_exact(dtype.row_bytes(cols).expect("whole blocks"))
        .map(|row| {
            let mut out = vec![0.0; cols];
            tensor::decode_row(dtype, row, &mut out).expect("a valid row");
            out
        })
        .collect()
}

fn product(device: &dyn Device, matrix: &Matrix, x: &[f32], rows: usize) -> Vec<f32> {
    let mut input = device.zeros(x.len()).expect("memory");
    device.write(&mut input, 0, x);
    let mut out = device.zeros(rows * matrix.rows()).expect("memory");
    device.linear(LinearArgs {
        num_rows: rows,
        x: &input,
        norm: None,
        projections: &mut [Projection {
            weight: matrix,
            out: &mut out,
        }],
        accumulate: false,
    });
    let mut host = vec![0.0; out.len()];
    device.read(&out, 0, &mut host);
    host
}

fn devices() -> Vec<CpuDevice> {
    let mut out = Vec::new();
    for tier in Tier::ALL {
        match CpuDevice::with_tier(2, *tier) {
            Ok(device) => out.push(device),
            Err(why) => eprintln!("skipped: {why}"),
        }
    }
    out
}

#[test]
fn products_agree_with_decoded_weights_and_between_instruction_sets() {
    let mut noise = Noise(7);
    for &dtype in DType::ALL {
        let cols = if dtype.block_len() == 256 { 768 } else { 96 };
        for rows in [1, 16, 37] {
            let bytes = weights(dtype, rows, cols, &mut noise);
            let reference = decoded(dtype, cols, &bytes);
            let columns = 13;
            let x = noise.values(columns * cols);
            let mut first: Option<Vec<f32>> = None;
            for device in devices() {
                let matrix = device
                    .load_matrix(MatrixSource {
                        dtype,
                        rows,
                        cols,
                        bytes: &bytes,
                    })
                    .expect("loads");
                let got = product(&device, &matrix, &x, columns);
                let (mut error, mut norm) = (0.0_f64, 0.0_f64);
                for c in 0..columns {
                    for (r, w) in reference.iter().enumerate() {
                        let want: f64 = w
                            .iter()
                            .zip(&x[c * cols..])
                            .map(|(w, x)| f64::from(*w) * f64::from(*x))
                            .sum();
                        error += (want - f64::from(got[c * rows + r])).powi(2);
                        norm += want * want;
                    }
                }
                let limit = if dtype.is_quantised() { 1.5e-2 } else { 1e-5 };
                let relative = (error / norm).sqrt();
                assert!(
                    relative < limit,
                    "{dtype} {rows}x{cols} on {}: {relative}",
                    device.name()
                );
                match &first {
                    None => first = Some(got),
                    Some(first) => assert!(
                        same_bits(first, &got),
                        "{dtype} {rows}x{cols}: {} differs",
                        device.name()
                    ),
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_company() {
    let mut noise = Noise(11);
    let device = CpuDevice::new(2).expect("a device");
    for &dtype in DType::ALL {
        let (rows, cols) = (48, 512);
        let bytes = weights(dtype, rows, cols, &mut noise);
        let matrix = device
            .load_matrix(MatrixSource {
                dtype,
                rows,
                cols,
                bytes: &bytes,
            })
            .expect("loads");
        let x = noise.values(64 * cols);
        let alone: Vec<f32> = x
            .chunks_exact(cols)
            .flat_map(|x| product(&device, &matrix, x, 1))
            .collect();
        for count in [2, 7, 8, 9, 16, 23, 33, 64] {
            let got = product(&device, &matrix, &x[..count * cols], count);
            assert!(
                same_bits(&got, &alone[..count * rows]),
                "{dtype}: {count} rows together"
            );
        }
    }
}

#[test]
fn embedding_rows_are_the_decoded_rows() {
    let mut noise = Noise(13);
    let device = CpuDevice::new(1).expect("a device");
    for &dtype in DType::ALL {
        let (rows, cols) = (19, 256);
        let bytes = weights(dtype, rows, cols, &mut noise);
        let matrix = device
            .load_matrix(MatrixSource {
                dtype,
                rows,
                cols,
                bytes: &bytes,
            })
            .expect("loads");
        let mut out = device.zeros(2 * cols).expect("memory");
        device.embed(&matrix, &[18, 3], &mut out);
        let mut got = vec![0.0; 2 * cols];
        device.read(&out, 0, &mut got);
        let reference = decoded(dtype, cols, &bytes);
        for (got, want) in got.iter().zip(reference[18].iter().chain(&reference[3])) {
            assert!(
                (got - want).abs() <= 1e-6 * want.abs().max(1e-3),
                "{dtype}: {got} against {want}"
            );
        }
    }
}

#[test]
fn gate_and_up_give_swiglu() {
    let mut noise = Noise(17);
    for device in devices() {
        let (rows, cols) = (24, 64);
        let (gate, up) = (noise.values(rows * cols), noise.values(rows * cols));
        let bytes = |v: &[f32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let load = |v: &[f32]| {
            device
                .load_matrix(MatrixSource {
                    dtype: DType::F32,
                    rows,
                    cols,
                    bytes: &bytes(v),
                })
                .expect("loads")
        };
        let x = noise.values(cols);
        let mut input = device.zeros(cols).expect("memory");
        device.write(&mut input, 0, &x);
        let mut out = device.zeros(rows).expect("memory");
        device.gated_linear(GatedLinearArgs {
            num_rows: 1,
            x: &input,
            norm: None,
            gate: &load(&gate),
            up: &load(&up),
            out: &mut out,
        });
        let mut got = vec![0.0; rows];
        device.read(&out, 0, &mut got);
        for r in 0..rows {
            let dot = |w: &[f32]| -> f64 {
                (0..cols)
                    .map(|c| f64::from(w[r * cols + c]) * f64::from(x[c]))
                    .sum()
            };
            let (g, u) = (dot(&gate), dot(&up));
            let want = g / (1.0 + (-g).exp()) * u;
            assert!(
                (f64::from(got[r]) - want).abs() < 1e-5 * want.abs().max(1.0),
                "{}: {} {want}",
                device.name(),
                got[r]
            );
        }
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
