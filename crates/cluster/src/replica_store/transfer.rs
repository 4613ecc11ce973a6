//! The files of a snapshot, for a replica that has to learn them, and their description: how far the tables
//! are, and each file.
//!
//! The layout of the description is ours, little-endian, and drawn in `docs/design/formats/cluster.md`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, OpenMode, read_exact_at};

use crate::replica_store::error::{FieldError, MachineError};
use crate::replica_store::keys::{Fields, index_of, put_bytes, put_entry_id};
use crate::replica_store::positions::{Membership, Position};
use crate::replica_store::store::{Machine, remove};

/// A transfer is read and written in pieces of at most so many bytes.
pub const PIECE_BYTES: usize = 1 << 20;
/// The directories of tables.
const TABLES: &str = "tables";

/// Files that hold what a replica had applied at one moment. They do not change, whatever is applied
/// meanwhile, and the entries behind are not purged as long as this lives. Dropping it removes them,
/// and blocks on that; an opening removes those that a stop left.
#[derive(Debug)]
pub struct Transfer {
    machine: Machine,
    hold: u64,
    dir: PathBuf,
    description: Description,
}

impl Machine {
    /// Brings what is applied into tables, and links these, for another replica. It waits for the
    /// replica's log to be durable up to there, and reads all files once, for their checksums.
    ///
    /// # Errors
    /// [`MachineError::Empty`], the store's, and [`MachineError::Io`].
    pub fn transfer(&self) -> Result<Transfer, MachineError> {
        if self.applied().is_none() {
            let replica = self.replica();
            return Err(MachineError::Empty { replica });
        }
        // First: what is needed behind the files must not go before they are there.
        let hold = self.0.journal.positions().hold();
        let dir = self.transfers().join(hold.to_string());
        // Without files yet: dropped, it removes what is there of them.
        let mut transfer = Transfer {
            machine: self.clone(),
            hold,
            dir,
            description: Description {
                position: self.0.journal.positions().now().ok_or(MachineError::Empty {
                    replica: self.replica(),
                })?,
                files: Vec::new(),
            },
        };
        transfer.fill()?;
        Ok(transfer)
    }
}

impl Transfer {
    fn fill(&mut self) -> Result<(), MachineError> {
        let inner = &self.machine.0;
        let device = &*inner.options.db.device;
        device
            .create_dir_all(&self.dir)
            .map_err(|error| MachineError::io("create", &self.dir, error))?;
        let seq = inner.db.links(&self.dir)?;
        let mut positions = inner.journal.positions();
        // What the linked tables hold, not what was applied since.
        let position = index_of(seq).and_then(|index| positions.at(index));
        self.description.position = position.ok_or(MachineError::Empty {
            replica: self.machine.replica(),
        })?;
        positions.hold_at(self.hold, self.description.position.applied.index);
        drop(positions);
        let mut files = Vec::new();
        list(device, &self.dir, "", &mut files)?;
        for name in files {
            let path = self.dir.join(&name);
            let (size, crc32c) = checksum(device, &path)?;
            self.description.files.push(Described { name, size, crc32c });
        }
        Ok(())
    }

    /// What it consists of.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// At most [`PIECE_BYTES`] of a file, by its place in the description, from `offset` on. Nothing
    /// is left at its end.
    ///
    /// # Errors
    /// [`MachineError::Piece`] where there is no such file, and [`MachineError::Io`].
    pub fn read(&self, file: usize, offset: u64) -> Result<Vec<u8>, MachineError> {
        let Some(described) = self.description.files.get(file) else {
            return Err(MachineError::Piece {
                path: self.dir.clone(),
                expected: self.description.files.len() as u64,
                found: format!("file {file}"),
            });
        };
        let len = described.size.saturating_sub(offset).min(PIECE_BYTES as u64);
        let mut piece = vec![0; len as usize];
        let path = self.dir.join(described.path());
        let opened = self.device().open(&path, OpenMode::Read);
        opened
            .and_then(|file| read_exact_at(&*file, &mut piece, offset))
            .map_err(|error| MachineError::io("read", &path, error))?;
        Ok(piece)
    }

