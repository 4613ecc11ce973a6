//! Eight insertion locks, as in PostgreSQL: a spinlock around the reservation, and a lock held from
//! before the reservation until after the copy, which shows the flusher how far the log may have
//! holes.
//!
//! (`xlog.c`: `WALInsertLockAcquire`, `ReserveXLogInsertLocation`, `WaitXLogInsertionsToFinish`.) A
//! thread keeps to its lock and moves to the next one when it found it taken, as there.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::Insertion;
use crate::error::BenchError;

/// PostgreSQL's NUM_XLOGINSERT_LOCKS.
const LOCKS: usize = 8;
/// No thread inserts under this lock.
const FREE: u64 = u64::MAX;
/// A thread is about to reserve under this lock; where is not known yet.
const UNKNOWN: u64 = u64::MAX - 1;
/// How often a taken spinlock is tried before the thread gives way.
const SPINS: u32 = 100;

#[derive(Debug)]
#[repr(align(128))]
struct InsertLock {
    held: Mutex<()>,
    /// Where its holder inserts, or [`FREE`], or [`UNKNOWN`].
    position: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct InsertLocks {
    locks: [InsertLock; LOCKS],
    reserving: SpinLock,
    /// Changed under `reserving` only.
    next: AtomicU64,
    threads: AtomicUsize,
}

impl Default for InsertLocks {
    fn default() -> Self {
        Self {
            locks: std::array::from_fn(|_| InsertLock {
                held: Mutex::new(()),
                position: AtomicU64::new(FREE),
            }),
            reserving: SpinLock::default(),
            next: AtomicU64::new(0),
            threads: AtomicUsize::new(0),
        }
    }
}

/// The lock that a thread tries first.
#[derive(Debug, Default)]
pub(crate) struct Preferred(Option<usize>);

impl InsertLocks {
    fn acquire(&self, preferred: &mut Preferred) -> (&InsertLock, MutexGuard<'_, ()>) {
        // Relaxed: it only spreads the threads.
        let at = *preferred
            .0
            .get_or_insert_with(|| self.threads.fetch_add(1, Ordering::Relaxed));
        let [first, ..] = &self.locks;
        let lock = self.locks.get(at % LOCKS).unwrap_or(first);
        let guard = match lock.held.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                preferred.0 = Some(at + 1);
                lock.held.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        (lock, guard)
    }
}

impl Insertion for InsertLocks {
    const NAME: &'static str = "insert-locks";
    type Hint = Preferred;

    fn insert(
        &self,
        preferred: &mut Preferred,
        len: u64,
        fill: impl FnOnce(u64) -> Result<(), BenchError>,
    ) -> Result<u64, BenchError> {
        let (lock, guard) = self.acquire(preferred);
        // Relaxed: the spinlock's Release, below, publishes it before the reservation can be seen.
        lock.position.store(UNKNOWN, Ordering::Relaxed);
        let start = {
            let _reserving = self.reserving.lock();
            let start = self.next.load(Ordering::Relaxed);
            self.next.store(start + len, Ordering::Relaxed);
            start
        };
        // Release pairs with the Acquire in `boundary`.
        lock.position.store(start, Ordering::Release);
        // On failure the position stays: there is a hole, and nothing may pass it.
        fill(start)?;
        // Release pairs with the Acquire in `boundary`: the leader sees the copy.
        lock.position.store(FREE, Ordering::Release);
        drop(guard);
        Ok(start + len)
    }

    fn appended(&self) -> u64 {
        let _reserving = self.reserving.lock();
        self.next.load(Ordering::Relaxed)
    }

    fn boundary(&self) -> u64 {
        let reserved = self.appended();
        let holes = self.locks.iter().map(|lock| {
            let mut tries = 0;
            loop {
                match lock.position.load(Ordering::Acquire) {
                    UNKNOWN => stand_by(&mut tries),
                    position => return position,
                }
            }
        });
        holes.fold(reserved, u64::min)
    }
}

/// A test-and-set lock that gives way after a while, as PostgreSQL's does.
#[derive(Debug, Default)]
#[repr(align(128))]
struct SpinLock(AtomicBool);

struct Reserving<'a>(&'a SpinLock);

impl SpinLock {
    fn lock(&self) -> Reserving<'_> {
        let mut tries = 0;
        // Acquire pairs with the Release in `drop`.
        while self
            .0
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            stand_by(&mut tries);
        }
        Reserving(self)
    }
}

impl Drop for Reserving<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

fn stand_by(tries: &mut u32) {
    *tries += 1;
    if tries.is_multiple_of(SPINS) {
        std::thread::yield_now();
    } else {
        spin_loop();
    }
}
