//! Atomics, locks, threads and sleeping, behind one name each, so that loom and shuttle check the
//! shipped code.
//!
//! Built with `--cfg loom` or `--cfg shuttle`, the same modules run on the model checker's types.

#[cfg(not(any(loom, shuttle)))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use std::sync::{Mutex, MutexGuard};
    pub(crate) use std::thread::{Builder, JoinHandle, ThreadId, current};

    /// Lets another thread run.
    pub(crate) fn yield_now() {
        std::thread::yield_now();
    }
}

#[cfg(loom)]
mod real {
    pub(crate) use crate::lockfree::models::steps::{AtomicU64, AtomicUsize};
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread::yield_now;
}

#[cfg(shuttle)]
mod real {
    pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use shuttle::thread::{Builder, JoinHandle, ThreadId, current, yield_now};
}

pub(crate) use real::*;

/// Locks, and carries on with what is there when another holder panicked: a thread that panics
/// while the state is inconsistent poisons the log itself, which every user of the state looks at.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
