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

mod attention;
mod bandwidth;
mod delta_net;
mod lanes;
mod matmul;
mod ops;
mod pack;
mod pool;

pub(crate) use pack::PackedMatrix;

use std::sync::Mutex;

use crate::cpu::lanes::{Avx2, Avx512, Lanes, Op, Scalar};
use crate::cpu::matmul::Activations;
use crate::cpu::pool::Pool;
use crate::error::DeviceError;

/// An instruction set that the CPU kernels are compiled for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Plain loops: the specification.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 with VNNI.
    Avx512Vnni,
}

impl Tier {
    /// All, slowest first.
    pub const ALL: &'static [Tier] = &[Tier::Scalar, Tier::Avx2, Tier::Avx512Vnni];

    /// Name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Tier::Scalar => "scalar",
            Tier::Avx2 => "avx2",
            Tier::Avx512Vnni => "avx512-vnni",
        }
    }

    /// Whether this machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Tier::Scalar => true,
            Tier::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Tier::Avx512Vnni => {
                Tier::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
        }
    }

    /// The fastest that this machine has.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL
            .iter()
            .rev()
            .copied()
            .find(|t| t.is_available())
            .unwrap_or(Tier::Scalar)
    }
}

/// The CPU as a device.
pub struct CpuDevice {
    tier: Tier,
    pool: Pool,
    /// Normalised and quantised activations of the running operation.
    activations: Mutex<Activations>,
    prepared: Mutex<delta_net::Prepared>,
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
    /// The best instruction set here, on `threads` threads (the calling one included).
    ///
    /// # Errors
    /// None at present; kept for devices that can be missing.
    pub fn new(threads: usize) -> Result<Self, DeviceError> {
        Self::with_tier(threads, Tier::best())
    }

    /// A chosen instruction set.
    ///
    /// # Errors
    /// [`DeviceError::TierUnavailable`].
    pub fn with_tier(threads: usize, tier: Tier) -> Result<Self, DeviceError> {
        if !tier.is_available() {
            return Err(DeviceError::TierUnavailable { tier: tier.name() });
        }
        Ok(Self {
            tier,
            pool: Pool::new(threads),
            activations: Mutex::default(),
            prepared: Mutex::default(),
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
                Tier::Scalar => Scalar::vectorize(op),
                Tier::Avx2 => Avx2::vectorize(op),
                Tier::Avx512Vnni => Avx512::vectorize(op),
            }
        }
    }
}
