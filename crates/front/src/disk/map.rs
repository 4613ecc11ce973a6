//! The map: which files are mapped, and where their displaced pages are, as of a place in the log.
//! DirtyRanges whole, under another name, synced and renamed. Drawn in `docs/design/formats/front.md`.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use collie_io::{Device, OpenMode, read_exact_at, write_all_at};
use collie_log::{LogId, Lsn};

use super::bytes::{Fields, Writer};
use super::record::{Entry, FileId, Place, Record, Slot, decode_entries, encode_entries};
use crate::FrontError;

const MAGIC: &[u8; 8] = b"COLLIEFM";
const VERSION: u32 = 2;
const NAME: &str = "MAP";
const TEMPORARY: &str = "MAP.tmp";
/// The longest map that is read, in bytes: 2³² pages of entries would be larger, no shadow file is.
const MAX: u64 = 1 << 36;

/// The remedy for damage to the map or the log.
pub(crate) const REMEDY: &str =
    "bring back a copy of the whole directory, .collie with it, of one moment, or restore a backup";

/// Whether a page can have so many bytes.
pub(crate) fn is_page(bytes: u32) -> bool {
    bytes.is_multiple_of(512) && (512..=65_536).contains(&bytes)
}

/// Whether a shadow file can have so many pages.
pub(crate) fn is_number_of_slots(slots: u32) -> bool {
    (1..=1 << 30).contains(&slots)
}

/// A mapped file as it was committed; whether or not pages of it are displaced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MappedFile {
    pub(crate) path: PathBuf,
    /// Its committed end.
    pub(crate) end: u64,
    /// Its displaced pages: slot and checksum.
    pub(crate) pages: BTreeMap<u32, (Slot, u32)>,
}

/// The committed state of all files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) page_bytes: u32,
    pub(crate) slots: u32,
    pub(crate) log_id: LogId,
    /// Whose pages these are, if that is known.
    pub(crate) identity: Option<NonZeroU64>,
    /// Records before this place are in the map.
    pub(crate) replay_from: Lsn,
    pub(crate) next_id: FileId,
    pub(crate) files: BTreeMap<FileId, MappedFile>,
}

/// A map to which records of the log are applied.
#[derive(Debug)]
pub(crate) struct Replay<'m> {
    map: &'m mut Map,
    /// The mapped files by their paths.
    ids: HashMap<PathBuf, FileId>,
}

impl Replay<'_> {
    pub(crate) fn of(map: &mut Map) -> Replay<'_> {
        let ids = map.files.iter().map(|(&id, file)| (file.path.clone(), id));
        Replay {
            ids: ids.collect(),
            map,
        }
    }

    /// Applies the next record of the log.
    pub(crate) fn apply(&mut self, record: Record) {
        let Map { files, next_id, .. } = &mut *self.map;
        match record {
            Record::File {
                id,
                path,
                end,
                entries,
            } => {
                // No record has the last id.
                *next_id = (*next_id).max(id.saturating_add(1));
                if let Some(older) = self.ids.insert(path.clone(), id) {
                    files.remove(&older);
                }
                let mut file = MappedFile {
                    path,
                    end,
                    ..MappedFile::default()
                };
                file.set(&entries);
                files.insert(id, file);
            }
            Record::Commit { id, end, entries } => {
                if let Some(file) = files.get_mut(&id) {
                    file.end = end;
                    file.set(&entries);
                }
            }
            Record::Cut { id, end } => {
                let pages = end.div_ceil(u64::from(self.map.page_bytes));
                if let Some(file) = self.map.files.get_mut(&id) {
                    file.end = end;
                    file.pages.retain(|page, _| u64::from(*page) < pages);
                }
            }
            Record::Drop { id } => {
                if let Some(file) = files.remove(&id) {
                    self.ids.remove(&file.path);
                }
            }
            Record::Mark => {}
        }
    }
}