    fn device(&self) -> &dyn Device {
        &*self.machine.0.options.db.device
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.machine.0.journal.positions().release(self.hold);
        if let Err(error) = remove(self.device(), &self.dir) {
            tracing::warn!(%error, "the files of a transfer stay until the replica is opened again");
        }
    }
}

/// The names of all files below a directory.
pub(super) fn list(
    device: &dyn Device,
    dir: &Path,
    below: &str,
    files: &mut Vec<String>,
) -> Result<(), MachineError> {
    let entries = device
        .list(dir)
        .map_err(|error| MachineError::io("list", dir, error))?;
    for entry in entries {
        let name = format!("{below}{}", entry.name);
        if entry.is_dir() {
            list(device, &dir.join(&entry.name), &format!("{name}/"), files)?;
        } else {
            files.push(name);
        }
    }
    Ok(())
}

/// The size and the checksum of a file.
pub(super) fn checksum(device: &dyn Device, path: &Path) -> Result<(u64, u32), MachineError> {
    let read = || {
        let file = device.open(path, OpenMode::Read)?;
        let size = file.stat()?.len;
        let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(size).unwrap_or(PIECE_BYTES))];
        let (mut offset, mut crc) = (0, 0);
        while offset < size {
            let len = (size - offset).min(piece.len() as u64) as usize;
            let part = piece.get_mut(..len).unwrap_or_default();
            read_exact_at(&*file, part, offset)?;
            crc = crc32c::crc32c_append(crc, part);
            offset += len as u64;
        }
        Ok((size, crc))
    };
    read().map_err(|error| MachineError::io("read", path, error))
}

const VERSION: u8 = 1;
/// A transfer has at most so many files.
const MAX_FILES: usize = 1 << 20;
/// The longest name of a file, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// The members of a group, encoded, have at most so many bytes.
const MAX_MEMBERS_BYTES: usize = 1 << 20;
/// What a file has at least in a description.
const LEAST_FILE: usize = 4 + 1 + 8 + 4;

/// What a transfer consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// How far the tables are.
    pub position: Position,
    /// The files, each once.
    pub files: Vec<Described>,
}

/// A file of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its path below the transfer's directory, with `/` between the parts.
    pub name: String,
    /// Its length in bytes.
    pub size: u64,
    /// The CRC-32C of all of it.
    pub crc32c: u32,
}

impl Described {
    pub(super) fn path(&self) -> PathBuf {
        self.name.split('/').collect()
    }

    /// Whether it is a table of those that [`Db::links`](collie_db::Db::links) links: what it holds never changes, and has
    /// checksums of its own of another kind.
    pub(super) fn is_table(&self) -> bool {
        let dir = Path::new(&self.name).parent();
        dir.is_some_and(|dir| dir.ends_with(TABLES))
    }

    pub(super) fn said(size: u64, crc32c: u32) -> String {
        format!("{size} bytes with the checksum {crc32c:08x}")
    }
}

impl Description {
    /// How many bytes all files have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| file.size.saturating_add(sum))
    }

    /// As it goes over the wire.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut to = vec![VERSION];
        put_entry_id(&mut to, self.position.applied);
        to.push(u8::from(self.position.membership.is_some()));
        if let Some(membership) = &self.position.membership {
            put_entry_id(&mut to, membership.id);
            put_bytes(&mut to, &membership.members);
        }
        to.extend_from_slice(&(self.files.len() as u32).to_le_bytes());
        for file in &self.files {
            put_bytes(&mut to, file.name.as_bytes());
            to.extend_from_slice(&file.size.to_le_bytes());
            to.extend_from_slice(&file.crc32c.to_le_bytes());
        }
        to
    }

    /// Reads a description.
    ///
    /// # Errors
    /// [`MachineError::Description`] where none was ever encoded so, and where a file would lie
    /// outside of the transfer's directory.
    pub fn decode(bytes: &[u8]) -> Result<Self, MachineError> {
        decode(bytes).map_err(MachineError::Description)
    }
}

