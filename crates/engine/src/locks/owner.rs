//! The owners of locks.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// What holds locks and waits for them: a transaction, a single write, or a `RowOwner`.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) id: u64,
    /// The name that its user gave it; empty where there is none.
    pub(crate) name: Box<str>,
    /// Whether the lock that it waits for was granted. An owner waits for one lock at a time.
    granted: Mutex<bool>,
    wake: Condvar,
    /// Whether [`RowLocks`](crate::transaction::RowLocks) of it live.
    pub(crate) has_row_locks: AtomicBool,
}

impl Owner {
    pub(crate) fn new(id: u64, name: &str) -> Self {
        Self {
            id,
            name: name.into(),
            granted: Mutex::new(false),
            wake: Condvar::new(),
            has_row_locks: AtomicBool::new(false),
        }
    }

    pub(crate) fn grant(&self) {
        *self.granted.lock() = true;
        self.wake.notify_one();
    }

    /// Returns whether the lock was granted, and resets that.
    pub(crate) fn take_grant(&self) -> bool {
        std::mem::take(&mut *self.granted.lock())
    }

    /// Waits at most for `timeout`. Returns whether the lock was granted.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut granted = self.granted.lock();
        self.wake
            .wait_while_for(&mut granted, |granted| !*granted, timeout);
        *granted
    }
}
