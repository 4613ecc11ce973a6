//! What a command costs, and on which thread it runs for that.
//!
//! A thread that serves connections runs only cheap commands. The cost of a command cannot be seen
//! from its request: 35 bytes of `BITOP` read and write values of 33 MB. So a command adds up the
//! sizes of what it reads of values and of what it is about to write, before it changes anything
//! ([`Exec::weigh`](crate::exec::Exec::weigh)). A command that exceeds [`HEAVY`] is abandoned and
//! run again *aside*, on a thread that may block. So is one that would wait, for a lock or for the
//! engine.
//!
//! A command that runs aside makes several copies of the values that it works on. [`AsideBudget`]
//! bounds the bytes of all such commands; a command that does not fit waits in order of arrival,
//! and holds neither locks nor copies meanwhile.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Requests, and values that are written, are large from this size on: a single one may fill what
/// is free in the log's ring.
pub(crate) const LARGE: usize = 64 * 1024;
/// How many bytes a command may read and process on the connection's thread: a fraction of a
/// millisecond.
pub(crate) const HEAVY: usize = 512 * 1024;
/// The cost of looking up a key, in bytes that could be copied in the same time.
pub(crate) const LOOKUP: usize = 512;
/// How many removed entries a command may pass over on the connection's thread: a fraction of a
/// millisecond.
pub(crate) const PASSED_MAX: u64 = 4096;
/// The unit of the budget, in bytes.
const UNIT: usize = 4096;

/// Why a command runs on a thread that may block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aside {
    /// It may have to wait.
    Waits,
    /// It works on this many bytes.
    Heavy(usize),
    /// It compares many keys with a pattern.
    Searches,
}

impl Aside {
    /// How many bytes it works on, as far as that is known.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Aside::Waits | Aside::Searches => 0,
            Aside::Heavy(bytes) => bytes,
        }
    }

    /// The same command for each of `count` keys, of which the first was found to be heavy.
    pub(crate) fn times(self, count: usize) -> Aside {
        match self {
            Aside::Waits | Aside::Searches => self,
            Aside::Heavy(bytes) => Aside::Heavy(bytes.saturating_mul(count)),
        }
    }
}

/// Bounds the bytes that commands work on aside.
#[derive(Debug)]
pub(crate) struct AsideBudget {
    free: Semaphore,
    units: u32,
}

impl AsideBudget {
    /// A budget of that many bytes.
    pub(crate) fn new(bytes: usize) -> AsideBudget {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        AsideBudget {
            free: Semaphore::new(usize::try_from(units).unwrap_or(Semaphore::MAX_PERMITS)),
            units,
        }
    }

    /// Reserves the command's bytes until the permit is dropped, and waits until they are free. A
    /// command that needs more than the whole budget reserves all of it. A command on less than
    /// [`LARGE`] bytes reserves nothing and does not wait.
    pub(crate) async fn reserve(&self, why: Aside) -> Option<SemaphorePermit<'_>> {
        let bytes = why.bytes();
        if bytes < LARGE {
            return None;
        }
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.free.acquire_many(units.min(self.units)).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_commands_wait_for_the_budget_and_small_ones_do_not() {
        let budget = AsideBudget::new(4 * LARGE);
        let three = budget.reserve(Aside::Heavy(3 * LARGE)).await;
        assert!(three.is_some());
        let mut two = std::pin::pin!(budget.reserve(Aside::Heavy(2 * LARGE)));
        assert!(now(two.as_mut()).is_none());
        assert!(
            budget.reserve(Aside::Heavy(LARGE - 1)).await.is_none(),
            "it passes"
        );
        assert!(budget.reserve(Aside::Waits).await.is_none(), "it passes");
        drop(three);
        assert!(two.await.is_some());
        // More than the whole budget.
        assert!(budget.reserve(Aside::Heavy(usize::MAX)).await.is_some());
    }

    /// The output of a future that is ready at once.
    fn now<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn several_keys_cost_a_multiple() {
        assert_eq!(Aside::Heavy(3).times(4), Aside::Heavy(12));
        assert_eq!(Aside::Heavy(usize::MAX).times(4).bytes(), usize::MAX);
        assert_eq!(Aside::Waits.times(4).bytes(), 0);
    }
}
