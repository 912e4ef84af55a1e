//! Gated DeltaNet layers, and commits of them, on all threads: what [`crate::cpu::delta_net`] computes for a row or a head.

use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;

use crate::buffer::Buffer;
use crate::cpu::CpuDevice;
use crate::cpu::delta_net::{Convolve, Prepared, Recur, Weights};
use crate::cpu::matmul::Shared;
use crate::cpu::ops::check;
use crate::device::{DeltaNetArgs, DeltaNetCommitArgs, DeltaNetShape, Device, Segment};

/// What the rows of a DeltaNet layer are made from.
struct DeltaInputs<'a> {
    shape: DeltaNetShape,
    num_rows: usize,
    segments: &'a [Segment<'a>],
    qkv: &'a [f32],
    alpha: &'a [f32],
    beta: &'a [f32],
    conv_state: &'a [f32],
    weights: Weights<'a>,
}

impl CpuDevice {
    pub(super) fn delta_net_op(&self, args: DeltaNetArgs<'_>) {
        let shape = args.shape;
        assert!(shape.v_dim.is_multiple_of(16), "delta_net: value head dim");
        let num_rows = args.num_rows();
        check(
            "delta_net",
            "qkv",
            args.qkv.len(),
            num_rows * shape.conv_channels(),
        );
        check(
            "delta_net",
            "z",
            args.z.len(),
            num_rows * shape.num_v_heads * shape.v_dim,
        );
        check(
            "delta_net",
            "answers",
            args.answers.len(),
            num_rows * shape.num_v_heads * shape.v_dim,
        );
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let weights = Weights {
            conv: args.conv_weight.host(),
            a: args.a.host(),
            dt_bias: args.dt_bias.host(),
        };
        let inputs = DeltaInputs {
            shape,
            num_rows,
            segments: args.segments,
            qkv: args.qkv.host(),
            alpha: args.alpha.host(),
            beta: args.beta.host(),
            conv_state: args.state.conv.host(),
            weights,
        };
        self.prepare_delta(&mut prepared, &inputs);
        for segment in args.segments.iter().filter(|s| s.advance) {
            advance_conv(&shape, args.state.conv.host_mut(), segment, args.qkv.host());
        }
        let next = AtomicUsize::new(0);
        let state = Shared::new(args.state.recurrent.host_mut());
        let out = Shared::new(args.answers.host_mut());
        self.pool.run(&|_| {
            self.dispatch(Recur {
                shape,
                segments: args.segments,
                next: &next,
                prepared: &prepared,
                z: args.z.host(),
                gamma: args.norm.gamma.host(),
                eps: args.norm.eps,
                state,
                out: Some(out),
            });
        });
        drop(prepared);
        args.project(|linear| self.linear(linear));
    }

    pub(super) fn delta_net_commit_op(&self, args: DeltaNetCommitArgs<'_>) {
        let shape = args.shape;
        let gather = |from: &Buffer, len: usize| -> Vec<f32> {
            args.rows
                .iter()
                .flat_map(|row| &from.host()[row * len..][..len])
                .copied()
                .collect()
        };
        let parents: Vec<i32> = (0..args.rows.len() as i32).map(|i| i - 1).collect();
        let segments = [Segment {
            first_row: 0,
            parents: &parents,
            committed_len: 0,
            first_position: 0,
            pages: &[],
            state_index: args.state_index,
            advance: true,
            window: None,
        }];
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        for layer in args.layers {
            let qkv = gather(layer.qkv, shape.conv_channels());
            let alpha = gather(layer.alpha, shape.num_v_heads);
            let beta = gather(layer.beta, shape.num_v_heads);
            let inputs = DeltaInputs {
                shape,
                num_rows: parents.len(),
                segments: &segments,
                qkv: &qkv,
                alpha: &alpha,
                beta: &beta,
                conv_state: layer.state.conv.host(),
                weights: Weights {
                    conv: layer.conv_weight.host(),
                    a: layer.a.host(),
                    dt_bias: layer.dt_bias.host(),
                },
            };
            self.prepare_delta(&mut prepared, &inputs);
            advance_conv(&shape, layer.state.conv.host_mut(), &segments[0], &qkv);
            let next = AtomicUsize::new(0);
            let state = Shared::new(layer.state.recurrent.host_mut());
            self.pool.run(&|_| {
                self.dispatch(Recur {
                    shape,
                    segments: &segments,
                    next: &next,
                    prepared: &prepared,
                    z: &[],
                    gamma: &[],
                    eps: 0.0,
                    state,
                    out: None,
                });
            });
        }
    }

    fn prepare_delta(&self, into: &mut Prepared, args: &DeltaInputs<'_>) {
        let shape = args.shape;
        let (channels, heads) = (shape.conv_channels(), shape.num_v_heads);
        into.qkv.resize(args.num_rows * channels, 0.0);
        into.decay.resize(args.num_rows * heads, 0.0);
        into.beta.resize(args.num_rows * heads, 0.0);
        let (qkv, decay, strength) = (
            Shared::new(&mut into.qkv),
            Shared::new(&mut into.decay),
            Shared::new(&mut into.beta),
        );
        let (mut rows, mut taps) = (Vec::new(), Vec::new());
        for segment in args.segments {
            let history =
                &args.conv_state[segment.state_index * shape.conv_len()..][..shape.conv_len()];
            let newest = shape.conv_taps - 2;
            for node in 0..segment.parents.len() {
                rows.push(segment.first_row + node);
                let first_tap = taps.len();
                let mut at = node as i32;
                for _ in 0..shape.conv_taps {
                    taps.push(match usize::try_from(at) {
                        Ok(node) => &args.qkv[(segment.first_row + node) * channels..][..channels],
                        // -1 is the newest row of the history, which stands last.
                        Err(_) => {
                            let back = (-1 - at) as usize;
                            &history[(newest - back) * channels..][..channels]
                        }
                    });
                    at = usize::try_from(at).map_or(at - 1, |node| segment.parents[node]);
                }
                // The last tap multiplies the row itself.
                taps[first_tap..].reverse();
            }
        }
        let next = AtomicUsize::new(0);
        self.pool.run(&|_| {
            self.dispatch(Convolve {
                shape,
                weights: args.weights,
                taps: &taps,
                rows: &rows,
                next: &next,
                out: qkv,
                alpha: args.alpha,
                beta: args.beta,
                decay,
                strength,
            });
        });
    }
}

/// The last `taps - 1` rows before the convolution become the history.
fn advance_conv(shape: &DeltaNetShape, conv: &mut [f32], segment: &Segment<'_>, qkv: &[f32]) {
    let channels = shape.conv_channels();
    let keep = shape.conv_taps - 1;
    let history = &mut conv[segment.state_index * shape.conv_len()..][..shape.conv_len()];
    let rows = segment.parents.len();
    let fresh = rows.min(keep);
    history.copy_within(fresh * channels.., 0);
    let from = (segment.first_row + rows - fresh) * channels;
    history[(keep - fresh) * channels..].copy_from_slice(&qkv[from..][..fresh * channels]);
}
