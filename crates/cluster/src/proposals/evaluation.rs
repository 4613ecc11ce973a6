//! A command between its locks and its submission, what becomes of it there, and the overlay that it reads:
//! the effects that are submitted and not applied yet.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::RangeInclusive;

use crate::ids::LeaderId;
use crate::proposals::{RunId, Ticket};

/// Whether a replica takes commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It does not lead.
    Following,
    /// It takes commands, in this run.
    Open(RunId),
    /// It leads, and this run is over. It takes commands again when all of its entries are decided.
    Ending(RunId),
}

impl Standing {
    /// Whether the replica leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        !matches!(self, Self::Following)
    }

    /// The term that it leads in.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        match self {
            Self::Following => None,
            Self::Open(run) | Self::Ending(run) => Some(run.leader.term),
        }
    }
}

/// One attempt to evaluate a command: it counts in the run that it began in, or not at all.
#[derive(Debug)]
#[must_use = "a command that is evaluated and not finished has no effect"]
pub struct Attempt {
    pub(super) run: RunId,
    /// The last pending entry that it saw.
    pub(super) seen: u32,
    pub(super) newest_ms: u64,
    /// See [`needs`](Attempt::needs); 0 where the reply does not depend on the time.
    pub(super) needed_ms: u64,
}

impl Attempt {
    /// Who leads.
    #[must_use]
    pub fn leader(&self) -> LeaderId {
        self.run.leader
    }

    /// The time by which the command runs, where the clock says `clock_ms`: time does not go back
    /// between commands, whichever replica they ran on.
    #[must_use]
    pub fn now_ms(&self, clock_ms: u64) -> u64 {
        self.newest_ms.max(clock_ms)
    }

    /// Says that the reply holds only where time has come to `time_ms`, as that of a read which found
    /// a key expired: without an entry that carries the time, a later leader whose clock is behind
    /// would show the key again.
    pub fn needs(&mut self, time_ms: u64) {
        self.needed_ms = self.needed_ms.max(time_ms);
    }
}

/// What became of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evaluated {
    /// It has effects, or time had to be raised for its reply: that is submitted.
    Submitted(Ticket),
    /// It has none: it is a read, which is not yet known to be of the newest state.
    Read {
        /// It holds if this leader is confirmed to lead after this moment.
        leader: LeaderId,
        /// It holds if this entry, the last pending one that it saw, is taken.
        seen: Option<Ticket>,
    },
}

/// No command can begin now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotOpen {
    /// The replica does not lead, or not yet.
    #[error("this replica does not lead")]
    Following,
    /// It waits for what becomes of the last run's entries.
    #[error("a proposal was not taken, and those before it are not all decided yet")]
    Ending,
}

/// The evaluation was begun in a run that is over, or for slots that have moved since: the command
/// must be evaluated anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what this command was evaluated on does not hold any more")]
pub struct Stale;

/// Effects that were not submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotSubmitted {
    /// See [`Stale`].
    #[error(transparent)]
    Stale(#[from] Stale),
    /// As many entries as may be are without an outcome.
    #[error("too many proposals of this partition are waiting")]
    Full,
}

/// What a command changes: rows and their new values, `None` for a row that goes.
pub type Effects<R, V> = BTreeMap<R, Option<V>>;

/// The newest pending value of each row, and which entry of the run wrote it.
#[derive(Debug)]
pub(super) struct Overlay<R, V> {
    rows: HashMap<R, (Option<V>, u32)>,
    /// Those of entries that do not name them themselves, as they came in parts.
    of_parts: BTreeMap<u32, Vec<R>>,
}

impl<R: Hash + Eq + Clone, V: Clone> Overlay<R, V> {
    pub(super) fn new() -> Self {
        Self {
            rows: HashMap::new(),
            of_parts: BTreeMap::new(),
        }
    }

    pub(super) fn get(&self, row: &R) -> Option<(Option<V>, u32)> {
        self.rows.get(row).cloned()
    }

    pub(super) fn put(&mut self, n: u32, effects: Effects<R, V>) {
        let written = effects.into_iter().map(|(row, value)| (row, (value, n)));
        self.rows.extend(written);
    }

    /// Notes the rows of an entry that does not name them.
    pub(super) fn note_rows(&mut self, n: u32, rows: Vec<R>) {
        self.of_parts.insert(n, rows);
    }

    /// The table shows what these proposals wrote: their rows go, but for those that a later one has
    /// written since.
    pub(super) fn applied<'a>(&mut self, which: RangeInclusive<u32>, rows: impl Iterator<Item = &'a R>)
    where
        R: 'a,
    {
        while let Some((n, rows)) = self.of_parts.pop_first() {
            if n > *which.end() {
                self.of_parts.insert(n, rows);
                break;
            }
            rows.iter().for_each(|row| self.remove(row, &which));
        }
        rows.for_each(|row| self.remove(row, &which));
    }

    fn remove(&mut self, row: &R, which: &RangeInclusive<u32>) {
        let writer = self.rows.get(row).map(|(_, writer)| writer);
        if writer.is_some_and(|writer| which.contains(writer)) {
            self.rows.remove(row);
        }
    }
}
