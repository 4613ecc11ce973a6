//! Which entries were applied, in few lines: what a store that is flushed up to any of them says.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::ids::{EntryId, LeaderId};

/// The members of a group, as an entry has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The entry.
    pub id: EntryId,
    /// The members, encoded by who proposes them.
    pub members: Arc<[u8]>,
}

/// How far a state machine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The last entry that was applied.
    pub applied: EntryId,
    /// The members of the group as of then.
    pub membership: Option<Membership>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.applied.fmt(f)?;
        match &self.membership {
            Some(membership) => write!(f, ", with the members of {}", membership.id),
            None => write!(f, ", with no members"),
        }
    }
}

/// The positions from the oldest on that is asked for.
///
/// A batch says `applied`, so the tables are the record of it. What stands here is the same, for
/// batches that are in memtables, and for tables that are linked and not open: an entry's index is
/// in its sequence number, and its leader and the members change seldom.
#[derive(Debug, Default)]
pub(super) struct Positions {
    /// What was applied last.
    applied: Option<EntryId>,
    /// Everything up to this index is in tables.
    flushed: Option<u64>,
    /// From which index on which leader's entries were applied.
    leaders: BTreeMap<u64, LeaderId>,
    memberships: BTreeMap<u64, Membership>,
    /// Who needs positions, and entries, behind an index.
    holds: BTreeMap<u64, u64>,
    held: u64,
}

impl Positions {
    /// Begins at what the tables hold.
    pub(super) fn reset(&mut self, position: Option<&Position>) {
        self.leaders.clear();
        self.memberships.clear();
        self.applied = position.map(|position| position.applied);
        self.flushed = self.applied.map(|applied| applied.index);
        if let Some(position) = position {
            self.leaders
                .insert(position.applied.index, position.applied.leader);
            let membership = position.membership.clone();
            self.memberships
                .extend(membership.map(|membership| (membership.id.index, membership)));
        }
    }

    /// An entry is about to be applied: it may be in a table before the call that applies it returns.
    pub(super) fn announce(&mut self, id: EntryId, membership: Option<&Membership>) {
        let last = self.leaders.last_key_value();
        if last.is_none_or(|(_, leader)| *leader != id.leader) {
            self.leaders.insert(id.index, id.leader);
        }
        if let Some(membership) = membership {
            self.memberships.insert(id.index, membership.clone());
        }
    }

    /// It was.
    pub(super) fn applied(&mut self, id: EntryId) {
        self.applied = Some(id);
    }

    pub(super) fn last(&self) -> Option<EntryId> {
        self.applied
    }

    /// The position of what was applied last.
    pub(super) fn now(&self) -> Option<Position> {
        self.at(self.applied?.index)
    }

    /// The position of what is in tables.
    pub(super) fn in_tables(&self) -> Option<Position> {
        self.at(self.flushed?)
    }

    /// The position of an entry that was applied.
    pub(super) fn at(&self, index: u64) -> Option<Position> {
        let (_, leader) = self.leaders.range(..=index).next_back()?;
        let membership = self.memberships.range(..=index).next_back();
        Some(Position {
            applied: EntryId {
                leader: *leader,
                index,
            },
            membership: membership.map(|(_, membership)| membership.clone()),
        })
    }

    /// Everything up to this index is in tables.
    pub(super) fn flush(&mut self, index: u64) {
        self.flushed = self.flushed.max(Some(index));
        self.trim();
    }

    /// Forgets what no caller asks for any more.
    fn trim(&mut self) {
        let Some(oldest) = self.needed() else {
            return;
        };
        fn trim<T>(lines: &mut BTreeMap<u64, T>, oldest: u64) {
            // The line that holds at the oldest stays.
            while lines.range(..=oldest).nth(1).is_some() {
                lines.pop_first();
            }
        }
        trim(&mut self.leaders, oldest);
        trim(&mut self.memberships, oldest);
    }

    /// The entries behind this index are needed, by the memtables or by a transfer.
    fn needed(&self) -> Option<u64> {
        self.held().into_iter().chain([self.flushed?]).min()
    }

    /// Everything up to this index is in tables.
    pub(super) fn flushed(&self) -> Option<u64> {
        self.flushed
    }

    /// Transfers go on behind this index.
    pub(super) fn held(&self) -> Option<u64> {
        self.holds.values().copied().min()
    }

    /// Keeps what is needed to go on from what is in tables, until it is released.
    pub(super) fn hold(&mut self) -> u64 {
        self.held += 1;
        self.holds.insert(self.held, self.flushed.unwrap_or(0));
        self.held
    }

    /// The hold is of this index from now on.
    pub(super) fn hold_at(&mut self, hold: u64, index: u64) {
        self.holds.insert(hold, index);
    }

    pub(super) fn release(&mut self, hold: u64) {
        self.holds.remove(&hold);
        self.trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(term: u64, index: u64) -> EntryId {
        let leader = LeaderId { term, replica: 1 };
        EntryId { leader, index }
    }

    #[test]
    fn it_says_of_each_index_that_is_needed_what_was_applied() {
        let mut positions = Positions::default();
        assert_eq!((positions.now(), positions.in_tables()), (None, None));
        let mut all = Vec::new();
        let mut membership = None;
        for index in 0..40 {
            let entry = id(1 + index / 7, index);
            let now = (index % 11 == 3).then(|| Membership {
                id: entry,
                members: Arc::from([index as u8].as_slice()),
            });
            positions.announce(entry, now.as_ref());
            positions.applied(entry);
            membership = now.or(membership);
            all.push(Position {
                applied: entry,
                membership: membership.clone(),
            });
        }
        let check = |positions: &Positions, from: usize| {
            for position in &all[from..] {
                assert_eq!(positions.at(position.applied.index).as_ref(), Some(position));
            }
        };
        check(&positions, 0);
        positions.flush(12);
        check(&positions, 12);
        let hold = positions.hold();
        positions.flush(30);
        check(&positions, 12);
        assert_eq!(positions.needed(), Some(12));
        positions.hold_at(hold, 20);
        assert_eq!(positions.needed(), Some(20));
        positions.release(hold);
        assert_eq!(positions.needed(), Some(30));
        check(&positions, 30);
        assert!(positions.leaders.len() <= 3 && positions.memberships.len() <= 2);
        assert_eq!(positions.in_tables().as_ref(), Some(&all[30]));
        positions.reset(Some(&all[35]));
        assert_eq!(positions.now().as_ref(), Some(&all[35]));
        assert_eq!(positions.in_tables().as_ref(), Some(&all[35]));
    }
}
