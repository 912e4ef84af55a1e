//! What a draft block needs of attention: rows that are context only, rows that all see each other, windows, and
//! contexts that begin at a later position.

use kernels::{
    AttentionArgs, Device, HeadNorm, KvAppendArgs, KvLayer, KvType, Norm, PAGE_TOKENS, RopeArgs,
    RopeStyle, Segment, Visibility, Window,
};

use crate::attention::{Row, TREE, chain, rows};
use crate::data::{Noise, SameBits, devices, download, relative_error, same_bits, upload, zeros};
use crate::reference::{AttentionModel, Past, path_to};

/// Rows of a draft block.
const BLOCK: usize = 7;
const PAGES: usize = 5;
const SEQUENCES: usize = 2;

/// As in the tests of trees; keys and values in f16 are rounded to 11 bits each.
const fn tolerance(kv_type: KvType) -> f64 {
    match kv_type {
        KvType::F32 => 3e-6,
        _ => 1e-3,
    }
}

const WINDOWS: &[Option<Window>] = &[
    None,
    // Smaller than a block, as large as a page, over pages, and none but causal.
    Some(Window {
        tokens: 3,
        causal: true,
    }),
    Some(Window {
        tokens: 3,
        causal: false,
    }),
    Some(Window {
        tokens: 1,
        causal: false,
    }),
    Some(Window {
        tokens: 64,
        causal: true,
    }),
    Some(Window {
        tokens: 100,
        causal: false,
    }),
    Some(Window {
        tokens: usize::MAX,
        causal: true,
    }),
];

/// (committed rows, position of the first) of both sequences: a block over a page's end, and one at its beginning.
const CONTEXTS: [(usize, usize); SEQUENCES] = [(187, 0), (64, 1000)];

fn model(noise: &mut Noise) -> AttentionModel {
    AttentionModel {
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 64,
        gated: false,
        style: RopeStyle::Neox,
        inv_freq: (0..32).map(|i| 1e4_f32.powf(-(i as f32) / 32.0)).collect(),
        head_norm: Some((noise.values(64), noise.values(64), 1e-6)),
    }
}

/// A layer of a draft on one device.
struct Layer<'a> {
    device: &'a dyn Device,
    model: &'a AttentionModel,
    cache: KvLayer,
    pages: Vec<Vec<u32>>,
    /// Of segments.
    window: Option<usize>,
}

impl<'a> Layer<'a> {
    fn new(device: &'a dyn Device, model: &'a AttentionModel, kv_type: KvType) -> Self {
        let len = SEQUENCES * PAGES * PAGE_TOKENS * model.num_kv_heads * model.head_dim;
        let kv = || device.kv_zeros(len, kv_type).expect("memory");
        let mut cache = KvLayer { k: kv(), v: kv() };
        // What lies in pages that nobody wrote must not show.
        let rubbish = vec![f32::NAN; len];
        device.write(&mut cache.k, 0, &rubbish);
        device.write(&mut cache.v, 0, &rubbish);
        Self {
            device,
            model,
            cache,
            pages: (0..SEQUENCES)
                .map(|s| {
                    (0..PAGES)
                        .rev()
                        .map(|i| (i * SEQUENCES + s) as u32)
                        .collect()
                })
                .collect(),
            window: None,
        }
    }

    fn field(&self, rows: &[Row], field: usize) -> kernels::Buffer {
        let values: Vec<f32> = rows.iter().flat_map(|row| &row[field]).copied().collect();
        upload(self.device, &values)
    }

    /// Appends rows to sequence `s` after `committed_len` others.
    fn append(&mut self, s: usize, committed_len: usize, first_position: usize, rows: &[Row]) {
        let (mut k, v) = (self.field(rows, 1), self.field(rows, 2));
        let (_, gamma, eps) = self.model.head_norm.as_ref().expect("is normed");
        let gamma = upload(self.device, gamma);
        self.device.kv_append(KvAppendArgs {
            num_kv_heads: self.model.num_kv_heads,
            head_dim: self.model.head_dim,
            k: &mut k,
            v: &v,
            k_norm: Some(Norm {
                gamma: &gamma,
                eps: *eps,
            }),
            rope: RopeArgs {
                style: self.model.style,
                inv_freq: &self.model.inv_freq,
            },
            cache: &mut self.cache,
            segments: &[Segment {
                first_row: 0,
                parents: &chain(rows.len()),
                committed_len,
                first_position,
                pages: &self.pages[s],
                state_index: 0,
                advance: true,
                window: None,
            }],
        });
    }

