//! Angles of rotary embeddings, exact at any position.
//!
//! An angle is kept in turns, as a fraction of 2^64 that wraps where a turn is whole: the product of a position and the
//! fraction that one position turns by is then off by no more than the fraction's own rounding, times the position.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::DeviceError;
use crate::gpu::driver::{DevicePtr, Driver};
use crate::gpu::memory::DeviceMemory;

/// Turns per position of each pair, on the device, for each list of frequencies that was asked for. A model has one or
/// two.
#[derive(Debug, Default)]
pub(crate) struct TurnTables {
    known: Mutex<Vec<(Vec<f32>, DeviceMemory)>>,
}

impl TurnTables {
    /// The table of these inverse frequencies; stays where it is.
    pub(crate) fn of(
        &self,
        driver: &Arc<dyn Driver>,
        inv_freq: &[f32],
    ) -> Result<DevicePtr, DeviceError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, memory)) = known.iter().find(|(of, _)| of == inv_freq) {
            return Ok(memory.ptr());
        }
        let turns: Vec<u64> = inv_freq.iter().map(|&f| turns_per_position(f)).collect();
        let memory = DeviceMemory::new(driver, size_of_val(&turns[..]))?;
        memory.write(0, bytemuck::cast_slice(&turns));
        let ptr = memory.ptr();
        known.push((inv_freq.to_vec(), memory));
        Ok(ptr)
    }
}

/// In units of 2^-64 of a turn.
fn turns_per_position(inv_freq: f32) -> u64 {
    let turns = (f64::from(inv_freq) / std::f64::consts::TAU).rem_euclid(1.0);
    (turns * 2.0_f64.powi(64)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_are_exact_at_late_positions() {
        for inv_freq in [1.0_f32, 0.1, 3e-4, 1e-7, 7.0] {
            for position in [1_u64, 4_097, 262_143] {
                let turns = turns_per_position(inv_freq).wrapping_mul(position);
                let got = turns as f64 / 2.0_f64.powi(64) * std::f64::consts::TAU;
                let want = position as f64 * f64::from(inv_freq);
                let error = (got.sin() - want.sin()).hypot(got.cos() - want.cos());
                assert!(error < 1e-9, "{inv_freq} at {position}: {error:e}");
            }
        }
    }
}
