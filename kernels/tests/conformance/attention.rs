//! Attention over pages, along chains and trees, and its commit.

use kernels::{
    AttentionArgs, Device, HeadNorm, KvAppendArgs, KvCommitArgs, KvCommitLayer, KvLayer, KvType,
    KvTypes, Norm, PAGE_TOKENS, RopeArgs, RopeStyle, Segment, Visibility, Window,
};

use crate::data::{Noise, SameBits, devices, download, relative_error, same_bits, upload, zeros};
use crate::reference::{AttentionModel, Past};

/// f32 dot products of up to 256 terms, an exponential good to 3e-7 and rotation angles kept in f32: 3e-7 was measured,
/// and ten times that is far below any mistake of index or order.
const TOLERANCE: f64 = 3e-6;

const SEQUENCES: usize = 3;
const PAGES: usize = 5;
/// Tokens of a context so long that a GPU puts the parts of a row together in another way.
const FAR: usize = 4200;

/// A tree with three branches, one of them five deep: `[0 [1 [3 [5] [6]] [4]] [2 [7 [8 [9]]]]]`.
pub(crate) const TREE: &[i32] = &[-1, 0, 0, 1, 1, 3, 3, 2, 7, 8];

/// (heads, key/value heads, head dim, rotated pairs, style, per-head norm, gated).
pub(crate) type Case = (usize, usize, usize, usize, RopeStyle, bool, bool);

const CASES: &[Case] = &[
    (4, 4, 64, 32, RopeStyle::Adjacent, false, false),
    (9, 3, 64, 32, RopeStyle::Neox, false, false),
    (4, 1, 128, 64, RopeStyle::Neox, true, false),
    (6, 1, 256, 32, RopeStyle::Neox, true, true),
];

const KV_TYPES: [KvType; 2] = [KvType::F32, KvType::F16];
/// Those that are codes too.
const SOME_TYPES: [KvType; 6] = [
    KvType::F32,
    KvType::Tq3_0,
    KvType::F16,
    KvType::Q4_1,
    KvType::Q8_0,
    KvType::Q5_0,
];

pub(crate) fn model(case: Case, noise: &mut Noise) -> AttentionModel {
    let (num_heads, num_kv_heads, head_dim, pairs, style, normed, gated) = case;
    AttentionModel {
        num_heads,
        num_kv_heads,
        head_dim,
        gated,
        style,
        inv_freq: (0..pairs)
            .map(|i| 1e4_f32.powf(-(i as f32) / pairs as f32))
            .collect(),
        head_norm: normed.then(|| (noise.values(head_dim), noise.values(head_dim), 1e-6)),
    }
}

/// q, k and v of a node.
pub(crate) type Row = [Vec<f32>; 3];

pub(crate) fn rows(model: &AttentionModel, count: usize, noise: &mut Noise) -> Vec<Row> {
    let q = model.num_heads * model.head_dim * if model.gated { 2 } else { 1 };
    let kv = model.num_kv_heads * model.head_dim;
    (0..count)
        .map(|_| {
            // Larger queries sharpen the softmax.
            let q = noise.values(q).iter().map(|v| 3.0 * v).collect();
            [q, noise.values(kv), noise.values(kv)]
        })
        .collect()
}

pub(crate) fn chain(len: usize) -> Vec<i32> {
    (0..len as i32).map(|i| i - 1).collect()
}

/// Nodes of one sequence in a call.
pub(crate) struct Part<'a> {
    pub sequence: usize,
    pub committed_len: usize,
    pub parents: &'a [i32],
    pub rows: &'a [Row],
}

/// One layer on one device.
pub(crate) struct Layer<'a> {
    pub device: &'a dyn Device,
    pub model: &'a AttentionModel,
    pub types: KvTypes,
    pub cache: KvLayer,
    /// Of a sequence.
    num_pages: usize,
    window: Option<Window>,
}

