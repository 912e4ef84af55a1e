//! Which requests are being answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::record::RequestRecord;

/// The requests that are being answered, in the order in which they came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Active(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    requests: BTreeMap<u64, Arc<RequestRecord>>,
}

/// Keeps a request among them.
#[derive(Debug)]
pub(crate) struct Listed {
    number: u64,
    active: Active,
}

impl Active {
    pub fn list(&self, record: &Arc<RequestRecord>) -> Listed {
        let mut inner = self.inner();
        let number = inner.next;
        inner.next += 1;
        inner.requests.insert(number, Arc::clone(record));
        Listed {
            number,
            active: self.clone(),
        }
    }

    /// All of them.
    pub fn requests(&self) -> Vec<Arc<RequestRecord>> {
        self.inner().requests.values().cloned().collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nobody panics between the two lines that change it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let record = self.active.inner().requests.remove(&self.number);
        // Its own last words are said without the lock.
        drop(record);
    }
}
