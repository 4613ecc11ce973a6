//! The cursors of `SCAN`.
//!
//! A scan walks a database in the order of its keys and must remember a key, which does not fit
//! into the number that clients expect as a cursor. So the number identifies an entry of a bounded
//! table. An unknown number — the entry was evicted, or the server was restarted — restarts the
//! scan: `SCAN` guarantees that a key which exists throughout the scan is returned, and allows it
//! to be returned twice.

use std::collections::VecDeque;

/// Cursors that are remembered.
const CURSORS_MAX: usize = 16 * 1024;
/// Bytes of keys that are remembered.
const KEY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The positions of all clients' scans.
#[derive(Debug)]
pub(crate) struct Cursors {
    /// The number of the first entry; entry i has number `first + i`.
    first: u64,
    entries: VecDeque<Cursor>,
    key_bytes: usize,
}

#[derive(Debug)]
struct Cursor {
    db: u8,
    last_key: Box<[u8]>,
}

impl Cursors {
    /// A table whose numbers start at a value that differs between runs of the server, so that a
    /// cursor of an earlier run is not mistaken for one of this run. Below 2⁵³, since some clients
    /// store it as a double.
    pub(crate) fn new(seed: u64) -> Cursors {
        Cursors {
            first: (seed >> 12) | 1,
            entries: VecDeque::new(),
            key_bytes: 0,
        }
    }

    /// Stores that the scan of `db` has reached `last_key`; returns the cursor, never 0.
    pub(crate) fn remember(&mut self, db: u8, last_key: &[u8]) -> u64 {
        let number = self.first + self.entries.len() as u64;
        self.key_bytes += last_key.len();
        self.entries.push_back(Cursor {
            db,
            last_key: last_key.into(),
        });
        while self.entries.len() > CURSORS_MAX || (self.key_bytes > KEY_BYTES_MAX && self.entries.len() > 1) {
            if let Some(oldest) = self.entries.pop_front() {
                self.key_bytes -= oldest.last_key.len();
                self.first += 1;
            }
        }
        number
    }

    /// The key after which the scan of `db` continues; `None` restarts the scan.
    pub(crate) fn find(&self, db: u8, cursor: u64) -> Option<&[u8]> {
        let index = usize::try_from(cursor.checked_sub(self.first)?).ok()?;
        self.entries
            .get(index)
            .filter(|entry| entry.db == db)
            .map(|entry| &*entry.last_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_key_in_its_database_only() {
        let mut cursors = Cursors::new(u64::MAX);
        let cursor = cursors.remember(3, b"key");
        assert_eq!(cursors.find(3, cursor), Some(&b"key"[..]));
        assert_eq!(cursors.find(4, cursor), None);
        assert_eq!(cursors.find(3, cursor + 1), None);
        assert_eq!(cursors.find(3, 0), None);
        assert!(cursor < 1 << 53);
    }

    #[test]
    fn at_its_limits_the_table_forgets_the_oldest_and_no_more() {
        let mut cursors = Cursors::new(0);
        let first = cursors.remember(0, b"first");
        let second = cursors.remember(0, b"second");
        for _ in 0..CURSORS_MAX - 2 {
            cursors.remember(0, b"k");
        }
        assert!(cursors.find(0, first).is_some(), "exactly full");
        cursors.remember(0, b"k");
        assert!(cursors.find(0, first).is_none());
        assert!(cursors.find(0, second).is_some());
        let big = vec![b'x'; KEY_BYTES_MAX];
        let last = cursors.remember(0, &big);
        assert!(cursors.find(0, second).is_none(), "its bytes push all others out");
        assert_eq!(cursors.find(0, last), Some(&big[..]));
        assert!(cursors.key_bytes <= KEY_BYTES_MAX);
    }
}
