//! Keys and values of all types: what is kept is what the formulas say, and attention is that over what is kept.

use kernels::{Device, KvType, KvTypes, PAGE_TOKENS, RopeStyle};

use crate::attention::{Case, Layer, Part, Row, TREE, chain, model, rows};
use crate::data::{Noise, SameBits, devices, relative_error};
use crate::kept::{decode, is_rotated, quantised, rotated, rotated_back};
use crate::reference::{AttentionModel, path_to};

/// Heads of which a rotation takes a part, all, and half.
const CASES: [Case; 4] = [
    (2, 2, 96, 0, RopeStyle::Neox, false, false),
    (9, 3, 64, 32, RopeStyle::Neox, false, false),
    (4, 1, 128, 64, RopeStyle::Adjacent, true, false),
    (6, 1, 256, 32, RopeStyle::Neox, true, true),
];

/// Each type on both sides.
const PAIRS: [KvTypes; 9] = [
    pair(KvType::Bf16, KvType::Q8_0),
    pair(KvType::Q8_0, KvType::Q4_0),
    pair(KvType::Q4_0, KvType::Tq3_0),
    pair(KvType::Tq3_0, KvType::Q4_1),
    pair(KvType::Q4_1, KvType::Q5_0),
    pair(KvType::Q5_0, KvType::Q5_1),
    pair(KvType::Q5_1, KvType::F16),
    pair(KvType::F16, KvType::Bf16),
    // Not for matrix units.
    pair(KvType::F32, KvType::Tq3_0),
];

const fn pair(k: KvType, v: KvType) -> KvTypes {
    KvTypes { k, v }
}

/// The CPU makes f32 of what is kept, and matrix units get f16: half a unit in the last place of a value is 2.4e-4 of it, and
/// in a score that shows again. 3.3e-4 was measured.
fn tolerance(device: &dyn Device) -> f64 {
    match device.name().starts_with("cpu") {
        true => 3e-6,
        false => 1e-3,
    }
}

/// Rows of a sequence that a layer keeps, as kept.
fn kept(layer: &Layer<'_>, is_key: bool, sequence: usize, head: usize, slot: usize) -> Vec<f64> {
    let model = layer.model;
    let (kv_type, buffer) = match is_key {
        true => (layer.types.k, &layer.cache.k),
        false => (layer.types.v, &layer.cache.v),
    };
    let mut page = vec![0; kv_type.bytes(model.head_dim) * PAGE_TOKENS];
    let number = layer.pages(sequence)[slot / PAGE_TOKENS] as usize * model.num_kv_heads + head;
    buffer.read_bytes(number * page.len(), &mut page);
    decode(kv_type, is_key, model.head_dim, &page, slot % PAGE_TOKENS)
}

/// The same of all heads, as attention sees it.
fn seen(layer: &Layer<'_>, sequence: usize, slot: usize) -> (Vec<f64>, Vec<f64>) {
    let side = |is_key: bool, kv_type: KvType| -> Vec<f64> {
        let head = |head| {
            let row = kept(layer, is_key, sequence, head, slot);
            match is_rotated(kv_type, is_key) {
                true => rotated_back(&row),
                false => row,
            }
        };
        (0..layer.model.num_kv_heads).flat_map(head).collect()
    };
    (side(true, layer.types.k), side(false, layer.types.v))
}

/// Rows with a few large values, as keys have them.
fn uneven(model: &AttentionModel, count: usize, noise: &mut Noise) -> Vec<Row> {
    let mut rows = rows(model, count, noise);
    for [_, k, v] in &mut rows {
        for x in [k, v] {
            x.iter_mut().step_by(29).for_each(|x| *x *= 9.0);
        }
    }
    rows
}

#[test]
fn what_is_kept_is_what_the_formulas_say() {
    for kv_type in KvType::ALL {
        for (number, &dim) in [32, 64, 96, 128, 256].iter().enumerate() {
            let mut noise = Noise(61 + number as u64);
            let model = model((2, 2, dim, 0, RopeStyle::Neox, false, false), &mut noise);
            let rows = uneven(&model, 70, &mut noise);
            let mut all = Vec::new();
            for device in devices() {
                let mut layer = Layer::new(&*device, &model, KvTypes::both(kv_type));
                layer.append(1, &rows);
                let what = format!("{kv_type} of {dim} on {}", device.name());
                let mut bytes = Vec::new();
                for (is_key, field) in [(true, 1), (false, 2)] {
                    for (slot, row) in rows.iter().enumerate() {
                        let head: Vec<f64> =
                            row[field][dim..].iter().map(|x| f64::from(*x)).collect();
                        let head = match is_rotated(kv_type, is_key) {
                            true => rotated(&head),
                            false => head,
                        };
                        let want = quantised(kv_type, &head);
                        let got = kept(&layer, is_key, 1, 1, slot);
                        // Of a value between two codes f32 may take the other.
                        let far = want.iter().fold(0.0_f64, |far, x| far.max(x.abs()));
                        let other = got
                            .iter()
                            .zip(&want)
                            .filter(|(got, want)| (*got - *want).abs() > 1e-3 * far);
                        assert!(other.count() * 50 <= dim, "{what}: slot {slot}");
                        bytes.extend(got.iter().map(|x| x.to_bits()));
                    }
                }
                all.push((what, bytes));
            }
            for (what, bytes) in &all[1..] {
                assert!(*bytes == all[0].1, "{what} and {}", all[0].0);
            }
        }
    }
}

/// A prompt, then a tree on top of it, against loops over what the device says that it keeps.
#[test]
fn attention_is_that_over_what_is_kept() {
    for (&types, &case) in PAIRS.iter().zip(CASES.iter().cycle()) {
        let mut noise = Noise(67);
        let model = model(case, &mut noise);
        let prompt = uneven(&model, 75, &mut noise);
        let tree = uneven(&model, TREE.len(), &mut noise);
        let mut same = SameBits::default();
        for device in devices() {
            let mut layer = Layer::new(&*device, &model, types);
            let parents = chain(prompt.len());
            let part = |committed_len, parents, rows| Part {
                sequence: 1,
                committed_len,
                parents,
                rows,
            };
            let mut got = layer.run(&[part(0, &parents, &prompt)]);
            got.extend(layer.run(&[part(prompt.len(), TREE, &tree)]));
            let all: Vec<_> = (0..prompt.len() + TREE.len())
                .map(|slot| seen(&layer, 1, slot))
                .collect();
            let mut want = Vec::new();
            for (i, [q, _, _]) in prompt.iter().enumerate() {
                want.extend(model.attend(q, i, &all[..=i].iter().collect::<Vec<_>>()));
            }
            for (node, [q, _, _]) in tree.iter().enumerate() {
                let path = path_to(TREE, node);
                let slots = (0..prompt.len()).chain(path.iter().map(|node| prompt.len() + node));
                let rows: Vec<_> = slots.map(|slot| &all[slot]).collect();
                want.extend(model.attend(q, rows.len() - 1, &rows));
            }
            let what = format!("{types}, {case:?} on {}", device.name());
            let error = relative_error(&got, &want);
            assert!(error < tolerance(&*device), "{what}: {error:e}");
            same.check(&*device, got, &what);
        }
    }
}
