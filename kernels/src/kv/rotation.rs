//! The rotation that spreads a head's outliers over its dims before they are quantised: signs, a Walsh-Hadamard transform, and
//! signs again. It is orthogonal, so products of two rotated rows are those of the rows.

use crate::kv::types::BLOCK;

/// Dims that are rotated together, at most.
const GROUP: usize = 128;
/// Signs before and after the transform: bit i of word w is that of dim 32 w + i. Random ones; see gpu/rotation.h.
const FIRST: [u32; 4] = [0x9e37_15b7, 0x4ac1_e2d9, 0xb5f0_673c, 0x27d8_9a4e];
const SECOND: [u32; 4] = [0xc3a5_518e, 0x6d1b_f702, 0x1f96_8cd4, 0xe84d_3a6b];

/// Dims of a group: a power of two that divides the head.
pub(crate) fn group_of(head_dim: usize) -> usize {
    (1 << head_dim.trailing_zeros()).min(GROUP)
}

fn flip(group: &mut [f32], signs: [u32; 4]) {
    for (d, x) in group.iter_mut().enumerate() {
        if signs[d / BLOCK] >> (d % BLOCK) & 1 == 1 {
            *x = -*x;
        }
    }
}

/// The transform, of length 1.
fn transform(group: &mut [f32]) {
    let mut stride = 1;
    while stride < group.len() {
        for at in (0..group.len()).filter(|at| at & stride == 0) {
            let (a, b) = (group[at], group[at + stride]);
            group[at] = a + b;
            group[at + stride] = a - b;
        }
        stride *= 2;
    }
    let scale = 1.0 / (group.len() as f32).sqrt();
    group.iter_mut().for_each(|x| *x *= scale);
}

/// Rotates a head.
pub(crate) fn rotate(head: &mut [f32]) {
    for group in head.chunks_exact_mut(group_of(head.len())) {
        flip(group, FIRST);
        transform(group);
        flip(group, SECOND);
    }
}

/// The other way round.
pub(crate) fn rotate_back(head: &mut [f32]) {
    for group in head.chunks_exact_mut(group_of(head.len())) {
        flip(group, SECOND);
        transform(group);
        flip(group, FIRST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_products_and_can_be_undone() {
        for dim in [32, 64, 96, 128, 256] {
            let values = |step: usize| -> Vec<f32> {
                (0..dim)
                    .map(|d| ((d * step + 3) % 17) as f32 - 8.0)
                    .collect()
            };
            let [a, b] = [5, 11].map(values);
            let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
            let [mut u, mut v] = [a.clone(), b.clone()];
            rotate(&mut u);
            rotate(&mut v);
            assert!((dot(&u, &v) - dot(&a, &b)).abs() < 1e-3 * dot(&a, &a));
            let spread = |x: &[f32]| x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            let mut outlier = vec![0.0; dim];
            outlier[dim / 3] = 1.0;
            rotate(&mut outlier);
            assert!(spread(&outlier) < 0.2, "{dim}");
            rotate_back(&mut u);
            assert!(u.iter().zip(&a).all(|(u, a)| (u - a).abs() < 1e-4));
        }
    }
}
