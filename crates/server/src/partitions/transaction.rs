//! What a command reads and changes in a partition.

use std::collections::BTreeSet;
use std::sync::Arc;

use collie_db::Value;

use crate::cluster::{Applied, Evaluation, Leadership, Partition, Refused, Settling};
use crate::data::watch::Watching;
use crate::exec_batch::Pending;
use crate::session::Shared;

/// The only database of a cluster.
pub(crate) const DATABASE: u8 = 0;

/// A command, or the commands of an `EXEC`, under way in a partition. Dropping it changes nothing and
/// unlocks the rows.
pub(crate) struct PartitionTransaction {
    source: Source,
    /// The rows that it may access, sorted.
    rows: Arc<[Vec<u8>]>,
    pending: Pending,
    /// Whether its reply depends on what it read, so that the reply must be confirmed.
    must_settle: bool,
    /// The watched keys that it changed.
    changed: BTreeSet<Box<[u8]>>,
    /// The connection whose watches end with it.
    watching: Option<Watching>,
}

/// Where rows are read.
enum Source {
    /// The replica that leads.
    Leader {
        evaluation: Box<dyn Evaluation>,
        slot: u16,
    },
    /// Any replica: what it has applied, which may be old, but is of one moment.
    Replica {
        applied: Box<dyn Applied>,
        slot: u16,
        now_ms: u64,
        /// That replica, where it must have led since then.
        leads: Option<Leads>,
    },
}

/// A replica whose leadership is confirmed behind what was read.
struct Leads {
    partition: Arc<dyn Partition>,
    since: Leadership,
    /// Whether a key was found expired: that all later leaders find it so takes an evaluation.
    found_expired: bool,
}

impl PartitionTransaction {
    /// On the replica that leads.
    pub(crate) fn leading(
        evaluation: Box<dyn Evaluation>,
        slot: u16,
        rows: Arc<[Vec<u8>]>,
    ) -> PartitionTransaction {
        PartitionTransaction::new(Source::Leader { evaluation, slot }, rows)
    }

    /// On what the replica that leads has applied, without locks; for commands that only read. `leadership`
    /// was read before the rows were taken.
    pub(crate) fn applied(
        (partition, since): (Arc<dyn Partition>, Leadership),
        applied: Box<dyn Applied>,
        slot: u16,
        rows: Arc<[Vec<u8>]>,
    ) -> PartitionTransaction {
        let source = Source::Replica {
            applied,
            slot,
            now_ms: partition.now_ms(),
            leads: Some(Leads {
                partition,
                since,
                found_expired: false,
            }),
        };
        PartitionTransaction::new(source, rows)
    }

    /// On a replica that may lag behind; for commands that only read.
    pub(crate) fn lagging(
        applied: Box<dyn Applied>,
        slot: u16,
        now_ms: u64,
        rows: Arc<[Vec<u8>]>,
    ) -> PartitionTransaction {
        let source = Source::Replica {
            applied,
            slot,
            now_ms,
            leads: None,
        };
        PartitionTransaction::new(source, rows)
    }

    fn new(source: Source, rows: Arc<[Vec<u8>]>) -> PartitionTransaction {
        PartitionTransaction {
            source,
            rows,
            pending: Pending::default(),
            must_settle: false,
            changed: BTreeSet::new(),
            watching: None,
        }
    }

    /// The time by which keys expire, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        match &self.source {
            Source::Leader { evaluation, .. } => evaluation.now_ms(),
            Source::Replica { now_ms, .. } => *now_ms,
        }
    }

    /// Who leads; `None` on a replica that may lag behind.
    pub(crate) fn leadership(&self) -> Option<Leadership> {
        match &self.source {
            Source::Leader { evaluation, .. } => Some(evaluation.leadership()),
            Source::Replica { leads, .. } => leads.as_ref().map(|leads| leads.since),
        }
    }

    /// The origin of its stamps, where the partition stamps and this replica leads.
    pub(crate) fn stamps(&self) -> Option<u64> {
        match &self.source {
            Source::Leader { evaluation, .. } => evaluation.stamps(),
            Source::Replica { .. } => None,
        }
    }

    /// Whether it has locked a row.
    pub(crate) fn covers(&self, row: &[u8]) -> bool {
        self.rows.binary_search_by(|own| (**own).cmp(row)).is_ok()
    }

    /// What it is going to write.
    pub(crate) fn pending(&mut self) -> &mut Pending {
        &mut self.pending
    }

    /// Reads a row, its own changes included.
    pub(crate) fn get(&mut self, row: &[u8]) -> Result<Option<Value>, Refused> {
        if let Some(changed) = self.pending.changes.get(row) {
            return Ok(changed.clone());
        }
        self.must_settle = true;
        match &mut self.source {
            Source::Leader { evaluation, .. } => evaluation.get(row),
            Source::Replica { applied, slot, .. } => applied.get(*slot, row),
        }
    }

    /// Says that a key was found expired.
    pub(crate) fn expired(&mut self, expiry_ms: u64) {
        match &mut self.source {
            Source::Leader { evaluation, .. } => evaluation.expired(expiry_ms),
            Source::Replica { leads, .. } => {
                if let Some(leads) = leads {
                    leads.found_expired = true;
                }
            }
        }
    }

    /// Says that the reply does not depend on what was read so far.
    pub(crate) fn forget_reads(&mut self) {
        self.must_settle = false;
    }

    /// Makes it an `EXEC`, with which the watches of a connection end: they are not marked by what it
    /// changes itself.
    pub(crate) fn ends(&mut self, watching: Watching) {
        self.watching = Some(watching);
    }

    /// Notes that a command changed a key.
    pub(crate) fn changed(&mut self, shared: &Shared, key: &[u8]) {
        if shared.watches.is_watched(DATABASE, key) {
            self.changed.insert(key.into());
        }
    }

    /// Submits the changes if `commit` is set, and drops them otherwise; in either case unlocks the
    /// rows. Returns what the reply waits for.
    ///
    /// The watches are marked while the rows are locked. So an `EXEC` that locks a watched row later
    /// finds the mark, and a `WATCH` that locks it later reads what was changed. If the changes are
    /// refused after that, a watch is marked in vain, which is allowed.
    pub(crate) fn finish(self, shared: &Shared, commit: bool) -> Result<Option<Settling>, Refused> {
        let pending = if commit { self.pending } else { Pending::default() };
        let (evaluation, slot) = match self.source {
            Source::Leader { evaluation, slot } => (evaluation, slot),
            Source::Replica { .. } if !pending.changes.is_empty() => {
                let text = "ERR internal error: a command that only reads has changed a key";
                return Err(Refused::Text(text.to_owned()));
            }
            Source::Replica { leads, slot, .. } => {
                let leads = leads.filter(|_| self.must_settle);
                if leads.as_ref().is_some_and(|leads| leads.found_expired) {
                    return Err(Refused::Stale);
                }
                return Ok(leads.map(|leads| leads.partition.confirm(leads.since, slot..=slot, None)));
            }
        };
        if pending.changes.is_empty() && !self.must_settle {
            return Ok(None);
        }
        if commit {
            for key in &self.changed {
                match &self.watching {
                    Some(own) => shared.watches.changed_by(DATABASE, key, own),
                    None => shared.watches.changed(DATABASE, key),
                }
            }
        }
        let first = pending.expiry_first_ms();
        let settling = evaluation.finish(pending.changes.into_iter().collect(), pending.keys)?;
        if let (Some(first), Some(partitions)) = (first, &shared.partitions) {
            partitions.due.added(slot, first);
        }
        Ok(Some(settling))
    }
}
