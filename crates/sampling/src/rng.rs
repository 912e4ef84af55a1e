//! The counter-based generator behind every draw.
//!
//! There is no state to advance: the number for output position `i` is two rounds of the SplitMix64
//! finaliser over the seed and `i`. Rejected drafts, retries and restarts cannot shift the stream.

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number in [0, 1) with 53 random bits, keyed by `seed` and `position` alone.
pub fn uniform(seed: u64, position: u64) -> f64 {
    let key = mix(seed.wrapping_add(GAMMA));
    let counter = position.wrapping_add(1).wrapping_mul(GAMMA);
    let bits = mix(mix(key.wrapping_add(counter)) ^ key.rotate_left(32));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The SplitMix64 finaliser, a bijection with full avalanche.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
