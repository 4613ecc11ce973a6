//! The manifest on the device: a base, and the changes since then.
//!
//! The base is replaced as a whole: written under another name, synced, renamed, and the directory
//! synced. A change is appended behind it and synced, so that a store with very many families does
//! not write all of them for each that is created, dropped or flushed. When the changes outweigh
//! the base a new one is written, and always by the first change after an opening: nothing is
//! appended to the file that was found.
//!
//! Each change stands there twice, in sectors of its own. One damaged sector loses none. Where both
//! copies of the last change are damaged, the store died while it was written, and it was not
//! acknowledged. docs/design/formats/engine.md draws all of it.

#[cfg(test)]
mod external;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod versions;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, OpenMode, read_exact_at, write_all_at};

use crate::manifest::encoding::{self, BadPayload, OLDEST, VERSION};
use crate::manifest::{Edit, Manifest};
use crate::{Error, Result};

/// The file's name.
pub(crate) const FILE: &str = "MANIFEST";
/// The name that a base is written under.
pub(crate) const TEMPORARY: &str = "MANIFEST.tmp";

const MAGIC: [u8; 8] = *b"COLLIEDB";
/// magic (8), version (4), payload length (4), CRC-32C of version, length and payload (4).
const HEADER: usize = 20;
/// CRC-32C of the rest (4), payload length (4), generation (8), number (4), zero (4).
const EDIT_HEADER: usize = 24;
/// The unit of damage on a device; no sector holds parts of two copies.
const SECTOR: usize = 512;
/// More than a store with ten thousand families needs; a damaged length cannot make the reader
/// allocate more.
const MAX_BYTES: u64 = 64 << 20;
/// What a store writes.
const NO_CONTRADICTION: &str = "families with ids and names of their own, below the next id";
/// Changes are appended up to so many bytes, or twice the base's where that is more.
const EDITS_LEAST: u64 = 64 << 10;

/// A store's manifest, in memory and on the device.
pub(crate) struct ManifestFile {
    manifest: Manifest,
    /// Counts the bases of a store, so that no change after an earlier base is taken for one after
    /// this.
    generation: u64,
    /// Where changes are appended; `None` where the next one is written with a new base.
    tail: Option<Tail>,
}

/// The open file.
struct Tail {
    file: Arc<dyn File>,
    base: u64,
    end: u64,
    /// The next change's.
    number: u32,
}

impl std::ops::Deref for ManifestFile {
    type Target = Manifest;

    fn deref(&self) -> &Manifest {
        &self.manifest
    }
}

impl ManifestFile {
    /// The manifest of a new store; not yet on the device.
    pub(crate) fn new(manifest: Manifest) -> Self {
        Self {
            manifest,
            generation: 0,
            tail: None,
        }
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
        // A base, and changes of twice its length at most (and one more, twice).
        let most = 5 * MAX_BYTES;
        if len > most {
            let found = format!("{len} bytes");
            return corrupt(path, 0, format!("at most {most} bytes"), found);
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
        read_exact_at(&*file, &mut bytes, 0).map_err(|e| Error::io("read", &path, e))?;
        Self::decode(&bytes, &path).map(Some)
    }

    fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        let Base {
            mut manifest,
            generation,
            version,
            len,
        } = decode_base(bytes, path)?;
        let edits = Edits {
            bytes,
            generation,
            version,
            path,
        };
        let (mut at, mut number) = (len.next_multiple_of(SECTOR), 0);
        while let Some((edit, end)) = edits.next(at, number)? {
            if let Some(found) = manifest.contradiction_with(&edit) {
                return corrupt(path, at as u64, NO_CONTRADICTION.into(), found);
            }
            manifest.apply(&edit);
            (at, number) = (end, number + 1);
        }
        Ok(Self {
            manifest,
            generation,
            tail: None,
        })
    }

    /// The same manifest for another opening, which begins with a new base.
    pub(crate) fn detached(&self) -> Self {
        Self {
            manifest: self.manifest.clone(),
            generation: self.generation,
            tail: None,
        }
    }

    /// Changes it in memory. The next change that is committed writes a new base with this.
    pub(crate) fn amend(&mut self, change: impl FnOnce(&mut Manifest)) {
        change(&mut self.manifest);
        self.tail = None;
    }

    /// Makes a change, durably.
    pub(crate) fn commit(
        &mut self,
        device: &dyn Device,
        dir: &Path,
        edit: &Edit,
    ) -> Result<(), ManifestError> {
        let room = |tail: &Tail| tail.end - tail.base <= EDITS_LEAST.max(2 * tail.base);
        match self.tail.take().filter(room) {
            Some(mut tail) => {
                append(&mut tail, self.generation, edit, dir)?;
                self.tail = Some(tail);
                self.manifest.apply(edit);
                Ok(())
            }
            None => {
                let mut next = self.manifest.clone();
                next.apply(edit);
                self.replace(device, dir, next)
            }
        }
    }

    /// Makes a change for which there is no [`Edit`], durably, by a new base.
    pub(crate) fn change(
        &mut self,
        device: &dyn Device,
        dir: &Path,
        change: impl FnOnce(&mut Manifest),
    ) -> Result<(), ManifestError> {
        let mut next = self.manifest.clone();
        change(&mut next);
        self.replace(device, dir, next)
    }