fn decode(bytes: &[u8]) -> Result<Description, FieldError> {
    let mut fields = Fields::new(bytes);
    let version = fields.u8("a version")?;
    if version != VERSION {
        return Err(fields.wrong(0, "a description of version 1", version));
    }
    let applied = fields.entry_id()?;
    let at = fields.at();
    let membership = match fields.u8("0 or 1")? {
        0 => None,
        1 => Some(Membership {
            id: fields.entry_id()?,
            members: Arc::from(fields.bytes((0, MAX_MEMBERS_BYTES), "the members")?),
        }),
        other => return Err(fields.wrong(at, "0 or 1", other)),
    };
    let at = fields.at();
    let count = fields.u32("a number of files")? as usize;
    // Checked before room is made for them.
    if count > MAX_FILES || count > fields.left() / LEAST_FILE {
        return Err(fields.wrong(at, "as many files as there are", count));
    }
    let mut files = Vec::with_capacity(count);
    let mut names = BTreeSet::new();
    for _ in 0..count {
        let at = fields.at();
        let name = fields.bytes((1, MAX_NAME_BYTES), "a name")?;
        let name = checked(name).ok_or_else(|| {
            let found = String::from_utf8_lossy(name);
            fields.wrong(
                at,
                "parts of letters, digits, `_` and `-` with `/` between",
                found,
            )
        })?;
        if !names.insert(name) {
            return Err(fields.wrong(at, "each file once", name));
        }
        files.push(Described {
            name: name.to_owned(),
            size: fields.u64("a size")?,
            crc32c: fields.u32("a checksum")?,
        });
    }
    fields.end()?;
    Ok(Description {
        position: Position { applied, membership },
        files,
    })
}

/// A name that stays in the directory. The sender is another node, and may be wrong.
fn checked(name: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(name).ok()?;
    let fits = |part: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        !part.is_empty() && part.bytes().all(known)
    };
    name.split('/').all(fits).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::fixture;
    use crate::ids::{EntryId, LeaderId};

    fn description(membership: bool, names: &[&str]) -> Description {
        let leader = LeaderId { term: 3, replica: 4 };
        let id = |index| EntryId { leader, index };
        let described = |name: &&str| Described {
            name: (*name).to_owned(),
            size: 5,
            crc32c: 6,
        };
        Description {
            position: Position {
                applied: id(9),
                membership: membership.then(|| Membership {
                    id: id(7),
                    members: Arc::from(b"abc".as_slice()),
                }),
            },
            files: names.iter().map(described).collect(),
        }
    }

    #[test]
    fn what_decodes_is_what_was_encoded() {
        for (membership, names) in [(false, &[][..]), (true, &["MANIFEST", "families/0/tables/12"])] {
            let description = description(membership, names);
            let bytes = description.encode();
            assert_eq!(Description::decode(&bytes).unwrap(), description);
            assert!((0..bytes.len()).all(|len| Description::decode(&bytes[..len]).is_err()));
            assert!(Description::decode(&[&bytes[..], b"x"].concat()).is_err());
        }
    }

    #[test]
    fn a_description_of_version_1_says_what_was_written() {
        let entry = |term, replica, index| EntryId {
            leader: LeaderId { term, replica },
            index,
        };
        let file = |name: &str, size, crc32c| Described {
            name: name.to_owned(),
            size,
            crc32c,
        };
        let description = Description {
            position: Position {
                applied: entry(1, 2, 3),
                membership: Some(Membership {
                    id: entry(4, 5, 6),
                    members: Arc::from(b"the members".as_slice()),
                }),
            },
            files: vec![
                file("MANIFEST", 512, 0x8765_4321),
                file("families/0/tables/12", 1 << 40, 7),
            ],
        };
        let bytes = fixture("description-v1.bin", &description.encode());
        assert_eq!(Description::decode(&bytes).unwrap(), description);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        for name in [
            "", "/etc", "..", "a/../b", "a//b", "a/", ".", "a\\b", "a\0", "C:", &long,
        ] {
            let bytes = description(true, &[name]).encode();
            let error = Description::decode(&bytes).unwrap_err();
            assert!(matches!(error, MachineError::Description(_)), "{name}: {error}");
        }
        assert!(Description::decode(&description(true, &["a", "b", "a"]).encode()).is_err());
        let mut many = description(false, &[]).encode();
        let at = many.len() - 4;
        many[at..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Description::decode(&many).is_err());
    }
}
