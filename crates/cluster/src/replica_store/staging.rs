//! Receiving a transfer: files that come in pieces, also after a stop, and are checked.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_db::{DiskReserve, LentReserve};
use collie_io::{Device, File, OpenMode, Scheduler, read_exact_at, write_all_at};

use crate::raftlog::disk;
use crate::replica_store::error::MachineError;
use crate::replica_store::positions::Position;
use crate::replica_store::store::{Machine, staged};
use crate::replica_store::transfer::{Described, Description, PIECE_BYTES, Transfer, checksum, list};

/// The files, below the directory.
const FILES: &str = "files";
/// The description, once all files are there, checked and durable.
const COMPLETE: &str = "COMPLETE";
/// Until it is whole.
const UNFINISHED: &str = "COMPLETE-new";

/// A transfer that is being received. What came stays when this is dropped, and after a stop: the
/// next one, also of another transfer, fetches only what is not there.
#[derive(Debug)]
pub struct Staging {
    device: Arc<dyn Device>,
    /// Of all that works on the disk in the background.
    scheduler: Option<Arc<Scheduler>>,
    dir: PathBuf,
    description: Description,
    /// Per file, how much is there.
    got: Vec<Got>,
    /// Where it relieves a full disk: what may be lent to it.
    reserve: Option<DiskReserve>,
    /// From when the disk was full for it.
    lent: Option<LentReserve>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Got {
    bytes: u64,
    /// All of it, and it was checked.
    right: bool,
    /// And it is durable, but for its name.
    durable: bool,
}

/// As much of it is written out at a time, in bytes: what a user may have to wait for.
const TURN_BYTES: u64 = 512 << 10;

/// Beside its files, a transfer takes so many bytes at most: directories, and the description.
const BESIDE_FILES: u64 = 1 << 20;

/// So much of a disk stays free where replicas are put there, and no more than such a part of it.
const KEPT_FREE: u64 = 16 << 30;
const KEPT_PART: u64 = 20;

/// Whether enough of the disk of a directory stays free beside so many bytes more; a device that does not say has enough.
pub(crate) fn stays_free(device: &dyn Device, dir: &Path, bytes: u64) -> bool {
    let room = disk(device, dir);
    room.is_none_or(|(all, free)| bytes.saturating_add(KEPT_FREE.min(all / KEPT_PART)) <= free)
}

/// What is to be fetched next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// The file, by its place in the description.
    pub file: usize,
    /// From where on.
    pub offset: u64,
}

/// A transfer that is there, checked and durable.
#[derive(Debug, Clone)]
pub struct Staged {
    pub(super) dir: PathBuf,
    pub(super) description: Description,
}

impl Staged {
    /// What it consists of.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }
}

impl Machine {
    /// About as many bytes as a transfer has.
    pub(crate) fn bytes(&self) -> u64 {
        let stats = self.0.db.stats();
        let families = stats.families.values();
        families
            .map(|family| family.table_bytes + (family.active_bytes + family.sealed_bytes))
            .sum()
    }

    /// Whether tables of so many bytes have room on the disk, beside its own and with what came of them
    /// before; a device that does not say has.
    pub(crate) fn has_room_for(&self, bytes: u64) -> bool {
        let room = disk(&*self.0.options.db.device, &self.0.dir);
        room.is_none_or(|(_, free)| bytes <= free || bytes <= free.saturating_add(self.staged_bytes()))
    }

    /// The same for a replica that begins on the disk: some of that stays free, for those that are there.
    pub(crate) fn has_room_for_more(&self, bytes: u64) -> bool {
        self.stays_free(bytes.saturating_sub(self.staged_bytes()))
    }

    /// Whether enough stays free beside so many bytes more.
    pub(crate) fn stays_free(&self, bytes: u64) -> bool {
        stays_free(&*self.0.options.db.device, &self.0.dir, bytes)
    }

    /// What is there of a transfer, in bytes.
    fn staged_bytes(&self) -> u64 {
        let (device, files) = (&*self.0.options.db.device, self.staged().join(FILES));
        let mut there = Vec::new();
        // An error: nothing is.
        _ = list(device, &files, "", &mut there);
        let size = |name: &String| device.stat(&files.join(name)).map_or(0, |file| file.len);
        there.iter().map(size).sum()
    }