    /// Writes a new base, durably. After an error the device has the old one or the new one.
    pub(crate) fn write(&mut self, device: &dyn Device, dir: &Path) -> Result<(), ManifestError> {
        self.replace(device, dir, self.manifest.clone())
    }

    fn replace(&mut self, device: &dyn Device, dir: &Path, next: Manifest) -> Result<(), ManifestError> {
        let (path, temporary) = (dir.join(FILE), dir.join(TEMPORARY));
        self.tail = None;
        // Also where the write fails: that is not always known.
        self.generation += 1;
        let bytes = encode_base(&next, self.generation, &path)?;
        match device.remove_file(&temporary) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("remove", temporary, e).into()),
        }
        // A file that could not be written or synced is never renamed; the next attempt creates
        // another one.
        let written = device.open(&temporary, OpenMode::CreateNew).and_then(|file| {
            write_all_at(&*file, &bytes, 0)?;
            file.sync_data()?;
            Ok(file)
        });
        let file = written.map_err(|e| Error::io("write", &temporary, e))?;
        device
            .rename(&temporary, &path)
            .map_err(|e| match Error::io("rename to", &path, e) {
                full @ Error::StorageFull { .. } => ManifestError::NotWritten(full),
                error => ManifestError::InDoubt(error),
            })?;
        // In doubt whatever the error: the new one has the name already, and a killed process
        // leaves it there.
        device
            .sync_dir(dir)
            .map_err(|e| in_doubt("sync", dir.into(), e.to_string()))?;
        let base = bytes.len() as u64;
        self.tail = Some(Tail {
            file,
            base,
            end: base,
            number: 0,
        });
        self.manifest = next;
        Ok(())
    }
}

/// Appends a change. Where it cannot be written, nothing is left of it.
fn append(tail: &mut Tail, generation: u64, edit: &Edit, dir: &Path) -> Result<(), ManifestError> {
    let path = dir.join(FILE);
    let bytes = encode_edit(edit, generation, tail.number, &path)?;
    if let Err(error) = write_all_at(&*tail.file, &bytes, tail.end) {
        // One copy may be there wholly, and a later opening would apply it although the caller gets
        // an error.
        let undone = tail.file.set_len(tail.end).and_then(|()| tail.file.sync_data());
        return Err(match undone {
            Ok(()) => Error::io("append to", path, error).into(),
            Err(undone) => in_doubt(
                "append to",
                path,
                format!("{error}; and taking it back: {undone}"),
            ),
        });
    }
    tail.file
        .sync_data()
        .map_err(|error| in_doubt("sync", path, error.to_string()))?;
    tail.end += bytes.len() as u64;
    tail.number += 1;
    Ok(())
}

/// An error after which a later opening may find the change or not.
fn in_doubt(op: &'static str, path: PathBuf, what: String) -> ManifestError {
    ManifestError::InDoubt(Error::io(op, path, std::io::Error::other(what)))
}

/// Why a change of the manifest failed, and whether it is certain that it was not made. The step
/// that failed decides that, not the kind of error.
#[derive(Debug)]
pub(crate) enum ManifestError {
    /// It was not made, and may be tried again.
    NotWritten(Error),
    /// A later opening may find it or not, so nothing may rely on either.
    InDoubt(Error),
}

impl From<Error> for ManifestError {
    fn from(error: Error) -> Self {
        Self::NotWritten(error)
    }
}

impl From<ManifestError> for Error {
    fn from(error: ManifestError) -> Self {
        match error {
            ManifestError::NotWritten(error) | ManifestError::InDoubt(error) => error,
        }
    }
}

impl AsRef<Error> for ManifestError {
    fn as_ref(&self) -> &Error {
        match self {
            Self::NotWritten(error) | Self::InDoubt(error) => error,
        }
    }
}

fn encode_base(manifest: &Manifest, generation: u64, path: &Path) -> Result<Vec<u8>> {
    let payload = encoding::encode_base(manifest, generation).map_err(|e| unencodable(path, e))?;
    if payload.len() as u64 > MAX_BYTES {
        let limit = std::io::Error::other(format!("{} bytes, more than {MAX_BYTES}", payload.len()));
        return Err(Error::io("write", path, limit));
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[8..16]), &payload);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(&payload);
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    Ok(bytes)
}

fn unencodable(path: &Path, error: postcard::Error) -> Error {
    Error::io("encode", path, std::io::Error::other(error))
}

/// Both copies of a change.
fn encode_edit(edit: &Edit, generation: u64, number: u32, path: &Path) -> Result<Vec<u8>> {
    let payload = encoding::encode_edit(edit).map_err(|e| unencodable(path, e))?;
    let mut copy = vec![0; 4];
    copy.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    copy.extend_from_slice(&generation.to_le_bytes());
    copy.extend_from_slice(&number.to_le_bytes());
    copy.resize(EDIT_HEADER, 0);
    copy.extend_from_slice(&payload);
    let sum = crc32c::crc32c(&copy[4..]);
    copy[..4].copy_from_slice(&sum.to_le_bytes());
    copy.resize(copy.len().next_multiple_of(SECTOR), 0);
    let mut both = copy.clone();
    both.extend_from_slice(&copy);
    Ok(both)
}

