//! Rows that go from one cluster to another, and back.
//!
//! A row that was written while its partition stamps has a [`Stamp`], and a key that was removed then
//! leaves a tombstone with one. [`stamp_changes`] adds both to what a command changes, when it is
//! submitted. [`record()`] makes of a row the arguments of `COLLIE.MERGE`, by which another cluster takes it
//! over with its stamp, unless what that has of the key is newer. The last stamp wins, and which one that
//! is does not depend on the order in which rows come, or on how often.
//!
//! A key that expires is removed by each cluster for itself: its tombstone has the stamp that its value
//! had. No cluster has written anything, so that it wins over nothing.

#[cfg(test)]
mod model;
mod record;

use std::collections::HashSet;

use collie_db::Value;
use thiserror::Error;

use crate::cluster::Refused;
pub use crate::data::stamp::Stamp;
use crate::data::stamp::{BadTombstone, TOMBSTONE, Tombstone, tombstone_key};
use crate::data::value::{self, BadValue, DATA};

pub(crate) use record::{Content, Incoming};
pub use record::{SentRow, record};

/// A row that this version of the server cannot read. Its text says what is wrong and what to do.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct BadRow(#[from] Wrong);

#[derive(Debug, Error)]
enum Wrong {
    #[error(transparent)]
    Value(#[from] BadValue),
    #[error(transparent)]
    Tombstone(#[from] BadTombstone),
    #[error("the row is that of neither a key nor a tombstone; report this as a bug")]
    Tag,
}

impl From<BadRow> for Refused {
    fn from(bad: BadRow) -> Refused {
        Refused::Text(format!("ERR {bad}"))
    }
}

/// The user's key, if a row is that of its value or of its tombstone.
#[must_use]
pub fn key_of(row: &[u8]) -> Option<&[u8]> {
    match row.split_first() {
        Some((&(DATA | TOMBSTONE), key)) => Some(key),
        Some(_) | None => None,
    }
}

/// The rows that a user's key may have: that of its value, then that of its tombstone. The lock of the
/// first is the lock of both.
#[must_use]
pub fn rows_of(key: &[u8]) -> [Vec<u8>; 2] {
    [[&[DATA], key].concat(), tombstone_key(key)]
}

/// The stamp of a stored row, that of a value or of a tombstone. One without a stamp counts as written by
/// its own cluster before all that have one.
///
/// # Errors
/// [`BadRow`].
pub fn stamp_of(row: &[u8], stored: &[u8], own_origin: u64) -> Result<Stamp, BadRow> {
    match row.first() {
        Some(&DATA) => {
            let stamp = value::read_stamp(stored).map_err(Wrong::from)?;
            Ok(stamp.unwrap_or(Stamp::of_unstamped(own_origin)))
        }
        Some(&TOMBSTONE) => Ok(Tombstone::decode(stored).map_err(Wrong::from)?.stamp),
        Some(_) | None => Err(Wrong::Tag.into()),
    }
}

/// Stamps what a command changes, in a partition that stamps. The rows of its keys are locked, and `get`
/// reads rows as they are without these changes; `now_ms` is the time by which the command ran, and
/// `origin` names this cluster.
///
/// * A value gets a stamp greater than that of what it replaces, and the tombstone of its key goes.
/// * A removal leaves a tombstone with such a stamp. That of a value that has expired leaves one with the
///   value's own stamp.
/// * What has a stamp, or its tombstone among the changes, is left as it is: it comes from another
///   cluster. So are rows that are neither values nor tombstones.
///
/// # Errors
/// Those of `get`, and [`Refused::Text`] where a stored row cannot be read. The changes are not to be
/// submitted then.
pub fn stamp_changes(
    changes: &mut Vec<(Vec<u8>, Option<Value>)>,
    mut get: impl FnMut(&[u8]) -> Result<Option<Value>, Refused>,
    now_ms: u64,
    origin: u64,
) -> Result<(), Refused> {
    let bad = |error: BadValue| Refused::from(BadRow::from(Wrong::from(error)));
    let given = changes.iter().map(|(row, _)| row);
    let given: HashSet<Vec<u8>> = given
        .filter(|row| row.first() == Some(&TOMBSTONE))
        .cloned()
        .collect();
    let mut tombstones = Vec::new();
    for (row, change) in changes.iter_mut() {
        let Some(key) = row.strip_prefix(&[DATA]) else {
            continue;
        };
        let tombstone = tombstone_key(key);
        let is_merged = match &change {
            Some(new) => value::read_stamp(new).map_err(bad)?.is_some(),
            None => given.contains(&tombstone),
        };
        if is_merged {
            continue;
        }
        let (mut prior, mut has_expired, mut has_tombstone) = (None, false, false);
        if let Some(stored) = get(row)? {
            prior = Some(stamp_of(row, &stored, origin)?);
            has_expired = value::read_header(&stored).map_err(bad)?.is_expired(now_ms);
        } else if let Some(stored) = get(&tombstone)? {
            prior = Some(stamp_of(&tombstone, &stored, origin)?);
            has_tombstone = true;
        }
        let next = Stamp::next(prior, now_ms, origin);
        match change {
            Some(new) => {
                let (header, payload) = value::read_inline(new).map_err(bad)?;
                let stamped = value::encode_stamped(header.expiry_ms, next, payload);
                *change = Some(Value::from(&stamped[..]));
                if has_tombstone {
                    tombstones.push((tombstone, None));
                }
            }
            None => {
                let stamp = prior.filter(|_| has_expired).unwrap_or(next);
                let left = Tombstone {
                    stamp,
                    written_ms: now_ms,
                };
                tombstones.push((tombstone, Some(left.encode())));
            }
        }
    }
    changes.append(&mut tombstones);
    Ok(())
}
