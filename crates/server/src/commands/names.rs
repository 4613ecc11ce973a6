//! The users' keys of a database in order, as a command sees them: the stored keys, merged with the
//! changes of the current transaction.
//!
//! A step that has passed over [`PASSED_MAX`] removed entries gives [`DbError::Incomplete`], and the
//! next one continues.

use std::ops::Bound;

use collie_db::{Error as DbError, Family, Iter, Key, Lsn, Value};

use crate::cost::{Aside, PASSED_MAX};
use crate::data::value::{self, DATA};
use crate::exec::Exec;
use crate::failure::Failure;

type Item = Result<(Key, Value), DbError>;

/// Iterates over the users' keys of a database, with the changes of the transaction merged in.
pub(super) struct Names {
    stored: Iter,
    /// The next stored key, if it was read already.
    next_stored: Option<Item>,
    changed: std::iter::Peekable<std::vec::IntoIter<(Vec<u8>, Option<Value>)>>,
}

impl Names {
    /// The keys of the session's database that start with `prefix` and come after `after`.
    pub(super) fn of(exec: &mut Exec<'_>, prefix: &[u8], after: Option<&[u8]>) -> Result<Names, Failure> {
        exec.session.note_database(&exec.shared.store)?;
        let Some(database) = exec.database() else {
            return Ok(Names::stored(&exec.session.keyspace.family, prefix, after)?);
        };
        let bounds = bounds(prefix, after);
        let changed: Vec<_> = database
            .pending
            .changes
            .range::<Vec<u8>, _>(bounds.clone())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Ok(Names::new(database.keyspace.family.range(bounds)?, changed))
    }

    /// The same for a family, outside of transactions.
    pub(super) fn stored(family: &Family, prefix: &[u8], after: Option<&[u8]>) -> Result<Names, DbError> {
        Ok(Names::new(family.range(bounds(prefix, after))?, Vec::new()))
    }

    fn new(mut stored: Iter, changed: Vec<(Vec<u8>, Option<Value>)>) -> Names {
        stored.set_max_skippable_internal_keys(PASSED_MAX);
        Names {
            next_stored: None,
            stored,
            changed: changed.into_iter().peekable(),
        }
    }

    /// The largest end of a commit that was seen so far.
    pub(super) fn seen(&self) -> Lsn {
        self.stored.seen()
    }

    /// How many removed entries it has passed over.
    pub(super) fn passed(&self) -> u64 {
        self.stored.internal_keys_skipped()
    }

    fn take_stored(&mut self) -> Option<Item> {
        self.next_stored.take().or_else(|| self.stored.next())
    }
}

impl Iterator for Names {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        loop {
            let Some((changed, _)) = self.changed.peek() else {
                return self.take_stored();
            };
            if self.next_stored.is_none() {
                self.next_stored = self.stored.next();
            }
            match &self.next_stored {
                Some(Ok((stored, _))) if **stored < **changed => return self.take_stored(),
                // Keys that the transaction has changed come before those behind which it continues.
                Some(Err(DbError::Incomplete { at })) if **at >= **changed => {}
                Some(Err(_)) => return self.take_stored(),
                Some(Ok((stored, _))) if **stored == **changed => drop(self.take_stored()),
                Some(Ok(_)) | None => {}
            }
            if let Some((key, Some(value))) = self.changed.next() {
                return Some(Ok((Key::from(key.as_slice()), value)));
            }
        }
    }
}

/// The range of the users' keys that start with `prefix` and come after `after`.
fn bounds(prefix: &[u8], after: Option<&[u8]>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let (mut from, mut scratch) = (Vec::new(), Vec::new());
    value::data_key(&mut from, prefix);
    let to = successor(from.clone());
    let start = match after {
        Some(key) => {
            value::data_key(&mut scratch, key);
            if scratch < from {
                Bound::Included(from)
            } else {
                Bound::Excluded(scratch)
            }
        }
        None => Bound::Included(from),
    };
    if let Bound::Excluded(last) = &start
        && *last >= to
    {
        // The range is empty, and its start must not lie behind its end.
        return (Bound::Included(to.clone()), Bound::Excluded(to));
    }
    (start, Bound::Excluded(to))
}

/// The first key after all keys that start with `prefix`. The tag at the start of every key is
/// below 0xff.
pub(super) fn successor(mut prefix: Vec<u8>) -> Vec<u8> {
    while prefix.last() == Some(&0xff) {
        prefix.pop();
    }
    match prefix.last_mut() {
        Some(last) => *last += 1,
        None => prefix.push(DATA + 1),
    }
    prefix
}

/// For a command that has passed over many removed entries: it continues only on a thread that may
/// block, where it delays no other connection.
pub(super) fn search_aside(exec: &Exec<'_>) -> Result<(), Failure> {
    match exec.may_block {
        true => Ok(()),
        false => Err(Failure::Aside(Aside::Searches)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_successor_lies_right_behind_the_keys_with_the_prefix() {
        assert_eq!(successor(b"ka".to_vec()), b"kb");
        assert_eq!(successor(b"ka\xff\xff".to_vec()), b"kb");
        assert_eq!(successor(b"k".to_vec()), b"l");
    }
}
