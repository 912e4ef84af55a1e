//! Steps that a device may record.

use kernels::{
    AttentionArgs, Buffer, Device, GatedLinearArgs, KvLayer, KvType, LinearArgs, Matrix, Norm,
    PAGE_TOKENS, Projection, RopeArgs, RopeStyle, Segment, Step, TopKArgs, Visibility,
};
use tensor::DType;

use crate::data::{Noise, devices, download, is_small, load, same_bits, upload, zeros};

/// What cannot be recorded is done all the same, each time, and is no fault of the device.
#[test]
fn a_step_that_cannot_be_recorded_is_done_piece_by_piece() {
    for device in devices() {
        let mut buffer = device.zeros(4).unwrap();
        let segment = Segment {
            first_row: 0,
            parents: &[-1],
            committed_len: 0,
            first_position: 0,
            pages: &[0],
            state_index: 0,
            advance: true,
            window: None,
        };
        let step = Step {
            tokens: &[1],
            segments: &[segment],
            visibility: Visibility::Ancestors,
            variant: &"reads",
        };
        for round in 0..4_u8 {
            let value = f32::from(round) + 1.0;
            let mut seen = [0.0; 4];
            device.step(&step, &mut || {
                device.write(&mut buffer, 0, &[value; 4]);
                device.read(&buffer, 0, &mut seen);
            });
            device.finish().unwrap();
            assert_eq!(seen, [value; 4], "{}", device.name());
        }
    }
}

/// The likeliest ids that a step looks for are those of its own logits, whatever is asked besides and by whomever.
#[test]
fn a_step_tells_the_likeliest_ids_of_its_logits() {
    const IDS: usize = 5000;
    for device in devices() {
        let device = device.as_ref();
        let rows = 24;
        let bytes = Noise(83).weights(DType::F32, rows, IDS);
        let table = load(device, DType::F32, rows, IDS, &bytes);
        let values: &[f32] = bytemuck::cast_slice(&bytes);
        let row_of = |id: u32| &values[id as usize * IDS..][..IDS];
        let likeliest = |row: &[f32], k: usize| {
            let mut ids: Vec<u32> = (0..IDS as u32).collect();
            ids.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
            ids.truncate(k);
            let values: Vec<f32> = ids.iter().map(|&id| row[id as usize]).collect();
            (ids, values)
        };
        let mut logits = zeros(device, IDS);
        let top = |logits: &Buffer, k: usize| {
            let (mut ids, mut found) = (vec![0; k], vec![0.0; k]);
            device.top_k(TopKArgs {
                num_rows: 1,
                vocab_size: IDS,
                k,
                logits,
                ids: &mut ids,
                log_probs: None,
                values: Some(&mut found),
            });
            (ids, found)
        };
        // None, and more than are looked for in a step, which are a search like any other.
        for (k, id) in [0, 1, 20, 65]
            .into_iter()
            .flat_map(|k| (0..rows as u32).map(move |id| (k, id)))
        {
            let tokens = [id];
            let segment = Segment {
                first_row: 0,
                parents: &[-1],
                committed_len: 7,
                first_position: 7,
                pages: &[0],
                state_index: 0,
                advance: true,
                window: None,
            };
            let step = Step {
                tokens: &tokens,
                segments: &[segment],
                visibility: Visibility::Ancestors,
                variant: &("seeks", k),
            };
            device.step(&step, &mut || {
                device.embed(&table, &tokens, &mut logits);
                device.seek_top(&logits, IDS, k);
            });
            let mut expected = row_of(id);
            match id % 4 {
                // Nothing comes between.
                0 | 1 => {}
                // Another row takes its place: what the step has found is of no use.
                2 => {
                    expected = row_of((id + 1) % rows as u32);
                    device.write(&mut logits, 0, expected);
                }
                // Another number of them, and then those.
                _ => assert_eq!(top(&logits, 3), likeliest(expected, 3)),
            }
            let what = format!("{}, {id}, {k}", device.name());
            // Asked for twice, once with their values, in either order.
            if id % 3 == 0 {
                assert_eq!(top(&logits, k), likeliest(expected, k), "{what}");
            }
            let mut ids = vec![0; k];
            device.top_k(TopKArgs {
                num_rows: 1,
                vocab_size: IDS,
                k,
                logits: &logits,
                ids: &mut ids,
                log_probs: None,
                values: None,
            });
            assert_eq!(ids, likeliest(expected, k).0, "{what}");
            assert_eq!(top(&logits, k), likeliest(expected, k), "{what}");
        }
        device.finish().expect("a device without fault");
    }
}