impl<'a> Layer<'a> {
    pub(crate) fn new(device: &'a dyn Device, model: &'a AttentionModel, types: KvTypes) -> Self {
        Self::with_pages(device, model, types, PAGES)
    }

    fn with_pages(
        device: &'a dyn Device,
        model: &'a AttentionModel,
        types: KvTypes,
        num_pages: usize,
    ) -> Self {
        let len = SEQUENCES * num_pages * PAGE_TOKENS * model.num_kv_heads * model.head_dim;
        Self {
            device,
            model,
            types,
            cache: KvLayer {
                k: device.kv_zeros(len, types.k).expect("memory"),
                v: device.kv_zeros(len, types.v).expect("memory"),
            },
            num_pages,
            window: None,
        }
    }

    /// Pages of a sequence, interleaved with the others' and in falling order; the same again where it is longer.
    pub(crate) fn pages(&self, sequence: usize) -> Vec<u32> {
        let last = self.num_pages - 1;
        (0..FAR.div_ceil(PAGE_TOKENS) + 1)
            .map(|i| ((last - i % self.num_pages) * SEQUENCES + sequence) as u32)
            .collect()
    }

    /// Outputs of all nodes, part by part.
    pub(crate) fn run(&mut self, parts: &[Part<'_>]) -> Vec<f32> {
        let (device, model) = (self.device, self.model);
        let pages: Vec<_> = parts.iter().map(|p| self.pages(p.sequence)).collect();
        let mut first_row = 0;
        let mut segments = Vec::new();
        for (part, pages) in parts.iter().zip(&pages) {
            segments.push(Segment {
                first_row,
                parents: part.parents,
                committed_len: part.committed_len,
                first_position: 0,
                pages,
                state_index: 0,
                advance: false,
                window: None,
            });
            first_row += part.rows.len();
        }
        let [mut q, mut k, v] = [0, 1, 2].map(|field| {
            let all = parts.iter().flat_map(|p| p.rows);
            let values: Vec<f32> = all.flat_map(|row| &row[field]).copied().collect();
            upload(device, &values)
        });
        let gammas = model
            .head_norm
            .as_ref()
            .map(|(q, k, eps)| (upload(device, q), upload(device, k), *eps));
        let mut out = zeros(device, first_row * model.num_heads * model.head_dim);
        device.attention(AttentionArgs {
            num_heads: model.num_heads,
            num_kv_heads: model.num_kv_heads,
            head_dim: model.head_dim,
            q: &mut q,
            gated: model.gated,
            k: &mut k,
            v: &v,
            head_norm: gammas.as_ref().map(|(q_gamma, k_gamma, eps)| HeadNorm {
                q_gamma,
                k_gamma,
                eps: *eps,
            }),
            rope: RopeArgs {
                style: model.style,
                inv_freq: &model.inv_freq,
            },
            cache: &mut self.cache,
            segments: &segments,
            visibility: Visibility::Ancestors,
            window: self.window,
            out: &mut out,
        });
        download(device, &out)
    }

    /// Rows without queries, after none.
    pub(crate) fn append(&mut self, sequence: usize, rows: &[Row]) {
        let (device, model) = (self.device, self.model);
        let pages = self.pages(sequence);
        let [mut k, v] = [1, 2].map(|field| {
            let values: Vec<f32> = rows.iter().flat_map(|row| &row[field]).copied().collect();
            upload(device, &values)
        });
        let gamma = model
            .head_norm
            .as_ref()
            .map(|(_, k, eps)| (upload(device, k), *eps));
        device.kv_append(KvAppendArgs {
            num_kv_heads: model.num_kv_heads,
            head_dim: model.head_dim,
            k: &mut k,
            v: &v,
            k_norm: gamma.as_ref().map(|(gamma, eps)| Norm { gamma, eps: *eps }),
            rope: RopeArgs {
                style: model.style,
                inv_freq: &model.inv_freq,
            },
            cache: &mut self.cache,
            segments: &[Segment {
                first_row: 0,
                parents: &chain(rows.len()),
                committed_len: 0,
                first_position: 0,
                pages: &pages,
                state_index: 0,
                advance: false,
                window: None,
            }],
        });
    }

    fn commit(&mut self, sequence: usize, committed_len: usize, path: &[usize]) {
        let pages = self.pages(sequence);
        self.device.kv_commit(KvCommitArgs {
            head_dim: self.model.head_dim,
            layers: vec![KvCommitLayer {
                num_kv_heads: self.model.num_kv_heads,
                cache: &mut self.cache,
            }],
            pages: &pages,
            committed_len,
            path,
        });
    }
}

/// Prompts of three lengths (within a page, to a page's end, over two pages), then a tree, a chain and one node.
#[test]
fn prefill_and_trees_agree_with_plain_loops_and_between_instruction_sets() {
    let prompts = [59, 64, 150];
    let later = chain(7);
    for &case in CASES {
        let mut noise = Noise(19);
        let model = model(case, &mut noise);
        let first: Vec<_> = prompts.map(|n| rows(&model, n, &mut noise)).into();
        let chains: Vec<_> = prompts.map(chain).into();
        let second: Vec<_> = [TREE.len(), 7, 1]
            .map(|n| rows(&model, n, &mut noise))
            .into();
        let parents: [&[i32]; 3] = [TREE, &later, &[-1]];

        let mut want = Vec::new();
        let mut past = vec![Past::default(); SEQUENCES];
        for (s, rows) in first.iter().enumerate() {
            want.extend(model.segment(&past[s], &chains[s], rows));
            model.commit(&mut past[s], rows);
        }
        for (s, rows) in second.iter().enumerate() {
            want.extend(model.segment(&past[s], parents[s], rows));
        }
        let mut same = SameBits::default();
        for device in devices().iter().map(AsRef::as_ref) {
            let mut layer = Layer::new(device, &model, KvTypes::both(KvType::F32));
            let call = |rows: &'_ [Vec<Row>], parents: [&'_ [i32]; 3], committed: [usize; 3]| {
                (0..SEQUENCES)
                    .map(|s| (s, committed[s], parents[s].to_vec(), rows[s].clone()))
                    .collect::<Vec<_>>()
            };
            let mut got = Vec::new();
            for turn in [
                call(&first, [&chains[0], &chains[1], &chains[2]], [0; 3]),
                call(&second, parents, prompts),
            ] {
                let parts: Vec<_> = turn
                    .iter()
                    .map(|(sequence, committed_len, parents, rows)| Part {
                        sequence: *sequence,
                        committed_len: *committed_len,
                        parents,
                        rows,
                    })
                    .collect();
                got.extend(layer.run(&parts));
            }
            let error = relative_error(&got, &want);
            let what = format!("{case:?} on {}", device.name());
            assert!(error < TOLERANCE, "{what}: {error:e}");
            same.check(device, got, &what);
        }
    }
}

