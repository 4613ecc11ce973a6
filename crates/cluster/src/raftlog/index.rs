//! Where a replica's entries stand in the log, a line per frame and not per entry; and the payloads of its
//! last entries, in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use collie_log::Lsn;

use crate::ids::LeaderId;

/// Entries that stand in one frame, or what is left of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The index of the first. The frame may begin with earlier ones.
    pub(super) first: u64,
    /// The frame.
    pub(super) lsn: Lsn,
    /// How many.
    pub(super) count: u32,
    /// The frame's length in the log.
    pub(super) bytes: u32,
}

// 4 million frames in a log of 2 GiB are usual: each line counts.
const _: () = assert!(size_of::<Run>() == 24);

impl Run {
    /// The index behind the last.
    pub(super) fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// What is left of it from `first` on.
    fn from(self, first: u64) -> Self {
        let count = self.end().saturating_sub(first) as u32;
        Self { first, count, ..self }
    }

    /// What is left of it below `end`.
    fn below(self, end: u64) -> Self {
        let count = end.saturating_sub(self.first).min(u64::from(self.count)) as u32;
        Self { count, ..self }
    }
}

/// The runs of a replica, in the order of their entries, none of which is in two of them.
#[derive(Debug, Default)]
pub(super) struct Index {
    runs: VecDeque<Run>,
    /// From which index on which leader's entries stand.
    leaders: BTreeMap<u64, LeaderId>,
    /// From this index on, runs stand in the log in the order of their entries. A rewrite gives
    /// those before it later places.
    in_order_from: u64,
}

impl Index {
    /// The index of the first entry.
    pub(super) fn first(&self) -> Option<u64> {
        self.runs.front().map(|run| run.first)
    }

    /// The index behind the last entry.
    pub(super) fn end(&self) -> Option<u64> {
        self.runs.back().map(Run::end)
    }

    /// Adds entries behind the last one, or puts them in the place of those with the same indexes.
    pub(super) fn put(&mut self, run: Run, leader: LeaderId) {
        self.set_leader(run.first, run.end(), leader);
        if self.end().is_none_or(|end| end <= run.first) {
            self.runs.push_back(run);
            return;
        }
        let at = self.runs.partition_point(|old| old.end() <= run.first);
        let mut behind = self.runs.split_off(at);
        if let Some(old) = behind.front()
            && old.first < run.first
        {
            self.runs.push_back(old.below(run.first));
        }
        while behind.front().is_some_and(|old| old.end() <= run.end()) {
            behind.pop_front();
        }
        if let Some(old) = behind.front_mut()
            && old.first < run.end()
        {
            *old = old.from(run.end());
        }
        self.runs.push_back(run);
        self.runs.append(&mut behind);
        self.in_order_from = self.in_order_from.max(run.end());
    }

    fn set_leader(&mut self, first: u64, end: u64, leader: LeaderId) {
        let behind = self.leader_from(end);
        let inside: Vec<u64> = self.leaders.range(first..end).map(|(index, _)| *index).collect();
        for index in inside {
            self.leaders.remove(&index);
        }
        if let Some(behind) = behind
            && self.end().is_some_and(|last| end < last)
        {
            self.leaders.entry(end).or_insert(behind);
        }
        if self.leader_from(first) != Some(leader) {
            self.leaders.insert(first, leader);
        }
        // The line behind may say the same leader again now.
        if self.leaders.get(&end) == Some(&leader) {
            self.leaders.remove(&end);
        }
    }

    fn leader_from(&self, index: u64) -> Option<LeaderId> {
        self.leaders
            .range(..=index)
            .next_back()
            .map(|(_, leader)| *leader)
    }

    /// Forgets all entries from `end` on.
    pub(super) fn truncate(&mut self, end: u64) {
        while let Some(run) = self.runs.back_mut() {
            if run.end() <= end {
                break;
            }
            if run.first < end {
                *run = run.below(end);
                break;
            }
            self.runs.pop_back();
        }
        self.leaders.split_off(&end);
        self.in_order_from = self.in_order_from.min(end);
    }

