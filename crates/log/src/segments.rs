//! The segment files: prepared ahead of need, found by LSN, released and used again.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use collie_io::{Device, File, OpenMode, write_all_at};

use crate::Lsn;
use crate::archive::Archive;
use crate::beginning::{self, Beginning};
use crate::error::{At, LogError};
use crate::format::{SEGMENT_HEAD, SegmentHeader};
use crate::ring::Block;
use crate::sync::{Mutex, lock};
use zerocopy::{FromZeros, IntoBytes};

/// How much of a new segment is zeroed at a time. What is zeroed can be appended to.
const CHUNK: u64 = 4 << 20;
/// How much of it one write zeroes: past the page cache, writes of frames to the same file wait for it.
const PIECE: usize = 1 << 20;
/// How many released segments are kept for use as new ones; further ones are removed.
const SPARES: usize = 2;

/// The name of segment `number`.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:016x}.seg")
}

/// The number in a segment's name.
pub(crate) fn parse_file_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (file_name(number) == name).then_some(number)
}

/// A segment that is in use: `[first_lsn, end)` of the log.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) epoch: u32,
    pub(crate) salt: u32,
    pub(crate) first_lsn: Lsn,
    /// One past the last LSN that counts here: what fits, or where the next epoch takes over.
    pub(crate) end: Lsn,
    /// Where in the file the data begins.
    pub(crate) data_at: u64,
    pub(crate) beginning: Beginning,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    /// The same file, for writes that bypass the page cache.
    pub(crate) direct: Option<Arc<dyn File>>,
    /// Whether the whole file is allocated and this epoch's, so that it can be used again.
    pub(crate) reusable: bool,
}

impl Segment {
    /// Where an LSN's byte is in the file.
    pub(crate) fn offset(&self, lsn: Lsn) -> u64 {
        self.data_at + (lsn - self.first_lsn)
    }
}

#[derive(Debug, Default)]
struct Table {
    live: VecDeque<Arc<Segment>>,
    /// Released, oldest first, under their old names until they are used again.
    spare: VecDeque<Arc<Segment>>,
    /// On its way to the archive: it stays here until it is there, so that a reader that looks here first and then
    /// there finds it.
    leaving: Option<Arc<Segment>>,
}

impl Table {
    /// What can be read of it without the archive, oldest first.
    fn readable(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.leaving.iter().chain(&self.live)
    }
}

/// Where an LSN is.
#[derive(Debug)]
pub(crate) enum Whereabouts {
    /// In this segment or, where none holds it, right before it: an epoch may begin above the end of the one before.
    Live(Arc<Segment>),
    /// Before this segment, which is the oldest that is not archived.
    Before(Arc<Segment>),
}

/// The segments of an open log.
#[derive(Debug)]
pub(crate) struct Segments {
    device: Arc<dyn Device>,
    dir: PathBuf,
    direct: bool,
    archive: Option<Archive>,
    /// The epoch's header; number and first LSN vary.
    template: SegmentHeader,
    table: Mutex<Table>,
    builder: Mutex<Builder>,
}

/// What is being prepared. One thread at a time; it may be a worker that ran out of room.
#[derive(Debug)]
pub(crate) struct Builder {
    /// The last segment's number.
    number: u64,
    /// The log has room up to here.
    total: Lsn,
    /// The last segment, while part of it is not zeroed. The file is opened for this alone, so that a
    /// failed sync is told to the flusher too: the kernel tells it once per open file. It is written as the
    /// frames will be: zeros that nobody reads would take the page cache, and the processor's time, for nothing.
    unfinished: Option<(Arc<dyn File>, PathBuf, Lsn)>,
    /// The directory is somebody else's.
    closed: bool,
}

impl Builder {
    pub(crate) fn total(&self) -> Lsn {
        self.total
    }
}

