//! Why a prompt stays whole.

/// Why a prompt stays whole, or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skip {
    /// It is shorter than the threshold.
    Short,
    /// Too little of it may be cut.
    Protected,
    /// Its tokens do not spell it.
    Text,
    /// No worker, or none that was there a moment ago.
    Absent,
    /// The drafter's tokens are not known here.
    Vocabulary,
    /// Longer than the drafter can read.
    TooLong,
    /// The worker has too much to do.
    Busy,
    /// The worker finds no room on its device.
    NoRoom,
    /// The worker took too long.
    Timeout,
    /// The worker failed or went away.
    Failed,
}

impl Skip {
    pub const ALL: [Self; 10] = [
        Self::Short,
        Self::Protected,
        Self::Text,
        Self::Absent,
        Self::Vocabulary,
        Self::TooLong,
        Self::Busy,
        Self::NoRoom,
        Self::Timeout,
        Self::Failed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Protected => "protected",
            Self::Text => "text",
            Self::Absent => "absent",
            Self::Vocabulary => "vocabulary",
            Self::TooLong => "too_long",
            Self::Busy => "busy",
            Self::NoRoom => "no_room",
            Self::Timeout => "timeout",
            Self::Failed => "failed",
        }
    }
}
