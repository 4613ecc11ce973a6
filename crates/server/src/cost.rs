//! What a command costs, and where it runs for that.
//!
//! A thread that serves connections runs what is cheap. What a command costs is not known from its request: 35 bytes
//! of `EXPIRE` write a value of 33 MB anew. So commands weigh the values that they have found, and what they are about
//! to make of them, before they change anything ([`Exec::weigh`](crate::exec::Exec::weigh)). One that becomes too heavy
//! is given up and run again *aside*, on a thread that may block. So is one that would wait, for a lock or for the
//! engine.
//!
//! Each command aside holds several copies of what it works on. [`Room`] bounds how much is worked on at a time; who
//! finds no room waits for it holding neither locks nor copies, in the order of coming.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Requests, and values that are written, are large from so many bytes on: one alone can use up what room the log has.
pub(crate) const LARGE: usize = 64 * 1024;
/// What a command may read and work on where it arrived, in bytes: a fraction of a millisecond.
pub(crate) const HEAVY: usize = 512 * 1024;
/// What the search for a key weighs, in bytes that are copied in that time.
pub(crate) const LOOKUP: usize = 512;
/// A unit of the room, in bytes.
const UNIT: usize = 4096;

/// Why a command runs on a thread that may block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aside {
    /// It may have to wait.
    Waits,
    /// It works on so many bytes.
    Heavy(usize),
    /// It compares many keys with a pattern.
    Searches,
}

impl Aside {
    /// The bytes that it is known to work on.
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

/// Room for what is worked on aside.
#[derive(Debug)]
pub(crate) struct Room {
    free: Semaphore,
    units: u32,
}

impl Room {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: usize) -> Room {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        Room {
            free: Semaphore::new(usize::try_from(units).unwrap_or(Semaphore::MAX_PERMITS)),
            units,
        }
    }

    /// Waits until there is room, and takes it until what is given is dropped. What is larger than all of it takes all.
    /// What is not large passes: it waits for nobody's large values.
    pub(crate) async fn enter(&self, why: Aside) -> Option<SemaphorePermit<'_>> {
        let bytes = why.bytes();
        if bytes < LARGE {
            return None;
        }
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        // Nobody closes it.
        self.free.acquire_many(units.min(self.units)).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_large_waits_for_room_and_what_is_small_passes() {
        let room = Room::new(4 * LARGE);
        let three = room.enter(Aside::Heavy(3 * LARGE)).await;
        assert!(three.is_some());
        let mut two = std::pin::pin!(room.enter(Aside::Heavy(2 * LARGE)));
        assert!(now(two.as_mut()).is_none());
        assert!(room.enter(Aside::Heavy(LARGE - 1)).await.is_none(), "it passes");
        assert!(room.enter(Aside::Waits).await.is_none(), "it passes");
        drop(three);
        assert!(two.await.is_some());
        // More than there ever is.
        assert!(room.enter(Aside::Heavy(usize::MAX)).await.is_some());
    }

    /// What a future gives at once.
    fn now<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut nobody = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut nobody) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn what_several_keys_weigh_is_a_multiple() {
        assert_eq!(Aside::Heavy(3).times(4), Aside::Heavy(12));
        assert_eq!(Aside::Heavy(usize::MAX).times(4).bytes(), usize::MAX);
        assert_eq!(Aside::Waits.times(4).bytes(), 0);
    }
}