impl Segments {
    /// The segments that recovery found and made; the last is the new epoch's, with `ready` bytes of data
    /// space zeroed.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        dir: PathBuf,
        template: SegmentHeader,
        live: VecDeque<Arc<Segment>>,
        ready: u64,
        archive: Option<Archive>,
    ) -> Result<Self, LogError> {
        let (mut number, mut total, mut unfinished, mut direct) = (0, 0, None, false);
        if let Some(last) = live.back() {
            number = last.number;
            direct = last.direct.is_some();
            total = last.end.min(last.first_lsn + ready);
            if total < last.end {
                let file = open_for_zeros(&*device, &last.path, direct)?;
                unfinished = Some((file, last.path.clone(), last.end));
            }
        }
        let table = Mutex::new(Table {
            live,
            spare: VecDeque::new(),
            leaving: None,
        });
        let builder = Mutex::new(Builder {
            number,
            total,
            unfinished,
            closed: false,
        });
        Ok(Self {
            device,
            dir,
            direct,
            archive,
            template,
            table,
            builder,
        })
    }

    /// The LSN of the epoch's first byte.
    pub(crate) fn epoch_start(&self) -> Lsn {
        self.template.first_lsn.get()
    }

    /// Whether they are written past the page cache, and so need no sync.
    pub(crate) fn direct(&self) -> bool {
        self.direct
    }

    pub(crate) fn builder(&self) -> crate::sync::MutexGuard<'_, Builder> {
        lock(&self.builder)
    }

    /// From here on no file is made, renamed or removed, by whomever: the directory is about to be let go.
    pub(crate) fn close(&self) {
        self.builder().closed = true;
    }

    /// Makes room for more: zeroes a further chunk, or begins a further segment. Everything that it makes
    /// is synced, names included, before `total` tells of it. On a full device spares make way, and then what is
    /// archived.
    pub(crate) fn extend(&self, builder: &mut Builder) -> Result<(), LogError> {
        if builder.closed {
            return Err(LogError::Closed);
        }
        loop {
            match self.try_extend(builder) {
                Err(error) if error.is_full() => self.make_room()?.then_some(()).ok_or(error)?,
                extended => return extended,
            }
        }
    }

    /// Removes what is not needed; `false` where there is nothing of the kind.
    fn make_room(&self) -> Result<bool, LogError> {
        let oldest = lock(&self.table).spare.pop_front();
        match (oldest, &self.archive) {
            (Some(spare), _) => self.remove(&spare).map(|()| true),
            (None, Some(archive)) => archive.give_up_oldest(),
            (None, None) => Ok(false),
        }
    }

    fn try_extend(&self, builder: &mut Builder) -> Result<(), LogError> {
        if let Some((file, path, end)) = &builder.unfinished {
            let chunk = CHUNK.min(end - builder.total);
            let offset = self.template.data_at() + self.template.data_bytes.get() - (end - builder.total);
            if self.direct {
                // Past the page cache, writes that make a file longer keep all others from it until they are done.
                file.allocate(offset + chunk).at("allocate", path)?;
            }
            zero(&**file, path, offset, chunk)?;
            file.sync_data().at("sync", path)?;
            builder.total += chunk;
            if builder.total == *end {
                builder.unfinished = None;
            }
            return Ok(());
        }
        let spare = lock(&self.table).spare.pop_front();
        match spare {
            Some(spare) => self.reuse(builder, spare),
            None => self.begin(builder),
        }
    }

    fn header(&self, number: u64, first_lsn: Lsn) -> SegmentHeader {
        let mut header = self.template;
        header.number = number.into();
        header.first_lsn = first_lsn.into();
        header
    }

    /// A released file takes the next number. Its old frames cannot be mistaken for new ones: their LSNs
    /// differ from their positions.
    fn reuse(&self, builder: &mut Builder, spare: Arc<Segment>) -> Result<(), LogError> {
        let header = self.header(builder.number + 1, builder.total);
        let path = self.dir.join(file_name(header.number.get()));
        if let Err(error) = self.device.rename(&spare.path, &path).at("rename", &spare.path) {
            lock(&self.table).spare.push_front(spare);
            return Err(error);
        }
        if let Err(error) = self.device.sync_dir(&self.dir).at("sync", &self.dir) {
            rename_back(&*self.device, &spare.path, &path);
            lock(&self.table).spare.push_front(spare);
            return Err(error);
        }
        let file = Arc::clone(&spare.file);
        // Cut short by the power, it is known for what it was: nobody need guess what its old frames prove.
        beginning::rewrite(&*file, &path, &header)?;
        self.add(builder, &header, path, file, header.data_bytes.get())
    }

    fn begin(&self, builder: &mut Builder) -> Result<(), LogError> {
        let header = self.header(builder.number + 1, builder.total);
        let chunk = CHUNK.min(header.data_bytes.get());
        let path = self.dir.join(file_name(header.number.get()));
        match create(&*self.device, &self.dir, &path, chunk, Some(&header)) {
            Ok(file) => self.add(builder, &header, path, file, chunk),
            Err(error) => {
                // What was written of it is in the way of others on a full device. If it cannot be removed,
                // the next attempt begins by emptying it.
                let _ = self.device.remove_file(&path);
                Err(error)
            }
        }
    }

    fn add(
        &self,
        builder: &mut Builder,
        header: &SegmentHeader,
        path: PathBuf,
        file: Arc<dyn File>,
        ready: u64,
    ) -> Result<(), LogError> {
        let end = header.end();
        if ready < header.data_bytes.get() {
            let zeroing = open_for_zeros(&*self.device, &path, self.direct)?;
            builder.unfinished = Some((zeroing, path.clone(), end));
        }
        let direct = self
            .direct
            .then(|| open_direct(&*self.device, &path))
            .transpose()?;
        let segment = in_use(header, path, file, direct);
        lock(&self.table).live.push_back(Arc::new(segment));
        builder.number += 1;
        builder.total += ready;
        Ok(())
    }

    /// The segment that holds `lsn`.
    pub(crate) fn find(&self, lsn: Lsn) -> Option<Arc<Segment>> {
        let table = lock(&self.table);
        let at = table.live.partition_point(|s| s.end <= lsn);
        table.live.get(at).filter(|s| s.first_lsn <= lsn).cloned()
    }

    /// Where a reader finds `lsn`; `None`: in no segment that there is yet. One that is being archived at this moment
    /// is found here; whoever is told that the LSN lies before, finds it in the archive, or it is gone for good.
    pub(crate) fn locate(&self, lsn: Lsn) -> Option<Whereabouts> {
        let table = lock(&self.table);
        let first = table.readable().next()?;
        if lsn < first.first_lsn {
            return Some(Whereabouts::Before(Arc::clone(first)));
        }
        let holder = table.readable().find(|segment| segment.end > lsn)?;
        Some(Whereabouts::Live(Arc::clone(holder)))
    }

    /// The first LSN that is still held in a segment.
    pub(crate) fn oldest(&self) -> Lsn {
        lock(&self.table).live.front().map_or(0, |s| s.first_lsn)
    }

    /// The end of the oldest segment, below which nothing may be held for it to be released.
    pub(crate) fn oldest_end(&self) -> Lsn {
        lock(&self.table).live.front().map_or(0, |s| s.end)
    }

    /// How many segments are live and spare, and the bytes that they take.
    pub(crate) fn size(&self) -> (usize, usize, u64) {
        let table = lock(&self.table);
        let bytes = table
            .live
            .iter()
            .chain(&table.spare)
            .map(|s| s.data_at + s.end - s.first_lsn)
            .sum();
        (table.live.len(), table.spare.len(), bytes)
    }

    /// Lets go of the segments that end at or below the LSN that `lowest` gives, oldest first, each for good
    /// before the next, so that a crash never leaves a gap. The guard that comes with the LSN is held until
    /// the segment has left the table: a new holder either is counted or finds it gone.
    pub(crate) fn release<G>(&self, mut lowest: impl FnMut() -> Option<(G, Lsn)>) -> Result<(), LogError> {
        loop {
            // Held so that no spare is renamed while an older one's removal is not yet durable.
            let builder = self.builder();
            if builder.closed {
                return Ok(());
            }
            let Some((guard, lsn)) = lowest() else {
                return Ok(());
            };
            drop(guard);
            let kept_from = beginning::record(&*self.device, &self.behind_what_ends_by(lsn), lsn)?;
            let Some((guard, lsn)) = lowest() else {
                return Ok(());
            };
            let Some(surplus) = self.let_go(lsn, kept_from) else {
                return Ok(());
            };
            drop(guard);
            if let Some(segment) = surplus {
                self.part_with(&segment)?;
                lock(&self.table).leaving = None;
            }
        }
    }

    /// Archives a released segment, or removes it, for good. The builder's lock is held.
    fn part_with(&self, segment: &Segment) -> Result<(), LogError> {
        let Some(archive) = &self.archive else {
            return self.remove(segment);
        };
        loop {
            match archive.take(segment) {
                // What is archived goes up to the live log without a gap: older ones make way first.
                Err(error) if error.is_full() => {
                    if !archive.give_up_oldest()? {
                        // It must not stay: the next one's release would leave a gap behind it.
                        tracing::warn!(path = %segment.path.display(), %error, "no room to archive a segment; it is removed");
                        return self.remove(segment);
                    }
                }
                taken => break taken?,
            }
        }
        archive.purge()
    }

    /// Removes what was archived for long enough.
    pub(crate) fn purge_archive(&self) -> Result<(), LogError> {
        let builder = self.builder();
        match &self.archive {
            Some(archive) if !builder.closed => archive.purge(),
            _ => Ok(()),
        }
    }

    pub(crate) fn archive(&self) -> Option<&Archive> {
        self.archive.as_ref()
    }

    /// Removes a segment's file for good. The builder's lock is held.
    fn remove(&self, segment: &Segment) -> Result<(), LogError> {
        let file = (segment.path.clone(), Arc::clone(&segment.file));
        remove_for_good(&*self.device, &self.dir, &[file])
    }

    /// The live segments right behind those that end at or below `lsn`, oldest first.
    fn behind_what_ends_by(&self, lsn: Lsn) -> Vec<Arc<Segment>> {
        let table = lock(&self.table);
        let before = table.live.iter().take_while(|before| before.end <= lsn);
        let next = before.zip(table.live.iter().skip(1)).map(|(_, next)| next);
        next.cloned().collect()
    }

    /// Takes the first segment out of the table if it ends at or below `lsn` and comes before segment
    /// `kept_from`, which says where it begins, and keeps it as a spare where that is possible. Gives the file that is to be parted with, if any. Spares are older than all that is live.
    fn let_go(&self, lsn: Lsn, kept_from: Option<u64>) -> Option<Option<Arc<Segment>>> {
        let mut table = lock(&self.table);
        // The last one is the one that is written to.
        if table.live.len() < 2 || table.live.front()?.end > lsn || table.live.front()?.number >= kept_from? {
            return None;
        }
        let first = table.live.pop_front()?;
        if self.archive.is_some() {
            table.leaving = Some(Arc::clone(&first));
        }
        if !first.reusable || self.archive.is_some() {
            return Some(Some(first));
        }
        table.spare.push_back(first);
        let surplus = if table.spare.len() > SPARES {
            table.spare.pop_front()
        } else {
            None
        };
        Some(surplus)
    }
}

