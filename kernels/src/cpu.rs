//! The CPU device: one generic body for each operation, compiled for each instruction set, chosen once at start.
#![allow(
    unsafe_op_in_unsafe_fn,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::missing_safety_doc,
    clippy::wildcard_imports,
    clippy::needless_range_loop,
    reason = "every unsafe fn below has the one contract of `Lanes` (instruction set present, pointers in bounds), \
              upheld by `CpuDevice::dispatch` and by the shape checks of each operation"
)]

mod activate;
mod attention;
mod bandwidth;
mod delta_layers;
mod delta_net;
mod lanes;
mod matmul;
mod ops;
mod pack;
mod pool;
mod sparse;
mod tail;
mod tier;
mod tiles;
mod top_k;

pub(crate) use pack::PackedMatrix;
pub use tier::Tier;

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

#[cfg(target_arch = "aarch64")]
use crate::cpu::lanes::Neon;
#[cfg(target_arch = "x86_64")]
use crate::cpu::lanes::{Avx2, Avx512};
use crate::cpu::lanes::{Lanes, Op, Scalar};
use crate::cpu::matmul::Activations;
use crate::cpu::pool::Pool;
use crate::error::DeviceError;

/// The CPU as a device.
pub struct CpuDevice {
    tier: Tier,
    pool: Pool,
    /// Normalised and quantised activations of the running operation.
    activations: Mutex<Activations>,
    prepared: Mutex<delta_net::Prepared>,
    /// Bytes that it says to have at most.
    memory_limit: AtomicU64,
}

impl std::fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuDevice")
            .field("tier", &self.tier)
            .field("threads", &self.pool.threads())
            .finish()
    }
}

impl CpuDevice {
    /// The best instruction set here, on `threads` threads (the calling one included); 0: all that the system offers.
    ///
    /// # Errors
    /// None at present; kept for devices that can be missing.
    pub fn new(threads: usize) -> Result<Self, DeviceError> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        Self::with_tier(threads, Tier::best())
    }

    /// A chosen instruction set.
    ///
    /// # Errors
    /// [`DeviceError::TierUnavailable`].
    pub fn with_tier(threads: usize, tier: Tier) -> Result<Self, DeviceError> {
        // Asks for the matrix unit too, which must come before the threads that use it.
        if !tier.is_available() {
            return Err(DeviceError::TierUnavailable { tier: tier.name() });
        }
        Ok(Self {
            tier,
            pool: Pool::new(threads),
            activations: Mutex::default(),
            prepared: Mutex::default(),
            memory_limit: AtomicU64::new(u64::MAX),
        })
    }

    /// The instruction set in use.
    #[must_use]
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Threads in use.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn dispatch<O: Op>(&self, op: O) {
        // SAFETY: `with_tier` checked that the instruction set is there; ops check their shapes.
        unsafe {
            match self.tier {
                #[cfg(target_arch = "x86_64")]
                Tier::Avx2 => Avx2::vectorize(op),
                #[cfg(target_arch = "x86_64")]
                Tier::Avx512Vnni | Tier::Amx => Avx512::vectorize(op),
                #[cfg(target_arch = "aarch64")]
                Tier::Neon => Neon::<false>::vectorize(op),
                #[cfg(target_arch = "aarch64")]
                Tier::NeonDotprod => Neon::<true>::vectorize(op),
                _ => Scalar::vectorize(op),
            }
        }
    }
}
