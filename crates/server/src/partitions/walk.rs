//! The users' keys that this node leads, in the order of their slots.

use std::future::ready;
use std::sync::Arc;

use collie_db::Value;

use crate::cluster::{Cluster, Leadership, Partition, Refused, Rows, Settled, Settling, Walked};
use crate::data::value::{self, BEFORE_DATA, BadValue, DATA};

/// Entries that a walk over tombstones counts as passed over, however many these are: so many are read before
/// it continues behind them.
const TOMBSTONES_READ: u64 = 16;

/// A user's key and what is stored there.
#[derive(Debug, Clone)]
pub(crate) struct LedKey {
    pub(crate) slot: u16,
    /// In the engine's form.
    pub(crate) row: Vec<u8>,
    pub(crate) stored: Value,
}

impl LedKey {
    /// The user's key.
    pub(crate) fn name(&self) -> &[u8] {
        self.row.get(1..).unwrap_or_default()
    }
}

/// A step of the iteration over the keys.
#[derive(Debug)]
pub(crate) enum LedEntry {
    Key(LedKey),
    /// Keys that were removed: as [`Walked::Removed`]; or their tombstones.
    Removed {
        slot: u16,
        row: Vec<u8>,
        entries: u64,
    },
}

/// A partition that is read as it is applied, and who led it before anything was read.
pub(crate) struct Reading {
    pub(crate) partition: Arc<dyn Partition>,
    leadership: Option<Leadership>,
    /// The time by which its keys expire.
    now_ms: u64,
    /// The latest expiry of a key that was found expired.
    expired_ms: Option<u64>,
}

impl Reading {
    /// To be called before the partition is read: what is read while others lead may be old, also
    /// where this node leads again when it is asked.
    pub(crate) fn begin(partition: Arc<dyn Partition>) -> Reading {
        Reading {
            leadership: partition.leadership(),
            now_ms: partition.now_ms(),
            expired_ms: None,
            partition,
        }
    }

    /// Whether a key of the partition has expired. If so, its confirmation depends on that.
    fn has_expired(&mut self, stored: &Value) -> Result<bool, BadValue> {
        let header = value::read_header(stored)?;
        let expired = header.expiry_ms.filter(|_| header.is_expired(self.now_ms));
        self.expired_ms = self.expired_ms.max(expired);
        Ok(expired.is_some())
    }

    /// Resolves to whether what was read held.
    pub(crate) fn confirm(&self) -> Settling {
        match self.leadership {
            Some(leadership) => self
                .partition
                .confirm(leadership, self.partition.slots(), self.expired_ms),
            None => Box::pin(ready(Settled::TryAgain)),
        }
    }
}

/// Iterates over the keys of partitions as they are applied. Other commands may change them meanwhile.
pub(crate) struct LedKeys {
    /// In the opposite order of their slots.
    left: Vec<Arc<dyn Partition>>,
    /// Those that were read, the current one last.
    read: Vec<Reading>,
    after: Option<(u16, Vec<u8>)>,
    rows: Option<Rows>,
}

impl LedKeys {
    /// The keys behind a row, or all.
    pub(crate) fn of(cluster: &dyn Cluster, after: Option<(u16, Vec<u8>)>) -> LedKeys {
        let mut left = led_partitions(cluster);
        if let Some((slot, _)) = &after {
            left.retain(|partition| partition.slots().end() >= slot);
        }
        left.reverse();
        LedKeys {
            left,
            read: Vec::new(),
            after,
            rows: None,
        }
    }

    /// The partitions that were read.
    pub(crate) fn read(&self) -> &[Reading] {
        &self.read
    }

    /// Whether the key that was returned last has expired, by the time of its partition.
    pub(crate) fn has_expired(&mut self, key: &LedKey) -> Result<bool, BadValue> {
        match self.read.last_mut() {
            Some(reading) => reading.has_expired(&key.stored),
            None => Ok(false),
        }
    }

    /// The time by which the key that was returned last expires, and 0 before the first.
    pub(crate) fn now_ms(&self) -> u64 {
        self.read.last().map_or(0, |reading| reading.now_ms)
    }

    /// What comes next, or the next error.
    fn step(&mut self) -> Result<Option<LedEntry>, Refused> {
        loop {
            let Some(rows) = &mut self.rows else {
                let Some(partition) = self.left.pop() else {
                    return Ok(None);
                };
                // The row may lie before this partition: its own was not led here.
                let after = self
                    .after
                    .take()
                    .filter(|(slot, _)| partition.slots().contains(slot));
                let after = after.as_ref().map(|(slot, row)| (*slot, &**row));
                let reading = Reading::begin(partition);
                self.rows = Some(reading.partition.rows_after(after)?);
                self.read.push(reading);
                continue;
            };
            match rows.next() {
                None => self.rows = None,
                Some(found) => {
                    let found = match found? {
                        Walked::Row(row) => row,
                        Walked::Removed { slot, row, entries } => {
                            return Ok(Some(LedEntry::Removed { slot, row, entries }));
                        }
                    };
                    match found.row.first() {
                        Some(&DATA) => {
                            return Ok(Some(LedEntry::Key(LedKey {
                                slot: found.slot,
                                row: found.row,
                                stored: found.value,
                            })));
                        }
                        // The index and records: continue behind them.
                        Some(&tag) if tag > DATA => {
                            if let Some(Reading { partition, .. }) = self.read.last() {
                                self.rows = Some(partition.rows_after(Some((found.slot, &[u8::MAX])))?);
                            }
                        }
                        // Tombstones: continue behind them. A slot may have nothing else.
                        Some(_) | None => {
                            let slot = found.slot;
                            if let Some(Reading { partition, .. }) = self.read.last() {
                                self.rows = Some(partition.rows_after(Some((slot, BEFORE_DATA)))?);
                            }
                            return Ok(Some(LedEntry::Removed {
                                slot,
                                row: BEFORE_DATA.to_vec(),
                                entries: TOMBSTONES_READ,
                            }));
                        }
                    }
                }
            }
        }
    }
}

impl Iterator for LedKeys {
    type Item = Result<LedEntry, Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

/// The partitions that are led here, in the order of their slots.
pub(crate) fn led_partitions(cluster: &dyn Cluster) -> Vec<Arc<dyn Partition>> {
    let mut led = cluster.led();
    led.sort_unstable_by_key(|partition| *partition.slots().start());
    led
}

/// The number of keys in all partitions that are led here, and what was read for it.
pub(crate) fn key_count(cluster: &dyn Cluster) -> Result<(u64, Vec<Reading>), Refused> {
    let read: Vec<_> = led_partitions(cluster).into_iter().map(Reading::begin).collect();
    let counts = read
        .iter()
        .map(|Reading { partition, .. }| partition.key_count(partition.slots()));
    let keys = counts.sum::<Result<u64, Refused>>()?;
    Ok((keys, read))
}
