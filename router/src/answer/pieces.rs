//! What an event adds to an answer, in its order.

use crate::answer::{CallDelta, Piece};

/// Pieces in the making. In one piece calls come last, so what is said behind a call begins another.
#[derive(Debug, Default)]
pub(super) struct Pieces(Vec<Piece>);

impl Pieces {
    pub fn reasoning(&mut self, text: &str) {
        if !text.is_empty() {
            let fits = |piece: &Piece| piece.content.is_empty() && piece.calls.is_empty();
            self.last_if(fits).reasoning.push_str(text);
        }
    }

    pub fn content(&mut self, text: &str) {
        if !text.is_empty() {
            let fits = |piece: &Piece| piece.calls.is_empty();
            self.last_if(fits).content.push_str(text);
        }
    }

    pub fn call(&mut self, delta: CallDelta) {
        self.last().add_call(delta);
    }

    /// The piece that everything else goes to.
    pub fn last(&mut self) -> &mut Piece {
        self.last_if(|_| true)
    }

    /// Whether there is anything but thoughts.
    pub fn has_answer(&self) -> bool {
        self.0
            .iter()
            .any(|piece| !piece.content.is_empty() || !piece.calls.is_empty())
    }

    pub fn finish(mut self) -> Vec<Piece> {
        self.0.retain(|piece| !piece.is_empty());
        self.0
    }

    fn last_if(&mut self, fits: impl Fn(&Piece) -> bool) -> &mut Piece {
        if !self.0.last().is_some_and(fits) {
            self.0.push(Piece::default());
        }
        self.0
            .last_mut()
            .expect("one was added where there was none")
    }
}
