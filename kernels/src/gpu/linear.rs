//! Products with weight matrices: see gpu/activate.cu, gpu/matmul.cu and gpu/matmul_wide.cu.

mod wide;

use tensor::DType;

use crate::buffer::Buffer;
use crate::device::{GatedLinearArgs, LinearArgs, Norm};
use crate::error::DeviceError;
use crate::gpu::device::{GpuDevice, Scratch};
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::linear::wide::{Shape, WideArgs};
use crate::gpu::matrix::{Form, GpuMatrix, TILE_ROWS, pack_source};

/// Rows of the batch that stand beside each other in a fragment; *columns* of a product.
const COLUMNS: usize = 8;
/// Matrices of a launch.
const MAX_JOBS: usize = 8;
const ACTIVATE_THREADS: u32 = 256;
/// Inputs that a thread block of it does.
const ACTIVATE_COLS: usize = 2048;

/// See gpu/activations.h.
#[derive(Clone, Copy)]
#[repr(C)]
struct Activations {
    by256: DevicePtr,
    by32: DevicePtr,
    floats: DevicePtr,
}

/// See gpu/activate.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct ActivateArgs {
    x: DevicePtr,
    gamma: DevicePtr,
    to: Activations,
    cols: u32,
    eps: f32,
}

/// See gpu/matmul.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct Job {
    weights: [DevicePtr; 2],
    out: DevicePtr,
    types: [u32; 2],
    rows: u32,
    first_block: u32,
}

const NO_JOB: Job = Job {
    weights: [DevicePtr::NULL; 2],
    out: DevicePtr::NULL,
    types: [0; 2],
    rows: 0,
    first_block: 0,
};

/// See gpu/matmul.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct MatmulArgs {
    jobs: [Job; MAX_JOBS],
    x: Activations,
    num_jobs: u32,
    cols: u32,
    num_rows: u32,
    accumulate: u32,
}

/// Columns that gpu/matmul.cu multiplies; more are for gpu/matmul_wide.cu.
const NARROW: usize = COLUMNS;
/// Slices of the inputs, each of which a warp of gpu/matmul.cu adds up.
const SLICES: u32 = 8;

/// What is multiplied: a matrix, or a gate and up pair.
struct Product<'a> {
    weight: &'a GpuMatrix,
    up: Option<&'a GpuMatrix>,
    out: DevicePtr,
}

/// What is multiplied with, and how.
#[derive(Clone, Copy)]
struct Rows<'a> {
    num_rows: usize,
    x: &'a Buffer,
    norm: Option<Norm<'a>>,
    accumulate: bool,
}

