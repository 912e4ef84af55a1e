//! However work is shared, it is the same work.

use super::*;
use crate::buffer::Buffer;
use crate::device::{Device, Matrix, MatrixSource, Norm, Projection};
use crate::gpu::driver::DeviceFacts;
use crate::gpu::linear::work::Work;

const COLS: usize = 2304;
/// So many that there are half as many slices.
const MANY_COLS: usize = 4352;

/// Weights of a type, with scales that are finite.
fn matrix(device: &GpuDevice, dtype: DType, rows: usize, cols: usize) -> Matrix {
    let len = rows * dtype.row_bytes(cols).expect("whole blocks");
    let bytes: Vec<u8> = (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x3b)
        .collect();
    let source = MatrixSource {
        dtype,
        rows,
        cols,
        bytes: &bytes,
    };
    device.load_matrix(source).expect("a matrix")
}

/// However the work is shared, results are those of rows alone, to the bit.
#[test]
fn no_shape_changes_a_bit() {
    let device = GpuDevice::emulated().expect("an emulation");
    let gammas = [COLS, MANY_COLS].map(|cols| {
        let gamma: Vec<f32> = (0..cols).map(|i| 0.5 + (i % 97) as f32 / 64.0).collect();
        let mut given = device.zeros(cols).expect("memory");
        device.write(&mut given, 0, &gamma);
        given
    });
    let [norm, long_norm] = gammas.each_ref().map(|gamma| Norm { gamma, eps: 1e-6 });
    let mut in_clusters = Vec::new();
    for (cols, dtype, up, most_rows, norm) in [
        (COLS, DType::Q4K, None, 75, Some(norm)),
        (COLS, DType::Q8_0, Some(DType::Q6K), 19, None),
        (COLS, DType::Q6K, Some(DType::Q5K), 43, None),
        (COLS, DType::Q4K, Some(DType::Q4K), 27, Some(norm)),
        (COLS, DType::Q2K, Some(DType::Q3K), 11, None),
        (COLS, DType::Iq4Xs, None, 30, None),
        (COLS, DType::Q8_0, None, 12, None),
        (COLS, DType::BF16, None, 67, Some(norm)),
        (MANY_COLS, DType::Q4K, None, 26, Some(long_norm)),
        (MANY_COLS, DType::Q4K, Some(DType::Q6K), 26, None),
        (MANY_COLS, DType::BF16, None, 11, None),
    ] {
        let values: Vec<f32> = (0..most_rows * cols)
            .map(|i| ((i * 37) % 257) as f32 - 128.0)
            .collect();
        let rows = 150;
        let weight = matrix(&device, dtype, rows, cols);
        let up = up.map(|dtype| matrix(&device, dtype, rows, cols));
        let run = |choose: &dyn Fn(&Work) -> Vec<Shape>, first: usize, num_rows: usize| {
            let mut part = device.zeros(num_rows * cols).expect("memory");
            device.write(&mut part, 0, &values[first * cols..][..num_rows * cols]);
            let out = device.zeros(num_rows * rows).expect("memory");
            let before = norm.map_or(Before::Nothing, Before::Norm);
            let given = rows_of(&part, num_rows, before);
            let products = [product_of(&weight, up.as_ref(), &out)];
            let work = Work::of(&given, &products, false).expect("products");
            let shapes = choose(&work);
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
        let usual = |work: &Work| Shape::of(work, device.facts()).into_iter().collect();
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
                let is_rare = |shape: &Shape| matches!(shape, Shape::Wide(wide) if wide.cluster > 1 || wide.is_mixed());
                let all = |work: &Work| {
                    let shapes = Shape::all(work, &facts).into_iter();
                    let (rare, others): (Vec<_>, Vec<_>) = shapes.partition(is_rare);
                    let rare = rare.into_iter().step_by(some / 2 + 1);
                    rare.chain(others.into_iter().step_by(some)).collect()
                };
                for (shape, got) in run(&all, 0, num_rows) {
                    let what = format!("{dtype}, {cols} inputs, {num_rows} rows: {shape:?}");
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

fn rows_of<'a>(x: &'a Buffer, num_rows: usize, before: Before<'a>) -> Rows<'a> {
    Rows {
        num_rows,
        x,
        before,
        accumulate: false,
    }
}

fn product_of<'a>(weight: &'a Matrix, up: Option<&'a Matrix>, out: &Buffer) -> Product<'a> {
    Product {
        weight: weight.on_gpu(),
        up: up.map(|up| up.on_gpu()),
        out: out.on_gpu().memory.ptr(),
    }
}

/// What comes ahead are pieces of the matrices, and of whole units those that the first blocks begin with.
#[test]
fn what_comes_ahead_is_what_is_read_first() {
    let device = GpuDevice::emulated().expect("an emulation");
    let (light, heavy) = (
        matrix(&device, DType::Q4K, 150, MANY_COLS),
        matrix(&device, DType::Q6K, 150, MANY_COLS),
    );
    let x = device.zeros(9 * MANY_COLS).expect("memory");
    let out = device.zeros(9 * 150).expect("memory");
    let rows = rows_of(&x, 9, Before::Nothing);
    let mut clusters = 0;
    for products in [
        vec![product_of(&light, None, &out)],
        vec![product_of(&light, Some(&heavy), &out)],
        vec![
            product_of(&light, None, &out),
            product_of(&heavy, None, &out),
        ],
    ] {
        let facts = device.facts();
        let work = Work::of(&rows, &products, false).expect("products");
        for shape in Wide::all(&work, facts) {
            let ahead = Ahead::of(&shape, &products, facts);
            let pieces = ahead.places();
            for &(at, bytes) in &pieces {
                let is_in = |matrix: &Matrix| {
                    let memory = &matrix.on_gpu().memory;
                    let from = memory.ptr().0;
                    (from..from + memory.bytes() as u64).contains(&at)
                        && at + bytes <= from + memory.bytes() as u64
                };
                assert!(is_in(&light) || is_in(&heavy), "{shape:?}");
            }
            let is_first = |piece: &(u64, u64)| piece.0 == light.on_gpu().memory.ptr().0;
            assert_eq!(pieces.first().is_some_and(is_first), shape.fed, "{shape:?}");
            if shape.cluster > 1 {
                clusters += 1;
                let tiles = products.len() * 150_usize.div_ceil(TILE_ROWS);
                assert_eq!(pieces.len(), tiles * shape.splits, "{shape:?}");
            }
        }
    }
    assert!(clusters > 0);
}

/// Matrices whose weights take longer are split beside others that are not, wherever they stand.
#[test]
fn heavy_ones_apart_change_no_bit() {
    let device = GpuDevice::emulated().expect("an emulation");
    let facts = DeviceFacts {
        multiprocessors: 20,
        ..device.facts().clone()
    };
    let (num_rows, heights) = (19, [80, 200, 48]);
    let dtypes = [DType::Q6K, DType::Q4K, DType::Q4K];
    let weights: Vec<Matrix> = std::iter::zip(dtypes, heights)
        .map(|(dtype, rows)| matrix(&device, dtype, rows, COLS))
        .collect();
    let mut x = device.zeros(num_rows * COLS).expect("memory");
    let values: Vec<f32> = (0..num_rows * COLS)
        .map(|i| ((i * 37) % 257) as f32 - 128.0)
        .collect();
    device.write(&mut x, 0, &values);
    let given = rows_of(&x, num_rows, Before::Nothing);
    let run = |shape: Option<Shape>| {
        let outs = heights.map(|rows| device.zeros(num_rows * rows).expect("memory"));
        let products: Vec<Product<'_>> = std::iter::zip(&weights, &outs)
            .map(|(weight, out)| product_of(weight, None, out))
            .collect();
        let done = match shape {
            Some(shape) => device.multiply_in(shape, &given, &products),
            None => device.multiply(&given, &products),
        };
        done.expect("products");
        let read = |(out, rows): (&Buffer, usize)| {
            let mut got = vec![0.0; num_rows * rows];
            device.read(out, 0, &mut got);
            got.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        std::iter::zip(&outs, heights).map(read).collect::<Vec<_>>()
    };
    let usual = run(None);
    let outs = heights.map(|rows| device.zeros(num_rows * rows).expect("memory"));
    let products: Vec<Product<'_>> = std::iter::zip(&weights, &outs)
        .map(|(weight, out)| product_of(weight, None, out))
        .collect();
    let work = Work::of(&given, &products, false).expect("products");
    let shapes = Shape::all(&work, &facts).into_iter();
    let is_apart = |shape: &Shape| matches!(shape, Shape::Wide(wide) if wide.heavy_apart);
    let shapes: Vec<Shape> = shapes.filter(is_apart).collect();
    assert!(shapes.len() > 2, "{shapes:?}");
    for shape in shapes.into_iter().step_by(3) {
        assert!(run(Some(shape)) == usual, "{shape:?}");
    }
}

/// Sums of splits that meet on their way into `down` are those that meet in the product of gate and up.
#[test]
fn sums_meet_anywhere_to_the_bit() {
    let device = GpuDevice::emulated().expect("an emulation");
    let (num_rows, hidden_rows, down_rows) = (11, 768, 32);
    let load = |values: Vec<f32>| {
        let mut buffer = device.zeros(values.len()).expect("memory");
        device.write(&mut buffer, 0, &values);
        buffer
    };
    let gamma = load((0..COLS).map(|i| 0.5 + (i % 97) as f32 / 64.0).collect());
    let values = (0..num_rows * COLS).map(|i| ((i * 37) % 257) as f32 - 128.0);
    let x = load(values.collect());
    // Of twelve blocks of rows ten have a place at a time.
    let facts = DeviceFacts {
        multiprocessors: 5,
        ..device.facts().clone()
    };
    let [gate, up] = [DType::Q4K, DType::Q6K].map(|t| matrix(&device, t, hidden_rows, COLS));
    let mut left = Vec::new();
    for (dtype, norm) in [
        (DType::Q4K, Some(&gamma)),
        (DType::Q8_0, None),
        (DType::BF16, Some(&gamma)),
    ] {
        let norm = norm.map(|gamma| Norm { gamma, eps: 1e-6 });
        let down = matrix(&device, dtype, down_rows, hidden_rows);
        let given = rows_of(&x, num_rows, norm.map_or(Before::Nothing, Before::Norm));
        let mut run = |shape: Option<Shape>| {
            // What is left is not there.
            let hidden = load(vec![f32::NAN; num_rows * hidden_rows]);
            let gated = product_of(&gate, Some(&up), &hidden);
            let before = match shape {
                Some(shape) => device.multiply_up_to_rest(shape, &given, gated),
                None => device.multiply(&given, &[gated]).map(|()| Before::Nothing),
            };
            let before = before.expect("products");
            if let (Before::Rest(_, splits), Some(Shape::Wide(shape))) = (&before, shape) {
                left.push((*splits, shape.cuts > 1));
            }
            let out = load(vec![f32::NAN; num_rows * down_rows]);
            let product = product_of(&down, None, &out);
            let result = device.multiply(&rows_of(&hidden, num_rows, before), &[product]);
            result.expect("a product");
            let mut got = vec![0.0; num_rows * down_rows];
            device.read(&out, 0, &mut got);
            got.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let want = run(None);
        let hidden = load(vec![0.0; num_rows * hidden_rows]);
        let gated = [product_of(&gate, Some(&up), &hidden)];
        let work = Work::of(&given, &gated, false).expect("products");
        let leaves =
            |shape: &Shape| matches!(shape, Shape::Wide(wide) if wide.leaves_rest(hidden_rows));
        let some = Shape::all(&work, &facts).into_iter().filter(leaves);
        let is_cut = |shape: &Shape| matches!(shape, Shape::Wide(wide) if wide.cuts > 1);
        let (cut, others): (Vec<_>, Vec<_>) = some.partition(is_cut);
        let others = others.into_iter().step_by(7);
        for shape in cut.into_iter().chain(others) {
            assert!(run(Some(shape)) == want, "{dtype} behind {shape:?}");
        }
    }
    for splits in [2, 4, 8] {
        for are_cut in [false, true] {
            let known = left.iter().filter(|of_one| **of_one == (splits, are_cut));
            assert!(known.count() > 1, "{splits}, cut: {are_cut}: {left:?}");
        }
    }
}

/// What was compiled for some rows is what others of their number, or fewer, are multiplied with.
#[test]
fn products_of_other_rows_find_their_kernels() {
    let device = GpuDevice::emulated().expect("an emulation");
    let (cols, rows, most) = (512, 80, 20);
    let weight = matrix(&device, DType::Q8_0, rows, cols);
    let x = device.zeros(most * cols).expect("memory");
    let out = device.zeros(most * rows).expect("memory");
    let multiply = |num_rows| {
        let products = [product_of(&weight, None, &out)];
        let done = device.multiply(&rows_of(&x, num_rows, Before::Nothing), &products);
        done.expect("products");
    };
    multiply(2);
    let before = device.modules.count_of("matmul");
    device.compile_for_rows(most);
    let ahead = device.modules.count_of("matmul");
    assert!(ahead > before, "{before}, {ahead}");
    (2..=most).for_each(multiply);
    assert_eq!(device.modules.count_of("matmul"), ahead);
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
