//! The manifest: which families there are and up to where each is in its tables.
//!
//! One file, replaced as a whole: written under another name, synced, renamed, and the directory synced. So
//! there is always one complete manifest, the old one or the new one. docs/format/engine.md draws it.

use std::path::{Path, PathBuf};

use collie_io::{Device, OpenMode, read_exact_at, write_all_at};
use collie_log::Lsn;
use serde::{Deserialize, Serialize};

use crate::{Error, FamilyOptions, Result};

/// The file's name.
pub(crate) const FILE: &str = "MANIFEST";
/// The name that it is written under.
pub(crate) const TEMPORARY: &str = "MANIFEST.tmp";

const MAGIC: [u8; 8] = *b"COLLIEDB";
/// The format that this program writes and reads.
pub(crate) const VERSION: u32 = 2;
/// magic (8), version (4), payload length (4), CRC-32C of version, length and payload (4).
const HEADER: usize = 20;
/// More than a store with ten thousand families needs; keeps a rotten length from asking for memory.
const MAX_BYTES: u64 = 64 << 20;

/// Whether the store runs with a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LogState {
    /// There is no log, or none that matters.
    Off,
    /// What the tables lack is in the log.
    On,
}

/// A family as the manifest knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FamilyRecord {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// Commits below this LSN are in the tables.
    pub(crate) flushed: Lsn,
    pub(crate) options: FamilyOptions,
}

/// The manifest's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Ids are never used again, so that an old frame is never taken for another family's.
    pub(crate) next_family: u32,
    /// Drawn when the store is born, before it has a log: whatever cuts off its first open, and whenever it is
    /// run without a log, its own log is told from others.
    pub(crate) log_id: [u8; 16],
    pub(crate) log: LogState,
    /// No table holds an entry at or above this LSN, and no family's `flushed` is above it.
    pub(crate) floor: Lsn,
    pub(crate) families: Vec<FamilyRecord>,
}

impl Manifest {
    /// Of a store that was just born.
    pub(crate) fn new(log_id: [u8; 16]) -> Self {
        Self {
            next_family: 0,
            log_id,
            log: LogState::Off,
            floor: collie_log::FIRST_LSN,
            families: Vec::new(),
        }
    }

    pub(crate) fn family(&mut self, id: u32) -> Option<&mut FamilyRecord> {
        self.families.iter_mut().find(|family| family.id == id)
    }

    /// Reads the manifest in `dir`; `None` where there is none.
    pub(crate) fn read(device: &dyn Device, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FILE);
        let file = match device.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("open", path, e)),
        };
        let len = file.stat().map_err(|e| Error::io("look at", &path, e))?.len;
        if len > MAX_BYTES + HEADER as u64 {
            return corrupt(
                path,
                12,
                format!("at most {MAX_BYTES} bytes"),
                format!("{len} bytes"),
            );
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
        read_exact_at(&*file, &mut bytes, 0).map_err(|e| Error::io("read", &path, e))?;
        Self::decode(&bytes, path).map(Some)
    }

    fn decode(bytes: &[u8], path: PathBuf) -> Result<Self> {
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER>() else {
            let found = format!("a file of {} bytes", bytes.len());
            return corrupt(path, 0, format!("a header of {HEADER} bytes"), found);
        };
        if header[..8] != MAGIC {
            let found = format!("\"{}\"", header[..8].escape_ascii());
            return corrupt(path, 0, "\"COLLIEDB\"".into(), found);
        }
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (version, len, sum) = (word(8), word(12), word(16));
        if version != VERSION {
            return Err(Error::Version {
                path,
                found: version,
                supported: VERSION,
            });
        }
        if len as usize != payload.len() {
            let found = format!("{} bytes", payload.len());
            return corrupt(path, 12, format!("a payload of {len} bytes"), found);
        }
        let found = crc32c::crc32c_append(crc32c::crc32c(&header[8..16]), payload);
        if found != sum {
            return corrupt(path, 16, format!("checksum {found:08x}"), format!("{sum:08x}"));
        }
        match postcard::take_from_bytes(payload) {
            Ok((manifest, [])) => Ok(manifest),
            Ok((_, rest)) => {
                let at = (bytes.len() - rest.len()) as u64;
                corrupt(path, at, "the end".into(), format!("{} more bytes", rest.len()))
            }
            Err(e) => corrupt(path, HEADER as u64, "a manifest".into(), e.to_string()),
        }
    }

    fn encode(&self) -> std::result::Result<Vec<u8>, postcard::Error> {
        let payload = postcard::to_stdvec(self)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[8..16]), &payload);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(&payload);
        Ok(bytes)
    }

    /// Replaces the manifest in `dir`, durably. After an error the old one or the new one is there.
    pub(crate) fn write(&self, device: &dyn Device, dir: &Path) -> Result<()> {
        let (path, temporary) = (dir.join(FILE), dir.join(TEMPORARY));
        let bytes = self
            .encode()
            .map_err(|e| Error::io("encode", &path, std::io::Error::other(e)))?;
        if bytes.len() as u64 > MAX_BYTES {
            let limit = std::io::Error::other(format!("{} bytes, more than {MAX_BYTES}", bytes.len()));
            return Err(Error::io("write", path, limit));
        }
        match device.remove_file(&temporary) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("remove", temporary, e)),
        }
        let written = device.open(&temporary, OpenMode::CreateNew).and_then(|file| {
            write_all_at(&*file, &bytes, 0)?;
            file.sync_data()
        });
        written.map_err(|e| Error::io("write", &temporary, e))?;
        device
            .rename(&temporary, &path)
            .map_err(|e| Error::io("rename to", &path, e))?;
        device.sync_dir(dir).map_err(|e| Error::io("sync", dir, e))
    }
}

