//! The matrix unit's way through a product against the vector units' way.

use super::*;
use crate::cpu::lanes::Scalar;
use crate::cpu::pack::Layout;
use crate::device::MatrixSource;

/// A deterministic stream of words (an LCG's upper half).
fn noise(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    }
}

/// Random integers with f16 scales of 2^-10 to 2^-9.
fn weights(dtype: DType, rows: usize, cols: usize) -> PackedMatrix {
    let scales = match dtype {
        DType::Q2K => 80..84,
        DType::Q3K => 108..110,
        DType::Q6K => 208..210,
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => 0..4,
        _ => 0..2,
    };
    let mut word = noise(dtype.ggml_id().into());
    let mut bytes = vec![0; rows * dtype.row_bytes(cols).expect("whole blocks")];
    bytes.fill_with(|| word() as u8);
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        for scale in block[scales.clone()].chunks_exact_mut(2) {
            scale[1] = scale[1] & 0x83 | 0x14;
        }
    }
    PackedMatrix::pack(MatrixSource {
        dtype,
        rows,
        cols,
        bytes: &bytes,
    })
    .expect("a matrix that packs")
}

fn activations(num_columns: usize, len: usize) -> Activations {
    let mut word = noise(5);
    let mut out = Activations {
        num_columns,
        len,
        ..Activations::default()
    };
    out.values.resize_with(num_columns * len, || {
        (word() >> 7) as f32 / (1 << 23) as f32 - 1.0
    });
    for (form, group) in [(&mut out.by32, 32), (&mut out.by256, 256)] {
        if !len.is_multiple_of(group) {
            continue;
        }
        form.resize(num_columns, len, group);
        let (scale, sums) = (&mut form.scale[..], &mut form.sums[..]);
        // SAFETY: plain loops run anywhere.
        unsafe { quantise_row::<Scalar>(&out.values, group, &mut form.q, scale, sums) };
        form.columns.resize(num_columns, len, group);
        for column in 0..num_columns {
            let part = |len: usize| column * len..(column + 1) * len;
            let q = &form.q[part(len)];
            let (scale, sums) = (&form.scale[part(len / group)], &form.sums[part(len / 16)]);
            // SAFETY: the vectors were sized above.
            unsafe { form.columns.places().put(column, q, scale, sums) };
        }
    }
    out
}

fn product<L: Lanes>(w: &PackedMatrix, up: bool, x: &Activations, tiles: Tiles) -> Vec<u32> {
    let mut out = vec![0.0; x.num_columns * w.rows];
    let part = Part {
        products: &[Product {
            weight: w,
            up: up.then_some(w),
            out: Shared::new(&mut out),
            store: Store::Overwrite,
        }],
        x,
        queue: &Queue::new(),
        threads: 1,
        tiles,
    };
    // SAFETY: the callers below name instruction sets that are there, and `out` holds all outputs.
    unsafe { L::vectorize(part) };
    out.iter().map(|v| v.to_bits()).collect()
}

/// Everything around the instructions: the layout of tiles, their operands, offsets, digits, and the order of sums.
#[test]
fn emulated_tiles_give_the_bits_of_dot_products() {
    for &dtype in DType::ALL.iter().filter(|d| d.is_quantised()) {
        // Some panels, or a part of one with an odd unit.
        let odd = if Layout::of(dtype).group == 32 {
            352
        } else {
            256
        };
        for (len, columns, up) in [
            (768, 15, false),
            (768, 16, true),
            (768, 35, false),
            (odd, 101, true),
        ] {
            let w = weights(dtype, 37, len);
            let x = activations(columns, len);
            let want = product::<Scalar>(&w, up, &x, Tiles::None);
            let got = product::<Scalar>(&w, up, &x, Tiles::Emulated);
            assert!(got == want, "{dtype}, {len} inputs, {columns} columns");
            #[cfg(target_arch = "x86_64")]
            if crate::cpu::Tier::Avx512Vnni.is_available() {
                let got = product::<crate::cpu::lanes::Avx512>(&w, up, &x, Tiles::Emulated);
                assert!(
                    got == want,
                    "{dtype}, {len} inputs, {columns} columns, avx512"
                );
            }
        }
    }
}