/// The value for a segment of the current epoch.
pub(crate) fn in_use(
    header: &SegmentHeader,
    path: PathBuf,
    file: Arc<dyn File>,
    direct: Option<Arc<dyn File>>,
) -> Segment {
    Segment {
        number: header.number.get(),
        epoch: header.epoch.get(),
        salt: header.salt.get(),
        first_lsn: header.first_lsn.get(),
        end: header.end(),
        data_at: header.data_at(),
        beginning: Beginning::of(header),
        path,
        file,
        direct,
        reusable: true,
    }
}

/// Makes a segment file whose first `ready` data bytes are zeros really written (a reserved extent would
/// make every later sync write metadata), synced, name included.
pub(crate) fn create(
    device: &dyn Device,
    dir: &Path,
    path: &Path,
    ready: u64,
    header: Option<&SegmentHeader>,
) -> Result<Arc<dyn File>, LogError> {
    let file = device.open(path, OpenMode::OpenOrCreate).at("create", path)?;
    // An earlier attempt may have left something.
    file.set_len(0).at("truncate", path)?;
    zero(&*file, path, 0, SEGMENT_HEAD as u64 + ready)?;
    if let Some(header) = header {
        write_all_at(&*file, &header.encode(), 0).at("write", path)?;
    }
    file.sync_data().at("sync", path)?;
    device.sync_dir(dir).at("sync", dir)?;
    Ok(file)
}

