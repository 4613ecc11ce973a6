//! A command under way in the [partition of a fake](super::FakePartition), and what that has applied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_db::Value;
use collie_server::cluster::{
    Applied, Evaluation, Leadership, Partition, Refused, Settled, Settling, slot_of,
};
use collie_server::duplication::{key_of, rows_of, stamp_changes};

use super::{Changes, Entry, FakePartition, Row};

pub(super) struct FakeApplied(pub(super) BTreeMap<Row, Value>);

impl Applied for FakeApplied {
    fn get(&self, slot: u16, row: &[u8]) -> Result<Option<Value>, Refused> {
        Ok(self.0.get(&(slot, row.to_vec())).cloned())
    }
}

pub(super) struct FakeEvaluation {
    pub(super) partition: Arc<FakePartition>,
    pub(super) slot: u16,
    pub(super) rows: Vec<Row>,
    pub(super) leadership: Leadership,
    pub(super) expired: Vec<u64>,
}

impl Drop for FakeEvaluation {
    fn drop(&mut self) {
        let mut state = self.partition.state();
        for row in &self.rows {
            assert!(state.locked.remove(row));
        }
        drop(state);
        self.partition.unlocked.notify_all();
    }
}

impl Evaluation for FakeEvaluation {
    fn leadership(&self) -> Leadership {
        self.leadership
    }

    fn now_ms(&self) -> u64 {
        self.partition.now_ms()
    }

    fn expired(&mut self, expiry_ms: u64) {
        self.expired.push(expiry_ms);
    }

    fn get(&mut self, row: &[u8]) -> Result<Option<Value>, Refused> {
        let mut state = self.partition.state();
        match state.get.pop_front() {
            Some(refused) => Err(refused),
            None => Ok(state.get(self.slot, row)),
        }
    }

    fn stamps(&self) -> Option<u64> {
        *self.partition.stamps.lock().unwrap()
    }

    fn finish(self: Box<Self>, mut changes: Changes, keys: i64) -> Result<Settling, Refused> {
        if let Some(origin) = self.stamps() {
            let get = |row: &[u8]| Ok(self.partition.state().get(self.slot, row));
            stamp_changes(&mut changes, get, self.now_ms(), origin)?;
        }
        let bytes: usize = changes
            .iter()
            .map(|(row, value)| row.len() + value.as_ref().map_or(0, |value| value.len()))
            .sum();
        if bytes >= 8 << 20 {
            return Err(Refused::Text(format!(
                "ERR a command may change 8 MiB at most, not {bytes} bytes"
            )));
        }
        let mut state = self.partition.state();
        if let Some(refused) = state.finish.pop_front() {
            return Err(refused);
        }
        let fates: Vec<_> = self
            .rows
            .iter()
            .filter_map(|(_, row)| state.fates.remove(row))
            .collect();
        let fate = fates.first().copied().unwrap_or(Settled::Holds);
        self.partition.finished.fetch_add(1, Ordering::SeqCst);
        self.partition.expired.lock().unwrap().extend(&self.expired);
        let is_read = changes.is_empty();
        for key in changes.iter().filter_map(|(row, _)| key_of(row)) {
            let [row, _] = rows_of(key);
            assert!(
                self.rows.iter().any(|(_, own)| *own == row),
                "it is not locked: {row:?}"
            );
            assert_eq!(slot_of(key), self.slot);
        }
        if !is_read {
            state.log.push(changes.clone());
        }
        if fate == Settled::Holds {
            let entry = Entry {
                slot: self.slot,
                changes,
                keys,
            };
            if *self.partition.gate.borrow() {
                state.apply(entry);
            } else {
                state.submitted.push_back(entry);
            }
        }
        drop(state);
        let reader = is_read.then(|| self.partition.clone());
        Ok(self.partition.settling(fate, reader))
    }
}
