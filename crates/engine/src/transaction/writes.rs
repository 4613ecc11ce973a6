//! The writes of a transaction that has not committed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::key::Bounds;
use crate::memtable::Write;
use crate::store::family::FamilyState;
use crate::{Batch, Error, Key, Result, Value};

/// Bytes of a write in its commit that are neither key nor value, at most.
const OVERHEAD: usize = 16;

/// The last write of each key, and what undoes the writes since a savepoint.
#[derive(Default)]
pub(crate) struct Writes {
    families: BTreeMap<u32, FamilyWrites>,
    /// The size of its commit, at most.
    bytes: usize,
    /// What each write since the first savepoint replaced.
    undo: Vec<Replaced>,
    /// How long `undo` was at each savepoint.
    savepoints: Vec<usize>,
}

struct FamilyWrites {
    state: Arc<FamilyState>,
    keys: BTreeMap<Key, Option<Value>>,
}

struct Replaced {
    family: u32,
    key: Key,
    /// `None`: it had not been written.
    before: Option<Option<Value>>,
}

fn size(key: &[u8], value: Option<&[u8]>) -> usize {
    key.len() + value.map_or(0, <[u8]>::len) + OVERHEAD
}

impl Writes {
    pub(crate) fn is_empty(&self) -> bool {
        self.families.values().all(|family| family.keys.is_empty())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The transaction's own state of a key: `None` where it has not written it, `Some(None)` where
    /// it removed it.
    pub(crate) fn get(&self, family: u32, key: &[u8]) -> Option<Option<Value>> {
        let keys = &self.families.get(&family)?.keys;
        keys.get(&Key::from(key)).cloned()
    }

    /// Its own state of the keys between two bounds, in order.
    pub(crate) fn range(&self, family: u32, (low, high): &Bounds) -> Vec<(Key, Option<Value>)> {
        let as_ref = |bound: &Bound<Key>| bound.clone();
        self.families.get(&family).map_or_else(Vec::new, |writes| {
            let range = writes.keys.range((as_ref(low), as_ref(high)));
            range.map(|(key, value)| (key.clone(), value.clone())).collect()
        })
    }

    /// Writes a key, unless the commit would pass `limit` bytes.
    pub(crate) fn write(
        &mut self,
        state: &Arc<FamilyState>,
        key: &[u8],
        value: Option<&[u8]>,
        limit: usize,
    ) -> Result<()> {
        let family = self.families.entry(state.id()).or_insert_with(|| FamilyWrites {
            state: Arc::clone(state),
            keys: BTreeMap::new(),
        });
        let key = Key::from(key);
        let before = family.keys.get(&key);
        let freed = before.map_or(0, |value| size(&key, value.as_deref()));
        let bytes = self.bytes - freed + size(&key, value);
        if bytes > limit {
            return Err(Error::BatchTooLarge {
                size: bytes as u64,
                limit: limit as u64,
            });
        }
        self.bytes = bytes;
        let before = family.keys.insert(key.clone(), value.map(Value::from));
        if !self.savepoints.is_empty() {
            self.undo.push(Replaced {
                family: state.id(),
                key,
                before,
            });
        }
        Ok(())
    }

    pub(crate) fn set_savepoint(&mut self) {
        self.savepoints.push(self.undo.len());
    }

    /// Undoes the writes since the last savepoint, and removes that.
    pub(crate) fn roll_back(&mut self) -> Result<()> {
        let length = self.savepoints.pop().ok_or(Error::NoSavepoint)?;
        for Replaced { family, key, before } in self.undo.drain(length..).rev() {
            let Some(family) = self.families.get_mut(&family) else {
                continue;
            };
            let bytes = |value: &Option<Value>| size(&key, value.as_deref());
            self.bytes += before.as_ref().map_or(0, bytes);
            let now = match before {
                Some(before) => family.keys.insert(key.clone(), before),
                None => family.keys.remove(&key),
            };
            self.bytes -= now.as_ref().map_or(0, bytes);
        }
        Ok(())
    }

    /// Removes the last savepoint, and keeps the writes since.
    pub(crate) fn pop_savepoint(&mut self) -> Result<()> {
        self.savepoints.pop().ok_or(Error::NoSavepoint)?;
        if self.savepoints.is_empty() {
            self.undo.clear();
        }
        Ok(())
    }

    /// The keys that are written, in the order in which all transactions lock rows.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&Arc<FamilyState>, &Key)> {
        self.families
            .values()
            .flat_map(|family| family.keys.keys().map(|key| (&family.state, key)))
    }

    /// All of it as one commit.
    pub(crate) fn to_batch(&self) -> Result<Batch> {
        let mut batch = Batch::with_capacity(self.bytes);
        for family in self.families.values() {
            for (key, value) in &family.keys {
                let write = value.as_deref().map_or(Write::Delete, Write::Put);
                batch.push(&family.state, key, write)?;
            }
        }
        Ok(batch)
    }
}
