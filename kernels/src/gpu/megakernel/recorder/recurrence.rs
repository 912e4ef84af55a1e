//! The recurrence of a step's row, as phases: a layer's states are walked with, and its history moves along; see gpu/step_recurrence.h.

use crate::device::DeltaNetArgs;
use crate::error::DeviceError;
use crate::gpu::delta_net::q_scale;
use crate::gpu::driver::DevicePtr;
use crate::gpu::megakernel::phases::{Delta, Move, Phase, Source};
use crate::gpu::megakernel::recorder::{Answers, Recorder, unfit};
use crate::gpu::megakernel::shares::{dealt, spread};
use crate::gpu::memory::ptr;

/// Columns of a head that a block walks with.
const STRIP_COLUMNS: usize = 16;

/// A layer's history, which moves along when a later row has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct History {
    qkv: Source,
    at: DevicePtr,
    /// The row; none yet: what is made of the layer's answers.
    pub after: Option<Source>,
}

impl Recorder {
    /// A layer's history moves before a product, by blocks that take part in that: what writes over its inputs then waits for them.
    pub(super) fn move_history(&mut self, blocks: (usize, usize)) {
        let (
            Some(History {
                qkv,
                at,
                after: Some(after),
            }),
            Some(shape),
        ) = (self.history, &self.delta)
        else {
            return;
        };
        let shares = spread(self.plan.blocks(), shape.conv_channels(), blocks);
        self.plan.skip(shares);
        self.phases.push(Phase::Move(Move {
            qkv,
            after,
            history: at,
        }));
        self.history = None;
    }

    /// But for the output projection, which is a product like others.
    pub fn delta_net(&mut self, args: &DeltaNetArgs<'_>) {
        let result = self.delta(args);
        self.note(result);
    }

    fn delta(&mut self, args: &DeltaNetArgs<'_>) -> Result<(), DeviceError> {
        let shape = args.shape;
        if self.history.is_some() || self.delta.is_some_and(|known| known != shape) {
            return Err(unfit("DeltaNet layers of several shapes"));
        }
        let dims_fit = shape.k_dim.is_multiple_of(4) && shape.v_dim.is_multiple_of(16);
        if !dims_fit || shape.num_k_heads > shape.num_v_heads {
            return Err(unfit("such DeltaNet heads"));
        }
        self.delta = Some(shape);
        let answers = Answers {
            gamma: ptr(args.norm.gamma),
            z: self.source(args.z),
            eps: args.norm.eps,
        };
        let mut delta = Delta {
            qkv: self.source(args.qkv),
            alpha: self.source(args.alpha),
            beta: self.source(args.beta),
            conv_weight: ptr(args.conv_weight),
            a: ptr(args.a),
            dt_bias: ptr(args.dt_bias),
            history: ptr(&args.state.conv),
            states: ptr(&args.state.recurrent),
            q_scale: q_scale(&shape),
            ..Delta::default()
        };
        let len = shape.num_v_heads * shape.v_dim;
        delta.out = self.write(args.answers, len, None, Some(answers));
        self.history = Some(History {
            qkv: delta.qkv,
            at: delta.history,
            after: None,
        });
        self.phases.push(Phase::Delta(delta));
        let strips = shape.num_v_heads * (shape.v_dim / STRIP_COLUMNS);
        self.plan.skip(dealt(self.plan.blocks(), strips));
        Ok(())
    }
}