    /// Whether tables of so many bytes relieve the disk when they take the place of its own, and have room
    /// in what is kept back there.
    pub(crate) fn is_relieved_by(&self, bytes: u64) -> bool {
        let reserve = self.reserve_for(bytes);
        reserve.is_some_and(|reserve| reserve.lend(bytes.saturating_add(BESIDE_FILES)).is_some())
    }

    /// What may be lent to tables of so many bytes that take the place of its own.
    fn reserve_for(&self, bytes: u64) -> Option<DiskReserve> {
        let stats = self.0.db.stats();
        let own: u64 = stats.families.values().map(|family| family.table_bytes).sum();
        let relieves = bytes.saturating_add(BESIDE_FILES) < own;
        self.0.options.db.disk_reserve.clone().filter(|_| relieves)
    }

    /// Begins to receive a transfer, or goes on with it: files that are there are checked. A replica
    /// receives one at a time.
    ///
    /// # Errors
    /// [`MachineError::Order`] where the transfer has nothing that is not applied here,
    /// [`MachineError::Description`] where it was not [decoded](Description::decode), and
    /// [`MachineError::Io`].
    pub fn stage(&self, description: Description) -> Result<Staging, MachineError> {
        self.check_ahead(&description.position)?;
        // As one that came over the wire.
        let description = Description::decode(&description.encode())?;
        let device = Arc::clone(&self.0.options.db.device);
        let dir = staged(&self.0.dir);
        let shared = self.0.options.db.shared.as_ref();
        let mut staging = Staging {
            got: vec![Got::default(); description.files.len()],
            device,
            scheduler: shared.map(|shared| Arc::clone(shared.scheduler())),
            dir,
            reserve: self.reserve_for(description.bytes()),
            lent: None,
            description,
        };
        staging.look()?;
        Ok(staging)
    }

    /// Stages a transfer of a replica of this process.
    ///
    /// # Errors
    /// As [`Machine::stage`], [`Staging::write`] and [`Staging::finish`].
    pub fn fetch(&self, transfer: &Transfer) -> Result<Staged, MachineError> {
        let mut staging = self.stage(transfer.description().clone())?;
        while let Some(missing) = staging.missing() {
            staging.write(missing, &transfer.read(missing.file, missing.offset)?)?;
        }
        staging.finish()
    }

    pub(super) fn check_ahead(&self, position: &Position) -> Result<(), MachineError> {
        match self.applied() {
            Some(applied) if applied.index >= position.applied.index => Err(MachineError::Order {
                id: position.applied,
                last: applied.to_string(),
            }),
            _ => Ok(()),
        }
    }
}

impl Staging {
    /// Does a part of what relieves a full disk, in the room that is kept back for that if need be.
    fn relieved<T>(
        &mut self,
        mut work: impl FnMut(&Self) -> Result<T, MachineError>,
    ) -> Result<T, MachineError> {
        let full = match work(self) {
            Err(error) if error.is_no_room() => error,
            done => return done,
        };
        if self.lent.is_none() {
            let left = self.description.bytes() - self.bytes();
            let reserve = self.reserve.as_ref();
            self.lent = reserve.and_then(|reserve| reserve.lend(left + BESIDE_FILES));
        }
        match &self.lent {
            Some(lent) => lent.relieve(MachineError::is_no_room, || work(self)),
            None => Err(full),
        }
    }

    /// Whether it has the room that is kept back on its disk. What came goes when it is dropped.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Removes what came.
    pub(crate) fn give_up(mut self) {
        self.remove();
        self.lent = None;
    }