    /// Forgets all entries below `first`.
    pub(super) fn purge(&mut self, first: u64) {
        while let Some(run) = self.runs.front_mut() {
            if run.first >= first {
                break;
            }
            if run.end() > first {
                *run = run.from(first);
                break;
            }
            self.runs.pop_front();
        }
        let leader = self.leader_from(first);
        self.leaders = self.leaders.split_off(&first);
        if let (Some(leader), Some(first)) = (leader, self.first()) {
            self.leaders.entry(first).or_insert(leader);
        } else if self.runs.is_empty() {
            self.leaders.clear();
        }
    }

    /// Who proposed an entry that is there.
    pub(super) fn leader(&self, index: u64) -> Option<LeaderId> {
        self.run_of(index)?;
        self.leader_from(index)
    }

    /// From which index on which leader's entries stand, from the first on.
    pub(super) fn leaders(&self) -> impl Iterator<Item = (u64, LeaderId)> {
        self.leaders.iter().map(|(index, leader)| (*index, *leader))
    }

    /// The run that an entry is in.
    pub(super) fn run_of(&self, index: u64) -> Option<Run> {
        self.runs_from(index).next().filter(|run| run.first <= index)
    }

    /// The runs from the one on that has `index`, or what comes behind it.
    pub(super) fn runs_from(&self, index: u64) -> impl Iterator<Item = Run> {
        let at = self.runs.partition_point(|run| run.end() <= index);
        self.runs.range(at..).copied()
    }

    /// The frame that stands first in the log.
    pub(super) fn oldest_frame(&self) -> Option<Lsn> {
        let in_order = self.runs.partition_point(|run| run.first < self.in_order_from);
        let first = self.runs.range(..(in_order + 1).min(self.runs.len()));
        first.map(|run| run.lsn).min()
    }

    /// The index behind the last entry whose frame ends at `durable` or before.
    pub(super) fn end_below(&self, durable: Lsn) -> Option<u64> {
        // The last few are not durable; a rewrite gives more of them a new place, for a moment.
        let mut from_last = self.runs.iter().rev();
        let run = from_last.find(|run| run.lsn + u64::from(run.bytes) <= durable)?;
        Some(run.end())
    }

    /// The last entry in a frame that begins below `lsn`.
    pub(super) fn last_below(&self, lsn: Lsn) -> Option<u64> {
        let rewritten = |run: &Run| run.first < self.in_order_from;
        let below = self.runs.partition_point(|run| rewritten(run) || run.lsn < lsn);
        let mut from_last = self.runs.range(..below).rev();
        let run = from_last.find(|run| run.lsn < lsn)?;
        Some(run.end() - 1)
    }

    /// Whether every entry from `first` on and below `end` is there.
    pub(super) fn covers(&self, first: u64, end: u64) -> bool {
        let mut next = first;
        for run in self.runs_from(first) {
            if next >= end || run.first > next {
                break;
            }
            next = run.end();
        }
        next >= end
    }