/// Bit mask of the types of matrices.
fn types_of(products: &[Product<'_>]) -> u32 {
    let weights = products.iter().flat_map(|p| [Some(p.weight), p.up]);
    let ids = weights.flatten().map(|weight| weight.dtype.ggml_id());
    ids.fold(0, |types, id| types | 1 << id)
}

fn activate_source() -> Source {
    Source {
        name: "activate.cu",
        text: include_str!("../../gpu/activate.cu"),
        defines: Vec::new(),
    }
}

/// `types`: bit mask of the types in use.
fn narrow_source(types: u32, gated: bool) -> Source {
    Source {
        name: "matmul.cu",
        text: include_str!("../../gpu/matmul.cu"),
        defines: vec![
            ("TYPES", types.to_string()),
            ("ROW_WARPS", if gated { "2" } else { "1" }.to_owned()),
            ("GATED", u32::from(gated).to_string()),
        ],
    }
}

/// All that this module and [`crate::gpu::matrix`] launch, with types of published models; see [`crate::gpu::sources`].
pub(super) fn sources() -> Vec<Source> {
    let types = |dtypes: &[DType]| dtypes.iter().fold(0, |mask, d| mask | 1 << d.ggml_id());
    let mut sources = vec![activate_source(), pack_source()];
    for (dtypes, gated) in [
        (&[DType::Q4K, DType::Q6K][..], true),
        (&[DType::Q5K, DType::Q8_0, DType::F32], false),
        (&[DType::BF16], true),
    ] {
        sources.push(narrow_source(types(dtypes), gated));
    }
    sources.extend(wide::sources(types(&[DType::Q4K, DType::Q6K])));
    sources.extend(wide::sources(types(&[DType::Q5K, DType::Q8_0])).drain(..2));
    sources.extend(wide::sources(types(&[DType::BF16])).drain(..1));
    // The types that the rest leaves out.
    let rest = [
        DType::F16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q2K,
        DType::Q3K,
        DType::Iq4Nl,
        DType::Iq4Xs,
    ];
    sources.push(narrow_source(types(&rest), false));
    sources
}

fn check(what: &str, got: usize, expected: usize) {
    assert!(
        got >= expected,
        "linear: {what} holds {got} values, {expected} are needed"
    );
}

impl GpuDevice {
    pub(super) fn linear_op(&self, args: LinearArgs<'_, '_>) -> Result<(), DeviceError> {
        let mut products = Vec::with_capacity(args.projections.len());
        for projection in args.projections.iter() {
            let weight = projection.weight.on_gpu();
            check("out", projection.out.len(), args.num_rows * weight.rows);
            products.push(Product {
                weight,
                up: None,
                out: projection.out.on_gpu().memory.ptr(),
            });
        }
        let rows = Rows {
            num_rows: args.num_rows,
            x: args.x,
            norm: args.norm,
            accumulate: args.accumulate,
        };
        for products in products.chunks(MAX_JOBS) {
            self.multiply(&rows, products)?;
        }
        Ok(())
    }

    pub(super) fn gated_linear_op(&self, args: GatedLinearArgs<'_>) -> Result<(), DeviceError> {
        let (weight, up) = (args.gate.on_gpu(), args.up.on_gpu());
        assert_eq!(
            (weight.rows, weight.cols),
            (up.rows, up.cols),
            "gate and up differ"
        );
        check("out", args.out.len(), args.num_rows * weight.rows);
        let product = Product {
            weight,
            up: Some(up),
            out: args.out.on_gpu().memory.ptr(),
        };
        let rows = Rows {
            num_rows: args.num_rows,
            x: args.x,
            norm: args.norm,
            accumulate: false,
        };
        self.multiply(&rows, &[product])
    }

    /// Products of one kind, with or without a second matrix.
    fn multiply(&self, rows: &Rows<'_>, products: &[Product<'_>]) -> Result<(), DeviceError> {
        let Some(first) = products.first().filter(|_| rows.num_rows > 0) else {
            return Ok(());
        };
        if rows.num_rows <= NARROW {
            return self.multiply_in(None, rows, products);
        }
        let heights: Vec<usize> = products.iter().map(|p| p.weight.rows).collect();
        let matrices = if first.up.is_some() { 2 } else { 1 };
        let shape = Shape::of(
            rows.num_rows,
            &heights,
            first.weight.cols,
            matrices,
            types_of(products),
            self.facts(),
        );
        let shape = shape.ok_or_else(|| DeviceError::Driver {
            what: "products need more shared memory than a block can have".to_owned(),
        })?;
        self.multiply_in(Some(shape), rows, products)
    }

    /// In a shape of gpu/matmul_wide.cu, or by gpu/matmul.cu.
    fn multiply_in(
        &self,
        wide: Option<Shape>,
        rows: &Rows<'_>,
        products: &[Product<'_>],
    ) -> Result<(), DeviceError> {
        let Some(first) = products.first() else {
            return Ok(());
        };
        let (cols, gated) = (first.weight.cols, first.up.is_some());
        for product in products {
            assert_eq!(product.weight.cols, cols, "projections of one input");
        }
        let types = types_of(products);
        let columns = wide.map_or(COLUMNS, |shape| shape.columns());
        let activations = self.activate(rows, columns, cols, types)?;
        let block_rows = wide.map_or(TILE_ROWS, |shape| shape.block_rows());
        let mut args = MatmulArgs {
            jobs: [NO_JOB; MAX_JOBS],
            x: activations,
            num_jobs: 0,
            cols: cols as u32,
            num_rows: rows.num_rows as u32,
            accumulate: u32::from(rows.accumulate),
        };
        let mut blocks = 0;
        for product in products.iter().filter(|product| product.weight.rows > 0) {
            let up = product.up.unwrap_or(product.weight);
            args.jobs[args.num_jobs as usize] = Job {
                weights: [product.weight.memory.ptr(), up.memory.ptr()],
                out: product.out,
                types: [product.weight.dtype.ggml_id(), up.dtype.ggml_id()],
                rows: product.weight.rows as u32,
                first_block: blocks,
            };
            args.num_jobs += 1;
            blocks += product.weight.rows.div_ceil(block_rows) as u32;
        }
        match wide {
            Some(shape) => self.launch_wide(&shape, types, blocks, &args),
            None => {
                let row_warps = if gated { 2 } else { 1 };
                let warps = row_warps * SLICES;
                let launch = Launch {
                    grid: [blocks, 1, 1],
                    threads: 32 * warps,
                    shared_bytes: 0,
                };
                self.launch(&narrow_source(types, gated), "matmul", launch, &args)
            }
        }
    }

    fn launch_wide(
        &self,
        shape: &Shape,
        types: u32,
        row_blocks: u32,
        args: &MatmulArgs,
    ) -> Result<(), DeviceError> {
        let units = shape.units(row_blocks as usize);
        let grid = shape.grid(units, self.facts());
        let outputs = row_blocks as usize * shape.column_blocks;
        let args = WideArgs {
            parts: self.scratch(Scratch::Partials, shape.parts_bytes(outputs, grid))?,
            tickets: self.scratch(Scratch::Tickets, 4 * outputs)?,
            jobs: args.jobs,
            x: args.x,
            num_jobs: args.num_jobs,
            cols: args.cols,
            num_rows: args.num_rows,
            accumulate: args.accumulate,
            matrices: shape.matrices as u32,
            splits: shape.splits as u32,
            column_blocks: shape.column_blocks as u32,
            units: units as u32,
        };
        let launch = Launch {
            grid: [grid as u32, 1, 1],
            threads: shape.threads() as u32,
            shared_bytes: shape.shared_bytes as u32,
        };
        self.launch(&shape.source(types), "matmul_wide", launch, &args)
    }

    /// Rows in the forms that products with `types` read, in scratch memory; `columns`: how many products read, though
    /// what they make of more than there are is not used.
    fn activate(
        &self,
        rows: &Rows<'_>,
        columns: usize,
        cols: usize,
        types: u32,
    ) -> Result<Activations, DeviceError> {
        let Rows {
            num_rows, x, norm, ..
        } = *rows;
        check("x", x.len(), num_rows * cols);
        if let Some(norm) = norm {
            check("gamma", norm.gamma.len(), cols);
        }
        let mut bytes = 0;
        let places = [Form::By256, Form::By32, Form::Floats].map(|form| {
            let read =
                |dtype: &&DType| types >> dtype.ggml_id() & 1 == 1 && Form::of(**dtype) == form;
            DType::ALL.iter().find(read)?;
            let place = bytes;
            bytes += columns / COLUMNS * cols.div_ceil(form.cols()) * form.block_bytes();
            bytes = bytes.next_multiple_of(256);
            Some(place)
        });
        let scratch = self.scratch(Scratch::Activations, bytes)?;
        let [by256, by32, floats] =
            places.map(|place| place.map_or(DevicePtr::NULL, |place| scratch.add(place)));
        let to = Activations {
            by256,
            by32,
            floats,
        };
        let args = ActivateArgs {
            x: x.on_gpu().memory.ptr(),
            gamma: norm.map_or(DevicePtr::NULL, |norm| norm.gamma.on_gpu().memory.ptr()),
            to,
            cols: cols as u32,
            eps: norm.map_or(0.0, |norm| norm.eps),
        };
        let launch = Launch {
            grid: [num_rows as u32, cols.div_ceil(ACTIVATE_COLS) as u32, 1],
            threads: ACTIVATE_THREADS,
            shared_bytes: 0,
        };
        self.launch(&activate_source(), "activate", launch, &args)?;
        Ok(to)
    }
}

impl Form {
    /// Bytes of a block of activations: see gpu/activations.h.
    fn block_bytes(self) -> usize {
        match self {
            Self::By256 => 4 * 512 + 256 + 32,
            Self::By32 => 512 + 64 + 64,
            Self::Floats => 3 * 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, MatrixSource};

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
        for (dtype, up, num_rows) in [
            (DType::Q4K, None, 75),
            (DType::Q8_0, Some(DType::Q6K), 19),
            (DType::BF16, None, 67),
        ] {
            let values: Vec<f32> = (0..num_rows * COLS)
                .map(|i| ((i * 37) % 257) as f32 - 128.0)
                .collect();
            let rows = 150;
            let weight = matrix(&device, dtype, rows);
            let up = up.map(|dtype| matrix(&device, dtype, rows));
            let run = |shape: Option<Shape>, first: usize, num_rows: usize| {
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
                    norm: None,
                    accumulate: false,
                };
                device
                    .multiply_in(shape, &given, &[product])
                    .expect("products");
                let mut got = vec![0.0; num_rows * rows];
                device.read(&out, 0, &mut got);
                got.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let alone: Vec<u32> = (0..num_rows).flat_map(|row| run(None, row, 1)).collect();
            let types = [Some(dtype), up.as_ref().map(|up| up.on_gpu().dtype)];
            let types = types
                .iter()
                .flatten()
                .fold(0, |types, d| types | 1 << d.ggml_id());
            let matrices = if up.is_some() { 2 } else { 1 };
            for most in [16, 2] {
                for shape in Shape::all(num_rows, matrices, types, most, device.facts()) {
                    let got = run(Some(shape), 0, num_rows);
                    assert!(got == alone, "{dtype}: {shape:?}");
                }
            }
        }
    }
}