/// The product's promise: a tree's nodes, their commit and what follows have the bits of plain decoding.
#[test]
fn a_node_has_the_same_bits_in_a_tree_in_company_and_alone() {
    let path = [0, 2, 7, 8, 9];
    for device in devices().iter().map(AsRef::as_ref) {
        for (&case, kv_type) in CASES.iter().cycle().zip(SOME_TYPES) {
            let mut noise = Noise(23);
            let model = model(case, &mut noise);
            let width = model.num_heads * model.head_dim;
            // The path crosses from one page into the next.
            let prompt = rows(&model, 61, &mut noise);
            let other = rows(&model, 5, &mut noise);
            let tree = rows(&model, TREE.len(), &mut noise);
            let next = rows(&model, 1, &mut noise);

            let mut plain = Layer::new(device, &model, KvTypes::both(kv_type));
            let mut decoded = Vec::new();
            let steps: Vec<&Row> = prompt
                .iter()
                .chain(path.iter().map(|&i| &tree[i]))
                .chain(&next)
                .collect();
            for (committed_len, row) in steps.iter().enumerate() {
                decoded.extend(plain.run(&[Part {
                    sequence: 1,
                    committed_len,
                    parents: &[-1],
                    rows: std::slice::from_ref(*row),
                }]));
            }

            let mut layer = Layer::new(device, &model, KvTypes::both(kv_type));
            let company = Part {
                sequence: 0,
                committed_len: 0,
                parents: &chain(5),
                rows: &other,
            };
            let of = |committed_len, parents, rows| Part {
                sequence: 1,
                committed_len,
                parents,
                rows,
            };
            let parents = chain(61);
            let mut got = layer.run(&[company, of(0, &parents, &prompt)]);
            got.drain(..5 * width);
            let answers = layer.run(&[of(61, TREE, &tree)]);
            for node in path {
                got.extend_from_slice(&answers[node * width..][..width]);
            }
            layer.commit(1, 61, &path);
            got.extend(layer.run(&[of(66, &[-1], &next)]));
            assert!(same_bits(&got, &decoded), "{case:?} on {}", device.name());
        }
    }
}

