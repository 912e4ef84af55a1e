//! Rows as products read them: see gpu/activate.cu.

use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::linear::ahead::Ahead;
use crate::gpu::linear::wide::Wide;
use crate::gpu::linear::work::{Activations, Before, COLUMNS, Rest, Rows, dtypes, float_terms};
use crate::gpu::matrix::Form;
use crate::gpu::memory::ptr;
use crate::gpu::scratch::Scratch;

const ACTIVATE_THREADS: u32 = 256;
/// Inputs that a thread block of it does.
const ACTIVATE_COLS: usize = 2048;
/// Inputs of a row that is normed: see `MOST_SQUARES` of gpu/row_norm.h.
pub(in crate::gpu) const MOST_NORMED_COLS: usize = 254 * 256;

/// See gpu/activate.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct ActivateArgs {
    x: DevicePtr,
    gamma: DevicePtr,
    z: DevicePtr,
    factors: DevicePtr,
    to: Activations,
    rest: Rest,
    ahead: Ahead,
    cols: u32,
    eps: f32,
    apart: u32,
    terms: u32,
}

/// Rows as products read them.
pub(super) struct Activated {
    pub forms: Activations,
    /// Of normed rows; see gpu/row_norm.h.
    pub factors: DevicePtr,
}

impl Activated {
    /// Of a row that is made ready where it is multiplied.
    pub const NONE: Self = Self {
        forms: Activations::NONE,
        factors: DevicePtr::NULL,
    };
}

/// What gpu/activate.cu is compiled for.
#[derive(Clone, Copy)]
struct ActivateKind {
    normed: bool,
    /// Values of a head whose answers are normed and gated.
    gated: Option<usize>,
    /// Splits of the sums that meet; 0: rows are whole.
    splits: usize,
    /// Of the rows that products read.
    forms: [bool; 3],
    in_cores: bool,
    aligned: bool,
}

impl ActivateKind {
    fn source(self) -> Source {
        let flag = |name, is_set: bool| (name, u32::from(is_set).to_string());
        let bits = self.forms.iter().rev();
        let forms = bits.fold(0, |bits, is_read| bits << 1 | u32::from(*is_read));
        let mut defines = vec![
            flag("NORMED", self.normed),
            flag("GATED", self.gated.is_some()),
            ("REST", self.splits.to_string()),
            ("FORMS", forms.to_string()),
            flag("IN_CORES", self.in_cores),
            flag("ALIGNED", self.aligned),
        ];
        defines.extend(self.gated.map(|head_dim| ("DV", head_dim.to_string())));
        Source {
            name: "activate.cu",
            text: include_str!("../../../gpu/activate.cu"),
            defines,
        }
    }
}

/// With and without norms and sums that meet; all forms, and the one of most trees and prompts.
pub(super) fn sources() -> Vec<Source> {
    let norms = [
        (false, None, 0),
        (true, None, 0),
        (false, Some(128), 0),
        (false, None, 8),
    ];
    let kinds = norms.map(|(normed, gated, splits)| {
        let all = ActivateKind {
            normed,
            gated,
            splits,
            forms: [true; 3],
            in_cores: false,
            aligned: false,
        };
        let by256 = ActivateKind {
            forms: [true, false, false],
            in_cores: true,
            aligned: true,
            ..all
        };
        [all, by256]
    });
    kinds
        .into_iter()
        .flatten()
        .map(ActivateKind::source)
        .collect()
}

impl GpuDevice {
    /// Rows in the forms that products with `types` read, in scratch memory; `columns`: how many products read, though
    /// what they make of more than there are is not used; `wide`: by such ones, which decides how they lie (gpu/activations.h), and
    /// what these read first;
    /// `factors`: where those of a norm go if they are needed for longer.
    pub(super) fn activate(
        &self,
        rows: &Rows<'_>,
        columns: usize,
        cols: usize,
        types: u32,
        wide: Option<(&Wide, &Ahead)>,
        factors: Option<DevicePtr>,
    ) -> Result<Activated, DeviceError> {
        let Rows {
            num_rows,
            x,
            before,
            ..
        } = *rows;
        let (norm, gated) = match before {
            Before::Nothing | Before::Rest(..) => (None, None),
            Before::Norm(norm) => (Some(norm), None),
            Before::GatedNorm(gated) => (Some(gated.norm), Some(gated)),
        };
        let (rest, splits) = match before {
            Before::Rest(rest, splits) => (rest, splits),
            _ => (Rest::NONE, 0),
        };
        let mut bytes = 0;
        let places = [Form::By256, Form::By32, Form::Floats].map(|form| {
            dtypes(types).find(|dtype| Form::of(*dtype) == form)?;
            let place = bytes;
            bytes += columns / COLUMNS * cols.div_ceil(form.cols()) * form.block_bytes(types);
            bytes = bytes.next_multiple_of(256);
            Some(place)
        });
        let is_normed = matches!(before, Before::Norm(_));
        let scratch = self.scratch(Scratch::Activations, bytes + 4 * num_rows)?;
        let factors = match (is_normed, factors) {
            (false, _) => DevicePtr::NULL,
            (true, Some(place)) => place,
            (true, None) => scratch.add(bytes),
        };
        let forms = places.map(|place| place.is_some());
        let [by256, by32, floats] =
            places.map(|place| place.map_or(DevicePtr::NULL, |place| scratch.add(place)));
        let to = Activations {
            by256,
            by32,
            floats,
        };
        let fed = wide.map(|(shape, _)| shape).filter(|shape| shape.fed);
        let kind = ActivateKind {
            normed: is_normed,
            gated: gated.map(|gated| gated.head_dim),
            splits,
            forms,
            in_cores: fed.is_some_and(|shape| shape.grouped),
            aligned: cols.is_multiple_of(4),
        };
        let args = ActivateArgs {
            x: ptr(x),
            gamma: norm.map_or(DevicePtr::NULL, |norm| ptr(norm.gamma)),
            z: gated.map_or(DevicePtr::NULL, |gated| ptr(gated.z)),
            factors,
            to,
            rest,
            ahead: wide.map_or(Ahead::NONE, |(_, ahead)| *ahead),
            cols: cols as u32,
            eps: norm.map_or(0.0, |norm| norm.eps),
            apart: fed.map_or(1, |_| columns / COLUMNS) as u32,
            terms: float_terms(types) as u32,
        };
        // The last block makes the norm's factor.
        let blocks = cols.div_ceil(ACTIVATE_COLS) + usize::from(is_normed);
        let launch = Launch {
            grid: [num_rows as u32, blocks as u32, 1],
            threads: ACTIVATE_THREADS,
            shared_bytes: 0,
        };
        // Products of few rows leave room for what follows them.
        let launch = match wide {
            Some(_) => launch.spread(self.facts()),
            None => launch,
        };
        self.launch(&kind.source(), "activate", launch, &args)?;
        Ok(Activated { forms: to, factors })
    }
}