    /// Draft blocks of sequences (sequence, committed rows, position of the first) in one call.
    fn blocks(
        &mut self,
        of: &[(usize, usize, usize)],
        rows: &[Row],
        visibility: Visibility,
        window: Option<Window>,
    ) -> Vec<f32> {
        self.segments(of, &chain(BLOCK), rows, visibility, window)
    }

    /// Segments of the same nodes.
    fn segments(
        &mut self,
        of: &[(usize, usize, usize)],
        parents: &[i32],
        rows: &[Row],
        visibility: Visibility,
        window: Option<Window>,
    ) -> Vec<f32> {
        let (mut q, mut k, v) = (
            self.field(rows, 0),
            self.field(rows, 1),
            self.field(rows, 2),
        );
        let (q_gamma, k_gamma, eps) = self.model.head_norm.as_ref().expect("is normed");
        let (q_gamma, k_gamma) = (upload(self.device, q_gamma), upload(self.device, k_gamma));
        let segments: Vec<_> = of
            .iter()
            .enumerate()
            .map(|(i, &(s, committed_len, first_position))| Segment {
                first_row: i * parents.len(),
                parents,
                committed_len,
                first_position,
                pages: &self.pages[s],
                state_index: 0,
                advance: false,
                window: self.window,
            })
            .collect();
        let width = self.model.num_heads * self.model.head_dim;
        let mut out = zeros(self.device, rows.len() * width);
        self.device.attention(AttentionArgs {
            num_heads: self.model.num_heads,
            num_kv_heads: self.model.num_kv_heads,
            head_dim: self.model.head_dim,
            q: &mut q,
            gated: false,
            k: &mut k,
            v: &v,
            head_norm: Some(HeadNorm {
                q_gamma: &q_gamma,
                k_gamma: &k_gamma,
                eps: *eps,
            }),
            rope: RopeArgs {
                style: self.model.style,
                inv_freq: &self.model.inv_freq,
            },
            cache: &mut self.cache,
            segments: &segments,
            visibility,
            window,
            out: &mut out,
        });
        download(self.device, &out)
    }
}

/// Both sequences of [`CONTEXTS`]: blocks together, against loops, and against each block alone.
#[test]
fn blocks_see_context_and_each_other_through_windows() {
    for kv_type in [KvType::F32, KvType::F16] {
        let mut noise = Noise(53);
        let model = model(&mut noise);
        let contexts = CONTEXTS.map(|(len, _)| rows(&model, len, &mut noise));
        let blocks = rows(&model, SEQUENCES * BLOCK, &mut noise);
        for &window in WINDOWS {
            let mut want = Vec::new();
            for (s, rows) in blocks.chunks(BLOCK).enumerate() {
                let mut past = Past::starting_at(CONTEXTS[s].1);
                model.commit(&mut past, &contexts[s]);
                want.extend(model.block(&past, window, rows));
            }
            let mut same = SameBits::default();
            for device in devices().iter().map(AsRef::as_ref) {
                let mut layer = Layer::new(device, &model, kv_type);
                let mut of = Vec::new();
                for (s, (len, first)) in CONTEXTS.into_iter().enumerate() {
                    // In two pieces, as drafts do.
                    let (early, late) = contexts[s].split_at(len - 5);
                    layer.append(s, 0, first, early);
                    layer.append(s, early.len(), first, late);
                    of.push((s, len, first));
                }
                let got = layer.blocks(&of, &blocks, Visibility::All, window);
                let what = format!("{kv_type:?}, {window:?} on {}", device.name());
                let error = relative_error(&got, &want);
                assert!(error < tolerance(kv_type), "{what}: {error:e}");
                let alone: Vec<f32> = of
                    .iter()
                    .zip(blocks.chunks(BLOCK))
                    .flat_map(|(of, rows)| {
                        layer.blocks(std::slice::from_ref(of), rows, Visibility::All, window)
                    })
                    .collect();
                assert!(same_bits(&got, &alone), "{what}: alone");
                same.check(device, got, &what);
            }
        }
    }
}

