//! Table files that are known to be those that the tree's manifest names, checked before a tree is
//! opened.
//!
//! The tree's manifest keeps a checksum of each table file, which the table library never compares.
//! It trusts what stands at a file's end: from a flipped bit there it takes how much to allocate, and
//! aborts the process, and a file of another family, or of an earlier time, it takes for its own.
//!
//! Reading all tables whole at each opening takes too long. So the file `verified` of a tree's
//! directory says of each table that this was done once, or that this program wrote it, and how the
//! file ends: its length, and a checksum from its statistics on, which have its key range and its time
//! of creation, and where all its parts are. An opening compares that, one read for each table, and
//! reads a table whole that `verified` does not know. What lies before the statistics are blocks
//! with checksums of their own, compared when they are read.
//!
//! `verified` is written after the tree's manifest, as a whole, and not synced: a power cut costs
//! that the tables of the last moments are read whole. It is keyed by the tree's checksums, so an
//! old copy says nothing wrong, and a damaged one nothing. It also has the highest version that the
//! tree ever had, so that a `current` of an earlier one is not taken for the newest: opening that
//! would remove all newer tables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use collie_io::{Device, File, OpenMode, read_exact_at, write_all_at};
use lsm_tree::Table;
use parking_lot::Mutex;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use crate::tables::current::{Version, read_file, take, word};
use crate::{Error, Result};

/// The file's name.
pub(super) const FILE: &str = "verified";
const TEMPORARY: &str = "verified.tmp";

const MAGIC: [u8; 8] = *b"COLLIEV1";
/// How much is read at a time of a file that is read whole.
const PIECE: usize = 1 << 20;

/// How a table file ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ending {
    /// Of the whole file, as the tree's manifest has it.
    checksum: u128,
    len: u64,
    /// The table's statistics begin here.
    from: u64,
    /// From there to the file's end.
    end_checksum: u128,
}

/// What is known of a tree's files.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Known {
    /// The highest version that `current` ever named.
    version: u64,
    /// By the tables' numbers.
    endings: BTreeMap<u64, Ending>,
}

/// What is known of a tree's table files, and is in its file `verified`.
pub(super) struct Verified {
    dir: PathBuf,
    known: Mutex<Known>,
}

impl Verified {
    /// Checks all table files of a tree that is not open. Of a new tree, or one that is not on this
    /// device, `version` is `None`: there is nothing to check.
    pub(super) fn check(dir: &Path, version: Option<&Version>, device: &dyn Device) -> Result<Self> {
        let mut known = Known::default();
        if let Some(version) = version {
            known = Known::read(dir, device);
            if version.number < known.version {
                return corrupt(
                    dir.join("current"),
                    0,
                    format!("version {} of the tables, or a later one", known.version),
                    format!("version {}, of an earlier time", version.number),
                );
            }
            check_names(dir, device)?;
            let (mut files, mut bytes) = (0_u64, 0);
            for (id, checksum) in &version.tables {
                let path = table_path(dir, *id);
                match known
                    .endings
                    .get(id)
                    .filter(|ending| ending.checksum == *checksum)
                {
                    Some(ending) => ending.check(&path, device)?,
                    None => {
                        bytes += check_whole(&path, *checksum, device)?;
                        files += 1;
                    }
                }
            }
            if files > 0 {
                tracing::info!(dir = %dir.display(), files, bytes, "tables were read whole, for their checksums");
            }
        }
        Ok(Self {
            dir: dir.into(),
            known: Mutex::new(known),
        })
    }

    /// The tree has these tables now, as this version: each was checked, or written by this process.
    pub(super) fn note<'a>(
        &self,
        version: u64,
        tables: impl Iterator<Item = &'a Table>,
        device: &dyn Device,
    ) {
        let mut known = self.known.lock();
        let mut next = Known {
            version,
            endings: BTreeMap::new(),
        };
        for table in tables {
            let checksum = table.checksum().into_u128();
            let ending = match known.endings.get(&table.id()) {
                Some(ending) if ending.checksum == checksum => Ok(*ending),
                _ => Ending::of(&table.path, checksum, *table.regions.metadata.offset(), device),
            };
            match ending {
                Ok(ending) => drop(next.endings.insert(table.id(), ending)),
                Err(error) => {
                    tracing::debug!(%error, "the next opening reads a table whole");
                }
            }
        }
        // The table library removes the file when it opens a tree, with all whose names begin with v.
        let is_kept = next == *known && device.stat(&self.dir.join(FILE)).is_ok();
        // What is older was flushed or merged beside this, and comes back with the next.
        if is_kept || next.version < known.version {
            return;
        }
        if let Err(error) = next.write(&self.dir, device) {
            tracing::debug!(dir = %self.dir.display(), %error, "the next opening reads new tables whole");
        }
        *known = next;
    }
}

/// The first of these table files that is not the one that the tree's manifest names, read whole: to
/// name it, where the table library says only that something is damaged.
pub(super) fn find_damaged(
    mut tables: impl Iterator<Item = (PathBuf, u128)>,
    device: &dyn Device,
) -> Option<PathBuf> {
    let damaged = tables.find(|(path, checksum)| check_whole(path, *checksum, device).is_err());
    damaged.map(|(path, _)| path)
}