impl Map {
    /// Forgets pages behind the committed ends: of a commit in parts, of which the last one, that
    /// moves the end, is missing.
    pub(crate) fn forget_behind_ends(&mut self) {
        for file in self.files.values_mut() {
            let pages = file.end.div_ceil(u64::from(self.page_bytes));
            file.pages.retain(|page, _| u64::from(*page) < pages);
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.bytes(MAGIC);
        out.u32(VERSION);
        out.u32(self.page_bytes);
        out.u32(self.slots);
        out.bytes(&self.log_id.0);
        out.u64(self.identity.map_or(0, NonZeroU64::get));
        out.u64(self.replay_from);
        out.u64(self.next_id);
        out.u64(self.files.len() as u64);
        for (id, file) in &self.files {
            out.u64(*id);
            out.u64(file.end);
            out.path(&file.path);
            let entries: Vec<Entry> = file
                .pages
                .iter()
                .map(|(&page, &(slot, crc))| Entry {
                    page,
                    place: Place::Slot(slot),
                    crc,
                })
                .collect();
            encode_entries(&mut out, &entries);
        }
        let crc = crc32c::crc32c(&out.0);
        out.u32(crc);
        out.0
    }

    pub(super) fn decode(path: &Path, bytes: &[u8]) -> Result<Map, FrontError> {
        let corrupt = |expected: &str, found: String| FrontError::Corrupt {
            path: path.to_owned(),
            expected: format!("{expected}; {REMEDY}"),
            found,
        };
        let cut = || {
            corrupt(
                "a whole map",
                format!("one that ends after {} bytes", bytes.len()),
            )
        };
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or_else(cut)?;
        let mut fields = Fields(body);
        let magic = fields.take(MAGIC.len()).ok_or_else(cut)?;
        if magic != MAGIC {
            return Err(corrupt(
                "the map of a page store",
                format!("a file that begins with {magic:02x?}"),
            ));
        }
        let version = fields.u32().ok_or_else(cut)?;
        if version != VERSION {
            return Err(FrontError::Mismatch {
                path: path.to_owned(),
                problem: format!("format version {version}; this program reads version {VERSION}"),
            });
        }
        let (is, should) = (crc32c::crc32c(body), u32::from_le_bytes(*crc));
        if is != should {
            return Err(corrupt(
                &format!("checksum {should:08x}, which it ends with"),
                format!("checksum {is:08x}"),
            ));
        }
        let mut read = || {
            let mut map = Map {
                page_bytes: fields.u32()?,
                slots: fields.u32()?,
                log_id: LogId(fields.array()?),
                identity: NonZeroU64::new(fields.u64()?),
                replay_from: fields.u64()?,
                next_id: fields.u64()?,
                files: BTreeMap::new(),
            };
            for _ in 0..fields.u64()? {
                let (id, end, path) = (fields.u64()?, fields.u64()?, fields.path()?);
                let mut file = MappedFile {
                    path,
                    end,
                    ..MappedFile::default()
                };
                file.set(&decode_entries(&mut fields)?);
                map.files.insert(id, file);
            }
            fields.0.is_empty().then_some(map)
        };
        let map = read().ok_or_else(cut)?;
        if !is_page(map.page_bytes) || !is_number_of_slots(map.slots) {
            return Err(corrupt(
                "pages and a shadow file of sizes that there are",
                format!("pages of {} bytes and {} slots", map.page_bytes, map.slots),
            ));
        }
        match map.files.last_key_value() {
            Some((&id, _)) if id >= map.next_id => Err(corrupt(
                &format!("ids of files below {}", map.next_id),
                format!("{id}"),
            )),
            _ => Ok(map),
        }
    }

    /// Reads the map in `dir`, if there is one.
    pub(crate) fn read(device: &dyn Device, dir: &Path) -> Result<Option<Map>, FrontError> {
        let path = dir.join(NAME);
        let file = match device.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(FrontError::io("open", &path)(e)),
        };
        let len = file.stat().map_err(FrontError::io("stat", &path))?.len;
        if len > MAX {
            return Err(FrontError::Corrupt {
                path,
                expected: format!("at most {MAX} bytes; {REMEDY}"),
                found: format!("{len}"),
            });
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        read_exact_at(&*file, &mut bytes, 0).map_err(FrontError::io("read", &path))?;
        Map::decode(&path, &bytes).map(Some)
    }

    /// Replaces the map in `dir`; durable when it returns.
    pub(crate) fn write(&self, device: &dyn Device, dir: &Path) -> Result<(), FrontError> {
        let (path, temporary) = (dir.join(NAME), dir.join(TEMPORARY));
        // What an earlier attempt has left is not used.
        match device.remove_file(&temporary) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(FrontError::io("remove", &temporary)(e)),
        }
        let file = device
            .open(&temporary, OpenMode::CreateNew)
            .map_err(FrontError::io("create", &temporary))?;
        write_all_at(&*file, &self.encode(), 0).map_err(FrontError::io("write to", &temporary))?;
        file.sync_data().map_err(FrontError::io("sync", &temporary))?;
        device
            .rename(&temporary, &path)
            .map_err(FrontError::io("rename to", &path))?;
        device.sync_dir(dir).map_err(FrontError::io("sync", dir))
    }
}

