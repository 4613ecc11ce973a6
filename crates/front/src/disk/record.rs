//! The records of the log. Each contains a state and not a change, so that replay from any earlier
//! place has the same result. Drawn in `docs/design/formats/front.md`.

use std::path::PathBuf;

use super::bytes::{Fields, Writer};

/// Identifies a mapped file in the log and in the map. Never used again.
pub(crate) type FileId = u64;

/// A page's place in the shadow file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(pub(crate) u32);

/// Where a version of a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the file itself, at the page's own offset.
    Home,
    /// In the shadow file: the page is displaced.
    Slot(Slot),
}

/// Where a page is from a commit on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) page: u32,
    pub(crate) place: Place,
    /// CRC-32C of the page as it lies in its slot; 0 at home.
    pub(crate) crc: u32,
}

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// The file at `path` is mapped from here on: whatever had that path no longer is.
    File {
        id: FileId,
        path: PathBuf,
        end: u64,
        entries: Vec<Entry>,
    },
    /// Pages of a mapped file and its committed end. Parts of a commit before the last one repeat
    /// the old end.
    Commit {
        id: FileId,
        end: u64,
        entries: Vec<Entry>,
    },
    /// A mapped file was truncated.
    Cut { id: FileId, end: u64 },
    /// The file is no longer mapped: all of it is at home, or it was removed.
    Drop { id: FileId },
    /// The map that is written next holds everything before this record.
    Mark,
}

/// The slot number that stands for the page's home.
const HOME: u32 = u32::MAX;
/// Bytes of an entry.
pub(crate) const ENTRY: usize = 12;
/// Bytes of a record beside its entries and its path.
pub(crate) const FIXED: usize = 24;

impl Record {
    pub(crate) const FILE: u8 = 1;
    pub(crate) const COMMIT: u8 = 2;
    pub(crate) const CUT: u8 = 3;
    pub(crate) const DROP: u8 = 4;
    pub(crate) const MARK: u8 = 5;

    /// The kind of its frame.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Record::File { .. } => Record::FILE,
            Record::Commit { .. } => Record::COMMIT,
            Record::Cut { .. } => Record::CUT,
            Record::Drop { .. } => Record::DROP,
            Record::Mark => Record::MARK,
        }
    }

    /// The payload of its frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Record::File {
                id,
                path,
                end,
                entries,
            } => {
                out.u64(*id);
                out.u64(*end);
                out.path(path);
                encode_entries(&mut out, entries);
            }
            Record::Commit { id, end, entries } => {
                out.u64(*id);
                out.u64(*end);
                encode_entries(&mut out, entries);
            }
            Record::Cut { id, end } => {
                out.u64(*id);
                out.u64(*end);
            }
            Record::Drop { id } => out.u64(*id),
            Record::Mark => {}
        }
        out.0
    }

    /// The record of a frame, if it is one.
    pub(crate) fn decode(kind: u8, payload: &[u8]) -> Option<Record> {
        let mut fields = Fields(payload);
        let record = match kind {
            Record::FILE => Record::File {
                id: fields.u64()?,
                end: fields.u64()?,
                path: fields.path()?,
                entries: decode_entries(&mut fields)?,
            },
            Record::COMMIT => Record::Commit {
                id: fields.u64()?,
                end: fields.u64()?,
                entries: decode_entries(&mut fields)?,
            },
            Record::CUT => Record::Cut {
                id: fields.u64()?,
                end: fields.u64()?,
            },
            Record::DROP => Record::Drop { id: fields.u64()? },
            Record::MARK => Record::Mark,
            _ => return None,
        };
        // The id after it is another one.
        let is_last = record.id() == Some(FileId::MAX);
        (fields.0.is_empty() && !is_last).then_some(record)
    }

    fn id(&self) -> Option<FileId> {
        match self {
            Record::File { id, .. }
            | Record::Commit { id, .. }
            | Record::Cut { id, .. }
            | Record::Drop { id } => Some(*id),
            Record::Mark => None,
        }
    }
}

/// The number of entries, and the entries.
pub(crate) fn encode_entries(out: &mut Writer, entries: &[Entry]) {
    // A frame takes no 2³² entries.
    out.u32(u32::try_from(entries.len()).unwrap_or(u32::MAX));
    for entry in entries {
        out.u32(entry.page);
        out.u32(match entry.place {
            Place::Home => HOME,
            Place::Slot(slot) => slot.0,
        });
        out.u32(entry.crc);
    }
}

/// The entries that [`encode_entries`] wrote.
pub(crate) fn decode_entries(fields: &mut Fields<'_>) -> Option<Vec<Entry>> {
    let count = usize::try_from(fields.u32()?).ok()?;
    let mut all = Fields(fields.take(count.checked_mul(ENTRY)?)?);
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let (page, slot, crc) = (all.u32()?, all.u32()?, all.u32()?);
        let place = match slot {
            HOME => Place::Home,
            slot => Place::Slot(Slot(slot)),
        };
        entries.push(Entry { page, place, crc });
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_cut_ones_do_not() {
        let entries = vec![
            Entry {
                page: 7,
                place: Place::Slot(Slot(3)),
                crc: 0xdead_beef,
            },
            Entry {
                page: 9,
                place: Place::Home,
                crc: 0,
            },
        ];
        let records = [
            Record::File {
                id: 5,
                path: "base/1/2".into(),
                end: 8192,
                entries: entries.clone(),
            },
            Record::Commit {
                id: 5,
                end: 16384,
                entries,
            },
            Record::Cut { id: 5, end: 100 },
            Record::Drop { id: 5 },
            Record::Mark,
        ];
        for record in records {
            let payload = record.encode();
            assert_eq!(Record::decode(record.kind(), &payload), Some(record.clone()));
            for len in 0..payload.len() {
                assert_eq!(
                    Record::decode(record.kind(), &payload[..len]),
                    None,
                    "{record:?} cut at {len}"
                );
            }
            let longer = [&payload[..], &[0]].concat();
            assert_eq!(
                Record::decode(record.kind(), &longer),
                None,
                "{record:?} and a byte"
            );
        }
        assert_eq!(Record::decode(6, &[]), None);
        let last = Record::Drop { id: FileId::MAX };
        assert_eq!(Record::decode(last.kind(), &last.encode()), None);
    }
}
