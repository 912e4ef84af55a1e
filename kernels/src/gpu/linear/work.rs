//! What is multiplied, and what decides how the work is shared.

use std::fmt;

use tensor::DType;

use crate::buffer::Buffer;
use crate::device::{GatedLinearArgs, LinearArgs, Norm, Projection};
use crate::error::DeviceError;
use crate::gpu::driver::{DeviceFacts, DevicePtr, Source};
use crate::gpu::linear::narrow::Narrow;
use crate::gpu::linear::wide::Wide;
use crate::gpu::matrix::{Form, GpuMatrix};

/// Rows of the batch that stand beside each other in a fragment; *columns* of a product.
pub(in crate::gpu) const COLUMNS: usize = 8;
/// Of shared memory: what begins with one is read at once.
pub(in crate::gpu) const LINE_BYTES: usize = 128;
/// Matrices of a launch.
pub(super) const MAX_JOBS: usize = 8;

/// See gpu/activations.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Activations {
    pub by256: DevicePtr,
    pub by32: DevicePtr,
    pub floats: DevicePtr,
}

/// See gpu/products.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Job {
    pub weights: [DevicePtr; 2],
    pub out: DevicePtr,
    pub types: [u32; 2],
    pub rows: u32,
    pub first_block: u32,
}

const NO_JOB: Job = Job {
    weights: [DevicePtr::NULL; 2],
    out: DevicePtr::NULL,
    types: [0; 2],
    rows: 0,
    first_block: 0,
};

/// The matrices of a launch.
pub(super) struct Jobs {
    pub jobs: [Job; MAX_JOBS],
    pub count: u32,
    /// Of all, so many rows each.
    pub blocks: u32,
}

/// Slices of the inputs at most, each added up by itself.
pub(in crate::gpu) const SLICES: usize = 8;
/// Inputs from which on there are half as many: sums that meet take time, and half as many are enough to share.
const MANY_COLS: usize = 4096;

/// Slices of so many inputs.
pub(in crate::gpu) const fn slices_of(cols: usize) -> usize {
    if cols < MANY_COLS { SLICES } else { SLICES / 2 }
}

/// What is multiplied: a matrix, or a gate and up pair.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub weight: &'a GpuMatrix,
    pub up: Option<&'a GpuMatrix>,
    pub out: DevicePtr,
}

/// What is multiplied with, and how.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub num_rows: usize,
    pub x: &'a Buffer,
    pub before: Before<'a>,
    pub accumulate: bool,
}

impl Rows<'_> {
    pub(super) fn is_normed(&self) -> bool {
        matches!(self.before, Before::Norm(_))
    }
}

/// What becomes of rows before they are multiplied.
#[derive(Clone, Copy)]
pub(super) enum Before<'a> {
    Nothing,
    Norm(Norm<'a>),
    /// Of several rows, whose products do not make them ready for themselves.
    GatedNorm(GatedNorm<'a>),
    /// Some of their values are sums of splits, which meet; so many of each.
    Rest(Rest, usize),
}

/// See gpu/rest.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Rest {
    pub sums: DevicePtr,
    pub factors: DevicePtr,
    pub first: u32,
    pub rows: u32,
    pub num_rows: u32,
}

impl Rest {
    pub(super) const NONE: Self = Self {
        sums: DevicePtr::NULL,
        factors: DevicePtr::NULL,
        first: 0,
        rows: 0,
        num_rows: 0,
    };
}

/// Rows are heads of so many values, each of which is normed and multiplied with silu(z).
#[derive(Clone, Copy)]
pub(in crate::gpu) struct GatedNorm<'a> {
    pub head_dim: usize,
    /// Like the rows.
    pub z: &'a Buffer,
    /// Gamma: \[head dim\].
    pub norm: Norm<'a>,
}

/// What decides how work is shared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Work {
    /// One, or whole column tiles of them: no shape depends on more.
    pub num_rows: usize,
    /// Rows of each matrix.
    pub heights: Vec<usize>,
    pub cols: usize,
    /// 1, or 2 for gate and up.
    pub matrices: usize,
    /// Bit masks of each one's types, and of those in use.
    pub each: Vec<u32>,
    pub types: u32,
    /// Rows are normed before.
    pub is_normed: bool,
    /// Outputs are added to what is there.
    pub adds: bool,
    /// Launches of clusters are among those before and after.
    pub beside_clusters: bool,
}

impl Work {
    /// None where there is nothing to do.
    pub(super) fn of(
        rows: &Rows<'_>,
        products: &[Product<'_>],
        beside_clusters: bool,
    ) -> Option<Self> {
        let first = products.first().filter(|_| rows.num_rows > 0)?;
        Some(Self {
            num_rows: match rows.num_rows {
                1 => 1,
                several => several.next_multiple_of(COLUMNS),
            },
            heights: products.iter().map(|p| p.weight.rows).collect(),
            cols: first.weight.cols,
            matrices: if first.up.is_some() { 2 } else { 1 },
            each: products.chunks(1).map(types_of).collect(),
            types: types_of(products),
            is_normed: rows.is_normed(),
            adds: rows.accumulate,
            beside_clusters,
        })
    }
}

/// How a launch shares the work among thread blocks; a matter of speed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductShape {
    pub(super) shape: Shape,
    /// What the choice among shapes takes it to cost; 0 where there is no such count.
    pub clocks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) enum Shape {
    Narrow(Narrow),
    Wide(Wide),
}