/// Appending keys is what attention does with the keys of its own rows; and along a chain a causal window only leaves
/// keys out.
#[test]
fn a_chain_with_appended_context_equals_one_with_attended_context() {
    let mut noise = Noise(59);
    let model = model(&mut noise);
    let context = rows(&model, 13 * BLOCK, &mut noise);
    let block = rows(&model, BLOCK, &mut noise);
    for device in devices().iter().map(AsRef::as_ref) {
        for kv_type in [KvType::F32, KvType::F16] {
            for &window in WINDOWS.iter().filter(|w| w.is_none_or(|w| w.causal)) {
                let mut layer = Layer::new(device, &model, kv_type);
                layer.append(0, 0, 0, &context);
                for (i, rows) in context.chunks(BLOCK).enumerate() {
                    layer.blocks(&[(1, i * BLOCK, 0)], rows, Visibility::Ancestors, window);
                }
                let mut run = |s, visibility| {
                    layer.blocks(&[(s, context.len(), 0)], &block, visibility, window)
                };
                let appended = run(0, Visibility::Ancestors);
                assert!(same_bits(&appended, &run(1, Visibility::Ancestors)));
                if window.is_some() {
                    assert!(same_bits(&appended, &run(0, Visibility::All)));
                }
            }
        }
    }
}

/// A context whose oldest page was dropped is one that begins a page later.
#[test]
fn dropped_pages_leave_a_context_that_begins_later() {
    let mut noise = Noise(61);
    let model = model(&mut noise);
    let context = rows(&model, 150, &mut noise);
    let block = rows(&model, BLOCK, &mut noise);
    for device in devices().iter().map(AsRef::as_ref) {
        let mut dropped = Layer::new(device, &model, KvType::F32);
        dropped.append(0, 0, 0, &context);
        dropped.pages[0].remove(0);
        let mut fresh = Layer::new(device, &model, KvType::F32);
        fresh.append(0, 0, PAGE_TOKENS, &context[PAGE_TOKENS..]);
        let of = [(0, 150 - PAGE_TOKENS, PAGE_TOKENS)];
        let [a, b] = [&mut dropped, &mut fresh]
            .map(|layer| layer.blocks(&of, &block, Visibility::All, None));
        assert!(same_bits(&a, &b), "{}", device.name());
    }
}

/// A node of a tree sees through a window what it would see alone: positions count, not slots.
#[test]
fn windows_over_trees_are_those_over_their_paths() {
    let mut noise = Noise(71);
    let model = model(&mut noise);
    let context = rows(&model, 61, &mut noise);
    let nodes = rows(&model, TREE.len(), &mut noise);
    let width = model.num_heads * model.head_dim;
    for device in devices().iter().map(AsRef::as_ref) {
        for &window in WINDOWS {
            let mut layer = Layer::new(device, &model, KvType::F32);
            for s in 0..SEQUENCES {
                layer.append(s, 0, 500, &context);
            }
            let mut run = |s, parents: &[i32], rows: &[Row]| {
                layer.segments(
                    &[(s, 61, 500)],
                    parents,
                    rows,
                    Visibility::Ancestors,
                    window,
                )
            };
            let together = run(0, TREE, &nodes);
            for (node, got) in together.chunks_exact(width).enumerate() {
                let path: Vec<Row> = path_to(TREE, node)
                    .iter()
                    .map(|&i| nodes[i].clone())
                    .collect();
                let alone = run(1, &chain(path.len()), &path);
                let last = &alone[alone.len() - width..];
                assert!(
                    same_bits(got, last),
                    "{window:?}, node {node} on {}",
                    device.name()
                );
            }
            // The segment's own window gives the same.
            if let Some(Window {
                tokens,
                causal: true,
            }) = window
            {
                layer.window = Some(tokens);
                let of = [(0, 61, 500)];
                let got = layer.segments(&of, TREE, &nodes, Visibility::Ancestors, None);
                assert!(same_bits(&got, &together), "{tokens} on {}", device.name());
            }
        }
    }
}

/// GPUs know angles in turns, exact at any position; the CPU's are products in f32, good for some thousands of positions.
#[test]
fn rotations_at_late_positions_are_exact_on_gpus() {
    let mut noise = Noise(73);
    let model = model(&mut noise);
    let (len, first) = (64, 262_000);
    let context = rows(&model, len, &mut noise);
    let block = rows(&model, BLOCK, &mut noise);
    let mut past = Past::starting_at(first);
    model.commit(&mut past, &context);
    let want = model.block(&past, None, &block);
    let devices = devices();
    for device in devices.iter().filter(|d| !d.name().starts_with("cpu")) {
        let mut layer = Layer::new(&**device, &model, KvType::F32);
        layer.append(0, 0, first, &context);
        let got = layer.blocks(&[(0, len, first)], &block, Visibility::All, None);
        let error = relative_error(&got, &want);
        assert!(
            error < tolerance(KvType::F32),
            "{}: {error:e}",
            device.name()
        );
    }
}
