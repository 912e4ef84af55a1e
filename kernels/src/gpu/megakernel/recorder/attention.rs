//! Attention of a step's row, as phases: keys are scored, values mixed, and splits put together; see gpu/step_attention.h.

use std::sync::Arc;

use crate::device::{AttentionArgs, RopeStyle, Visibility};
use crate::error::DeviceError;
use crate::gpu::attention::{HeadShape, SPLIT};
use crate::gpu::driver::{DevicePtr, Driver};
use crate::gpu::megakernel::phases::{Attend, Combine, Phase, Source, Target};
use crate::gpu::megakernel::recorder::{Recorder, unfit};
use crate::gpu::megakernel::shares::{attending, dealt};
use crate::gpu::memory::{DeviceMemory, ptr};
use crate::gpu::rope::TurnTables;

/// Dims of a head's splits that a block puts together at a time.
const RUN_DIMS: usize = 64;

/// What splits of all attention layers share.
#[derive(Debug)]
pub(in crate::gpu::megakernel) struct Splits {
    pub shape: HeadShape,
    num_splits: usize,
    /// As words: scores, [H, splits of places]; weighted values, [H, splits, D], and maximum and sum of each.
    at: [DevicePtr; 3],
    /// Of those.
    pub memory: Vec<DeviceMemory>,
}

impl Splits {
    fn new(
        driver: &Arc<dyn Driver>,
        shape: HeadShape,
        num_splits: usize,
    ) -> Result<Self, DeviceError> {
        let of_heads = shape.num_heads * num_splits;
        let words = [SPLIT, shape.head_dim, 2];
        let memory = words
            .iter()
            .map(|each| DeviceMemory::zeros(driver, of_heads * each * size_of::<u64>()))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            shape,
            num_splits,
            at: std::array::from_fn(|i| memory[i].ptr()),
            memory,
        })
    }
}

impl Recorder {
    pub fn attention(&mut self, args: &AttentionArgs<'_>, turns: &TurnTables) {
        let result = self.attend(args, turns);
        self.note(result);
    }

    fn attend(&mut self, args: &AttentionArgs<'_>, turns: &TurnTables) -> Result<(), DeviceError> {
        let shape = HeadShape::of(args);
        let sees_all = args.visibility == Visibility::All;
        let has_blocks = args.num_kv_heads <= self.plan.blocks();
        if args.window.is_some() || sees_all || !shape.fits_megakernel() || !has_blocks {
            return Err(unfit("such attention"));
        }
        let num_splits = self.most_seen.div_ceil(SPLIT);
        if self.splits.is_none() {
            self.splits = Some(Splits::new(&self.driver, shape, num_splits)?);
        }
        let Some(splits) = self.splits.as_ref().filter(|known| known.shape == shape) else {
            return Err(unfit("attention layers of several shapes"));
        };
        let [scores, partials, sums] = splits.at;
        let num_splits = splits.num_splits as u32;
        let q_stride = (args.head_dim * if args.gated { 2 } else { 1 }) as u32;
        let norm = args.head_norm.as_ref();
        let gammas = norm.map(|norm| [ptr(norm.q_gamma), ptr(norm.k_gamma)]);
        let [q_gamma, k_gamma] = gammas.unwrap_or([DevicePtr::NULL; 2]);
        // Keys are scored by this phase, values mixed by the next one, and splits put together by the one after it.
        let number = self.number();
        let q = self.source(args.q);
        let mut attend = Attend {
            q,
            k: self.source(args.k),
            v: self.source(args.v),
            gates: if args.gated { q } else { Source::default() },
            scores: Source { at: scores, number },
            q_gamma,
            k_gamma,
            turns: turns.of(&self.driver, args.rope.inv_freq)?,
            cache_k: ptr(&args.cache.k),
            cache_v: ptr(&args.cache.v),
            partials,
            sums,
            eps: norm.map_or(0.0, |norm| norm.eps),
            num_kv_heads: args.num_kv_heads as u32,
            q_stride,
            num_splits,
            pairs: args.rope.inv_freq.len() as u32,
            adjacent: u32::from(args.rope.style == RopeStyle::Adjacent),
            stride: (self.plan.blocks() / args.num_kv_heads) as u32,
            unused: 0,
            out: Target::default(),
        };
        // Where units are few, whoever scores keys mixes no values: those can be waited for by then.
        for reversed in [false, true] {
            let shares = attending(self.plan.blocks(), args.num_kv_heads, reversed);
            self.plan.skip(shares);
        }
        let place = self.phases.len();
        self.phases.push(Phase::Score(attend));
        self.phases.push(Phase::Mix(attend));
        attend.out = self.write(args.out, args.num_heads * args.head_dim, None, None);
        self.phases[place + 1] = Phase::Mix(attend);
        let combine = Combine {
            gates: attend.gates,
            partials,
            sums,
            out: attend.out,
            number: number as u32 + 1,
            num_heads: args.num_heads as u32,
            q_stride,
            num_splits,
        };
        self.phases.push(Phase::Combine(combine));
        let runs = args.num_heads * args.head_dim.div_ceil(RUN_DIMS);
        self.plan.skip(dealt(self.plan.blocks(), runs));
        Ok(())
    }
}
