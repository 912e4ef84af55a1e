//! Products with weight matrices: see gpu/activate.cu, gpu/matmul.cu, gpu/matmul_row.cu and gpu/matmul_wide.cu.

mod activate;
mod ahead;
mod choices;
mod narrow;
mod wide;
mod work;

use std::sync::atomic::Ordering;

use tensor::DType;

use crate::device::{FeedForwardArgs, GatedLinearArgs, LinearArgs};
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{Launch, Source};
use crate::gpu::linear::activate::Activated;
pub(super) use crate::gpu::linear::activate::MOST_NORMED_COLS;
use crate::gpu::linear::ahead::Ahead;
pub(super) use crate::gpu::linear::choices::Choices;
pub(super) use crate::gpu::linear::narrow::row_forms_bytes;
use crate::gpu::linear::narrow::{Narrow, NarrowArgs};
use crate::gpu::linear::wide::{Wide, WideArgs};
pub use crate::gpu::linear::work::ProductShape;
#[cfg(test)]
pub(super) use crate::gpu::linear::work::facts;
use crate::gpu::linear::work::{
    Before, Jobs, MAX_JOBS, Product, Rest, Rows, Shape, Work, check, gated_product, products_of,
    types_of,
};
pub(super) use crate::gpu::linear::work::{
    COLUMNS, GatedNorm, LINE_BYTES, SLICES, dtypes, slices_of,
};
use crate::gpu::matrix::{TILE_ROWS, pack_source};
use crate::gpu::memory::ptr;
use crate::gpu::scratch::Scratch;

/// All that this module and [`crate::gpu::matrix`] launch, with types of published models; see [`crate::gpu::sources`].
pub(super) fn sources() -> Vec<Source> {
    let types = |dtypes: &[DType]| dtypes.iter().fold(0, |mask, d| mask | 1 << d.ggml_id());
    let mut sources = vec![pack_source()];
    sources.extend(activate::sources());
    let of_models = [
        (&[DType::Q4K, DType::Q6K][..], 2),
        (&[DType::Q5K, DType::Q8_0], 1),
        (&[DType::BF16], 2),
        (&narrow::HEAVY, 1),
    ];
    for (dtypes, matrices) in of_models {
        sources.extend(narrow::sources(types(dtypes), matrices));
    }
    sources.extend(wide::sources(types(&[DType::Q4K, DType::Q6K])));
    sources.extend(wide::sources(types(&[DType::Q5K, DType::Q8_0])).drain(..2));
    sources.extend(wide::sources(types(&[DType::BF16])).drain(..1));
    // The types that the rest leaves out, as few beside each other as a file has.
    let is_left = |dtype: &&DType| of_models.iter().all(|(dtypes, _)| !dtypes.contains(dtype));
    let rest: Vec<DType> = DType::ALL.iter().filter(is_left).copied().collect();
    for few in rest.chunks(3) {
        sources.extend(narrow::sources(types(few), 1));
    }
    sources
}

impl GpuDevice {
    pub(super) fn linear_op(&self, args: LinearArgs<'_, '_>) -> Result<(), DeviceError> {
        let (products, rows) = products_of(&args);
        for products in products.chunks(MAX_JOBS) {
            self.multiply(&rows, products)?;
        }
        Ok(())
    }

    pub(super) fn gated_linear_op(&self, args: GatedLinearArgs<'_>) -> Result<(), DeviceError> {
        let (product, rows) = gated_product(&args);
        self.multiply(&rows, &[product])
    }

    pub(super) fn feed_forward_op(&self, mut args: FeedForwardArgs<'_>) -> Result<(), DeviceError> {
        let gated = args.gated();
        let (product, rows) = gated_product(&gated);
        let products = std::slice::from_ref(&product);
        let Some(shape) = self.shape_of(&rows, products) else {
            return Ok(());
        };
        let before = self.multiply_up_to_rest(shape?, &rows, product)?;
        args.project(|linear| {
            let (products, rows) = products_of(&linear);
            self.multiply(&Rows { before, ..rows }, &products)
        })
    }

    /// Products of several rows of heads that are normed and gated before.
    pub(super) fn gated_heads_op(
        &self,
        args: &LinearArgs<'_, '_>,
        gated: GatedNorm<'_>,
    ) -> Result<(), DeviceError> {
        let (products, rows) = products_of(args);
        let before = Before::GatedNorm(gated);
        self.multiply(&Rows { before, ..rows }, &products)
    }

    /// Every way to share the work of a call, for comparisons of their speed; the first is the one that is chosen. Their
    /// kernels are compiled.
    ///
    /// # Errors
    /// One does not compile.
    #[doc(hidden)]
    pub fn linear_shapes(
        &self,
        args: &LinearArgs<'_, '_>,
    ) -> Result<Vec<ProductShape>, DeviceError> {
        let (products, rows) = products_of(args);
        self.shapes(&rows, &products)
    }

    /// The same of gate and up.
    ///
    /// # Errors
    /// One does not compile.
    #[doc(hidden)]
    pub fn gated_linear_shapes(
        &self,
        args: &GatedLinearArgs<'_>,
    ) -> Result<Vec<ProductShape>, DeviceError> {
        let (product, rows) = gated_product(args);
        self.shapes(&rows, &[product])
    }

