//! One mutex around the log buffer: reservation and copy both happen under it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Insertion;
use crate::error::BenchError;

#[derive(Debug, Default)]
pub(crate) struct OneMutex {
    next: Mutex<u64>,
    complete: AtomicU64,
}

impl Insertion for OneMutex {
    const NAME: &'static str = "mutex";
    type Hint = ();

    fn insert(
        &self,
        (): &mut (),
        len: u64,
        fill: impl FnOnce(u64) -> Result<(), BenchError>,
    ) -> Result<u64, BenchError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        fill(*next)?;
        *next += len;
        // Release pairs with the Acquire in `boundary`: the leader sees the copy.
        self.complete.store(*next, Ordering::Release);
        Ok(*next)
    }

    fn appended(&self) -> u64 {
        self.boundary()
    }

    fn boundary(&self) -> u64 {
        self.complete.load(Ordering::Acquire)
    }
}
