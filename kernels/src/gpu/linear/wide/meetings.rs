//! How the sums of splits find each other.

/// How splits of the inputs of units that are fed meet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Meeting {
    InMemory,
    /// The same, and only the rest is split.
    OfRest,
    /// The same, and units of the rest have the rows of one group of warps each.
    OfCutRest,
    /// The same, and only units of weights that take longer are split, beside which others are whole.
    OfHeavy,
    /// In the shared memory of a cluster of thread blocks.
    InClusters,
}

impl Meeting {
    pub(super) fn is_of_rest(self) -> bool {
        matches!(self, Self::OfRest | Self::OfCutRest)
    }
}

/// Splits, and how they meet, where a warp feeds the others.
pub(super) const FED_SPLITS: [(usize, Meeting); 14] = [
    (1, Meeting::InMemory),
    (2, Meeting::InMemory),
    (4, Meeting::InMemory),
    (8, Meeting::InMemory),
    (2, Meeting::OfRest),
    (4, Meeting::OfRest),
    (8, Meeting::OfRest),
    (2, Meeting::OfCutRest),
    (4, Meeting::OfCutRest),
    (8, Meeting::OfCutRest),
    (2, Meeting::OfHeavy),
    (4, Meeting::OfHeavy),
    (2, Meeting::InClusters),
    (4, Meeting::InClusters),
];