/// Removes files of `dir` for good; one that is gone already is as good. Where the directory cannot be synced, a crash
/// may bring a name back when what followed it is gone, and the process after this one cannot know: then the files
/// are emptied, so that nothing comes back with their names.
pub(crate) fn remove_for_good(
    device: &dyn Device,
    dir: &Path,
    files: &[(PathBuf, Arc<dyn File>)],
) -> Result<(), LogError> {
    if files.is_empty() {
        return Ok(());
    }
    for (path, _) in files {
        match device.remove_file(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.at("remove", path)?,
        }
    }
    let synced = device.sync_dir(dir);
    if synced.is_err() {
        files.iter().for_each(|(_, file)| empty(&**file));
    }
    synced.at("sync", dir)
}

/// Empties a removed file, unless it has another name. Where that does not succeed there was one fault too many; the
/// first one is told.
fn empty(file: &dyn File) {
    if file.stat().is_ok_and(|stat| stat.links == 0) && file.set_len(0).is_ok() {
        let _ = file.sync_data();
    }
}

/// Undoes a renaming to `new` that could not be synced: the next process finds the file under the name that the device
/// may still have, and does with it what this one could not. Told is why.
pub(crate) fn rename_back(device: &dyn Device, old: &Path, new: &Path) {
    if let Err(error) = device.rename(new, old) {
        tracing::warn!(path = %new.display(), %error, "cannot rename it back");
    }
}