impl Shape {
    pub(super) fn of(work: &Work, facts: &DeviceFacts) -> Result<Self, DeviceError> {
        let shape = if Narrow::takes(work, facts) && !Wide::is_faster(work, facts) {
            Narrow::of(work, facts).map(Self::Narrow)
        } else {
            Wide::of(work, facts).map(Self::Wide)
        };
        shape.ok_or_else(|| DeviceError::Driver {
            what: "products need more shared memory than a block can have".to_owned(),
        })
    }

    /// See [`ProductShape::clocks`].
    pub(super) fn clocks(&self, work: &Work, facts: &DeviceFacts) -> usize {
        match self {
            Self::Narrow(_) => 0,
            Self::Wide(shape) => shape.cost(work, facts.multiprocessors as usize),
        }
    }

    pub(super) fn source(&self, work: &Work) -> Source {
        match self {
            Self::Narrow(shape) => shape.source(work.types, work.is_normed),
            Self::Wide(shape) => shape.source(work.types),
        }
    }

    /// All that fit.
    pub(super) fn all(work: &Work, facts: &DeviceFacts) -> Vec<Self> {
        let narrow = Narrow::all(work, facts).into_iter().map(Self::Narrow);
        let is_one_tile = work.num_rows <= COLUMNS;
        let wide = if is_one_tile {
            Vec::new()
        } else {
            Wide::all(work, facts)
        };
        narrow.chain(wide.into_iter().map(Self::Wide)).collect()
    }
}

impl fmt::Display for ProductShape {
    /// As a line of a table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shape {
            Shape::Narrow(shape) => shape.fmt(f),
            Shape::Wide(shape) => shape.fmt(f),
        }
    }
}

pub(in crate::gpu) fn dtypes(types: u32) -> impl Iterator<Item = DType> {
    let all = DType::ALL.iter().copied();
    all.filter(move |dtype| types >> dtype.ggml_id() & 1 == 1)
}

/// Bit mask of the types of matrices.
pub(super) fn types_of(products: &[Product<'_>]) -> u32 {
    let weights = products.iter().flat_map(|p| [Some(p.weight), p.up]);
    let ids = weights.flatten().map(|weight| weight.dtype.ggml_id());
    ids.fold(0, |types, id| types | 1 << id)
}

pub(super) fn check(what: &str, got: usize, expected: usize) {
    assert!(
        got >= expected,
        "linear: {what} holds {got} values, {expected} are needed"
    );
}

pub(super) fn products_of<'a>(args: &'a LinearArgs<'_, '_>) -> (Vec<Product<'a>>, Rows<'a>) {
    let product = |projection: &'a Projection<'_>| {
        let weight = projection.weight.on_gpu();
        check("out", projection.out.len(), args.num_rows * weight.rows);
        Product {
            weight,
            up: None,
            out: projection.out.on_gpu().memory.ptr(),
        }
    };
    let rows = Rows {
        num_rows: args.num_rows,
        x: args.x,
        before: args.norm.map_or(Before::Nothing, Before::Norm),
        accumulate: args.accumulate,
    };
    (args.projections.iter().map(product).collect(), rows)
}

pub(super) fn gated_product<'a>(args: &'a GatedLinearArgs<'_>) -> (Product<'a>, Rows<'a>) {
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
        before: args.norm.map_or(Before::Nothing, Before::Norm),
        accumulate: false,
    };
    (product, rows)
}

impl Jobs {
    /// Blocks: of so many rows.
    pub(super) fn new(products: &[Product<'_>], block_rows: usize) -> Self {
        let mut jobs = Self {
            jobs: [NO_JOB; MAX_JOBS],
            count: 0,
            blocks: 0,
        };
        for product in products.iter().filter(|product| product.weight.rows > 0) {
            let up = product.up.unwrap_or(product.weight);
            jobs.jobs[jobs.count as usize] = Job {
                weights: [product.weight.memory.ptr(), up.memory.ptr()],
                out: product.out,
                types: [product.weight.dtype.ggml_id(), up.dtype.ggml_id()],
                rows: product.weight.rows as u32,
                first_block: jobs.blocks,
            };
            jobs.count += 1;
            jobs.blocks += product.weight.rows.div_ceil(block_rows) as u32;
        }
        jobs
    }
}

impl Activations {
    pub(super) const NONE: Self = Self {
        by256: DevicePtr::NULL,
        by32: DevicePtr::NULL,
        floats: DevicePtr::NULL,
    };
}

impl Form {
    /// Bytes of a block of activations of eight rows, for products with such weights: see gpu/activations.h.
    pub(super) fn block_bytes(self, types: u32) -> usize {
        self.bytes_of(types, COLUMNS).next_multiple_of(LINE_BYTES)
    }

    /// The same of one row alone.
    pub(in crate::gpu) fn row_block_bytes(self, types: u32) -> usize {
        self.bytes_of(types, 1).next_multiple_of(16)
    }

    fn bytes_of(self, types: u32, columns: usize) -> usize {
        columns
            * match self {
                Self::By256 => 256 + 32 + 4,
                Self::By32 => 64 + 8 + 8,
                Self::Floats => float_terms(types) * 128,
            }
    }
}

/// Terms that float activations are there in, for products with such weights.
pub(super) fn float_terms(types: u32) -> usize {
    if types >> DType::F32.ggml_id() & 1 == 1 {
        3
    } else {
        2
    }
}

/// A chip for tests.
#[cfg(test)]
pub(in crate::gpu) fn facts(multiprocessors: u32, shared_kib: u32) -> DeviceFacts {
    DeviceFacts {
        name: String::new(),
        arch: String::new(),
        driver_version: String::new(),
        multiprocessors,
        memory_bytes: 0,
        shared_bytes_per_block: shared_kib << 10,
        clusters: [0; 3],
        uuid: [0; 16],
    }
}