/// A layer of attention whose queries, keys and values are rows of a table.
struct Attending<'a> {
    device: &'a dyn Device,
    table: Matrix,
    cache: KvLayer,
    rows: [Buffer; 3],
    out: Buffer,
}

impl<'a> Attending<'a> {
    const DIM: usize = 64;
    const INV_FREQ: [f32; 2] = [1.0, 0.01];

    fn new(device: &'a dyn Device) -> Self {
        let (rows, len) = (100, 4 * PAGE_TOKENS * Self::DIM);
        let bytes = Noise(79).weights(DType::F32, rows, Self::DIM);
        let memory = || device.kv_zeros(len, KvType::F16).expect("memory");
        Self {
            device,
            table: load(device, DType::F32, rows, Self::DIM, &bytes),
            cache: KvLayer {
                k: memory(),
                v: memory(),
            },
            rows: [0; 3].map(|_| zeros(device, Self::DIM)),
            out: zeros(device, Self::DIM),
        }
    }

    /// The answer of a row with this id at the end of so many, as a step or operation by operation.
    fn answer(&mut self, id: u32, committed_len: usize, as_step: bool) -> Vec<f32> {
        let (tokens, pages) = ([id], [3, 0, 2]);
        let segments = [Segment {
            first_row: 0,
            parents: &[-1],
            committed_len,
            first_position: 0,
            pages: &pages[..=committed_len / PAGE_TOKENS],
            state_index: 0,
            advance: true,
            window: None,
        }];
        let step = Step {
            tokens: &tokens,
            segments: &segments,
            visibility: Visibility::Ancestors,
            variant: &"attends",
        };
        let Self {
            device,
            table,
            cache,
            rows: [q, k, v],
            out,
        } = self;
        let mut work = || {
            for row in [&mut *q, &mut *k, &mut *v] {
                device.embed(table, &tokens, row);
            }
            device.attention(AttentionArgs {
                num_heads: 1,
                num_kv_heads: 1,
                head_dim: Self::DIM,
                q,
                gated: false,
                k,
                v,
                head_norm: None,
                rope: RopeArgs {
                    style: RopeStyle::Neox,
                    inv_freq: &Self::INV_FREQ,
                },
                window: None,
                visibility: Visibility::Ancestors,
                cache,
                segments: &segments,
                out,
            });
        };
        match as_step {
            true => device.step(&step, &mut work),
            false => work(),
        }
        device.finish().expect("an answer");
        download(*device, out)
    }
}

/// A recorded step reads its ids and tables anew each time, whatever other operations have put there meanwhile: it has the bits of a device of
/// its own, on which nothing is recorded.
#[test]
fn a_recorded_step_has_the_inputs_of_each_time() {
    for (device, plain) in devices().iter().zip(&devices()) {
        let [mut recorded, mut other] = [0; 2].map(|_| Attending::new(device.as_ref()));
        let mut plain = Attending::new(plain.as_ref());
        // From one page to the next, twice.
        for len in 0..2 * PAGE_TOKENS + 5 {
            let id = (len * 37 % 100) as u32;
            let got = recorded.answer(id, len, true);
            assert!(
                same_bits(&got, &plain.answer(id, len, false)),
                "{len} on {}",
                device.name()
            );
            if len % 3 == 0 {
                other.answer(99 - id, len / 3, false);
            }
        }
    }
}

/// Variable that says how often a recorded step is run and compared: a copy that overtook a read, on an H200, changed a bit in one of
/// some thousand launches.
const ROUNDS: &str = "TANDEM_TEST_ROUNDS";

/// Layers that are nothing but products.
struct Layers<'a> {
    device: &'a dyn Device,
    gamma: Buffer,
    /// What a layer begins with, beside what comes of no use; gate, up and down.
    weights: Vec<([Matrix; 3], [Matrix; 3])>,
    width: usize,
    hidden: usize,
}