/// The same where a path leaves the page, and the 256 slots, in which its ancestors at the same places would lie.
#[test]
fn a_path_far_from_its_places_has_the_bits_of_a_chain() {
    let path = [0, 2, 7, 8, 9];
    for device in devices().iter().map(AsRef::as_ref) {
        for (&case, kv_type) in CASES.iter().skip(1).cycle().zip(SOME_TYPES) {
            let mut noise = Noise(29);
            let model = model(case, &mut noise);
            let width = model.num_heads * model.head_dim;
            let prompt = rows(&model, 253, &mut noise);
            let tree = rows(&model, TREE.len(), &mut noise);
            let next = rows(&model, 1, &mut noise);
            let mut layer = Layer::new(device, &model, KvTypes::both(kv_type));
            layer.append(0, &prompt);
            layer.append(1, &prompt);
            let of = |sequence, committed_len, parents, rows| Part {
                sequence,
                committed_len,
                parents,
                rows,
            };

            let mut decoded = Vec::new();
            let steps = path.iter().map(|&i| &tree[i]).chain(&next);
            for (i, row) in steps.enumerate() {
                decoded.extend(layer.run(&[of(0, 253 + i, &[-1], std::slice::from_ref(row))]));
            }
            let mut got = Vec::new();
            let answers = layer.run(&[of(1, 253, TREE, &tree)]);
            for node in path {
                got.extend_from_slice(&answers[node * width..][..width]);
            }
            layer.commit(1, 253, &path);
            got.extend(layer.run(&[of(1, 258, &[-1], &next)]));
            let what = format!("{case:?}, {kv_type} on {}", device.name());
            assert!(same_bits(&got, &decoded), "{what}");
        }
    }
}

/// The same beside a sequence with a very long context.
#[test]
fn a_row_has_the_same_bits_beside_a_far_longer_context() {
    for device in devices().iter().map(AsRef::as_ref) {
        for &case in CASES {
            for kv_type in KV_TYPES {
                let mut noise = Noise(53);
                let model = model(case, &mut noise);
                let prompt = rows(&model, 290, &mut noise);
                let next = rows(&model, 2, &mut noise);
                let of = |sequence, committed_len, row: usize| Part {
                    sequence,
                    committed_len,
                    parents: &[-1],
                    rows: &next[row..=row],
                };
                let [alone, beside] = [false, true].map(|is_beside| {
                    let mut layer = Layer::new(device, &model, KvTypes::both(kv_type));
                    layer.append(0, &prompt);
                    let long = is_beside.then(|| of(2, FAR, 1));
                    let parts: Vec<_> = [of(0, prompt.len(), 0)].into_iter().chain(long).collect();
                    let mut got = layer.run(&parts);
                    got.truncate(model.num_heads * model.head_dim);
                    got
                });
                let what = format!("{case:?}, {kv_type} on {}", device.name());
                assert!(same_bits(&alone, &beside), "{what}");
            }
        }
    }
}