    fn remove(&mut self) {
        match self.device.remove_dir_all(&self.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(dir = %self.dir.display(), %error, "what came of a transfer stays, on a full disk");
            }
            _ => {}
        }
    }

    /// Looks at what is there.
    fn look(&mut self) -> Result<(), MachineError> {
        let files = self.dir.join(FILES);
        self.make_dir(&files)?;
        // It speaks for other files.
        for name in [COMPLETE, UNFINISHED] {
            let path = self.dir.join(name);
            match self.device.remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(MachineError::io("remove", &path, error));
                }
                _ => {}
            }
        }
        self.sync_dir(&self.dir)?;
        let mut there = Vec::new();
        list(&*self.device, &files, "", &mut there)?;
        let there: BTreeSet<_> = there.into_iter().collect();
        let mut known = BTreeSet::new();
        for (described, got) in self.description.files.iter().zip(&mut self.got) {
            known.insert(described.name.as_str());
            if !there.contains(&described.name) {
                continue;
            }
            let path = files.join(described.path());
            // What ends in a checksum of its own has the same one as anything of its length that does: all small files
            // of another transfer would be taken for those of this one.
            if !described.is_table() {
                remove_file(&*self.device, &path)?;
                continue;
            }
            let (size, crc32c) = checksum(&*self.device, &path)?;
            *got = match size {
                _ if (size, crc32c) == (described.size, described.crc32c) => Got {
                    bytes: size,
                    right: true,
                    durable: false,
                },
                // A part. Whether it is right shows when all of it is there.
                _ if size < described.size => Got {
                    bytes: size,
                    ..Got::default()
                },
                _ => {
                    remove_file(&*self.device, &path)?;
                    Got::default()
                }
            };
        }
        for name in there.iter().filter(|name| !known.contains(name.as_str())) {
            remove_file(&*self.device, &files.join(name))?;
        }
        Ok(())
    }

    /// What is to be fetched next; nothing where all of it is there.
    #[must_use]
    pub fn missing(&self) -> Option<Missing> {
        let mut all = self.description.files.iter().zip(&self.got).enumerate();
        all.find_map(|(file, (described, got))| {
            let left = got.bytes < described.size || (described.size == 0 && !got.right);
            left.then_some(Missing {
                file,
                offset: got.bytes,
            })
        })
    }

    /// How many bytes are there of each file, in the order of the description.
    pub fn there(&self) -> impl Iterator<Item = u64> + '_ {
        self.got.iter().map(|got| got.bytes)
    }

    /// How many bytes are there.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.got.iter().map(|got| got.bytes).sum()
    }

    /// Takes the next piece of a file. The last one of a file has it checked, and made durable.
    ///
    /// # Errors
    /// [`MachineError::Piece`] where it is not the next one, or longer than what is missing or than
    /// [`PIECE_BYTES`]; [`MachineError::Checksum`] where the file is not as described: it is
    /// [missing](Staging::missing) now; [`MachineError::Io`].
    pub fn write(&mut self, at: Missing, bytes: &[u8]) -> Result<(), MachineError> {
        let described = self.description.files.get(at.file);
        let (Some(described), Some(got)) = (described, self.got.get(at.file)) else {
            return Err(MachineError::Piece {
                path: self.dir.clone(),
                expected: 0,
                found: format!("a piece of file {}", at.file),
            });
        };
        let path = self.dir.join(FILES).join(described.path());
        let room = described.size - got.bytes;
        if at.offset != got.bytes || bytes.len() as u64 > room || bytes.len() > PIECE_BYTES {
            return Err(MachineError::Piece {
                path,
                expected: got.bytes,
                found: format!("{} bytes from {} on", bytes.len(), at.offset),
            });
        }
        let is_empty = described.size == 0;
        let file = self.relieved(|staging| {
            if let Some(parent) = path.parent() {
                staging
                    .device
                    .create_dir_all(parent)
                    .map_err(|error| MachineError::io("create", parent, error))?;
            }
            let opened = staging.device.open(&path, OpenMode::OpenOrCreate);
            let written = opened.and_then(|file| {
                write_all_at(&*file, bytes, at.offset)?;
                Ok(file)
            });
            written.map_err(|error| MachineError::io("write", &path, error))
        })?;
        if let Err(error) = self.write_out(&*file, at.offset, bytes.len()) {
            if let Some(got) = self.got.get_mut(at.file) {
                // No sync says it again.
                fetch_anew(&*self.device, &path, got)?;
            }
            return Err(MachineError::io("write out", &path, error));
        }
        let described = self.description.files.get(at.file);
        if let (Some(described), Some(got)) = (described, self.got.get_mut(at.file)) {
            got.bytes += bytes.len() as u64;
            // A file of nothing has come with its only piece.
            got.right = is_empty;
            if got.bytes == described.size {
                // Not at the end of all: the transfer makes up for it meanwhile.
                complete(&*self.device, described, &path, got)?;
            }
        }
        Ok(())
    }

    /// Writes out what was written, in pieces that give way to what users wait for: the sync at the end finds little
    /// to do.
    fn write_out(&self, file: &dyn File, from: u64, len: usize) -> std::io::Result<()> {
        let Some(scheduler) = &self.scheduler else {
            return Ok(());
        };
        let to = from + len as u64;
        let mut at = from;
        while at < to {
            let len = TURN_BYTES.min(to - at);
            let _turn = scheduler.background();
            match file.write_out(at, len) {
                // This device writes it out by itself.
                Err(error) if error.kind() == std::io::ErrorKind::Unsupported => return Ok(()),
                written => written?,
            }
            at += len;
        }
        Ok(())
    }

    /// Checks the files that were not checked yet, and makes all durable.
    ///
    /// # Errors
    /// [`MachineError::Piece`] where some are missing; as [`write`](Staging::write).
    pub fn finish(&mut self) -> Result<Staged, MachineError> {
        let files = self.dir.join(FILES);
        if let Some(missing) = self.missing() {
            return Err(MachineError::Piece {
                path: files,
                expected: missing.offset,
                found: format!("the end, before file {} is there", missing.file),
            });
        }
        let mut dirs = BTreeSet::from([files.clone()]);
        for (described, got) in self.description.files.iter().zip(&mut self.got) {
            let path = files.join(described.path());
            complete(&*self.device, described, &path, got)?;
            let above = path.ancestors().skip(1).take_while(|dir| *dir != self.dir);
            dirs.extend(above.map(Path::to_owned));
        }
        for dir in dirs.iter().rev() {
            self.sync_dir(dir)?;
        }
        self.relieved(Self::say_complete)?;
        // What came is to stay.
        self.lent = None;
        Ok(Staged {
            dir: self.dir.clone(),
            description: self.description.clone(),
        })
    }

    fn say_complete(&self) -> Result<(), MachineError> {
        let (new, complete) = (self.dir.join(UNFINISHED), self.dir.join(COMPLETE));
        let written = || {
            let file = self.device.open(&new, OpenMode::OpenOrCreate)?;
            file.set_len(0)?;
            write_all_at(&*file, &self.description.encode(), 0)?;
            file.sync_data()?;
            self.device.rename(&new, &complete)?;
            self.device.sync_dir(&self.dir)
        };
        written().map_err(|error| MachineError::io("write", &complete, error))
    }

    fn make_dir(&self, dir: &Path) -> Result<(), MachineError> {
        self.device
            .create_dir_all(dir)
            .map_err(|error| MachineError::io("create", dir, error))
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), MachineError> {
        self.device
            .sync_dir(dir)
            .map_err(|error| MachineError::io("sync", dir, error))
    }
}

