//! The 256-element blocks whose groups have scales of their own.
//!
//! Each group first finds the real-valued scale (and minimum) that fit it best,
//! trying a few roundings near the obvious one and solving the least-squares
//! problem for each. The group scales are then rounded to their few bits, and
//! the elements are quantised again with the scales as a decoder will see them.

use super::{TooLarge, put_half};

/// Groups of 32 with a scale and a minimum: see the decoder for the layout.
pub(super) fn q4_k(values: &[f32], out: &mut [u8]) -> Result<(), TooLarge> {
    let mut fits = [(0.0, 0.0); 8];
    for (fit, group) in fits.iter_mut().zip(values.chunks_exact(32)) {
        *fit = fit_scale_min(group);
    }
    let max_scale = fits.iter().fold(0.0, |m, f| f64::max(m, f.0));
    let max_min = fits.iter().fold(0.0, |m, f| f64::max(m, f.1));
    let d = f64::from(put_half((max_scale / 63.0) as f32, &mut out[..2])?);
    let dmin = f64::from(put_half((max_min / 63.0) as f32, &mut out[2..4])?);

    out[4..].fill(0);
    let (sc, q) = out[4..].split_at_mut(12);
    for (k, (group, (scale, min))) in values.chunks_exact(32).zip(fits).enumerate() {
        let scale = nearest(scale, d, 0.0, 63.0);
        let min = nearest(min, dmin, 0.0, 63.0);
        put_scale_min(sc, k, scale as u8, min as u8);
        for (byte, &v) in q[32 * (k / 2)..].iter_mut().zip(group) {
            let quant = nearest(f64::from(v) + dmin * min, d * scale, 0.0, 15.0);
            *byte |= (quant as u8) << (4 * (k % 2));
        }
    }
    Ok(())
}

/// Groups of 16 with a signed scale: see the decoder for the layout.
pub(super) fn q6_k(values: &[f32], out: &mut [u8]) -> Result<(), TooLarge> {
    let mut scales = [0.0_f64; 16];
    for (scale, group) in scales.iter_mut().zip(values.chunks_exact(16)) {
        *scale = fit_scale(group);
    }
    let widest = signed_max(scales);
    out.fill(0);
    let (ql, rest) = out.split_at_mut(128);
    let (qh, rest) = rest.split_at_mut(64);
    let (sc, d) = rest.split_at_mut(16);
    // The widest scale becomes -128, the far end of its byte.
    let d = f64::from(put_half((widest / -128.0) as f32, d)?);
    for (g, (group, scale)) in values.chunks_exact(16).zip(scales).enumerate() {
        let scale = nearest(scale, d, -128.0, 127.0);
        sc[g] = scale as i8 as u8;
        for (j, &v) in group.iter().enumerate() {
            let quant = (nearest(f64::from(v), d * scale, -32.0, 31.0) + 32.0) as u8;
            let i = 16 * g + j;
            let (half, row, l) = (i / 128, i / 32 % 4, i % 32);
            ql[64 * half + 32 * (row % 2) + l] |= (quant & 15) << (4 * (row / 2));
            qh[32 * half + l] |= (quant >> 4) << (2 * row);
        }
    }
    Ok(())
}

/// `value / step` rounded and held within `low..=high`; 0 when `step` is 0.
fn nearest(value: f64, step: f64, low: f64, high: f64) -> f64 {
    if step == 0.0 {
        return 0.0;
    }
    (value / step).round().clamp(low, high)
}

/// The element of greatest magnitude, with its sign; 0 for none.
fn signed_max(values: impl IntoIterator<Item = f64>) -> f64 {
    values
        .into_iter()
        .fold(0.0, |m: f64, v| if v.abs() > m.abs() { v } else { m })
}

/// The scale of least squared error, weighted by the squares of the values,
/// when `values` are quantised to `scale * q` with `q` in `-32..=31`.
fn fit_scale(values: &[f32]) -> f64 {
    let widest = signed_max(values.iter().map(|&v| f64::from(v)));
    if widest == 0.0 {
        return 0.0;
    }
    let (mut best_gain, mut best_scale) = (0.0, 0.0);
    for step in -9..=9 {
        let inverse = -(32.0 + 0.1 * f64::from(step)) / widest;
        let (mut vq, mut qq) = (0.0, 0.0);
        for &v in values {
            let v = f64::from(v);
            let q = (v * inverse).round().clamp(-32.0, 31.0);
            vq += v * v * v * q;
            qq += v * v * q * q;
        }
        // With the best scale vq / qq the error is a constant less this gain.
        let gain = vq * vq / qq;
        if qq > 0.0 && gain > best_gain {
            (best_gain, best_scale) = (gain, vq / qq);
        }
    }
    best_scale
}

/// The scale and the minimum, both at least zero, of least weighted squared
/// error when `values` are quantised to `scale * q - min` with `q` in `0..=15`.
///
/// Large values weigh more, by their magnitude over the root mean square.
fn fit_scale_min(values: &[f32]) -> (f64, f64) {
    let values = || values.iter().map(|&v| f64::from(v));
    let low = values().fold(0.0, f64::min);
    let high = values().fold(f64::NEG_INFINITY, f64::max);
    if high <= low {
        return (0.0, -low);
    }
    let count = values().count() as f64;
    let rms = (values().map(|v| v * v).sum::<f64>() / count).sqrt();
    let weight = |v: f64| rms + v.abs();

    let (mut best_error, mut best) = (f64::INFINITY, ((high - low) / 15.0, -low));
    for step in -10..=10 {
        let inverse = (15.0 + 0.1 * f64::from(step)) / (high - low);
        let quant = |v: f64| ((v - low) * inverse).round().clamp(0.0, 15.0);
        let (mut w1, mut wv, mut wq, mut wqq, mut wqv) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for v in values() {
            let (w, q) = (weight(v), quant(v));
            w1 += w;
            wv += w * v;
            wq += w * q;
            wqq += w * q * q;
            wqv += w * q * v;
        }
        let det = w1 * wqq - wq * wq;
        if det <= 0.0 {
            continue;
        }
        let (mut scale, mut min) = ((w1 * wqv - wq * wv) / det, (wq * wqv - wqq * wv) / det);
        if min < 0.0 {
            (scale, min) = (wqv / wqq, 0.0);
        }
        let error: f64 = values()
            .map(|v| weight(v) * (scale * quant(v) - min - v).powi(2))
            .sum();
        if scale > 0.0 && error < best_error {
            (best_error, best) = (error, (scale, min));
        }
    }
    best
}

/// Packs the six-bit scale and minimum of group `k` (0 to 7) into twelve bytes
/// that were zero before the first group.
fn put_scale_min(sc: &mut [u8], k: usize, scale: u8, min: u8) {
    if k < 4 {
        sc[k] |= scale;
        sc[k + 4] |= min;
    } else {
        sc[k + 4] |= (scale & 15) | (min & 15) << 4;
        sc[k - 4] |= (scale >> 4) << 6;
        sc[k] |= (min >> 4) << 6;
    }
}
