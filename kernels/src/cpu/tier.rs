//! Which instruction sets there are, and which this machine has.

use crate::cpu::tiles::Tiles;

/// An instruction set that the CPU kernels are compiled for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Plain loops: the specification.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 with VNNI.
    Avx512Vnni,
    /// AVX-512 with VNNI, and AMX int8 for products of many rows.
    Amx,
    /// NEON of 64-bit ARM.
    Neon,
    /// NEON with dot product instructions.
    NeonDotprod,
}

impl Tier {
    /// All, slowest first.
    pub const ALL: &'static [Tier] = &[
        Tier::Scalar,
        Tier::Neon,
        Tier::NeonDotprod,
        Tier::Avx2,
        Tier::Avx512Vnni,
        Tier::Amx,
    ];

    /// Name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Tier::Scalar => "scalar",
            Tier::Avx2 => "avx2",
            Tier::Avx512Vnni => "avx512-vnni",
            Tier::Amx => "amx-int8",
            Tier::Neon => "neon",
            Tier::NeonDotprod => "neon-dotprod",
        }
    }

    /// Whether this machine has it, and the system lets this process use it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Tier::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512Vnni => {
                Tier::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Tier::Amx => Tier::Avx512Vnni.is_available() && Tiles::Amx.is_available(),
            // Every 64-bit ARM processor that Rust's target knows has it.
            #[cfg(target_arch = "aarch64")]
            Tier::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Tier::NeonDotprod => std::arch::is_aarch64_feature_detected!("dotprod"),
            _ => false,
        }
    }

    /// Who multiplies tiles in this tier.
    pub(crate) fn tiles(self) -> Tiles {
        match self {
            #[cfg(target_arch = "x86_64")]
            Tier::Amx => Tiles::Amx,
            _ => Tiles::None,
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