impl Drop for Staging {
    /// Half of a transfer would take the room of a full disk for good.
    fn drop(&mut self) {
        if self.lent.is_some() {
            self.remove();
        }
    }
}

impl Staged {
    /// The store that came.
    pub(super) fn store(&self) -> PathBuf {
        self.dir.join(FILES)
    }
}

/// How far the tables of a transfer are that came completely; none where there is none.
pub(super) fn completed(device: &dyn Device, dir: &Path) -> Result<Option<Position>, MachineError> {
    let path = dir.join(COMPLETE);
    let read = || {
        let file = match device.open(&path, OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = vec![0; usize::try_from(file.stat()?.len).unwrap_or(usize::MAX)];
        read_exact_at(&*file, &mut bytes, 0)?;
        Ok(Some(bytes))
    };
    let bytes = read().map_err(|error| MachineError::io("read", &path, error))?;
    let description = bytes.map(|bytes| Description::decode(&bytes)).transpose()?;
    Ok(description.map(|description| description.position))
}

/// Removes what came of a transfer that a stop has cut off, where the room that is kept back on the disk is
/// not complete: until the next transfer it would not be.
pub(super) fn relieve(device: &dyn Device, dir: &Path, reserve: Option<&DiskReserve>) {
    let Some(reserve) = reserve.filter(|reserve| reserve.is_missing()) else {
        return;
    };
    match device.remove_dir_all(dir) {
        Ok(()) => tracing::info!(dir = %dir.display(), "a part of a transfer is removed from a full disk"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "a part of a transfer stays, on a full disk");
        }
    }
    reserve.fill();
}

