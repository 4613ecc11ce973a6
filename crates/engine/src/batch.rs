//! Batches: writes that are committed together or not at all.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use collie_log::Room;
use smallvec::SmallVec;

use crate::memtable::{At, Write};
use crate::store::family::FamilyState;
use crate::write::appenders::Record;
use crate::write::encoding::{self, Op, Ops, check_key};
use crate::{Error, Family, Result};

/// With more families than this they are found by a map.
const SEARCHED: usize = 8;

/// Writes to any families of one store, committed in one step by [`Db::write`](crate::Db::write).
///
/// Operations are encoded for the log as they are added. Of two writes of a key the later one
/// counts.
#[derive(Default, Clone)]
pub struct Batch {
    payload: Vec<u8>,
    count: usize,
    families: Vec<Arc<FamilyState>>,
    /// Of each family, the parts of the payload that are its operations.
    parts: Vec<SmallVec<[Range<usize>; 1]>>,
    /// The places of families by id, as soon as there are more than [`SEARCHED`].
    places: HashMap<u32, usize>,
    /// The place of the last operation's family.
    last: usize,
    /// It has a put.
    has_puts: bool,
    /// It has a delete.
    has_deletes: bool,
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
        encoding::check_key(key)?;
        self.push(family.state(), key, write)
    }

    /// Adds a write whose key is valid.
    pub(crate) fn push(&mut self, state: &Arc<FamilyState>, key: &[u8], write: Write<'_>) -> Result<()> {
        let place = self.place(state)?;
        let begin = self.payload.len();
        match write {
            Write::Put(_) => self.has_puts = true,
            _ => self.has_deletes = true,
        }
        encoding::encode(
            &mut self.payload,
            Op {
                family: state.id(),
                key,
                write,
            },
        );
        self.count += 1;
        let end = self.payload.len();
        match self.parts[place].last_mut() {
            Some(part) if part.end == begin => part.end = end,
            _ => self.parts[place].push(begin..end),
        }
        self.last = place;
        Ok(())
    }

    /// The place of a family among those of the batch, which it joins.
    fn place(&mut self, state: &Arc<FamilyState>) -> Result<usize> {
        let is_last = self
            .families
            .get(self.last)
            .is_some_and(|last| Arc::ptr_eq(last, state));
        if is_last {
            return Ok(self.last);
        }
        let known = match self.families.len() {
            ..=SEARCHED => self.families.iter().position(|known| known.id() == state.id()),
            _ => self.places.get(&state.id()).copied(),
        };
        if let Some(place) = known {
            return match Arc::ptr_eq(&self.families[place], state) {
                true => Ok(place),
                false => Err(Error::ForeignFamily {
                    name: state.name().to_string(),
                }),
            };
        }
        self.families.push(Arc::clone(state));
        self.parts.push(SmallVec::new());
        let place = self.families.len() - 1;
        match self.families.len() {
            ..=SEARCHED => {}
            few if few == SEARCHED + 1 => {
                let places = self.families.iter().enumerate();
                self.places = places.map(|(place, family)| (family.id(), place)).collect();
            }
            _ => drop(self.places.insert(state.id(), place)),
        }
        Ok(place)
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
        self.parts.clear();
        self.places.clear();
        (self.count, self.last) = (0, 0);
        (self.has_puts, self.has_deletes, self.relief) = (false, false, false);
    }

    pub(crate) fn has_deletes(&self) -> bool {
        self.has_deletes
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

    /// Each family's operations, in order.
    pub(crate) fn ops_by_family(
        &self,
    ) -> impl Iterator<Item = (&Arc<FamilyState>, impl Iterator<Item = Op<'_>>)> {
        let by_family = self.families.iter().zip(&self.parts);
        by_family.map(|(family, parts)| {
            let payloads = parts.iter().map(|part| &self.payload[part.clone()]);
            (family, payloads.flat_map(|payload| Ops::new(payload).flatten()))
        })
    }

    /// Inserts the writes into the families' memtables. Returns whether one of these is full now.
    pub(crate) fn apply(&self, at: At, unlogged: bool) -> bool {
        let mut full = false;
        for (family, ops) in self.ops_by_family() {
            family.with_mem(at.start, |mem| {
                if unlogged {
                    mem.note_unlogged();
                }
                for op in ops {
                    mem.insert(op.key, at, op.write);
                }
                full |= mem.bytes() >= family.write_buffer_bytes();
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

/// What one commit writes.
#[derive(Clone, Copy)]
pub(crate) enum Commit<'a> {
    /// One operation, which is encoded when it is appended.
    One(&'a Arc<FamilyState>, Op<'a>),
    /// A batch, which is encoded already, and not empty.
    Batch(&'a Batch),
}

impl<'a> Commit<'a> {
    /// Checks the key of a single write; those of a batch were checked as they were added. Returns
    /// the commit's bytes as they are encoded.
    pub(crate) fn check(self) -> Result<usize> {
        if let Self::One(_, op) = self {
            check_key(op.key)?;
        }
        Ok(self.bytes())
    }

    /// Its bytes as they are encoded.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::One(_, op) => op.encoded_len(),
            Self::Batch(batch) => batch.size_bytes(),
        }
    }

    pub(crate) fn families(self) -> &'a [Arc<FamilyState>] {
        match self {
            Self::One(family, _) => std::slice::from_ref(family),
            Self::Batch(batch) => batch.families(),
        }
    }

    /// Its rows, by family and key.
    pub(crate) fn rows(self) -> SmallVec<[(u32, &'a [u8]); 1]> {
        match self {
            Self::One(_, op) => [(op.family, op.key)].into(),
            Self::Batch(batch) => batch.ops().map(|op| (op.family, op.key)).collect(),
        }
    }

    pub(crate) fn record(self) -> Record<'a> {
        match self {
            Self::One(_, op) => Record::One(op),
            Self::Batch(batch) => Record::Encoded(batch.payload()),
        }
    }

    /// Which room of the log it may use. A write that only removes data may use what is kept back
    /// for relief.
    pub(crate) fn room(self) -> Room {
        match self {
            Self::One(_, op) => match op.write {
                Write::Put(_) => Room::Commit,
                Write::Delete => Room::Relief,
            },
            Self::Batch(batch) => batch.room(),
        }
    }

    /// Inserts the writes into the families' memtables. Returns whether one of these is full now.
    pub(crate) fn apply(self, at: At, unlogged: bool) -> bool {
        match self {
            Self::One(family, op) => family.with_mem(at.start, |mem| {
                if unlogged {
                    mem.note_unlogged();
                }
                mem.insert(op.key, at, op.write);
                mem.bytes() >= family.write_buffer_bytes()
            }),
            Self::Batch(batch) => batch.apply(at, unlogged),
        }
    }
}