impl Ending {
    fn of(path: &Path, checksum: u128, from: u64, device: &dyn Device) -> Result<Self> {
        let (file, len) = open(path, device)?;
        let end_checksum = end_checksum(&*file, path, from, len)?;
        Ok(Self {
            checksum,
            len,
            from,
            end_checksum,
        })
    }

    fn check(&self, path: &Path, device: &dyn Device) -> Result<()> {
        let (file, len) = open(path, device)?;
        if len != self.len {
            return corrupt(
                path.into(),
                len.min(self.len),
                format!("a table file of {} bytes", self.len),
                format!("{len} bytes"),
            );
        }
        let found = end_checksum(&*file, path, self.from, len)?;
        if found != self.end_checksum {
            return corrupt(
                path.into(),
                self.from,
                format!(
                    "the end of this table, with the checksum {:032x}",
                    self.end_checksum
                ),
                format!("{found:032x}: it is damaged, or another table's"),
            );
        }
        Ok(())
    }
}

impl Known {
    /// What `dir` says; nothing where it says none, or is damaged.
    fn read(dir: &Path, device: &dyn Device) -> Self {
        let bytes = read_file(device, &dir.join(FILE)).unwrap_or_default();
        Self::decode(&bytes).unwrap_or_default()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, sum) = bytes.split_last_chunk::<4>()?;
        let rest = &mut content.strip_prefix(&MAGIC)?;
        if crc32c::crc32c(content) != u32::from_le_bytes(*sum) {
            return None;
        }
        let mut known = Self {
            version: word(rest)?,
            endings: BTreeMap::new(),
        };
        while !rest.is_empty() {
            let id = word(rest)?;
            let ending = Ending {
                checksum: u128::from_le_bytes(take(rest)?),
                len: word(rest)?,
                from: word(rest)?,
                end_checksum: u128::from_le_bytes(take(rest)?),
            };
            known.endings.insert(id, ending);
        }
        Some(known)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.version.to_le_bytes());
        for (id, ending) in &self.endings {
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes.extend_from_slice(&ending.checksum.to_le_bytes());
            bytes.extend_from_slice(&ending.len.to_le_bytes());
            bytes.extend_from_slice(&ending.from.to_le_bytes());
            bytes.extend_from_slice(&ending.end_checksum.to_le_bytes());
        }
        let sum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn write(&self, dir: &Path, device: &dyn Device) -> std::io::Result<()> {
        let temporary = dir.join(TEMPORARY);
        let file = device.open(&temporary, OpenMode::OpenOrCreate)?;
        let bytes = self.encode();
        file.set_len(bytes.len() as u64)?;
        write_all_at(&*file, &bytes, 0)?;
        device.rename(&temporary, &dir.join(FILE))
    }
}

pub(super) fn table_path(dir: &Path, id: u64) -> PathBuf {
    dir.join("tables").join(id.to_string())
}

/// The table library panics where it finds another thing than files.
fn check_names(dir: &Path, device: &dyn Device) -> Result<()> {
    let tables = dir.join("tables");
    let entries = match device.list(&tables) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|e| Error::io("list", &tables, e))?,
    };
    let other = entries
        .iter()
        .find(|entry| entry.is_dir() || entry.name.parse::<u64>().is_err());
    match other {
        None => Ok(()),
        Some(entry) => corrupt(
            tables.join(&entry.name),
            0,
            "only table files here, with numbers for names".into(),
            match entry.is_dir() {
                true => "a directory; move it elsewhere".into(),
                false => "another file; move it elsewhere".into(),
            },
        ),
    }
}

fn open(path: &Path, device: &dyn Device) -> Result<(std::sync::Arc<dyn File>, u64)> {
    let file = match device.open(path, OpenMode::Read) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return corrupt(
                path.into(),
                0,
                "a table file that the tree's manifest names".into(),
                "none".into(),
            );
        }
        file => file.map_err(|e| Error::io("open", path, e))?,
    };
    let len = file.stat().map_err(|e| Error::io("look at", path, e))?.len;
    Ok((file, len))
}

fn end_checksum(file: &dyn File, path: &Path, from: u64, len: u64) -> Result<u128> {
    let mut end = vec![0; usize::try_from(len.saturating_sub(from)).unwrap_or_default()];
    read_exact_at(file, &mut end, from).map_err(|e| Error::io("read", path, e))?;
    Ok(xxh3_128(&end))
}

/// Reads a table file whole; returns its length.
fn check_whole(path: &Path, checksum: u128, device: &dyn Device) -> Result<u64> {
    let (file, len) = open(path, device)?;
    let mut hasher = Xxh3Default::new();
    let (mut piece, mut at) = (vec![0; PIECE.min(usize::try_from(len).unwrap_or(PIECE))], 0);
    while at < len {
        let take = piece.len().min(usize::try_from(len - at).unwrap_or(PIECE));
        read_exact_at(&*file, &mut piece[..take], at).map_err(|e| Error::io("read", path, e))?;
        hasher.update(&piece[..take]);
        at += take as u64;
    }
    let found = hasher.digest128();
    if found != checksum {
        return corrupt(
            path.into(),
            0,
            format!("the table file with the checksum {checksum:032x}"),
            format!("{found:032x}: it is damaged, or another table's"),
        );
    }
    Ok(len)
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
mod versions;
