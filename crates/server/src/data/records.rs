//! Records of commands that are executed once (`COLLIE.ONCE`), in the slot of the command's key.
//!
//! ```text
//! count   key 'y' 'c'                                        value records u64 | bytes of them u64
//! record  key 'y' 'r' | number (8 bytes) | client            value version (1) | RESP (2 or 3) | time u64 | check u64 | reply
//! due     key 'y' 't' | time (8) | number (8) | client       value empty
//! ```
//!
//! Integers are big-endian in keys and little-endian in values. The time is that of the command, in
//! milliseconds since the Unix epoch; the check is the CRC-64 of the command.

use collie_db::Value;
use crc::{CRC_64_XZ, Crc, Table};
use thiserror::Error;

/// Tag of everything here. Behind the tags of users' keys and of their index.
const RECORDS: u8 = b'y';
const COUNT: u8 = b'c';
const RECORD: u8 = b'r';
const DUE: u8 = b't';
const VERSION: u8 = 1;
/// A record's value before its reply.
const HEADER: usize = 18;
/// A record is kept for so long.
pub(crate) const KEPT_MS: u64 = 60 * 60 * 1000;
/// The most records of one slot.
pub(crate) const RECORDS_MAX: u64 = 1_000_000;
/// The most bytes of the records of one slot.
pub(crate) const BYTES_MAX: u64 = 256 << 20;

const CRC64: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_XZ);

/// A record that this version of the server cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BadRecord {
    #[error(
        "the record of a command has format version {found}, this server reads version {VERSION}: use a newer server"
    )]
    Version { found: u8 },
    #[error(
        "the record of a command is {found} bytes long, expected {expected} or more: the store is damaged"
    )]
    Short { found: usize, expected: usize },
}

/// Which command of which client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordName {
    pub(crate) client: Vec<u8>,
    pub(crate) number: u64,
}

impl RecordName {
    /// Where its record is.
    pub(crate) fn row(&self) -> Vec<u8> {
        [&[RECORDS, RECORD][..], &self.number.to_be_bytes(), &self.client].concat()
    }

    /// Where it is found when its time is over.
    pub(crate) fn due_row(&self, time_ms: u64) -> Vec<u8> {
        let number = self.number.to_be_bytes();
        [&[RECORDS, DUE][..], &time_ms.to_be_bytes(), &number, &self.client].concat()
    }
}

/// Behind this row come the due rows of a slot, in the order of their time.
pub(crate) const BEFORE_DUE: &[u8] = &[RECORDS, DUE];

/// The time and the name in a due row; `None` if it is none.
pub(crate) fn read_due_row(row: &[u8]) -> Option<(u64, RecordName)> {
    let rest = row.strip_prefix(BEFORE_DUE)?;
    let (time, rest) = rest.split_first_chunk::<8>()?;
    let (number, client) = rest.split_first_chunk::<8>()?;
    let name = RecordName {
        client: client.to_vec(),
        number: u64::from_be_bytes(*number),
    };
    Some((u64::from_be_bytes(*time), name))
}

/// What was answered to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// The version of the protocol that the reply is encoded in.
    pub(crate) resp: u8,
    pub(crate) time_ms: u64,
    /// See [`check_of`].
    pub(crate) check: u64,
    pub(crate) reply: &'a [u8],
}

impl<'a> Record<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.reply.len());
        bytes.extend_from_slice(&[VERSION, self.resp]);
        bytes.extend_from_slice(&self.time_ms.to_le_bytes());
        bytes.extend_from_slice(&self.check.to_le_bytes());
        bytes.extend_from_slice(self.reply);
        bytes
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Record<'a>, BadRecord> {
        let short = BadRecord::Short {
            found: bytes.len(),
            expected: HEADER,
        };
        let (&[version, resp], rest) = bytes.split_first_chunk().ok_or(short)?;
        if version != VERSION {
            return Err(BadRecord::Version { found: version });
        }
        let (time, rest) = rest.split_first_chunk().ok_or(short)?;
        let (check, reply) = rest.split_first_chunk().ok_or(short)?;
        Ok(Record {
            resp,
            time_ms: u64::from_le_bytes(*time),
            check: u64::from_le_bytes(*check),
            reply,
        })
    }
}

/// What distinguishes one command from another: a checksum of its arguments and of their lengths.
pub(crate) fn check_of<'r>(args: impl Iterator<Item = &'r [u8]>) -> u64 {
    let mut digest = CRC64.digest();
    for arg in args {
        digest.update(&(arg.len() as u64).to_le_bytes());
        digest.update(arg);
    }
    digest.finalize()
}

