//! What is to happen when the log is durable up to somewhere: one heap for all replicas of a log.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use collie_log::Lsn;
use parking_lot::Mutex;

use crate::raftlog::error::StoreError;

/// Called once what it waits for is durable, or never will be.
pub(super) type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// What waits, by the LSN that it waits for.
#[derive(Default)]
pub(super) struct Completion {
    waiting: Mutex<WaitingCallbacks>,
}

#[derive(Default)]
struct WaitingCallbacks {
    heap: BinaryHeap<Reverse<Item>>,
    /// Counts the items: those of one LSN are called in their order.
    added: u64,
    /// Why nothing becomes durable any more.
    failed: Option<StoreError>,
}

struct Item {
    end: Lsn,
    number: u64,
    done: Done,
}

impl Completion {
    /// Calls `done` when the log is durable up to `end`. The caller looks afterwards whether it is
    /// by now ([`Completion::complete`]): nothing else may become durable for a long time.
    /// Nothing waits any more where it has failed: then `done` comes back, and why.
    pub(super) fn add(&self, end: Lsn, done: Done) -> Result<(), (Done, StoreError)> {
        let mut waiting = self.waiting.lock();
        if let Some(error) = waiting.failed.clone() {
            return Err((done, error));
        }
        waiting.added += 1;
        let number = waiting.added;
        waiting.heap.push(Reverse(Item { end, number, done }));
        Ok(())
    }

    /// Calls all that waits for LSNs up to `durable`, in the order of their LSNs.
    pub(super) fn complete(&self, durable: Lsn) {
        loop {
            let mut waiting = self.waiting.lock();
            if waiting.heap.peek().is_none_or(|Reverse(item)| item.end > durable) {
                return;
            }
            let Some(Reverse(item)) = waiting.heap.pop() else {
                return;
            };
            // They may append, and so add to the heap.
            drop(waiting);
            (item.done)(Ok(()));
        }
    }

    /// Nothing becomes durable any more: calls all that waits, and what will be added, with `error`.
    pub(super) fn fail(&self, error: &StoreError) {
        let mut waiting = self.waiting.lock();
        waiting.failed.get_or_insert_with(|| error.clone());
        let heap = std::mem::take(&mut waiting.heap);
        drop(waiting);
        for Reverse(item) in heap.into_sorted_vec().into_iter().rev() {
            (item.done)(Err(error.clone()));
        }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.lock().heap.len()
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Item {}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.end, self.number).cmp(&(other.end, other.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collie_log::LogError;
    use std::sync::Arc;

    #[test]
    fn callbacks_come_once_in_order_and_when_durable() {
        let completion = Completion::default();
        let called = Arc::new(Mutex::new(Vec::new()));
        for end in [24, 8, 16, 16, 32] {
            let called = Arc::clone(&called);
            let done = Box::new(move |answer: Result<_, _>| called.lock().push((end, answer.is_ok())));
            assert!(completion.add(end, done).is_ok());
        }
        completion.complete(7);
        assert_eq!(*called.lock(), []);
        completion.complete(16);
        assert_eq!(*called.lock(), [(8, true), (16, true), (16, true)]);
        completion.complete(16);
        completion.fail(&LogError::Closed.into());
        assert_eq!(called.lock()[3..], [(24, false), (32, false)]);
        let late = Arc::clone(&called);
        let done = Box::new(move |answer: Result<_, _>| late.lock().push((1, answer.is_ok())));
        let Err((done, StoreError::Log(LogError::Closed))) = completion.add(1, done) else {
            panic!("it waits for what never comes")
        };
        done(Ok(()));
        assert_eq!(called.lock().last(), Some(&(1, true)));
        assert_eq!(completion.len(), 0);
    }
}