fn corrupt<T>(path: PathBuf, offset: u64, expected: String, found: String) -> Result<T> {
    Err(Error::Corrupt {
        path,
        offset,
        expected,
        found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Manifest {
        let record = |id, name: &str| FamilyRecord {
            id,
            name: name.into(),
            flushed: 8 * u64::from(id) + (1 << 32),
            options: FamilyOptions::default(),
        };
        Manifest {
            next_family: 9,
            log_id: [0xa5; 16],
            log: LogState::On,
            floor: (1 << 32) + 800,
            families: vec![record(0, "default"), record(7, "orders")],
        }
    }

    #[test]
    fn what_is_written_is_read_and_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let device = collie_io::RealDevice::new();
        assert_eq!(Manifest::read(&device, dir.path()).unwrap(), None);
        for manifest in [Manifest::new([1; 16]), example()] {
            manifest.write(&device, dir.path()).unwrap();
            assert_eq!(Manifest::read(&device, dir.path()).unwrap(), Some(manifest));
        }
        assert_eq!(device.list(dir.path()).unwrap().len(), 1);
    }

    /// Every bit of a manifest is flipped in turn, and it is cut at every length.
    #[test]
    fn no_flipped_bit_and_no_cut_goes_unnoticed() {
        let bytes = example().encode().unwrap();
        let path = PathBuf::from("MANIFEST");
        assert_eq!(Manifest::decode(&bytes, path.clone()).unwrap(), example());
        for bit in 0..bytes.len() * 8 {
            let mut rotten = bytes.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            match Manifest::decode(&rotten, path.clone()) {
                Err(Error::Corrupt { .. }) => {}
                Err(Error::Version { .. }) => assert!((64..96).contains(&bit), "bit {bit}"),
                other => panic!("bit {bit}: {other:?}"),
            }
        }
        for cut in 0..bytes.len() {
            let cut = Manifest::decode(&bytes[..cut], path.clone());
            assert!(matches!(cut, Err(Error::Corrupt { .. })));
        }
    }

    #[test]
    fn another_version_is_refused_by_both_numbers() {
        let mut bytes = example().encode().unwrap();
        bytes[8] = 7;
        let Err(Error::Version { found, supported, .. }) = Manifest::decode(&bytes, "M".into()) else {
            panic!("a manifest of version 7 was read");
        };
        assert_eq!((found, supported), (7, VERSION));
    }
}
