//! The payloads of a replica's last entries, in memory.

use std::collections::VecDeque;
use std::sync::Arc;

/// The last entries, without a gap.
#[derive(Debug, Default)]
pub(super) struct Cache {
    first: u64,
    payloads: VecDeque<Arc<[u8]>>,
    /// Of all payloads.
    bytes: u64,
}

impl Cache {
    /// The index of the first; `None` where there is none.
    pub(super) fn first(&self) -> Option<u64> {
        (!self.payloads.is_empty()).then_some(self.first)
    }

    fn end(&self) -> u64 {
        self.first + self.payloads.len() as u64
    }

    /// Adds the entry behind the last.
    pub(super) fn push(&mut self, index: u64, payload: Arc<[u8]>) {
        if index != self.end() {
            self.payloads.clear();
            self.bytes = 0;
        }
        if self.payloads.is_empty() {
            self.first = index;
        }
        self.bytes += payload.len() as u64;
        self.payloads.push_back(payload);
    }

    pub(super) fn get(&self, index: u64) -> Option<&Arc<[u8]>> {
        let at = index.checked_sub(self.first)?;
        self.payloads.get(usize::try_from(at).ok()?)
    }

    /// Forgets all from `end` on.
    pub(super) fn truncate(&mut self, end: u64) {
        let left = end.saturating_sub(self.first).min(self.payloads.len() as u64);
        let gone = self.payloads.drain(left as usize..);
        self.bytes -= gone.map(|payload| payload.len() as u64).sum::<u64>();
    }

    /// Forgets all below `first`.
    pub(super) fn drop_below(&mut self, first: u64) {
        let gone = first.saturating_sub(self.first).min(self.payloads.len() as u64);
        let payloads = self.payloads.drain(..gone as usize);
        self.bytes -= payloads.map(|payload| payload.len() as u64).sum::<u64>();
        self.first += gone;
    }

    /// How many bytes the payloads have.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_last_entries_without_a_gap() {
        let mut cache = Cache::default();
        let of = |n: u8| Arc::from([n].as_slice());
        (4..9).for_each(|n| cache.push(u64::from(n), of(n)));
        cache.truncate(8);
        cache.drop_below(5);
        let kept: Vec<_> = (0..10).filter_map(|at| cache.get(at)).cloned().collect();
        assert_eq!(kept, [of(5), of(6), of(7)]);
        assert_eq!((cache.first(), cache.bytes()), (Some(5), 3));
        cache.push(20, of(20));
        assert_eq!((cache.first(), cache.get(7), cache.bytes()), (Some(20), None, 1));
        cache.truncate(3);
        assert_eq!((cache.first(), cache.bytes()), (None, 0));
        cache.push(3, of(3));
        assert_eq!(cache.get(3), Some(&of(3)));
    }
}
