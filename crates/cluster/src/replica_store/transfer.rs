//! The files of a snapshot, for a replica that has to learn them.

use std::path::{Path, PathBuf};

use collie_io::{Device, OpenMode, read_exact_at};

use crate::replica_store::description::{Described, Description};
use crate::replica_store::error::MachineError;
use crate::replica_store::keys::index_of;
use crate::replica_store::open::remove;
use crate::replica_store::store::Machine;

/// A transfer is read and written in pieces of at most so many bytes.
pub const PIECE_BYTES: usize = 1 << 20;

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