impl<'a> Layers<'a> {
    fn new(device: &'a dyn Device, len: usize, width: usize, hidden: usize) -> Self {
        let mut noise = Noise(71);
        let mut matrix =
            |dtype, rows, cols| load(device, dtype, rows, cols, &noise.weights(dtype, rows, cols));
        let mut layer = |_| {
            let first = [(DType::Q6K, width), (DType::Q4K, 48), (DType::Q4K, width)];
            (
                first.map(|(dtype, rows)| matrix(dtype, rows, width)),
                [
                    matrix(DType::Q4K, hidden, width),
                    matrix(DType::Q4K, hidden, width),
                    matrix(DType::Q6K, width, hidden),
                ],
            )
        };
        Self {
            device,
            gamma: upload(device, &vec![1.0; width]),
            weights: (0..len).map(&mut layer).collect(),
            width,
            hidden,
        }
    }

    /// What comes of some rows goes to `take`; recorded, `rounds` times, or each product waited for.
    fn answers(&self, rows: &[f32], rounds: Option<usize>, mut take: impl FnMut(Vec<f32>)) {
        let num_rows = rows.len() / self.width;
        let device = self.device;
        let x = upload(device, rows);
        let mut firsts: Vec<Buffer> = (self.weights.iter())
            .map(|_| zeros(device, num_rows * self.width))
            .collect();
        let mut second = zeros(device, num_rows * self.width);
        let mut third = zeros(device, num_rows * 48);
        let mut hidden = zeros(device, num_rows * self.hidden);
        let norm = Norm {
            gamma: &self.gamma,
            eps: 1e-6,
        };
        let finish = || {
            if rounds.is_none() {
                device.finish().expect("products");
            }
        };
        let mut run = |firsts: &mut [Buffer]| {
            for (i, ([a, b, c], [gate, up, down])) in self.weights.iter().enumerate() {
                let (before, first) = firsts.split_at_mut(i);
                let (x, first) = (before.last().unwrap_or(&x), &mut first[0]);
                let projection = |weight, out| Projection { weight, out };
                device.linear(LinearArgs {
                    num_rows,
                    x,
                    norm: Some(norm),
                    projections: &mut [
                        projection(a, first),
                        projection(b, &mut third),
                        projection(c, &mut second),
                    ],
                    accumulate: false,
                });
                finish();
                device.gated_linear(GatedLinearArgs {
                    num_rows,
                    x: &second,
                    norm: Some(norm),
                    gate,
                    up,
                    out: &mut hidden,
                });
                finish();
                device.linear(LinearArgs {
                    num_rows,
                    x: &hidden,
                    norm: None,
                    projections: &mut [Projection {
                        weight: down,
                        out: first,
                    }],
                    accumulate: true,
                });
                finish();
            }
        };
        let step = Step {
            tokens: &[],
            segments: &[],
            visibility: Visibility::Ancestors,
            variant: &("layers", num_rows),
        };
        for _ in 0..rounds.unwrap_or(1) {
            match rounds {
                Some(_) => device.step(&step, &mut || run(&mut firsts)),
                None => run(&mut firsts),
            }
            take(download(device, firsts.last().expect("a layer")));
        }
    }
}

/// Products that follow each other in a recorded step, where kernels begin before those ahead of them end and the rows that they
/// read lie at the same place each time, give the bits of products of single rows that are each waited for.
#[test]
fn recorded_products_of_many_rows_have_the_bits_of_single_ones() {
    let asked = std::env::var(ROUNDS).map(|rounds| rounds.parse().expect("a number"));
    for device in devices().iter().map(AsRef::as_ref) {
        let is_gpu = device.name().contains("NVIDIA") || device.name().contains("AMD");
        // Emulated, too, larger ones take long.
        let is_large = is_gpu && !is_small();
        let rounds = asked.clone().unwrap_or(if is_large { 1000 } else { 6 });
        let (layers, counts) = if is_large {
            let layers = Layers::new(device, 4, 5120, 17408);
            (layers, &[2, 8, 9, 16, 23, 64][..])
        } else {
            (Layers::new(device, 2, 256, 512), &[8, 16, 23][..])
        };
        for &count in counts {
            let rows = Noise(count as u64).values(count * layers.width);
            let mut want = Vec::new();
            for row in rows.chunks(layers.width) {
                layers.answers(row, None, |got| want.extend(got));
            }
            let mut round = 0;
            layers.answers(&rows, Some(rounds), |got| {
                let what = format!("{count} rows, round {round}, on {}", device.name());
                assert!(same_bits(&got, &want), "{what}");
                round += 1;
            });
        }
    }
}
