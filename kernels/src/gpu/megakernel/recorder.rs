//! The operations of a step of one row as phases of one launch.
//!
//! Operations are told here instead of being launched. What each writes becomes a row of the token's; what a later one reads of the same
//! buffer is the newest of them.

mod attention;
mod recurrence;

use std::collections::HashMap;
use std::sync::Arc;

use tensor::DType;

use crate::buffer::Buffer;
use crate::device::{DeltaNetShape, GatedLinearArgs, LinearArgs, Matrix, Norm};
use crate::error::DeviceError;
use crate::gpu::driver::{DevicePtr, Driver};
use crate::gpu::linear::MOST_NORMED_COLS;
use crate::gpu::matrix::{Form, GpuMatrix, TILE_ROWS};
use crate::gpu::megakernel::phases::{
    Embed, MOST_OUTPUTS, Output, Phase, Product, Source, Target, row_bytes,
};
use crate::gpu::megakernel::pieces::{Job, Plan, Weights, slices_of};
use crate::gpu::megakernel::recorder::attention::Splits;
use crate::gpu::megakernel::recorder::recurrence::History;
use crate::gpu::memory::{DeviceMemory, ptr};
use crate::gpu::top_k::Sought;

/// A head's answers, which are normed by whoever reads them.
#[derive(Clone, Copy, Debug)]
struct Answers {
    gamma: DevicePtr,
    z: Source,
    eps: f32,
}

/// The newest row of a buffer.
#[derive(Clone, Copy, Debug)]
struct Newest {
    source: Source,
    answers: Option<Answers>,
    /// Phase and output, where it is a product's.
    output: Option<(usize, usize)>,
}

/// The phases of a step so far.
#[derive(Debug)]
pub(in crate::gpu) struct Recorder {
    driver: Arc<dyn Driver>,
    /// Places that a row sees at most.
    pub(super) most_seen: usize,
    phases: Vec<Phase>,
    pub(super) plan: Plan,
    newest: HashMap<DevicePtr, Newest>,
    /// Bytes of all rows of a token. None begins with the first one, which stands for no row.
    pub(super) rows_bytes: usize,
    history: Option<History>,
    /// Types of all matrices: a bit mask.
    pub types: u32,
    /// Bytes of the largest row in the forms that it is read in.
    pub form_bytes: usize,
    /// Values of the longest row of answers.
    pub most_answers: usize,
    pub delta: Option<DeltaNetShape>,
    pub(super) splits: Option<Splits>,
    /// The table that the step's id is embedded by, and its type.
    pub(super) embed: Option<(Embed, DType)>,
    /// What the step is to look for.
    pub(super) sought: Option<Sought>,
    /// Why the step is no such launch, or what failed.
    trouble: Option<DeviceError>,
}

/// A step that no launch is made for.
fn unfit(what: &str) -> DeviceError {
    DeviceError::Driver {
        what: format!("the megakernel does not know {what}"),
    }
}

/// What a product's matrices are, and where their rows go.
struct Outputs<'a> {
    matrices: Vec<(Vec<&'a GpuMatrix>, &'a Buffer)>,
    gated: bool,
    accumulate: bool,
}

impl Recorder {
    pub fn new(
        driver: &Arc<dyn Driver>,
        (blocks, warps): (usize, usize),
        most_seen: usize,
    ) -> Self {
        Self {
            driver: Arc::clone(driver),
            most_seen,
            phases: Vec::new(),
            plan: Plan::new(blocks, warps),
            newest: HashMap::new(),
            rows_bytes: row_bytes(1),
            history: None,
            types: 0,
            form_bytes: 0,
            most_answers: 0,
            delta: None,
            splits: None,
            embed: None,
            sought: None,
            trouble: None,
        }
    }

    /// All phases, and the memory of what goes between them.
    ///
    /// # Errors
    /// The step is none that a launch is made for, or there is no memory.
    pub(super) fn finish(mut self) -> Result<(Self, Vec<Phase>, Vec<DeviceMemory>), DeviceError> {
        let blocks = self.plan.idle_blocks(usize::MAX);
        self.move_history(blocks);
        if self.phases.is_empty() || self.history.is_some() {
            self.refuse("a step of no products");
        }
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        // What comes after the launch finds the last row of each buffer.
        for (buffer, newest) in &self.newest {
            if let Some((phase, output)) = newest.output
                && let Phase::Product(product) = &mut self.phases[phase]
            {
                product.outputs[output].to.plain = *buffer;
            }
        }
        let mut phases = std::mem::take(&mut self.phases);
        // And nothing in the launch comes after the last phase: logits are the longest row, and are none of the token's, whose last one they were.
        if let Some(Phase::Product(product)) = phases.last_mut() {
            self.rows_bytes = product.outputs[0].to.row as usize;
            for output in &mut product.outputs {
                output.to.row = 0;
            }
        }
        let memory = self
            .splits
            .as_mut()
            .map(|splits| std::mem::take(&mut splits.memory));
        let memory = memory.unwrap_or_default();
        Ok((self, phases, memory))
    }

    pub fn seek(&mut self, sought: Sought) {
        self.sought = Some(sought);
    }

    /// An operation that is in no such launch.
    pub fn refuse(&mut self, what: &str) {
        self.trouble.get_or_insert_with(|| unfit(what));
    }