/// Checks a file that is there, and makes it durable, unless both were done.
fn complete(
    device: &dyn Device,
    described: &Described,
    path: &Path,
    got: &mut Got,
) -> Result<(), MachineError> {
    if !got.right {
        let (size, crc32c) = checksum(device, path)?;
        if (size, crc32c) != (described.size, described.crc32c) {
            fetch_anew(device, path, got)?;
            return Err(MachineError::Checksum {
                path: path.to_owned(),
                expected: Described::said(described.size, described.crc32c),
                found: Described::said(size, crc32c),
            });
        }
        got.right = true;
    }
    if !got.durable {
        if let Err(error) = sync_file(device, path) {
            // The next sync would say nothing of it.
            fetch_anew(device, path, got)?;
            return Err(error);
        }
        got.durable = true;
    }
    Ok(())
}

/// Removes what is there of a file: all of it comes anew.
fn fetch_anew(device: &dyn Device, path: &Path, got: &mut Got) -> Result<(), MachineError> {
    *got = Got::default();
    remove_file(device, path)
}

fn sync_file(device: &dyn Device, path: &Path) -> Result<(), MachineError> {
    device
        .open(path, OpenMode::Read)
        .and_then(|file| file.sync_data())
        .map_err(|error| MachineError::io("sync", path, error))
}

