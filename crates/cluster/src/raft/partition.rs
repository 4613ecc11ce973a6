//! A replica as a server sees it: a partition of the slots.

use std::fmt;
use std::future::ready;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use collie_db::Value;
use collie_server::cluster::{Applied, Evaluation, Leadership, Partition, Refused, Rows, Settled, Settling};
use tokio::time::{Instant, timeout_at};

use crate::proposals::Standing;
use crate::raft::evaluation::{Command, leadership, now_ms, raise, refused, text_of};
use crate::raft::members::AppliedRows;
use crate::raft::replica::Replica;
use crate::raft::scanning::Scan;
use crate::replica_store::data_key;

/// The replica of a partition. It keeps the replica from being dropped, and not from being closed.
#[derive(Clone)]
struct Slots {
    replica: Arc<Replica>,
    slots: RangeInclusive<u16>,
}

impl Replica {
    /// This replica as that of a partition of these slots. Cheap: it holds the replica and nothing
    /// else, and one is as good as another. It goes on working when the replica is opened again.
    #[must_use]
    pub fn partition(self: &Arc<Self>, slots: RangeInclusive<u16>) -> Arc<dyn Partition> {
        Arc::new(Slots {
            replica: Arc::clone(self),
            slots,
        })
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("group", &self.replica.group())
            .field("replica", &self.replica.id())
            .field("slots", &self.slots)
            .finish()
    }
}

impl Slots {
    fn check(&self, slot: u16) -> Result<(), Refused> {
        if self.slots.contains(&slot) {
            return Ok(());
        }
        let (group, first, last) = (self.replica.group(), self.slots.start(), self.slots.end());
        let text = format!("ERR slot {slot} is not in partition {group}, which has slots {first} to {last}");
        Err(Refused::Text(text))
    }
}

/// What a partition has applied.
struct AppliedSlots {
    rows: AppliedRows,
    slots: Slots,
}

impl Applied for AppliedSlots {
    fn get(&self, slot: u16, row: &[u8]) -> Result<Option<Value>, Refused> {
        self.slots.check(slot)?;
        let read = self.rows.stored(data_key(slot, row));
        read.map_err(|error| text_of(error.into()))
    }
}

impl Partition for Slots {
    fn group(&self) -> u64 {
        self.replica.group()
    }

    fn slots(&self) -> RangeInclusive<u16> {
        self.slots.clone()
    }

    fn begin(&self, slot: u16, rows: &[&[u8]], patience: Duration) -> Result<Box<dyn Evaluation>, Refused> {
        self.check(slot)?;
        let options = &self.replica.options;
        let running = self.replica.running();
        let running = running.map_err(|error| text_of(error.into()))?;
        let within = options.times.command;
        let clock_ms = options.clock.wall_ms();
        match Command::begin(Arc::clone(&running), within, clock_ms, (slot, rows), patience) {
            Ok(command) => Ok(Box::new(command)),
            Err(error) => Err(refused(&running, error)),
        }
    }

    fn rows_after(&self, after: Option<(u16, &[u8])>) -> Result<Rows, Refused> {
        let scan = Scan::new(&self.replica, self.slots.clone(), after);
        Ok(Box::new(scan))
    }

    fn applied(&self) -> Result<Box<dyn Applied>, Refused> {
        let rows = self.replica.applied_rows();
        Ok(Box::new(AppliedSlots {
            rows: rows.map_err(|error| text_of(error.into()))?,
            slots: self.clone(),
        }))
    }

    fn key_count(&self, slots: RangeInclusive<u16>) -> Result<u64, Refused> {
        let running = self.replica.running();
        let running = running.map_err(|error| text_of(error.into()))?;
        let counted = running.machine.keys_in_slots(&slots);
        counted.map_err(|error| Refused::Text(format!("ERR {error}")))
    }

    fn leadership(&self) -> Option<Leadership> {
        let running = self.replica.running().ok()?;
        match running.commands.leading.standing() {
            Standing::Open(run) | Standing::Ending(run) => Some(leadership(run.leader)),
            Standing::Following => None,
        }
    }

    fn now_ms(&self) -> u64 {
        let options = &self.replica.options;
        let clock_ms = options.clock.wall_ms();
        match self.replica.running() {
            Ok(running) => now_ms(&running, clock_ms),
            Err(_) => clock_ms,
        }
    }

    fn confirm(&self, since: Leadership, expired_ms: Option<u64>) -> Settling {
        let Ok(running) = self.replica.running() else {
            return Box::pin(ready(Settled::TryAgain));
        };
        let options = &self.replica.options;
        let deadline = Instant::now() + options.times.command;
        let raised = expired_ms.map(|expiry_ms| {
            let times = (expiry_ms.saturating_add(1), self.now_ms());
            raise(&running, times, deadline)
        });
        let commands = Arc::clone(&running.commands);
        Box::pin(async move {
            let has_come = match raised {
                None => true,
                Some(None) => false,
                Some(Some(raised)) => raised.await == Settled::Holds,
            };
            match timeout_at(deadline, commands.confirm()).await {
                Ok(Some(leader)) if has_come && leadership(leader) == since => Settled::Holds,
                _ => Settled::TryAgain,
            }
        })
    }
}
