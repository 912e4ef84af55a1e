//! Who wants the model's weights away from their device, and where they are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::shared::Shared;

/// Where the weights are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    /// On their device.
    Resident,
    /// Nowhere but in their file, for those who want them away.
    Parked,
    /// On their way from there, or back.
    Moving,
    /// They did not come back, and why; tried again and again.
    Away(String),
}

/// Those who want the weights away, and what the thread says of it.
#[derive(Debug)]
pub(crate) struct Parking {
    holders: Mutex<Vec<Holder>>,
    residency: watch::Sender<Residency>,
}

#[derive(Debug)]
struct Holder {
    until: Instant,
    /// Dropped when the lease has ended, which tells the holder.
    held: watch::Sender<()>,
}

impl Default for Parking {
    fn default() -> Self {
        Self {
            holders: Mutex::default(),
            residency: watch::Sender::new(Residency::Resident),
        }
    }
}

impl Parking {
    /// Wants the weights away until the receiver is dropped, or for `at_most`.
    pub fn hold(&self, at_most: Duration) -> watch::Receiver<()> {
        let (held, watched) = watch::channel(());
        let now = Instant::now();
        let until = now.checked_add(at_most).unwrap_or(now);
        self.holders().push(Holder { until, held });
        watched
    }

    /// Ends all leases.
    pub fn release(&self) {
        self.holders().clear();
    }

    /// Whether somebody wants the weights away; leases that are over end.
    pub fn is_wanted(&self) -> bool {
        still_hold(&mut self.holders())
    }

    /// Notes that the weights are about to leave, if somebody wants that; whether so.
    pub fn note_leaving(&self) -> bool {
        // Under the lock, here and below: who calls them back does not take weights that are about to leave for resident ones, and
        // who comes later none that are on their way back for parked ones.
        let mut holders = self.holders();
        let is_wanted = still_hold(&mut holders);
        if is_wanted {
            self.tell(Residency::Moving);
        }
        is_wanted
    }

    /// Notes that the weights are away for those who want that, or about to come back where nobody does; whether they are to stay
    /// away.
    pub fn note_away(&self) -> bool {
        let mut holders = self.holders();
        let is_wanted = still_hold(&mut holders);
        match self.residency() {
            _ if is_wanted => self.tell(Residency::Parked),
            // Those that did not come back are not about to before they do.
            Residency::Away(_) => {}
            _ => self.tell(Residency::Moving),
        }
        is_wanted
    }

    pub fn tell(&self, residency: Residency) {
        self.residency.send_if_modified(|before| {
            let is_news = *before != residency;
            *before = residency;
            is_news
        });
    }

    pub fn residency(&self) -> Residency {
        self.residency.borrow().clone()
    }

    /// Returns when `holds` of where the weights are. Cancel-safe.
    pub async fn until(&self, holds: impl FnMut(&Residency) -> bool) {
        let mut watched = self.residency.subscribe();
        // The sender is here, so that nothing ends the wait but the value.
        let _ = watched.wait_for(holds).await;
    }

    fn holders(&self) -> MutexGuard<'_, Vec<Holder>> {
        // Holders are whole whatever happens elsewhere.
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn still_hold(holders: &mut Vec<Holder>) -> bool {
    let now = Instant::now();
    holders.retain(|holder| now < holder.until && !holder.held.is_closed());
    !holders.is_empty()
}

/// The weights are away from their device, and steps wait, while this lives. It ends by itself after the time that it was taken
/// for.
#[derive(Debug)]
pub struct ParkingLease {
    /// `None` while it is being dropped.
    watched: Option<watch::Receiver<()>>,
    shared: Arc<Shared>,
}

impl ParkingLease {
    pub(crate) fn new(watched: watch::Receiver<()>, shared: Arc<Shared>) -> Self {
        Self {
            watched: Some(watched),
            shared,
        }
    }

    /// Returns when it has ended: its time is over, the weights were called back, or the engine ended.
    pub async fn ended(&mut self) {
        let Some(watched) = &mut self.watched else {
            return;
        };
        // Nobody sends; the wait ends where the sender is dropped.
        while watched.changed().await.is_ok() {}
    }
}

impl Drop for ParkingLease {
    fn drop(&mut self) {
        // First, so that the thread finds it ended.
        self.watched = None;
        self.shared.parking_has_news();
    }
}
