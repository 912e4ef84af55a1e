//! Products with weight matrices: see gpu/activate.cu and gpu/matmul.cu.

use tensor::DType;

use crate::buffer::Buffer;
use crate::device::{GatedLinearArgs, LinearArgs, Norm};
use crate::error::DeviceError;
use crate::gpu::device::{GpuDevice, Scratch};
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::matrix::{Form, GpuMatrix, TILE_ROWS};

/// Rows of the batch that stand beside each other in a fragment; *columns* of a product.
const COLUMNS: usize = 8;
/// Column tiles of a thread block, at most.
const MAX_COLUMN_TILES: usize = 8;
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

/// How a launch of gpu/matmul.cu shares the work among warps. It changes no result.
#[derive(Clone, Copy, Debug)]
struct Shape {
    column_tiles: usize,
    /// Row tiles of a thread block, twice as many warps where there are two matrices.
    row_tiles: usize,
    /// Warps that share the inputs of a row.
    k_warps: usize,
}

impl Shape {
    fn of(num_rows: usize, is_gated: bool) -> Self {
        let column_tiles = match num_rows.div_ceil(COLUMNS) {
            tiles @ 1..=4 => tiles,
            5..=6 => 6,
            _ => MAX_COLUMN_TILES,
        };
        let (row_tiles, k_warps) = match column_tiles {
            // Two blocks to a multiprocessor: one begins where the other ends.
            1 if is_gated => (1, 4),
            1 => (1, 8),
            2..=4 => (2, 4),
            _ => (2, 2),
        };
        Self {
            column_tiles,
            row_tiles,
            k_warps,
        }
    }
}

/// What is multiplied: a matrix, or a gate and up pair.
struct Product<'a> {
    weight: &'a GpuMatrix,
    up: Option<&'a GpuMatrix>,
    out: DevicePtr,
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
        for products in products.chunks(MAX_JOBS) {
            self.multiply(args.num_rows, args.x, args.norm, products, args.accumulate)?;
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
        self.multiply(args.num_rows, args.x, args.norm, &[product], false)
    }

    /// Products of one kind, with or without a second matrix.
    fn multiply(
        &self,
        num_rows: usize,
        x: &Buffer,
        norm: Option<Norm<'_>>,
        products: &[Product<'_>],
        accumulate: bool,
    ) -> Result<(), DeviceError> {
        let Some(first) = products.first().filter(|_| num_rows > 0) else {
            return Ok(());
        };
        let (cols, gated) = (first.weight.cols, first.up.is_some());
        let mut types = 0_u32;
        for product in products {
            assert_eq!(product.weight.cols, cols, "projections of one input");
            for weight in [Some(product.weight), product.up].into_iter().flatten() {
                types |= 1 << weight.dtype.ggml_id();
            }
        }
        let activations = self.activate(num_rows, x, cols, norm, types)?;
        let shape = Shape::of(num_rows, gated);
        let mut args = MatmulArgs {
            jobs: [NO_JOB; MAX_JOBS],
            x: activations,
            num_jobs: 0,
            cols: cols as u32,
            num_rows: num_rows as u32,
            accumulate: u32::from(accumulate),
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
            blocks += product.weight.rows.div_ceil(shape.row_tiles * TILE_ROWS) as u32;
        }
        let row_warps = shape.row_tiles * if gated { 2 } else { 1 };
        let warps = row_warps * shape.k_warps;
        let launch = Launch {
            grid: [
                blocks,
                num_rows.div_ceil(shape.column_tiles * COLUMNS) as u32,
                1,
            ],
            threads: 32 * warps as u32,
            // Two sets of sums for each warp.
            shared_bytes: (warps * 2 * shape.column_tiles * 4 * 32 * 4) as u32,
        };
        let source = Source {
            name: "matmul.cu",
            text: include_str!("../../gpu/matmul.cu"),
            defines: vec![
                ("TYPES", types.to_string()),
                ("COLUMN_TILES", shape.column_tiles.to_string()),
                ("ROW_WARPS", row_warps.to_string()),
                ("K_WARPS", shape.k_warps.to_string()),
                ("GATED", u32::from(gated).to_string()),
            ],
        };
        self.launch(&source, "matmul", launch, &args)
    }

    /// Rows in the forms that products with `types` read, in scratch memory.
    fn activate(
        &self,
        num_rows: usize,
        x: &Buffer,
        cols: usize,
        norm: Option<Norm<'_>>,
        types: u32,
    ) -> Result<Activations, DeviceError> {
        check("x", x.len(), num_rows * cols);
        if let Some(norm) = norm {
            check("gamma", norm.gamma.len(), cols);
        }
        // Whole thread blocks of columns, so that none reads behind the end.
        let columns = num_rows.next_multiple_of(COLUMNS * Shape::of(num_rows, false).column_tiles);
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
        let source = Source {
            name: "activate.cu",
            text: include_str!("../../gpu/activate.cu"),
            defines: Vec::new(),
        };
        let launch = Launch {
            grid: [num_rows as u32, cols.div_ceil(ACTIVATE_COLS) as u32, 1],
            threads: ACTIVATE_THREADS,
            shared_bytes: 0,
        };
        self.launch(&source, "activate", launch, &args)?;
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
