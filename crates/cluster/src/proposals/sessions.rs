//! `COLLIE.ONCE`: a command that is executed once however often it is sent.
//!
//! A client numbers its commands. With the effects of such a command goes a record of its reply,
//! in a row of its own that (client, number) names, in the slot of the command's key. Its
//! evaluation first locks that row, and reads it as any other: through the overlay.

use std::hash::Hash;

use super::{Evaluation, Leading, Malformed, Stale};

/// How long a record is kept at least, in milliseconds.
pub const SESSION_KEPT_MS: u64 = 60 * 60 * 1000;
/// The bytes of a record before its reply.
pub const SESSION_RECORD_HEAD: usize = 8;

/// What was answered to a command. Drawn in `docs/format/cluster.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// The stamp of the entry that executed the command.
    pub stamp_ms: u64,
    /// The reply, as it goes to the client.
    pub reply: Vec<u8>,
}

impl SessionRecord {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&self.stamp_ms.to_le_bytes()[..], &self.reply].concat()
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// If they are too few.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (stamp, reply) = bytes.split_first_chunk().ok_or(Malformed {
            what: "the record of a reply",
            why: "too short",
        })?;
        Ok(Self {
            stamp_ms: u64::from_le_bytes(*stamp),
            reply: reply.to_vec(),
        })
    }

    /// Whether it may go, by an entry with effects like any other.
    #[must_use]
    pub fn expired(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.stamp_ms) > SESSION_KEPT_MS
    }
}

/// What is to be done with a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Once<V> {
    /// It was executed: this is its record. The command has no effects now.
    Repeated(V),
    /// It is executed, and its record is one of its effects, whether it has others or not.
    Fresh,
    /// `BUSY`: there are too many records, and none may go before its time.
    Full,
}

/// Looks for the record of a command, as part of its evaluation; `records` is how many there are in
/// the slot.
///
/// # Errors
/// [`Stale`] if the run is over, or what `table` returns.
pub fn once<R: Hash + Ord + Clone, V: Clone, P, E: From<Stale>>(
    leading: &Leading<R, V, P>,
    evaluation: &mut Evaluation,
    row: &R,
    table: impl FnOnce() -> Result<Option<V>, E>,
    records: u64,
    records_max: u64,
) -> Result<Once<V>, E> {
    Ok(match leading.get(evaluation, row, table)? {
        Some(record) => Once::Repeated(record),
        None if records >= records_max => Once::Full,
        None => Once::Fresh,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_kept_for_an_hour_and_its_bytes_say_all() {
        let record = SessionRecord {
            stamp_ms: 5,
            reply: b":7\r\n".to_vec(),
        };
        assert_eq!(SessionRecord::decode(&record.encode()), Ok(record.clone()));
        assert!(SessionRecord::decode(&[0; SESSION_RECORD_HEAD - 1]).is_err());
        assert!(!record.expired(0), "a clock that went back");
        assert!(!record.expired(5 + SESSION_KEPT_MS));
        assert!(record.expired(6 + SESSION_KEPT_MS));
    }
}
