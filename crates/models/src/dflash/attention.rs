//! What each draft layer sees.

use kernels::Window;

use crate::dflash::said::AttentionStatement;
use crate::error::ModelError;

/// What the rows of a draft block see in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftAttention {
    /// The whole context and the whole draft block.
    Full,
    /// The whole context, and of the draft block what is not later.
    Causal,
    /// What is fewer than `window` positions away.
    Sliding {
        /// W.
        window: usize,
        /// Nothing later.
        causal: bool,
    },
}

impl DraftAttention {
    /// The same for a device.
    pub(crate) fn window(self) -> Option<Window> {
        match self {
            Self::Full => None,
            Self::Causal => Some(Window {
                tokens: usize::MAX,
                causal: true,
            }),
            Self::Sliding { window, causal } => Some(Window {
                tokens: window,
                causal,
            }),
        }
    }
}

/// Kinds of all layers: what was said, and a window that was set over it (0: none).
pub(crate) fn settle(
    said: Option<AttentionStatement>,
    num_layers: usize,
    set: Option<usize>,
) -> Result<Vec<DraftAttention>, ModelError> {
    let (mut sliding, window, causal) = match said {
        None => (vec![false; num_layers], None, None),
        Some(said) => {
            let got = said.sliding.value.len();
            if got != num_layers {
                return Err(said.sliding.refuse(format!("{num_layers} entries"), got));
            }
            (said.sliding.value, Some(said.window), said.causal)
        }
    };
    if set.is_some_and(|window| window > 0) && !sliding.contains(&true) {
        sliding[..num_layers - 1].fill(true);
    }
    if set == Some(0) {
        sliding.fill(false);
    }
    let said = window.as_ref().and_then(|window| window.value);
    sliding
        .iter()
        .map(|&sliding| match (sliding, set.or(said), &window) {
            (true, Some(window), _) if window > 0 => Ok(DraftAttention::Sliding {
                window,
                causal: causal.unwrap_or(true),
            }),
            (true, got, Some(said)) => {
                let got = got.map_or("nothing".to_owned(), |got| got.to_string());
                Err(said.refuse("the window of sliding layers, at least 1", got))
            }
            _ if causal == Some(true) => Ok(DraftAttention::Causal),
            _ => Ok(DraftAttention::Full),
        })
        .collect()
}