fn remove_file(device: &dyn Device, path: &Path) -> Result<(), MachineError> {
    device
        .remove_file(path)
        .map_err(|error| MachineError::io("remove", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{EntryId, LeaderId};
    use collie_db::RoomUser;
    use collie_sim::{Fault, FaultKind, SimDevice};

    struct NoLogs;

    impl RoomUser for NoLogs {
        fn withhold_room(&self, _: bool) {}

        fn give_up_spares(&self) -> bool {
            false
        }
    }

    const SIZE: u64 = 512 << 10;

    fn disk() -> (SimDevice, DiskReserve) {
        let device = SimDevice::new(1);
        device.create_dir_all(Path::new("/disk")).unwrap();
        let all: Arc<dyn Device> = Arc::new(device.clone());
        let reserve = DiskReserve::new(all, "/disk/RESERVE".into(), 2 << 20, Arc::new(NoLogs));
        (device, reserve)
    }

    fn staging(device: &SimDevice, reserve: &DiskReserve, name: &str) -> Staging {
        let leader = LeaderId { term: 1, replica: 1 };
        let file = Described {
            name: "file".to_owned(),
            size: SIZE,
            crc32c: crc32c::crc32c(&vec![7; SIZE as usize]),
        };
        let dir = Path::new("/disk").join(name);
        device.create_dir_all(&dir).unwrap();
        Staging {
            device: Arc::new(device.clone()),
            scheduler: Some(Arc::default()),
            dir,
            got: vec![Got::default()],
            reserve: Some(reserve.clone()),
            lent: None,
            description: Description {
                position: Position {
                    applied: EntryId { leader, index: 9 },
                    membership: None,
                },
                files: vec![file],
            },
        }
    }

    fn write(staging: &mut Staging, bytes: u64) -> Result<(), MachineError> {
        let missing = staging.missing().unwrap();
        staging.write(missing, &vec![7; bytes as usize])
    }

    /// It had no room, and another one at the same time would use up what it counts on.
    #[test]
    fn one_transfer_has_the_reserve_of_a_full_disk() {
        let (device, reserve) = disk();
        reserve.fill();
        let [mut one, mut other] = ["one", "other"].map(|name| staging(&device, &reserve, name));
        device.limit_space(Some(0));
        write(&mut one, SIZE / 2).unwrap();
        reserve.fill();
        assert!(one.is_lent() && reserve.is_missing());
        let refused = write(&mut other, SIZE / 2).unwrap_err();
        assert!(refused.is_no_room() && !other.is_lent(), "{refused}");
        drop(one);
        assert!(device.stat(Path::new("/disk/one")).is_err(), "half of it stays");
        reserve.fill();
        assert!(!reserve.is_missing());
        // A whole one stays.
        write(&mut other, SIZE).unwrap();
        other.finish().unwrap();
        drop(other);
        assert!(device.stat(Path::new("/disk/other/COMPLETE")).is_ok());
    }

    /// The checksums of two files are alike here, as are their lengths.
    #[test]
    fn small_files_of_another_transfer_are_not_taken_over() {
        let (device, reserve) = disk();
        let mut staging = staging(&device, &reserve, "one");
        let summed = |content: &[u8]| [content, &crc32c::crc32c(content).to_le_bytes()].concat();
        let (before, now) = (summed(b"version 10"), summed(b"version 9."));
        assert_eq!(crc32c::crc32c(&before), crc32c::crc32c(&now));
        staging.description.files.clear();
        for (name, bytes) in [("families/0/verified", before), ("families/0/tables/3", now)] {
            let path = staging.dir.join(FILES).join(name);
            device.create_dir_all(path.parent().unwrap()).unwrap();
            let file = device.open(&path, OpenMode::CreateNew).unwrap();
            write_all_at(&*file, &bytes, 0).unwrap();
            let (name, size, crc32c) = (name.to_owned(), 14, crc32c::crc32c(&bytes));
            staging.description.files.push(Described { name, size, crc32c });
            staging.got.push(Got::default());
        }
        staging.look().unwrap();
        assert_eq!(staging.there().take(2).collect::<Vec<_>>(), [0, 14]);
    }

    /// The sync at the end would say nothing of it, and what is in the cache is right.
    #[test]
    fn what_cannot_be_written_out_comes_anew() {
        let (device, reserve) = disk();
        let mut staging = staging(&device, &reserve, "one");
        write(&mut staging, SIZE / 2).unwrap();
        device.inject(Fault::new(FaultKind::SyncFails).on("files/file").times(1));
        let failed = write(&mut staging, SIZE / 2).unwrap_err();
        assert!(failed.to_string().contains("write out"), "{failed}");
        assert_eq!(staging.missing().map(|missing| missing.offset), Some(0));
        write(&mut staging, SIZE).unwrap();
        staging.finish().unwrap();
        for got in &mut staging.got {
            got.durable = false;
        }
        device.inject(Fault::new(FaultKind::SyncFails).on("files/file").times(1));
        staging.finish().unwrap_err();
        assert_eq!(staging.missing().map(|missing| missing.offset), Some(0));
        let begun = staging.scheduler.as_ref().unwrap().begun();
        assert_eq!(begun.background, 3, "one turn for each 512 KiB, or less");
    }

    #[test]
    fn half_a_transfer_goes_where_the_reserve_is_missing() {
        let (device, reserve) = disk();
        reserve.fill();
        write(&mut staging(&device, &reserve, "one"), SIZE / 2).unwrap();
        let dir = Path::new("/disk/one");
        let there = || device.stat(&dir.join("files/file")).is_ok();
        relieve(&device, dir, Some(&reserve));
        assert!(there(), "there is room");
        device.limit_space(Some(0));
        // One that has come to nothing while the node runs.
        let mut given_up = staging(&device, &reserve, "given-up");
        given_up.reserve = None;
        given_up.give_up();
        assert!(device.stat(Path::new("/disk/given-up")).is_err());
        let lent = reserve.lend(SIZE).unwrap();
        let other = || -> Result<(), MachineError> {
            let mut other = staging(&device, &reserve, "other");
            other.reserve = None;
            write(&mut other, SIZE / 4)
        };
        lent.relieve(MachineError::is_no_room, other).unwrap();
        drop(lent);
        reserve.fill();
        assert!(reserve.is_missing());
        relieve(&device, dir, Some(&reserve));
        assert!(!there() && !reserve.is_missing(), "half of it stays");
    }
}
