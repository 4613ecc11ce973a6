//! The users' keys that this node leads, in the order of their slots.

use std::sync::Arc;

use collie_db::Value;

use crate::cluster::{Cluster, Partition, Refused, Rows};
use crate::data::value::{DATA, EXPIRY};

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

/// Iterates over the keys of partitions as they are applied. Other commands may change them meanwhile.
pub(crate) struct LedKeys {
    /// In the opposite order of their slots.
    left: Vec<Arc<dyn Partition>>,
    /// Those that were read, the current one last.
    read: Vec<Arc<dyn Partition>>,
    after: Option<(u16, Vec<u8>)>,
    rows: Option<Rows>,
}

impl LedKeys {
    /// The keys behind a row, or all.
    pub(crate) fn of(cluster: &dyn Cluster, after: Option<(u16, Vec<u8>)>) -> LedKeys {
        let mut left = led(cluster);
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
    pub(crate) fn read(&self) -> &[Arc<dyn Partition>] {
        &self.read
    }

    /// The next key or the next error.
    fn step(&mut self) -> Result<Option<LedKey>, Refused> {
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
                self.rows = Some(partition.rows_after(after)?);
                self.read.push(partition);
                continue;
            };
            match rows.next() {
                None => self.rows = None,
                Some(found) => {
                    let found = found?;
                    match found.row.first() {
                        Some(&DATA) => {
                            return Ok(Some(LedKey {
                                slot: found.slot,
                                row: found.row,
                                stored: found.value,
                            }));
                        }
                        // The index: go on behind it.
                        Some(&EXPIRY) => {
                            if let Some(partition) = self.read.last() {
                                self.rows = Some(partition.rows_after(Some((found.slot, &[EXPIRY + 1])))?);
                            }
                        }
                        Some(_) | None => {}
                    }
                }
            }
        }
    }
}

impl Iterator for LedKeys {
    type Item = Result<LedKey, Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

/// The partitions that are led here, in the order of their slots.
pub(crate) fn led(cluster: &dyn Cluster) -> Vec<Arc<dyn Partition>> {
    let mut led = cluster.led();
    led.sort_unstable_by_key(|partition| *partition.slots().start());
    led
}

/// The number of keys in partitions.
pub(crate) fn key_count(led: &[Arc<dyn Partition>]) -> Result<u64, Refused> {
    led.iter()
        .map(|partition| partition.key_count(partition.slots()))
        .sum()
}
