//! Snapshots, and reads of one key.

use std::ops::RangeBounds;
use std::sync::Arc;

use collie_log::Lsn;

use crate::iter::{Iter, Keys};
use crate::key::{Bounds, bounds, prefix_bounds};
use crate::store::Views;
use crate::store::read_point::ReadPoint;
use crate::store::view::View;
use crate::{Db, Error, Family, Key, MAX_KEY_BYTES, Result, Value};

/// What a read found, and the newest commit that it depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<T> {
    /// What was found.
    pub value: T,
    /// The end of the commit that wrote or removed it; 0 where the answer came from tables, which
    /// hold only what is durable. To promise durability of what was read, wait for this with
    /// [`Db::wait`].
    pub seen: Lsn,
}

pub(crate) fn get(view: &View, point: &ReadPoint, family: &str, key: &[u8]) -> Result<Read<Option<Value>>> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Ok(Read { value: None, seen: 0 });
    }
    if let Some(found) = point.newest(view, family, key)? {
        return Ok(Read {
            value: found.value,
            seen: found.at.end,
        });
    }
    let item = view.tables.get(key, point.below())?;
    let value = item
        .filter(|item| !item.is_tombstone())
        .map(|item| Value(item.value));
    Ok(Read { value, seen: 0 })
}

/// The values of keys, in the order of these; they are looked up in theirs, so that what lies beside
/// one another is read together.
pub(crate) fn multi_get<K: AsRef<[u8]>>(
    keys: impl IntoIterator<Item = K>,
    mut get: impl FnMut(&[u8]) -> Result<Option<Value>>,
) -> Result<Vec<Option<Value>>> {
    let keys: Vec<K> = keys.into_iter().collect();
    let mut order: Vec<(usize, &[u8])> = keys.iter().map(AsRef::as_ref).enumerate().collect();
    order.sort_unstable_by_key(|(_, key)| *key);
    let mut values = vec![None; keys.len()];
    for (at, key) in order {
        values[at] = get(key)?;
    }
    Ok(values)
}

/// The state of all families at one moment: a prefix of the commit order.
///
/// It keeps the memtables and table files that it needs for as long as it lives, and with them the
/// store's lock: a closed store can be opened again when the last snapshot and iterator are gone. A
/// snapshot from before a failure of the log shows what it showed before; [`Read::seen`] says
/// whether that is durable. One from after it fails for keys that are [in doubt](Error::InDoubt).
/// Cheap to clone.
#[derive(Clone)]
pub struct Snapshot(Arc<SnapshotState>);

struct SnapshotState {
    /// Dropped before the store's handle, which may be the last one and close the store.
    views: Arc<Views>,
    point: ReadPoint,
    db: Db,
}

impl Drop for SnapshotState {
    fn drop(&mut self) {
        self.db.store().end_snapshot();
    }
}

impl Snapshot {
    pub(crate) fn new(db: &Db) -> Self {
        let (point, views) = db.store().begin_snapshot();
        Self(Arc::new(SnapshotState {
            db: db.clone(),
            point,
            views,
        }))
    }

    /// The LSN below which it sees all commits, and from which on it sees none.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.0.point.below()
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn get(&self, family: &Family, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        Ok(self.get_with(family, key)?.value)
    }

    /// The value of `key`, and the commit that it comes from.
    ///
    /// # Errors
    /// Where the snapshot does not know the family: [`Error::FamilyTooNew`], or
    /// [`Error::FamilyDropped`] where it was dropped before. [`Error::ForeignFamily`],
    /// [`Error::Closed`], [`Error::Table`]. [`Error::InDoubt`] of a snapshot that was taken after
    /// the log failed.
    pub fn get_with(&self, family: &Family, key: impl AsRef<[u8]>) -> Result<Read<Option<Value>>> {
        get(self.view(family)?, &self.0.point, family.name(), key.as_ref())
    }

    /// Whether there is a value for `key`.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn contains(&self, family: &Family, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(family, key)?.is_some())
    }

    /// The values of `keys`, in their order.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        family: &Family,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let view = self.view(family)?;
        multi_get(
            keys,
            |key| Ok(get(view, &self.0.point, family.name(), key)?.value),
        )
    }

    /// The first key, and its value.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn first(&self, family: &Family) -> Result<Option<(Key, Value)>> {
        self.iter(family)?.next().transpose()
    }

    /// The last key, and its value.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn last(&self, family: &Family) -> Result<Option<(Key, Value)>> {
        self.iter(family)?.next_back().transpose()
    }

    /// Whether the family has no key.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn is_empty(&self, family: &Family) -> Result<bool> {
        Ok(self.first(family)?.is_none())
    }

    /// The number of keys. Reads the whole family: takes as long as walking over it.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn len(&self, family: &Family) -> Result<u64> {
        self.keys(family)?
            .try_fold(0, |count, key| key.map(|_| count + 1))
    }

    /// All keys, in order.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn keys(&self, family: &Family) -> Result<Keys> {
        Ok(Keys::new(self.iter(family)?))
    }

    /// All keys and values.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn iter(&self, family: &Family) -> Result<Iter> {
        self.range::<&[u8]>(family, ..)
    }

    /// The keys and values in `range`.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn range<K: AsRef<[u8]>>(&self, family: &Family, range: impl RangeBounds<K>) -> Result<Iter> {
        self.scan(family, bounds(&range))
    }

    /// The keys that start with `prefix`, and their values.
    ///
    /// # Errors
    /// As [`Snapshot::get_with`].
    pub fn prefix(&self, family: &Family, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.scan(family, prefix_bounds(prefix.as_ref()))
    }

    pub(crate) fn scan(&self, family: &Family, bounds: Bounds) -> Result<Iter> {
        Iter::new(self.view(family)?, bounds, &self.0.point, family.state())
    }

    pub(crate) fn view(&self, family: &Family) -> Result<&View> {
        let name = || family.name().to_owned();
        if !family.db().is(&self.0.db) {
            return Err(Error::ForeignFamily { name: name() });
        }
        self.0.db.store().check_open()?;
        self.0
            .views
            .get(&family.id())
            .map(|view| &**view)
            .ok_or_else(|| match family.state().is_dropped() {
                true => Error::FamilyDropped { name: name() },
                false => Error::FamilyTooNew { name: name() },
            })
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("lsn", &self.lsn())
            .finish_non_exhaustive()
    }
}
