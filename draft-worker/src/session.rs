//! One target at the other end of a link.

use draft_link::DraftEnd;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// A session as the device thread has it.
#[derive(Debug)]
pub(crate) struct Session {
    /// Tells it apart from all others of this process.
    pub id: u64,
    pub end: DraftEnd,
    /// Cancelled when the stream that holds the session is dropped.
    pub left: CancellationToken,
    /// Told why the session ended.
    pub ended: oneshot::Sender<String>,
}

impl Session {
    /// Hangs up and says why.
    pub fn finish(self, why: String) {
        let Self { end, ended, .. } = self;
        drop(end);
        // Nobody listens where the stream was dropped.
        let _ = ended.send(why);
    }
}
