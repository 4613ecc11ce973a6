//! A word to sleep on: how threads of the log wait for one another without a lock.

use std::time::Duration;

use crate::lockfree::sync::{AtomicU32, Ordering, fence};
#[cfg(any(loom, shuttle))]
use crate::lockfree::sync::{Condvar, Mutex, lock};

/// All sleepers, for [`WaitWord::wake`].
pub(crate) const ALL: u32 = i32::MAX as u32;

/// A word that threads sleep on until it changes.
///
/// The sleeper reads the word *before* it looks at the condition that it waits for, and sleeps only
/// while the word still has that value; the thread that makes the condition true bumps the word and
/// then wakes. So a change between look and sleep is never missed.
///
/// Sleepers are counted, so that a wake without sleepers costs no system call. The sleeper counts
/// itself, then looks at the word; the waker bumps the word, then looks at the count; a SeqCst
/// fence on either side lies between. So one of the two sees what the other has done.
#[derive(Debug)]
pub(crate) struct WaitWord {
    word: AtomicU32,
    sleepers: AtomicU32,
    #[cfg(any(loom, shuttle))]
    queue: (Mutex<()>, Condvar),
}

impl WaitWord {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            #[cfg(any(loom, shuttle))]
            queue: (Mutex::new(()), Condvar::new()),
        }
    }

    /// The value to hand to [`WaitWord::wait`]. Acquire pairs with the Release in `bump`.
    pub(crate) fn read(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Makes every thread that read an earlier value stay awake. Release pairs with the Acquire in
    /// `read`: who sees the bump sees the condition.
    pub(crate) fn bump(&self) {
        self.word.fetch_add(1, Ordering::Release);
    }

    /// Sleeps while the word has the value `seen`, at most `timeout`. May return early.
    pub(crate) fn wait(&self, seen: u32, timeout: Option<Duration>) {
        // Relaxed: the fence orders it before the look at the word.
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // Pairs with the one in `wake`.
        self.sleep(seen, timeout);
        // Relaxed: counting too many costs a call, no more.
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes up to `count` sleepers. The word was bumped before, unless the condition is as it was.
    pub(crate) fn wake(&self, count: u32) {
        fence(Ordering::SeqCst); // Pairs with the one in `wait`.
        // Relaxed: the fence orders it after the bump.
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.rouse(count);
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
impl WaitWord {
    fn sleep(&self, seen: u32, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|t| rustix::thread::futex::Timespec::try_from(t).ok());
        // Woken, changed before the sleep, interrupted, timed out: in each case the caller looks
        // again.
        let _ = rustix::thread::futex::wait(
            &self.word,
            rustix::thread::futex::Flags::PRIVATE,
            seen,
            timeout.as_ref(),
        );
    }

    fn rouse(&self, count: u32) {
        // The call fails for a bad address only, and this one is ours.
        let _ = rustix::thread::futex::wake(&self.word, rustix::thread::futex::Flags::PRIVATE, count);
    }
}

#[cfg(any(loom, shuttle))]
impl WaitWord {
    /// Without time: a model's sleeper is woken or the model has found a lost wake-up.
    fn sleep(&self, seen: u32, _timeout: Option<Duration>) {
        let guard = lock(&self.queue.0);
        if self.word.load(Ordering::Acquire) == seen {
            drop(self.queue.1.wait(guard));
        }
    }

    fn rouse(&self, count: u32) {
        let _guard = lock(&self.queue.0);
        if count == 1 {
            self.queue.1.notify_one()
        } else {
            self.queue.1.notify_all()
        }
    }
}
