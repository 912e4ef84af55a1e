//! Giving an engine a draft, and learning that it has let go of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::drafter::Drafter;
use crate::shared::Shared;

/// Where a draft waits for the engine thread.
///
/// The thread takes it at the start of a step; a newer one replaces what it has.
#[derive(Debug, Default)]
pub(crate) struct DrafterSlot {
    offered: Mutex<Option<Offered>>,
    /// A draft was offered or taken away. Release by `note_news` pairs with Acquire in `take_news`.
    news: AtomicBool,
}

/// A draft on its way to the thread, or one that the thread works with.
#[derive(Debug)]
pub(crate) struct Offered {
    pub drafter: Box<dyn Drafter>,
    /// Dropped with it, which tells the lease.
    held: watch::Sender<()>,
}

impl DrafterSlot {
    /// Puts a draft there in place of one that the thread has not taken yet.
    pub fn offer(&self, drafter: Box<dyn Drafter>) -> watch::Receiver<()> {
        let (held, watched) = watch::channel(());
        *self.lock() = Some(Offered { drafter, held });
        watched
    }

    pub fn take(&self) -> Option<Offered> {
        self.lock().take()
    }

    pub fn note_news(&self) {
        self.news.store(true, Ordering::Release);
    }

    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    pub fn take_news(&self) -> bool {
        self.news.swap(false, Ordering::AcqRel)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Offered>> {
        // An option is whole whatever happens elsewhere.
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offered {
    /// Whether the lease was dropped: nobody wants the draft to go on.
    pub fn is_returned(&self) -> bool {
        self.held.is_closed()
    }
}

/// A draft that an engine works with. Dropping it takes the draft away; the engine decodes without from the next step.
#[derive(Debug)]
pub struct DrafterLease {
    /// `None` while it is being dropped.
    watched: Option<watch::Receiver<()>>,
    shared: Arc<Shared>,
}

impl DrafterLease {
    pub(crate) fn new(watched: watch::Receiver<()>, shared: Arc<Shared>) -> Self {
        Self {
            watched: Some(watched),
            shared,
        }
    }

    /// Returns when the engine has let go of the draft: it failed, another took its place, or the engine ended.
    pub async fn lost(&mut self) {
        let Some(watched) = &mut self.watched else {
            return;
        };
        // Nobody sends; the wait ends where the sender is dropped with its draft.
        while watched.changed().await.is_ok() {}
    }
}

impl Drop for DrafterLease {
    fn drop(&mut self) {
        // First, so that the thread finds it returned.
        self.watched = None;
        self.shared.drafter_has_news();
    }
}
