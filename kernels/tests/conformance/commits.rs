//! A commit of many layers at a time, and of a long path, does to each layer what commits of that layer alone do, piece by piece.

use kernels::{
    Buffer, DeltaNetCommitArgs, DeltaNetCommitLayer, DeltaNetShape, DeltaNetState, Device,
    KvCommitArgs, KvCommitLayer, KvLayer, KvType, PAGE_TOKENS,
};

use crate::data::{Noise, devices, download, same_bits, upload};

/// More than a GPU takes in one launch, of both.
const LAYERS: usize = 70;
const PATH: &[usize] = &[1, 2, 4, 7, 8, 11, 12, 13, 15, 17, 20, 22, 25, 29];
/// Rows of the forward pass.
const ROWS: usize = 30;

struct Recurrent {
    inputs: [Buffer; 6],
    state: DeltaNetState,
}

impl Recurrent {
    fn new(device: &dyn Device, shape: DeltaNetShape, noise: &mut Noise) -> Self {
        let heads = shape.num_v_heads;
        let per_row = [shape.conv_channels(), heads, heads].map(|len| ROWS * len);
        let [qkv, alpha, beta] = per_row;
        let lens = [
            qkv,
            alpha,
            beta,
            shape.conv_channels() * shape.conv_taps,
            heads,
            heads,
        ];
        let mut values = |len| upload(device, &noise.values(len));
        Self {
            inputs: lens.map(&mut values),
            state: DeltaNetState {
                recurrent: values(2 * shape.state_len()),
                conv: values(2 * shape.conv_len()),
            },
        }
    }

    fn layer(&mut self) -> DeltaNetCommitLayer<'_> {
        let [qkv, alpha, beta, conv_weight, a, dt_bias] = &self.inputs;
        DeltaNetCommitLayer {
            qkv,
            alpha,
            beta,
            conv_weight,
            a,
            dt_bias,
            state: &mut self.state,
        }
    }
}

#[test]
fn recurrent_states_of_many_layers_move_like_those_of_one() {
    let shape = DeltaNetShape {
        num_k_heads: 2,
        num_v_heads: 4,
        k_dim: 24,
        v_dim: 16,
        conv_taps: 3,
    };
    for device in devices().iter().map(AsRef::as_ref) {
        let commit = |layers: Vec<DeltaNetCommitLayer<'_>>, rows: &[usize]| {
            device.delta_net_commit(DeltaNetCommitArgs {
                shape,
                layers,
                state_index: 1,
                rows,
            });
        };
        let [mut all, mut single] = [(); 2].map(|()| {
            let mut noise = Noise(41);
            let layer = |_| Recurrent::new(device, shape, &mut noise);
            (0..LAYERS).map(layer).collect::<Vec<_>>()
        });
        commit(all.iter_mut().map(Recurrent::layer).collect(), PATH);
        for (number, (one, of_many)) in single.iter_mut().zip(&all).enumerate() {
            let before = download(device, &one.state.recurrent);
            for rows in PATH.chunks(5) {
                commit(vec![one.layer()], rows);
            }
            let what = format!("layer {number} on {}", device.name());
            let got = [&of_many.state.recurrent, &of_many.state.conv];
            let want = [&one.state.recurrent, &one.state.conv];
            let [got, want] = [got, want].map(|pair| pair.map(|buffer| download(device, buffer)));
            assert!(same_bits(&got.concat(), &want.concat()), "{what}");
            let (others, moved) = before.split_at(shape.state_len());
            assert!(same_bits(&got[0][..others.len()], others), "{what}: idle");
            assert!(!same_bits(&got[0][others.len()..], moved), "{what}: moved");
        }
    }
}

#[test]
fn keys_and_values_of_many_layers_move_like_those_of_one() {
    const HEAD_DIM: usize = 32;
    let pages = [2, 0];
    for device in devices().iter().map(AsRef::as_ref) {
        for kv_type in [KvType::F32, KvType::F16, KvType::Q5_1, KvType::Tq3_0] {
            // Over the end of a page.
            let commit = |layers: Vec<KvCommitLayer<'_>>| {
                device.kv_commit(KvCommitArgs {
                    head_dim: HEAD_DIM,
                    layers,
                    pages: &pages,
                    committed_len: PAGE_TOKENS - 3,
                    path: PATH,
                });
            };
            let [mut all, mut single] = [(); 2].map(|()| {
                let mut noise = Noise(43);
                let layer = |number: usize| {
                    let num_kv_heads = 1 + number % 3;
                    let len = 3 * num_kv_heads * HEAD_DIM * PAGE_TOKENS;
                    let [k, v] = [(); 2].map(|()| {
                        let mut kept = device.kv_zeros(len, kv_type).expect("memory");
                        let bytes = noise.bytes(kv_type.bytes(len));
                        kept.write_bytes(0, &bytes);
                        kept
                    });
                    (num_kv_heads, KvLayer { k, v })
                };
                (0..LAYERS).map(layer).collect::<Vec<_>>()
            });
            commit(all.iter_mut().map(of_cache).collect());
            for (number, (one, of_many)) in single.iter_mut().zip(&all).enumerate() {
                commit(vec![of_cache(one)]);
                let kept = |buffer: &Buffer| {
                    let mut bytes = vec![0; kv_type.bytes(buffer.len())];
                    buffer.read_bytes(0, &mut bytes);
                    bytes
                };
                let [got, want] =
                    [&of_many.1, &one.1].map(|cache| [kept(&cache.k), kept(&cache.v)].concat());
                let what = format!("layer {number}, {kv_type}, on {}", device.name());
                assert!(got == want, "{what}");
            }
        }
    }
}

fn of_cache((num_kv_heads, cache): &mut (usize, KvLayer)) -> KvCommitLayer<'_> {
    KvCommitLayer {
        num_kv_heads: *num_kv_heads,
        cache,
    }
}
