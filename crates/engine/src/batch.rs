//! Writes that happen together or not at all.

use std::sync::Arc;

use crate::codec::{self, Op, Ops};
use crate::core::FamilyState;
use crate::memtable::{At, Write};
use crate::workers::Room;
use crate::{Error, Family, MAX_KEY_BYTES, Result};

/// Writes to any families of one store, committed in one step by [`Db::write`](crate::Db::write).
///
/// Operations are encoded for the log as they are added. A key that is written twice has its last write.
#[derive(Default, Clone)]
pub struct Batch {
    payload: Vec<u8>,
    count: usize,
    families: Vec<Arc<FamilyState>>,
    /// It has a put, which brings data.
    brings: bool,
    /// It makes room all the same.
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
    /// [`Error::EmptyKey`], [`Error::KeyTooLong`], [`Error::ForeignFamily`] where the batch has writes to
    /// another store.
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
        check_key(key)?;
        self.push(family.state(), key, write)
    }

    /// Adds a write whose key is one.
    pub(crate) fn push(&mut self, state: &Arc<FamilyState>, key: &[u8], write: Write<'_>) -> Result<()> {
        if self.families.last().is_none_or(|last| !Arc::ptr_eq(last, state))
            && !self.families.iter().any(|known| Arc::ptr_eq(known, state))
        {
            if self.families.iter().any(|known| known.id == state.id) {
                return Err(Error::ForeignFamily {
                    name: state.name.to_string(),
                });
            }
            self.families.push(Arc::clone(state));
        }
        self.brings |= matches!(write, Write::Put(_));
        codec::encode(
            &mut self.payload,
            Op {
                family: state.id,
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

    /// Forgets the writes and keeps the memory.
    pub fn clear(&mut self) {
        self.payload.clear();
        self.families.clear();
        self.count = 0;
        (self.brings, self.relief) = (false, false);
    }

    /// Whether the batch only takes data away, or was said to make room: then it is let in where others are refused
    /// because the device is full, as far as the log's room for that goes: a sixteenth of a segment, 512 KiB at most.
    #[must_use]
    pub fn is_relief(&self) -> bool {
        self.relief || !self.brings
    }

    /// Says that the batch makes room although it has puts: say one that lets another family take the place of one that
    /// is dropped then.
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
    pub(crate) fn ops(&self) -> impl Iterator<Item = Op<'_>> {
        Ops::new(&self.payload).flatten()
    }

    /// Applies the writes to the families' memtables.
    pub(crate) fn apply(&self, at: At, unlogged: bool) {
        if let [family] = self.families() {
            family.with_mem(at.start, |mem| {
                if unlogged {
                    mem.note_unlogged();
                }
                for op in Ops::new(&self.payload).flatten() {
                    mem.insert(op.key, at, op.write);
                }
            });
            return;
        }
        for family in self.families() {
            family.with_mem(at.start, |mem| {
                if unlogged {
                    mem.note_unlogged();
                }
                for op in Ops::new(&self.payload)
                    .flatten()
                    .filter(|op| op.family == family.id)
                {
                    mem.insert(op.key, at, op.write);
                }
            });
        }
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

pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        0 => Err(Error::EmptyKey),
        len if len > MAX_KEY_BYTES => Err(Error::KeyTooLong {
            len,
            limit: MAX_KEY_BYTES,
        }),
        _ => Ok(()),
    }
}