    fn note(&mut self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            self.trouble.get_or_insert(error);
        }
    }

    /// The number of the next phase.
    fn number(&self) -> u64 {
        self.phases.len() as u64 + 1
    }

    fn source(&self, buffer: &Buffer) -> Source {
        let at = ptr(buffer);
        let newest = self.newest.get(&at);
        newest.map_or(Source { at, number: 0 }, |newest| newest.source)
    }

    /// What a buffer's next row is written to, by the next phase.
    fn write(
        &mut self,
        buffer: &Buffer,
        len: usize,
        output: Option<usize>,
        answers: Option<Answers>,
    ) -> Target {
        let row = self.rows_bytes as u64;
        self.rows_bytes += row_bytes(len);
        let newest = Newest {
            source: Source {
                at: DevicePtr(row),
                number: self.number(),
            },
            answers,
            output: output.map(|output| (self.phases.len(), output)),
        };
        self.newest.insert(ptr(buffer), newest);
        Target {
            row,
            plain: DevicePtr::NULL,
        }
    }

    pub fn embed(&mut self, table: &Matrix, num_ids: usize, out: &Buffer) {
        if !self.phases.is_empty() || self.embed.is_some() || num_ids != 1 {
            self.refuse("more than one embedding");
        }
        let table = table.on_gpu();
        let embed = Embed {
            tiles: table.memory.ptr(),
            out: ptr(out),
            rows: table.rows as u32,
            cols: table.cols as u32,
            tiles_per_row: table.tiles_per_row() as u32,
            unused: 0,
        };
        self.embed = Some((embed, table.dtype));
    }

    pub fn linear(&mut self, args: &LinearArgs<'_, '_>) {
        let of = |matrix: &'_ Matrix| matrix.rows() > 0;
        let projections = args.projections.iter().filter(|p| of(p.weight));
        let matrices = projections.map(|p| (vec![p.weight.on_gpu()], &*p.out));
        let outputs = Outputs {
            matrices: matrices.collect(),
            gated: false,
            accumulate: args.accumulate,
        };
        let result = self.product(args.num_rows, args.x, args.norm, &outputs);
        self.note(result);
    }

    pub fn gated_linear(&mut self, args: &GatedLinearArgs<'_>) {
        let outputs = Outputs {
            matrices: vec![(vec![args.gate.on_gpu(), args.up.on_gpu()], &*args.out)],
            gated: true,
            accumulate: false,
        };
        let result = self.product(args.num_rows, args.x, args.norm, &outputs);
        self.note(result);
    }

    fn product(
        &mut self,
        num_rows: usize,
        x: &Buffer,
        norm: Option<Norm<'_>>,
        outputs: &Outputs<'_>,
    ) -> Result<(), DeviceError> {
        let cols = match outputs.matrices.first() {
            Some((matrices, _)) => matrices[0].cols,
            None => return Ok(()),
        };
        let count = outputs.matrices.len();
        if num_rows != 1 || count > MOST_OUTPUTS || !cols.is_multiple_of(8) {
            return Err(unfit("products of several rows or of odd shapes"));
        }
        if outputs.accumulate && count > 1 {
            return Err(unfit("several products on top of rows"));
        }
        let mut jobs = Vec::new();
        let mut sixteens = 0;
        let mut forms = 0;
        for (matrices, _) in &outputs.matrices {
            let weights = matrices.iter().map(|matrix| Weights {
                at: matrix.memory.ptr(),
                dtype: matrix.dtype,
                rows: matrix.rows,
                cols: matrix.cols,
            });
            jobs.push(Job {
                matrices: weights.collect(),
                first_sixteen: sixteens,
            });
            sixteens += matrices[0].rows.div_ceil(TILE_ROWS);
            for matrix in matrices {
                self.types |= 1 << matrix.dtype.ggml_id();
                forms |= 1 << Form::of(matrix.dtype) as u32;
            }
        }
        if norm.is_some() && cols > MOST_NORMED_COLS {
            return Err(unfit("a norm of more inputs than a block has squares"));
        }
        // Behind the layer's feed-forward part, whose last product leaves blocks idle.
        if !outputs.gated && !outputs.accumulate {
            self.move_history(self.plan.idle_blocks(sixteens));
        }
        let read = self.newest.get(&ptr(x)).copied();
        let answers = read.and_then(|newest| newest.answers);
        let mut product = Product {
            row: self.source(x),
            gamma: norm.map_or(DevicePtr::NULL, |norm| ptr(norm.gamma)),
            eps: norm.map_or(0.0, |norm| norm.eps),
            cols: cols as u32,
            num_outputs: count as u32,
            gated: u32::from(outputs.gated),
            forms,
            ..Product::default()
        };
        if let Some(answers) = answers {
            product.head_gamma = answers.gamma;
            product.head_eps = answers.eps;
            product.z = answers.z;
            self.most_answers = self.most_answers.max(cols);
        }
        let of_forms = [Form::By256, Form::By32, Form::Floats].into_iter();
        let used = of_forms.filter(|form| forms >> *form as u32 & 1 == 1);
        // What types other products have is not known yet.
        let bytes = used.map(|form| cols.div_ceil(form.cols()) * form.row_block_bytes(u32::MAX));
        self.form_bytes = self.form_bytes.max(bytes.sum());
        for (place, ((matrices, out), job)) in outputs.matrices.iter().zip(&jobs).enumerate() {
            if outputs.accumulate {
                product.add = self.source(out);
            }
            product.outputs[place] = Output {
                to: self.write(out, matrices[0].rows, Some(place), None),
                first_sixteen: job.first_sixteen as u32,
                rows: matrices[0].rows as u32,
            };
        }
        if let (Some(_), Some(history)) = (answers, &mut self.history) {
            let [output, ..] = product.outputs;
            history.after = Some(Source {
                at: DevicePtr(output.to.row),
                number: self.phases.len() as u64 + 1,
            });
        }
        product.slices = slices_of(cols);
        let (round, tails) = self.plan.add(&jobs);
        product.round = round as u32;
        product.tails = tails;
        self.phases.push(Phase::Product(product));
        Ok(())
    }
}
