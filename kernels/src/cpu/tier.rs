//! Which instruction sets there are, and which this machine has.

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