    /// The call with the work shared in a way of `linear_shapes`.
    ///
    /// # Errors
    /// Those of the call.
    #[doc(hidden)]
    pub fn linear_in(
        &self,
        shape: ProductShape,
        args: LinearArgs<'_, '_>,
    ) -> Result<(), DeviceError> {
        let (products, rows) = products_of(&args);
        self.multiply_in(shape.shape, &rows, &products)
    }

    /// The same of gate and up, up to what `down` finds.
    ///
    /// # Errors
    /// Those of the call.
    #[doc(hidden)]
    pub fn gated_linear_in(
        &self,
        shape: ProductShape,
        args: GatedLinearArgs<'_>,
    ) -> Result<(), DeviceError> {
        let (product, rows) = gated_product(&args);
        let rest = self.multiply_up_to_rest(shape.shape, &rows, product);
        rest.map(|_| ())
    }

    fn shapes(
        &self,
        rows: &Rows<'_>,
        products: &[Product<'_>],
    ) -> Result<Vec<ProductShape>, DeviceError> {
        let Some(work) = Work::of(rows, products, false) else {
            return Ok(Vec::new());
        };
        let mut shapes = vec![Shape::of(&work, self.facts())?];
        for shape in Shape::all(&work, self.facts()) {
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        let sources = shapes.iter().map(|shape| shape.source(&work));
        self.modules.compile_ahead(sources.collect())?;
        let shapes = shapes.into_iter().map(|shape| ProductShape {
            shape,
            clocks: shape.clocks(&work, self.facts()),
        });
        Ok(shapes.collect())
    }

    /// The shape that is chosen; none where there is nothing to do.
    fn shape_of(
        &self,
        rows: &Rows<'_>,
        products: &[Product<'_>],
    ) -> Option<Result<Shape, DeviceError>> {
        // Relaxed: a matter of speed alone.
        let beside_clusters = self.has_clusters.load(Ordering::Relaxed);
        let work = Work::of(rows, products, beside_clusters)?;
        Some(self.choice(&work))
    }

    fn choice(&self, work: &Work) -> Result<Shape, DeviceError> {
        self.choices.of(work, || Shape::of(work, self.facts()))
    }

    /// Compiles what products like those of more rows than one that came before need for any number of rows up to `most`. What does not compile
    /// is told of, and is an error for whoever needs it.
    pub(super) fn compile_products(&self, most: usize) {
        let sources = |kind: Work| {
            (1..=most.div_ceil(COLUMNS)).filter_map(move |tiles| {
                let work = Work {
                    num_rows: tiles * COLUMNS,
                    ..kind.clone()
                };
                Some(self.choice(&work).ok()?.source(&work))
            })
        };
        let kinds = self.choices.kinds_of_several_rows().into_iter();
        let sources = kinds.flat_map(sources).collect();
        if let Err(error) = self.modules.compile_ahead(sources) {
            tracing::warn!(%error, "a kernel cannot be compiled ahead, and is tried again when it is needed");
        }
    }

    /// Products of one kind, with or without a second matrix.
    fn multiply(&self, rows: &Rows<'_>, products: &[Product<'_>]) -> Result<(), DeviceError> {
        match self.shape_of(rows, products) {
            Some(shape) => self.multiply_in(shape?, rows, products),
            None => Ok(()),
        }
    }

    fn multiply_in(
        &self,
        shape: Shape,
        rows: &Rows<'_>,
        products: &[Product<'_>],
    ) -> Result<(), DeviceError> {
        let Some(first) = products.first() else {
            return Ok(());
        };
        let (types, cols) = (types_of(products), first.weight.cols);
        Self::check_rows(rows, products, cols)?;
        match shape {
            Shape::Narrow(shape) => self.launch_narrow(&shape, types, rows, products, cols),
            Shape::Wide(shape) => {
                let rest = self.launch_wide(&shape, types, rows, products, false);
                rest.map(|_| ())
            }
        }
    }

    /// The same of gate and up, but for sums of splits that meet where outputs are read: what is to become of these before.
    fn multiply_up_to_rest(
        &self,
        shape: Shape,
        rows: &Rows<'_>,
        product: Product<'_>,
    ) -> Result<Before<'static>, DeviceError> {
        match shape {
            Shape::Wide(shape) if shape.leaves_rest(product.weight.rows) => {
                let products = [product];
                Self::check_rows(rows, &products, products[0].weight.cols)?;
                let rest = self.launch_wide(&shape, types_of(&products), rows, &products, true)?;
                Ok(Before::Rest(rest, shape.splits))
            }
            _ => {
                self.multiply_in(shape, rows, &[product])?;
                Ok(Before::Nothing)
            }
        }
    }

    fn check_rows(
        rows: &Rows<'_>,
        products: &[Product<'_>],
        cols: usize,
    ) -> Result<(), DeviceError> {
        for product in products {
            assert_eq!(product.weight.cols, cols, "projections of one input");
        }
        check("x", rows.x.len(), rows.num_rows * cols);
        match rows.before {
            Before::Nothing | Before::Rest(..) => {}
            Before::Norm(norm) => {
                check("gamma", norm.gamma.len(), cols);
                if cols > MOST_NORMED_COLS {
                    return Err(DeviceError::Shape {
                        op: "linear",
                        what: "inputs of a normed row, at most",
                        expected: MOST_NORMED_COLS,
                        got: cols,
                    });
                }
            }
            Before::GatedNorm(gated) => {
                check("z", gated.z.len(), rows.num_rows * cols);
                check("gamma", gated.norm.gamma.len(), gated.head_dim);
            }
        }
        Ok(())
    }

    fn launch_narrow(
        &self,
        shape: &Narrow,
        types: u32,
        rows: &Rows<'_>,
        products: &[Product<'_>],
        cols: usize,
    ) -> Result<(), DeviceError> {
        let jobs = Jobs::new(products, TILE_ROWS);
        if jobs.count == 0 {
            return Ok(());
        }
        let mut work = shape.share(&jobs, cols);
        let mut activated = Activated::NONE;
        if shape.row_inside() {
            work.row = ptr(rows.x);
            match rows.before {
                Before::Norm(norm) => {
                    work.gamma = ptr(norm.gamma);
                    work.eps = norm.eps;
                }
                Before::GatedNorm(_) => {
                    return Err(DeviceError::Shape {
                        op: "delta_net",
                        what: "rows with a norm of heads behind them",
                        expected: 2,
                        got: 1,
                    });
                }
                // A row by itself has no rest.
                Before::Nothing | Before::Rest(..) => {}
            }
        } else {
            activated = self.activate(rows, shape.columns(), cols, types, None, None)?;
        }
        work.accumulate = u32::from(rows.accumulate);
        let launch = Launch {
            grid: [shape.blocks() as u32, 1, 1],
            threads: shape.threads() as u32,
            shared_bytes: shape.shared_bytes as u32,
        };
        let source = shape.source(types, rows.is_normed());
        match shape.args(work, &activated, rows.num_rows) {
            NarrowArgs::Ring(args) => self.launch(&source, "matmul", launch, &args),
            NarrowArgs::Row(args) => self.launch(&source, "matmul_row", launch, &args),
        }
    }

    /// `leaves`: sums of what is split are left for those who read the one product's outputs.
    fn launch_wide(
        &self,
        shape: &Wide,
        types: u32,
        rows: &Rows<'_>,
        products: &[Product<'_>],
        leaves: bool,
    ) -> Result<Rest, DeviceError> {
        let cols = products[0].weight.cols;
        let mut ordered = products.to_vec();
        if shape.heavy_apart {
            ordered.sort_by_key(|product| wide::are_heavy(types_of(&[*product])));
        }
        let jobs = Jobs::new(&ordered, shape.block_rows());
        let blocks = jobs.blocks as usize;
        let outputs = blocks * shape.column_blocks;
        // Behind sums that meet in the product: those that are left, and the factors of rows that they meet with.
        let sums_at = shape
            .parts_bytes(blocks, self.facts())
            .next_multiple_of(256);
        let first = shape.whole_blocks * shape.block_rows();
        let rest_rows = if leaves {
            products[0].weight.rows - first
        } else {
            0
        };
        let sums = shape.matrices * shape.splits * rows.num_rows * rest_rows;
        let factors_at = sums_at + (sums * size_of::<f32>()).next_multiple_of(256);
        let bytes = factors_at + rows.num_rows * size_of::<f32>();
        let parts = self.scratch(Scratch::Partials, bytes)?;
        let kept = leaves.then(|| parts.add(factors_at));
        let ahead = Ahead::of(shape, &ordered, self.facts());
        let wide = Some((shape, &ahead));
        let activated = self.activate(rows, shape.columns(), cols, types, wide, kept)?;
        let rest = match leaves {
            true => Rest {
                sums: parts.add(sums_at),
                factors: activated.factors,
                first: first as u32,
                rows: rest_rows as u32,
                num_rows: rows.num_rows as u32,
            },
            false => Rest::NONE,
        };
        let args = WideArgs {
            parts,
            rest,
            tickets: self.scratch(Scratch::Tickets, 4 * outputs * shape.warps())?,
            jobs: jobs.jobs,
            x: activated.forms,
            factors: activated.factors,
            num_jobs: jobs.count,
            cols: cols as u32,
            num_rows: rows.num_rows as u32,
            accumulate: u32::from(rows.accumulate),
            matrices: shape.matrices as u32,
            splits: shape.splits as u32,
            column_blocks: shape.column_blocks as u32,
            whole_blocks: shape.whole_blocks as u32,
            units: shape.units(blocks) as u32,
        };
        let launch = Launch {
            grid: [shape.grid(blocks, self.facts()) as u32, 1, 1],
            threads: shape.block_threads() as u32,
            shared_bytes: shape.shared_bytes as u32,
        };
        self.launch(&shape.source(types), shape.kernel(), launch, &args)?;
        Ok(rest)
    }
}

#[cfg(test)]
mod tests;