/// How many records a slot has, and their bytes: keys, values and due rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RecordCount {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

impl RecordCount {
    /// Where it is.
    pub(crate) const ROW: &'static [u8] = &[RECORDS, COUNT];

    pub(crate) fn decode(stored: Option<&Value>) -> Result<RecordCount, BadRecord> {
        let Some(bytes) = stored else {
            return Ok(RecordCount::default());
        };
        let short = BadRecord::Short {
            found: bytes.len(),
            expected: 16,
        };
        let (records, rest) = bytes.split_first_chunk().ok_or(short)?;
        let bytes = rest.first_chunk().ok_or(short)?;
        Ok(RecordCount {
            records: u64::from_le_bytes(*records),
            bytes: u64::from_le_bytes(*bytes),
        })
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        [self.records.to_le_bytes(), self.bytes.to_le_bytes()].concat()
    }

    /// Whether no further record may be added.
    pub(crate) fn is_full(self) -> bool {
        self.records >= RECORDS_MAX || self.bytes >= BYTES_MAX
    }

    pub(crate) fn add(&mut self, name: &RecordName, value_len: usize) {
        self.records = self.records.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes_of(name, value_len));
    }

    pub(crate) fn remove(&mut self, name: &RecordName, value_len: usize) {
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes_of(name, value_len));
    }
}

fn bytes_of(name: &RecordName, value_len: usize) -> u64 {
    (name.row().len() + name.due_row(0).len() + value_len) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> RecordName {
        RecordName {
            client: b"me".to_vec(),
            number: 0x0102,
        }
    }

    #[test]
    fn the_layout_is_what_the_documentation_draws() {
        assert_eq!(name().row(), b"yr\0\0\0\0\0\0\x01\x02me");
        let due = name().due_row(0x0304);
        assert_eq!(due, b"yt\0\0\0\0\0\0\x03\x04\0\0\0\0\0\0\x01\x02me");
        assert_eq!(read_due_row(&due), Some((0x0304, name())));
        assert_eq!(read_due_row(&name().row()), None);
        let record = Record {
            resp: 3,
            time_ms: 5,
            check: 6,
            reply: b":7\r\n",
        };
        let bytes = record.encode();
        assert_eq!(bytes, b"\x01\x03\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0:7\r\n");
        assert_eq!(Record::decode(&bytes), Ok(record));
        let short = BadRecord::Short {
            found: HEADER - 1,
            expected: HEADER,
        };
        assert_eq!(Record::decode(&bytes[..HEADER - 1]), Err(short));
        let found = Record::decode(b"\x02\x03");
        assert_eq!(found, Err(BadRecord::Version { found: 2 }));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "reads a fixture")]
    fn a_record_of_version_1_says_what_was_written() {
        let args = [&b"INCRBY"[..], b"a key", b"42"];
        let record = Record {
            resp: 2,
            time_ms: 1_700_000_000_123,
            check: 0xd935_923c_350e_8d98,
            reply: b":43\r\n",
        };
        assert_eq!(check_of(args.into_iter()), record.check);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/once-v1.bin");
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(Record::decode(&bytes), Ok(record.clone()));
        assert_eq!(record.encode(), bytes);
    }

    #[test]
    fn what_is_counted_is_what_was_added_and_not_removed() {
        let mut count = RecordCount::default();
        count.add(&name(), 22);
        count.add(&name(), 30);
        assert_eq!(
            count,
            RecordCount {
                records: 2,
                bytes: 52 + 2 * 32
            }
        );
        let stored = Value::from(&count.encode()[..]);
        assert_eq!(RecordCount::decode(Some(&stored)), Ok(count));
        count.remove(&name(), 30);
        count.remove(&name(), 22);
        assert_eq!(count, RecordCount::default());
        assert!(
            RecordCount {
                records: RECORDS_MAX,
                bytes: 0
            }
            .is_full()
        );
        assert!(
            RecordCount {
                records: 1,
                bytes: BYTES_MAX
            }
            .is_full()
        );
        assert!(
            !RecordCount {
                records: RECORDS_MAX - 1,
                bytes: BYTES_MAX - 1
            }
            .is_full()
        );
    }

    #[test]
    fn commands_that_differ_have_another_check() {
        let check = |args: &[&[u8]]| check_of(args.iter().copied());
        assert_eq!(check(&[b"incr", b"a"]), check(&[b"incr", b"a"]));
        assert_ne!(check(&[b"incr", b"ab"]), check(&[b"incra", b"b"]));
        assert_ne!(check(&[b"incr", b"a"]), check(&[b"incr", b"b"]));
    }
}