    /// What the frames take in the log that hold entries.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.bytes)).sum()
    }
}

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
    use proptest::prelude::*;

    use super::*;

    fn leader(term: u64) -> LeaderId {
        LeaderId { term, replica: 1 }
    }

    /// What the index should say: each entry's frame and term.
    type Plain = BTreeMap<u64, (Lsn, u64)>;

    fn assert_says(index: &Index, plain: &Plain) {
        let first = plain.keys().next().copied();
        assert_eq!(index.first(), first);
        assert_eq!(index.end(), plain.keys().next_back().map(|last| last + 1));
        assert_eq!(index.oldest_frame(), plain.values().map(|(lsn, _)| *lsn).min());
        for at in 0..70 {
            let run = index.run_of(at).map(|run| run.lsn);
            assert_eq!(run, plain.get(&at).map(|(lsn, _)| *lsn), "at {at}: {index:?}");
            let leads = index.leader(at).map(|leader| leader.term);
            assert_eq!(leads, plain.get(&at).map(|(_, term)| *term), "at {at}: {index:?}");
        }
        for durable in [0, 40, 80, 10_000] {
            let below = plain.iter().rev().find(|(_, (lsn, _))| lsn + 8 <= durable);
            assert_eq!(
                index.end_below(durable),
                below.map(|(at, _)| at + 1),
                "{durable}: {index:?}"
            );
        }
        for lsn in [0, 40, 80, 10_000] {
            let below = plain.iter().rev().find(|(_, (at, _))| *at < lsn);
            assert_eq!(
                index.last_below(lsn),
                below.map(|(at, _)| *at),
                "{lsn}: {index:?}"
            );
        }
        for (first, end) in [(0, 5), (3, 9), (7, 30), (20, 20)] {
            let covers = (first..end).all(|at| plain.contains_key(&at));
            assert_eq!(index.covers(first, end), covers, "{first}..{end}: {index:?}");
        }
        let mut before = None;
        for (_, leader) in index.leaders() {
            assert_ne!(before.replace(leader), Some(leader), "said twice: {index:?}");
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Append { count: u32, term: u64 },
        Rewrite { first: u64, count: u32 },
        Truncate(u64),
        Purge(u64),
    }

    fn steps() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..5_u32, 1..4_u64).prop_map(|(count, term)| Step::Append { count, term }),
            2 => (0..60_u64, 1..9_u32).prop_map(|(first, count)| Step::Rewrite { first, count }),
            1 => (0..60_u64).prop_map(Step::Truncate),
            1 => (0..20_u64).prop_map(Step::Purge),
        ]
    }

    proptest! {
        #[test]
        fn it_says_of_each_entry_what_was_said_last(steps in proptest::collection::vec(steps(), 0..40)) {
            let (mut index, mut plain, mut lsn) = (Index::default(), Plain::new(), 0);
            for step in steps {
                lsn += 8;
                match step {
                    Step::Append { count, term } => {
                        let first = index.end().unwrap_or(3);
                        let run = Run { first, lsn, count, bytes: 8 };
                        index.put(run, leader(term));
                        plain.extend((first..run.end()).map(|at| (at, (lsn, term))));
                    }
                    Step::Rewrite { first, count } => {
                        // As a rewrite does: entries of one leader that are there.
                        let Some((_, term)) = plain.get(&first).copied() else { continue };
                        let same = (first..first + u64::from(count)).take_while(|at| plain.get(at).is_some_and(|(_, t)| *t == term));
                        let count = same.count() as u32;
                        let run = Run { first, lsn, count, bytes: 8 };
                        index.put(run, leader(term));
                        plain.extend((first..run.end()).map(|at| (at, (lsn, term))));
                    }
                    Step::Truncate(end) => {
                        index.truncate(end);
                        plain.split_off(&end);
                    }
                    Step::Purge(first) => {
                        index.purge(first);
                        plain = plain.split_off(&first);
                    }
                }
                assert_says(&index, &plain);
            }
        }
    }

    /// As recovery finds them where the log begins in the middle: later entries before earlier ones.
    #[test]
    fn entries_before_the_first_take_their_place_before_it() {
        let mut index = Index::default();
        let run = |first, count, lsn| Run {
            first,
            lsn,
            count,
            bytes: 8,
        };
        index.put(run(10, 5, 8), leader(2));
        index.put(run(4, 2, 16), leader(1));
        assert!(!index.covers(4, 15));
        index.put(run(6, 4, 24), leader(1));
        assert!(index.covers(4, 15));
        assert_eq!(index.leader(9), Some(leader(1)));
        assert_eq!(index.leader(10), Some(leader(2)));
        assert_eq!(index.oldest_frame(), Some(8));
        index.put(run(10, 2, 32), leader(2));
        index.put(run(12, 3, 40), leader(2));
        assert_eq!(index.oldest_frame(), Some(16));
    }

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