pub(crate) fn open_direct(device: &dyn Device, path: &Path) -> Result<Arc<dyn File>, LogError> {
    device
        .open(path, OpenMode::DirectSync)
        .at("open for direct writes", path)
}

fn open_for_zeros(device: &dyn Device, path: &Path, direct: bool) -> Result<Arc<dyn File>, LogError> {
    if direct {
        open_direct(device, path)
    } else {
        device.open(path, OpenMode::ReadWrite).at("open", path)
    }
}

fn zero(file: &dyn File, path: &Path, mut offset: u64, mut len: u64) -> Result<(), LogError> {
    static ZEROS: OnceLock<Vec<Block>> = OnceLock::new();
    let zeros = ZEROS
        .get_or_init(|| vec![Block::new_zeroed(); PIECE / size_of::<Block>()])
        .as_bytes();
    while len > 0 {
        let n = len.min(zeros.len() as u64);
        let (piece, _) = zeros.split_at(n as usize);
        write_all_at(file, piece, offset).at("write", path)?;
        offset += n;
        len -= n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_numbers_and_nothing_else_is_taken_for_one() {
        for number in [1, 255, u64::MAX] {
            assert_eq!(parse_file_name(&file_name(number)), Some(number));
        }
        for name in [
            "1.seg",
            "000000000000000A.seg",
            "0000000000000001",
            "LOCK",
            "+000000000000001.seg",
        ] {
            assert_eq!(parse_file_name(name), None, "{name}");
        }
    }
}
