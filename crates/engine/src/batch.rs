//! Batches: writes that are committed together or not at all.

use std::sync::Arc;

use crate::commit::codec::{self, Op, Ops};
use crate::commit::sequencer::Room;
use crate::memtable::{At, Write};
use crate::store::family_state::FamilyState;
use crate::{Error, Family, Result};

/// Writes to any families of one store, committed in one step by [`Db::write`](crate::Db::write).
///
/// Operations are encoded for the log as they are added. Of two writes of a key the later one
/// counts.
#[derive(Default, Clone)]
pub struct Batch {
    payload: Vec<u8>,
    count: usize,
    families: Vec<Arc<FamilyState>>,
    /// It has a put.
    has_puts: bool,
    /// The caller said that it makes room although it has puts.
    relief: bool,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with room for `bytes` of keys and values.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            payload: Vec::with_capacity(bytes),
            ..Self::default()
        }
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// [`Error::EmptyKey`], [`Error::KeyTooLong`], [`Error::ForeignFamily`] where the batch has
    /// writes to another store.
    pub fn put(&mut self, family: &Family, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add(family, key.as_ref(), Write::Put(value.as_ref()))
    }

    /// Removes `key`.
    ///
    /// # Errors
    /// As [`Batch::put`].
    pub fn delete(&mut self, family: &Family, key: impl AsRef<[u8]>) -> Result<()> {
        self.add(family, key.as_ref(), Write::Delete)
    }

    fn add(&mut self, family: &Family, key: &[u8], write: Write<'_>) -> Result<()> {
        codec::check_key(key)?;
        self.push(family.state(), key, write)
    }

    /// Adds a write whose key is valid.
    pub(crate) fn push(&mut self, state: &Arc<FamilyState>, key: &[u8], write: Write<'_>) -> Result<()> {
        if self.families.last().is_none_or(|last| !Arc::ptr_eq(last, state))
            && !self.families.iter().any(|known| Arc::ptr_eq(known, state))
        {
            if self.families.iter().any(|known| known.id() == state.id()) {
                return Err(Error::ForeignFamily {
                    name: state.name().to_string(),
                });
            }
            self.families.push(Arc::clone(state));
        }
        self.has_puts |= matches!(write, Write::Put(_));
        codec::encode(
            &mut self.payload,
            Op {
                family: state.id(),
                key,
                write,
            },
        );
        self.count += 1;
        Ok(())
    }

    /// The number of writes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no writes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The commit's size in the log, in bytes, without the frame's header.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.payload.len()
    }

    /// Removes the writes and keeps the memory.
    pub fn clear(&mut self) {
        self.payload.clear();
        self.families.clear();
        self.count = 0;
        (self.has_puts, self.relief) = (false, false);
    }

    /// Whether the batch has only deletes, or was marked by [`Batch::set_relief`]. Such a batch is
    /// admitted while the device is full and others are refused, as long as the log has room kept
    /// back for it: a sixteenth of a segment, 512 KiB at most.
    #[must_use]
    pub fn is_relief(&self) -> bool {
        self.relief || !self.has_puts
    }

    /// Marks the batch as one that makes room although it has puts: for example one that replaces a
    /// family, which is dropped afterwards.
    pub fn set_relief(&mut self) {
        self.relief = true;
    }

    /// Which room of the log it may use.
    pub(crate) fn room(&self) -> Room {
        if self.is_relief() {
            Room::Relief
        } else {
            Room::Commit
        }
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    pub(crate) fn families(&self) -> &[Arc<FamilyState>] {
        &self.families
    }

    /// Its operations.
    pub(crate) fn ops(&self) -> impl Iterator<Item = Op<'_>> + '_ {
        Ops::new(&self.payload).flatten()
    }

    /// Inserts the writes into the families' memtables. Returns whether one of these is full now.
    pub(crate) fn apply(&self, at: At, unlogged: bool) -> bool {
        let one = self.families.len() == 1;
        let mut full = false;
        for family in &self.families {
            family.with_mem(at.start, |mem| {
                if unlogged {
                    mem.note_unlogged();
                }
                for op in self.ops().filter(|op| one || op.family == family.id()) {
                    mem.insert(op.key, at, op.write);
                }
                full |= mem.bytes() >= family.options().write_buffer_bytes;
            });
        }
        full
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("len", &self.count)
            .field("size_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}
