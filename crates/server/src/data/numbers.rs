//! The numbers of the values that lie in pieces.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// How many free numbers are kept. Those of further values are not used again.
const FREE_MOST: usize = 1 << 16;

/// Gives each value a number that no other one has. Numbers of values that are gone come first: the
/// rows of a new value then replace older rows, or tombstones, and merges of tables find both
/// together. Numbers that only grow would leave the old rows to themselves.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// The largest one that was given.
    last: AtomicU64,
    /// The newest last.
    free: Mutex<Vec<u64>>,
}

impl Numbers {
    /// Numbers above that of a value that is stored.
    pub(crate) fn above(last: u64) -> Numbers {
        Numbers {
            last: AtomicU64::new(last),
            free: Mutex::default(),
        }
    }

    pub(crate) fn take(&self) -> u64 {
        let free = self.free.lock().pop();
        // Relaxed: only that the numbers differ matters.
        free.unwrap_or_else(|| self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The value is gone: the commit that removed its pieces has ended. So what is committed under
    /// this number from now on comes later.
    pub(crate) fn put_back(&self, number: u64) {
        let mut free = self.free.lock();
        if free.len() < FREE_MOST {
            free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_values_have_a_number() {
        let numbers = Numbers::above(7);
        assert_eq!([numbers.take(), numbers.take(), numbers.take()], [8, 9, 10]);
        numbers.put_back(9);
        numbers.put_back(8);
        assert_eq!([numbers.take(), numbers.take(), numbers.take()], [8, 9, 11]);
        (0..FREE_MOST as u64 + 9).for_each(|number| numbers.put_back(100 + number));
        let taken: Vec<_> = (0..FREE_MOST + 1).map(|_| numbers.take()).collect();
        assert_eq!(taken.last(), Some(&12));
    }
}