/// Rows by themselves, which a GPU may attend to in another way than others: with one split and several, of which the last ends within a page or with it,
/// through windows, and beside another sequence's.
#[test]
fn a_row_alone_has_the_bits_of_a_chain_whatever_it_sees() {
    let pages = FAR.div_ceil(PAGE_TOKENS);
    let window = Window {
        tokens: 290,
        causal: true,
    };
    for device in devices().iter().map(AsRef::as_ref) {
        for (case, window) in [
            (CASES[2], None),
            (CASES[3], None),
            (CASES[3], Some(window)),
            ((3, 1, 64, 0, RopeStyle::Neox, false, false), None),
        ] {
            let mut noise = Noise(59);
            let model = model(case, &mut noise);
            let next = rows(&model, 2, &mut noise);
            let types = KvTypes::both(KvType::F16);
            let mut layer = Layer::with_pages(device, &model, types, pages);
            layer.window = window;
            let values = noise.values(layer.cache.k.len());
            device.write(&mut layer.cache.k, 0, &values);
            device.write(&mut layer.cache.v, 0, &noise.values(values.len()));
            for seen in [0, 63, 64, 255, 256, 300, 700, 1023, 2500] {
                let part = |sequence, committed_len, parents, rows| Part {
                    sequence,
                    committed_len,
                    parents,
                    rows,
                };
                let own = part(1, seen, &[-1], &next[..1]);
                // First, so that its key is not there yet.
                let alone = layer.run(std::slice::from_ref(&own));
                let other = part(2, 5, &[-1], &next[1..]);
                let [mut beside, mut chain] = [
                    layer.run(&[own, other]),
                    layer.run(&[part(1, seen, &[-1, 0], &next)]),
                ];
                let what = format!("{case:?}, {window:?}, {seen} on {}", device.name());
                for got in [&mut beside, &mut chain] {
                    got.truncate(model.num_heads * model.head_dim);
                    assert!(same_bits(&alone, got), "{what}");
                }
            }
        }
    }
}

/// Later rows of a chain do not show in earlier ones, however large their values beside those that are seen.
#[test]
fn what_a_row_does_not_see_leaves_no_trace() {
    let (count, dim) = (40, 64);
    let model = AttentionModel {
        num_heads: 1,
        num_kv_heads: 1,
        head_dim: dim,
        gated: false,
        style: RopeStyle::Neox,
        inv_freq: Vec::new(),
        head_norm: None,
    };
    let mut noise = Noise(31);
    let mut all = rows(&model, count, &mut noise);
    for (i, [q, k, v]) in all.iter_mut().enumerate() {
        q.fill(0.0);
        k.fill(0.0);
        q[0] = 8.0;
        // The first keys take all of the weight and have no values; of the others' weights, 2^-17, the sums are made.
        k[0] = if i < 16 { 12.0 } else { 0.0 };
        let scale = match i {
            ..16 => 0.0,
            16..24 => 1.0,
            _ => 3e4,
        };
        v.iter_mut().for_each(|v| *v *= scale);
    }
    for device in devices().iter().map(AsRef::as_ref) {
        for kv_type in KV_TYPES {
            let mut layer = Layer::new(device, &model, KvTypes::both(kv_type));
            let part = |sequence, committed_len, parents, rows| Part {
                sequence,
                committed_len,
                parents,
                rows,
            };
            let parents = chain(count);
            let together = layer.run(&[part(0, 0, &parents, &all)]);
            for (i, row) in all.iter().enumerate() {
                let alone = layer.run(&[part(1, i, &[-1], std::slice::from_ref(row))]);
                let what = format!("row {i}, {kv_type} on {}", device.name());
                assert!(same_bits(&alone, &together[i * dim..][..dim]), "{what}");
            }
        }
    }
}