fn decode_base(bytes: &[u8], path: &Path) -> Result<Base> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        let found = format!("a file of {} bytes", bytes.len());
        return corrupt(path, 0, format!("a header of {HEADER} bytes"), found);
    };
    if header[..8] != MAGIC {
        let found = format!("\"{}\"", header[..8].escape_ascii());
        return corrupt(path, 0, "\"COLLIEDB\"".into(), found);
    }
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (version, len, sum) = (word(8), word(12), word(16));
    if !(OLDEST..=VERSION).contains(&version) {
        return Err(Error::Version {
            path: path.into(),
            found: version,
            supported: VERSION,
        });
    }
    let Some(payload) = rest.get(..len as usize) else {
        let found = format!("{} bytes", rest.len());
        return corrupt(path, 12, format!("a payload of {len} bytes"), found);
    };
    let found = crc32c::crc32c_append(crc32c::crc32c(&header[8..16]), payload);
    if found != sum {
        return corrupt(path, 16, format!("checksum {found:08x}"), format!("{sum:08x}"));
    }
    let base = HEADER + payload.len();
    let refused = |error| bad_payload(error, path, HEADER, base, "a manifest");
    let (manifest, generation) = encoding::decode_base(version, payload).map_err(refused)?;
    if let Some(found) = manifest.contradiction() {
        return corrupt(path, HEADER as u64, NO_CONTRADICTION.into(), found);
    }
    Ok(Base {
        manifest,
        generation,
        version,
        len: base,
    })
}

/// The error of a payload from `start` to `end` of a file that is no encoding of `what`.
fn bad_payload(error: BadPayload, path: &Path, start: usize, end: usize, what: &str) -> Error {
    let (at, expected, found) = match error {
        BadPayload::Malformed(found) => (start, what.into(), found),
        BadPayload::Rest(len) => (
            end - len,
            format!("the end of {what}"),
            format!("{len} more bytes"),
        ),
        BadPayload::Value {
            family,
            option,
            value,
        } => {
            let expected = format!("a value of the option {option} of the family {family:?}");
            (start, expected, format!("\"{}\"", value.escape_ascii()))
        }
        BadPayload::Unknown { family, option } => {
            return Error::UnknownOption {
                path: path.into(),
                family,
                option,
            };
        }
    };
    Error::Corrupt {
        path: path.into(),
        offset: at as u64,
        expected,
        found,
    }
}

/// What stands at the beginning of the file.
struct Base {
    manifest: Manifest,
    generation: u64,
    version: u32,
    len: usize,
}

/// The changes behind a base.
struct Edits<'a> {
    bytes: &'a [u8],
    generation: u64,
    version: u32,
    path: &'a Path,
}

impl Edits<'_> {
    /// The change with this number, whose first copy belongs at `at`, and where the next one
    /// begins; `None` behind the last.
    fn next(&self, at: usize, number: u32) -> Result<Option<(Edit, usize)>> {
        for (copy, place) in (at..self.bytes.len()).step_by(SECTOR).enumerate() {
            let Some((found, payload)) = self.at(place) else {
                continue;
            };
            if found != number {
                // One that is missing was acknowledged: the next was appended behind it.
                let expected = format!("change {number} of {}", self.generation);
                return corrupt(
                    self.path,
                    at as u64,
                    expected,
                    format!("change {found} at {place}"),
                );
            }
            let sectors = (EDIT_HEADER + payload.len()).div_ceil(SECTOR);
            // Any sector but the first is in the place of the second copy.
            let copies = if copy == 0 { 2 } else { 1 };
            let start = place + EDIT_HEADER;
            let refused = |error| bad_payload(error, self.path, start, start + payload.len(), "a change");
            let edit = encoding::decode_edit(self.version, payload).map_err(refused)?;
            return Ok(Some((edit, place + copies * sectors * SECTOR)));
        }
        Ok(None)
    }

    /// The number and the payload of the change at offset `place`, if there is one.
    fn at(&self, place: usize) -> Option<(u32, &[u8])> {
        let bytes = self.bytes.get(place..)?;
        let word = |at: usize| {
            let word = bytes.get(at..at + 4)?;
            word.try_into().ok().map(u32::from_le_bytes)
        };
        let (sum, len, number) = (word(0)?, word(4)?, word(16)?);
        let generation = u64::from(word(8)?) | u64::from(word(12)?) << 32;
        let whole = bytes.get(..EDIT_HEADER + len as usize)?;
        let ours = generation == self.generation && crc32c::crc32c(&whole[4..]) == sum;
        ours.then(|| (number, &whole[EDIT_HEADER..]))
    }
}

fn corrupt<T>(path: impl Into<PathBuf>, offset: u64, expected: String, found: String) -> Result<T> {
    Err(Error::Corrupt {
        path: path.into(),
        offset,
        expected,
        found,
    })
}