impl MappedFile {
    /// Whether pages of it are displaced. Of one without any, the map has the end at which it is cut.
    pub(crate) fn has_pages(&self) -> bool {
        !self.pages.is_empty()
    }

    fn set(&mut self, entries: &[Entry]) {
        for entry in entries {
            match entry.place {
                Place::Home => self.pages.remove(&entry.page),
                Place::Slot(slot) => self.pages.insert(entry.page, (slot, entry.crc)),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> Map {
        let mut map = Map {
            page_bytes: 8192,
            slots: 100,
            log_id: LogId([7; 16]),
            identity: NonZeroU64::new(5),
            replay_from: 4096,
            next_id: 1,
            files: BTreeMap::new(),
        };
        let slot = |page, slot| Entry {
            page,
            place: Place::Slot(Slot(slot)),
            crc: slot,
        };
        let file = |id, path: &str, entries| Record::File {
            id,
            path: path.into(),
            end: 81_920,
            entries,
        };
        Replay::of(&mut map).apply(file(1, "base/1/2", vec![slot(3, 1), slot(9, 2)]));
        Replay::of(&mut map).apply(file(2, "base/1/3", vec![slot(0, 5)]));
        map
    }

    #[test]
    fn a_map_comes_back_and_any_changed_byte_is_found() {
        let bytes = map().encode();
        assert_eq!(Map::decode(Path::new("MAP"), &bytes).unwrap(), map());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Map::decode(Path::new("MAP"), &changed).is_err(), "byte {at}");
            assert!(
                Map::decode(Path::new("MAP"), &bytes[..at]).is_err(),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn an_id_that_may_be_given_once_more_is_refused() {
        let mut map = map();
        let file = map.files.remove(&2).unwrap();
        for id in [3, u64::MAX] {
            map.files = [(id, file.clone())].into();
            let error = Map::decode(Path::new("MAP"), &map.encode()).unwrap_err();
            assert!(
                error.to_string().contains("expected ids of files below 3"),
                "{error}"
            );
        }
    }

    #[test]
    fn records_say_states() {
        let mut map = map();
        let home = Entry {
            page: 9,
            place: Place::Home,
            crc: 0,
        };
        Replay::of(&mut map).apply(Record::Commit {
            id: 1,
            end: 90_112,
            entries: vec![home],
        });
        assert_eq!(map.files[&1].end, 90_112);
        assert_eq!(map.files[&1].pages.keys().collect::<Vec<_>>(), [&3]);
        Replay::of(&mut map).apply(Record::Cut {
            id: 1,
            end: 3 * 8192 + 1,
        });
        assert_eq!(
            map.files[&1].pages.len(),
            1,
            "a page that is cut in the middle stays"
        );
        Replay::of(&mut map).apply(Record::Cut { id: 1, end: 3 * 8192 });
        assert!(map.files[&1].pages.is_empty());
        // A new file of the same name ends the old one, also for its late records.
        Replay::of(&mut map).apply(Record::File {
            id: 7,
            path: "base/1/3".into(),
            end: 0,
            entries: vec![],
        });
        Replay::of(&mut map).apply(Record::Commit {
            id: 2,
            end: 1,
            entries: vec![],
        });
        assert_eq!(map.files.keys().collect::<Vec<_>>(), [&1, &7]);
        assert_eq!(map.next_id, 8);
        Replay::of(&mut map).apply(Record::Drop { id: 7 });
        assert_eq!(map.files.len(), 1);
    }
}
