//! Giving an engine a draft, and learning that it has let go of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::drafter::Drafter;

/// Where a draft waits for the engine thread.
///
/// The thread takes it at the start of a step; a newer one replaces what it has.
#[derive(Debug, Default)]
pub(crate) struct DrafterSlot {
    offered: Mutex<Option<Offered>>,
}

/// A draft on its way to the thread, or one that the thread works with.
#[derive(Debug)]
pub(crate) struct Offered {
    pub drafter: Box<dyn Drafter>,
    /// Dropped with it, which tells the lease.
    pub lost: watch::Sender<()>,
}

impl DrafterSlot {
    /// Puts a draft there in place of one that the thread has not taken yet.
    pub fn offer(&self, drafter: Box<dyn Drafter>) -> DrafterLease {
        let (lost, watched) = watch::channel(());
        *self.lock() = Some(Offered { drafter, lost });
        DrafterLease { watched }
    }

    pub fn take(&self) -> Option<Offered> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Offered>> {
        // An option is whole whatever happens elsewhere.
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offered {
    /// Whether the lease was dropped: nobody wants the draft to go on.
    pub fn is_returned(&self) -> bool {
        self.lost.is_closed()
    }
}

/// A draft that an engine works with. Dropping it takes the draft away; the engine decodes without from the next step.
#[derive(Debug)]
pub struct DrafterLease {
    watched: watch::Receiver<()>,
}

impl DrafterLease {
    /// Returns when the engine has let go of the draft: it failed, another took its place, or the engine ended.
    pub async fn lost(&mut self) {
        // Nobody sends; the wait ends where the sender is dropped with its draft.
        while self.watched.changed().await.is_ok() {}
    }
}
