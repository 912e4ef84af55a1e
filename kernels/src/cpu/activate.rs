//! What products read: normalised rows, and their int8 forms.

use tensor::DType;

use crate::cpu::CpuDevice;
use crate::cpu::lanes::{Lanes, Op};
use crate::cpu::matmul::{Activations, Places, Quantised, Shared, quantise_row};
use crate::cpu::pack::Layout;
use crate::device::Norm;

impl CpuDevice {
    /// Normalises `x` and makes the int8 forms that `dtypes` read.
    pub(crate) fn activate(
        &self,
        into: &mut Activations,
        x: &[f32],
        rows: usize,
        len: usize,
        norm: Option<Norm<'_>>,
        dtypes: &[DType],
    ) {
        let groups = |g: usize| dtypes.iter().any(|d| Layout::of(*d).group == g);
        let tiles = self.tier.tiles();
        let (need32, need256) = (groups(32), groups(256));
        into.num_columns = rows;
        into.len = len;
        into.values.resize(rows * len, 0.0);
        for (form, group, need) in [
            (&mut into.by32, 32, need32),
            (&mut into.by256, 256, need256),
        ] {
            if need {
                form.resize(rows, len, group);
                let pays = |d: &DType| Layout::of(*d).group == group && tiles.pays(*d, rows);
                let tiled = dtypes.iter().any(pays);
                form.columns
                    .resize(if tiled { rows } else { 0 }, len, group);
            }
        }
        let values = Shared::new(&mut into.values);
        let (by32, by256) = (Pointers::of(&mut into.by32), Pointers::of(&mut into.by256));
        self.each(rows, |row| {
            // SAFETY: each row is written by one thread only, inside vectors sized above.
            let target = unsafe { std::slice::from_raw_parts_mut(values.at(row * len), len) };
            self.dispatch(ActivateRow {
                source: &x[row * len..][..len],
                norm,
                target,
                row,
                by32: need32.then_some(by32),
                by256: need256.then_some(by256),
            });
        });
    }
}

/// The vectors of a [`Quantised`], written row by row from several threads.
#[derive(Clone, Copy)]
struct Pointers {
    q: *mut i8,
    scale: *mut f32,
    sums: *mut i32,
    columns: Places,
}
// SAFETY: rows are disjoint, and each is written by one thread.
unsafe impl Sync for Pointers {}

impl Pointers {
    fn of(target: &mut Quantised) -> Self {
        Self {
            q: target.q.as_mut_ptr(),
            scale: target.scale.as_mut_ptr(),
            sums: target.sums.as_mut_ptr(),
            columns: target.columns.places(),
        }
    }

    /// # Safety
    /// The instruction set of `L` is available, `row` is one of the rows that the vectors were sized for, and no other
    /// thread has it.
    #[inline(always)]
    unsafe fn quantise<L: Lanes>(&self, row: usize, len: usize, group: usize, x: &[f32]) {
        let (groups, sums) = (len / group, len / 16);
        let (q, scale, sums) = (
            std::slice::from_raw_parts_mut(self.q.add(row * len), len),
            std::slice::from_raw_parts_mut(self.scale.add(row * groups), groups),
            std::slice::from_raw_parts_mut(self.sums.add(row * sums), sums),
        );
        quantise_row::<L>(x, group, q, scale, sums);
        self.columns.put(row, q, scale, sums);
    }
}

/// Norm and int8 forms of one row.
struct ActivateRow<'a> {
    source: &'a [f32],
    norm: Option<Norm<'a>>,
    target: &'a mut [f32],
    row: usize,
    by32: Option<Pointers>,
    by256: Option<Pointers>,
}

impl Op for ActivateRow<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        match self.norm {
            Some(norm) => rms_norm(self.source, norm, self.target),
            None => self.target.copy_from_slice(self.source),
        }
        if let Some(by32) = self.by32 {
            by32.quantise::<L>(self.row, self.source.len(), 32, self.target);
        }
        if let Some(by256) = self.by256 {
            by256.quantise::<L>(self.row, self.source.len(), 256, self.target);
        }
    }
}

/// `x / sqrt(mean(x^2) + eps) * gamma`; squares are summed in 16 interleaved chains, then pairwise.
#[inline(always)]
fn rms_norm(x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
    let mut chains = [0.0_f32; 16];
    for x in x.chunks(16) {
        for (chain, x) in chains.iter_mut().zip(x) {
            *chain += x * x;
        }
    }
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            chains[i] += chains[i + width];
        }
        width /= 2;
    }
    let inverse = 1.0 / (chains[0] / x.len() as f32 + norm.eps).sqrt();
    for ((out, x), g) in out.iter_mut().zip(x).zip(norm.gamma.host()) {
        *out = x * inverse * g;
    }
}
