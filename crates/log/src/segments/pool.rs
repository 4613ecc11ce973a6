//! The segment files: prepared ahead of need, found by LSN, released and used again.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use collie_io::{Device, File, OpenMode, Reserve};

use crate::Lsn;
use crate::error::{At, Fatal, HousekeepingError, LogError};
use crate::format::{SEGMENT_STEP, SegmentHeader};
use crate::lockfree::sync::{Mutex, Ordering, lock};
use crate::segments::archive::Archive;
use crate::segments::beginning;
use crate::segments::files::{
    Directory, allocate, create, file_name, open_direct, open_for_zeros, remove_for_good, rewrite, zero,
};
use crate::segments::holders::Holders;
use crate::segments::renaming::Renaming;
use crate::segments::segment::{Live, Segment, SegmentMeta, in_use};

/// How much of a new segment is zeroed at a time. What is zeroed can be appended to.
const CHUNK: u64 = SEGMENT_STEP;
/// How many released segments are kept for use as new ones; further ones are removed.
const SPARES: usize = 2;

/// The segments, by what they are: live, spare, or on their way out.
#[derive(Debug, Default)]
struct Table {
    live: VecDeque<Live>,
    /// Released, oldest first, under their old names until they are used again.
    spare: VecDeque<SegmentMeta>,
    /// On its way out. It is older than all others and goes before any of them, however often it
    /// has to be tried: a gap behind it would not be the log.
    leaving: Option<Arc<Segment>>,
}

impl Table {
    /// What can be read of it without the archive, oldest first. A segment that is being archived
    /// stays until it is there, so that a reader that comes here first and then there finds it.
    fn readable(&self, archives: bool) -> impl Iterator<Item = Live> {
        let leaving = self.leaving.iter().filter(move |_| archives).cloned();
        leaving.map(Live::Open).chain(self.live.iter().cloned())
    }
}

/// Where an LSN is.
#[derive(Debug)]
pub(crate) enum Whereabouts {
    /// In this segment or, where none holds it, right before it: an epoch may begin above the end
    /// of the one before.
    Live(Live),
    /// Before this segment, which is the oldest that is not archived.
    Before(Live),
}

/// The segments of an open log.
#[derive(Debug)]
pub(crate) struct Segments {
    device: Arc<dyn Device>,
    dir: Directory,
    direct: bool,
    archive: Option<Archive>,
    /// The epoch's header; number and first LSN vary.
    template: SegmentHeader,
    table: Mutex<Table>,
    builder: Mutex<Builder>,
    /// Where nothing is archived: else the archive's.
    own_renaming: Renaming,
    /// The room that is to be kept back for an opening, as long as it is not all there.
    owed: Mutex<Option<Reserve>>,
    /// Room on the device is for what makes room: none is taken for commits.
    withheld: AtomicBool,
    /// Who retains them.
    pub(crate) holders: Mutex<Holders>,
}

/// What is being prepared. One thread at a time; it may be a worker that ran out of room.
#[derive(Debug)]
pub(crate) struct Builder {
    /// The last segment's number.
    number: u64,
    /// The log has room up to here.
    total: Lsn,
    /// The last segment, while part of it is not zeroed. The file is opened for this alone, so that
    /// a failed sync is reported to the flusher too: the kernel reports it once per open file. It
    /// is written as the frames will be: zeros that are never read would take the page cache, and
    /// the processor's time, for nothing.
    unfinished: Option<(Arc<dyn File>, PathBuf, Lsn)>,
    /// The directory belongs to another log, or may soon.
    closed: bool,
}

impl Builder {
    pub(crate) fn total(&self) -> Lsn {
        self.total
    }
}

impl Segments {
    /// The segments that recovery found and made; the last is the new epoch's, with `ready` bytes
    /// of data space zeroed.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        dir: Directory,
        template: SegmentHeader,
        mut live: VecDeque<Arc<Segment>>,
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
        // Those before it are synced, and not written to any more.
        let last = live.pop_back();
        let cold = live.into_iter().map(|s| Live::Cold(Arc::new(s.meta.clone())));
        let table = Mutex::new(Table {
            live: cold.chain(last.map(Live::Open)).collect(),
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
            own_renaming: Renaming::default(),
            owed: Mutex::new(None),
            withheld: AtomicBool::new(false),
            holders: Mutex::new(Holders::default()),
        })
    }

    /// Whether no room is taken for commits from here on.
    pub(crate) fn withhold(&self, withheld: bool) {
        // Relaxed: a commit that is being given room at this moment gets it.
        self.withheld.store(withheld, Ordering::Relaxed);
    }

    /// As [`Segments::extend`], for commits: fails as on a full device while room is withheld from
    /// them.
    pub(crate) fn extend_for_commits(&self, builder: &mut Builder) -> Result<(), HousekeepingError> {
        if self.withheld.load(Ordering::Relaxed) {
            let full = std::io::Error::from(ErrorKind::StorageFull);
            Err::<(), _>(full).at("take room for commits in", self.dir.path())?;
        }
        self.extend(builder)
    }

    /// From here on nothing takes room before this reserve has its own.
    pub(crate) fn owe(&self, reserve: Reserve) {
        *lock(&self.owed) = Some(reserve);
    }

    /// Whether a reserve has yet to get its room.
    pub(crate) fn owes(&self) -> bool {
        lock(&self.owed).is_some()
    }

    /// Refuses to take room that is owed to the reserve.
    fn fill_reserve(&self) -> Result<(), LogError> {
        let mut owed = lock(&self.owed);
        if let Some(reserve) = &*owed
            && let Ok(false) = reserve.fill(&*self.device)
        {
            let full = std::io::Error::from(ErrorKind::StorageFull);
            return Err(full).at("keep room back in", reserve.path());
        }
        // Where it cannot be kept for another reason, the log goes on without it.
        *owed = None;
        Ok(())
    }

    /// Whether they are written past the page cache, and so need no sync.
    pub(crate) fn direct(&self) -> bool {
        self.direct
    }

    pub(crate) fn builder(&self) -> crate::lockfree::sync::MutexGuard<'_, Builder> {
        lock(&self.builder)
    }

    /// From here on no file is made, renamed or removed, by whomever: the directory is about to be
    /// unlocked.
    pub(crate) fn close(&self) {
        self.builder().closed = true;
    }

    /// Makes room for more: zeroes a further chunk, or begins a further segment. Everything that it
    /// makes is synced, names included, before `total` includes it. On a full device spares make
    /// way, and then what is archived.
    pub(crate) fn extend(&self, builder: &mut Builder) -> Result<(), HousekeepingError> {
        if builder.closed {
            return Err(LogError::Closed.into());
        }
        loop {
            match self.try_extend(builder) {
                Err(HousekeepingError::Setback(error)) if error.is_full() && self.make_room(builder) => {}
                extended => return extended,
            }
        }
    }

    /// Removes something that is not needed; `false` where there is nothing of the kind, or it
    /// cannot be removed.
    fn make_room(&self, builder: &Builder) -> bool {
        let removed = match self.finish_leaving(builder) {
            Ok(false) if self.let_spare_go() => self.finish_leaving(builder),
            Ok(false) => self.archive.as_ref().map_or(Ok(false), Archive::give_up_oldest),
            finished => finished,
        };
        removed.unwrap_or_else(|error| {
            tracing::warn!(%error, "the device is full, and what is not needed stays");
            false
        })
    }

    /// Removes the spares, and what is archived: the room is needed elsewhere.
    pub(crate) fn give_up_spares(&self) -> bool {
        let builder = self.builder();
        let mut any = false;
        while !builder.closed && self.make_room(&builder) {
            any = true;
        }
        any
    }

    fn try_extend(&self, builder: &mut Builder) -> Result<(), HousekeepingError> {
        if let Some((file, path, end)) = &builder.unfinished {
            self.fill_reserve()?;
            let chunk = CHUNK.min(end - builder.total);
            let offset = self.template.data_at() + self.template.data_bytes.get() - (end - builder.total);
            if self.direct {
                // Past the page cache, writes that make a file longer keep all others from it until
                // they are done.
                allocate(&**file, path, offset + chunk)?;
            }
            zero(&**file, path, offset, chunk)?;
            match file.sync_data().at("sync", path) {
                // Frames may be among what was to be synced.
                Err(error) if !self.direct => return Err(HousekeepingError::Fatal(Fatal::frames(&error))),
                // Those are durable when their writes return. The zeros are written again before
                // they are synced again.
                synced => synced?,
            }
            builder.total += chunk;
            if builder.total == *end {
                builder.unfinished = None;
            }
            return Ok(());
        }
        // As long as an older one has not left, a spare that takes a new name would leave a gap
        // behind it.
        let spare = match self.finish_leaving(builder) {
            Ok(_) => lock(&self.table).spare.pop_front(),
            Err(_) => None,
        };
        let reused = spare.map(|spare| self.reuse(builder, spare));
        if let Some(Err(error)) = &reused {
            tracing::debug!(%error, "a spare segment cannot be used; a new one is made");
        }
        if !matches!(reused, Some(Ok(()))) {
            // The next segment's name may still be that of what was to have it.
            self.renaming().undo(&*self.device)?;
            self.fill_reserve()?;
            self.begin(builder)?;
        }
        Ok(())
    }

    fn header(&self, number: u64, first_lsn: Lsn) -> SegmentHeader {
        let mut header = self.template;
        header.number = number.into();
        header.first_lsn = first_lsn.into();
        header
    }

    /// Gives a released file the next segment's name, for good. Under it, and with the header that it
    /// has, an open knows it for one that was released.
    fn take_next_name(&self, builder: &Builder, old: &Path) -> Result<PathBuf, LogError> {
        let next = self.dir.path().join(file_name(builder.number + 1));
        self.renaming()
            .rename(&*self.device, old, &next, || self.dir.sync())?;
        Ok(next)
    }

    /// All renamings of this log's segments, one at a time: what is to be undone comes before any other.
    fn renaming(&self) -> &Renaming {
        self.archive
            .as_ref()
            .map_or(&self.own_renaming, |archive| &archive.renaming)
    }

    /// A released file takes the next number. Its old frames cannot be mistaken for new ones: their
    /// LSNs differ from their positions.
    fn reuse(&self, builder: &mut Builder, spare: SegmentMeta) -> Result<(), LogError> {
        let mut header = self.header(builder.number + 1, builder.total);
        header.set_prepared(header.data_bytes.get());
        // Before it has the new name: when it has, nothing may be missing.
        let opened = self
            .device
            .open(&spare.path, OpenMode::ReadWrite)
            .at("open", &spare.path)
            .and_then(|file| Ok((file, self.open_for_frames(&spare.path)?)));
        let renamed = opened.and_then(|opened| Ok((opened, self.take_next_name(builder, &spare.path)?)));
        let ((file, direct), path) = match renamed {
            Ok(renamed) => renamed,
            Err(error) => {
                // Where it was removed by hand it is gone.
                if !error.is_not_found() {
                    lock(&self.table).spare.push_front(spare);
                }
                return Err(error);
            }
        };
        // Cut short by the power, it is known for what it was: what its old frames prove need
        // not be guessed.
        if let Err(error) = rewrite(&*file, &path, &header) {
            // It belongs to no log now; the next attempt makes a file of its own.
            let _ = self.device.remove_file(&path);
            return Err(error);
        }
        let ready = header.data_bytes.get();
        self.add(builder, in_use(&header, path, file, direct), None, ready);
        Ok(())
    }

    fn begin(&self, builder: &mut Builder) -> Result<(), LogError> {
        let mut header = self.header(builder.number + 1, builder.total);
        let chunk = CHUNK.min(header.data_bytes.get());
        header.set_prepared(chunk);
        let path = self.dir.path().join(file_name(header.number.get()));
        let made = create(&self.dir, &path, chunk, Some(&header)).and_then(|file| {
            let direct = self.open_for_frames(&path)?;
            let is_whole = chunk == header.data_bytes.get();
            let zeroing = (!is_whole).then(|| open_for_zeros(&*self.device, &path, self.direct));
            Ok((file, direct, zeroing.transpose()?))
        });
        match made {
            Ok((file, direct, zeroing)) => {
                let segment = in_use(&header, path, file, direct);
                self.add(builder, segment, zeroing, chunk);
                Ok(())
            }
            Err(error) => {
                // What was written of it is in the way of others on a full device. If it cannot be
                // removed, the next attempt does it.
                let _ = self.device.remove_file(&path);
                Err(error)
            }
        }
    }

    /// A further descriptor for frames, where they go past the page cache.
    fn open_for_frames(&self, path: &Path) -> Result<Option<Arc<dyn File>>, LogError> {
        self.direct.then(|| open_direct(&*self.device, path)).transpose()
    }

    /// `zeroing` is there where more of it is to be zeroed than is `ready`.
    fn add(&self, builder: &mut Builder, segment: Segment, zeroing: Option<Arc<dyn File>>, ready: u64) {
        builder.unfinished = zeroing.map(|file| (file, segment.path.clone(), segment.end));
        lock(&self.table).live.push_back(Live::Open(Arc::new(segment)));
        builder.number += 1;
        builder.total += ready;
    }

    /// The segment that holds `lsn`, to write frames to it from there on. To those before it
    /// nothing is written any more: from now on they are open only as long as they are yet to be
    /// synced or read.
    pub(crate) fn find_to_write(&self, lsn: Lsn) -> Option<Arc<Segment>> {
        let mut table = lock(&self.table);
        let at = table.live.partition_point(|s| s.end <= lsn);
        for live in table.live.iter_mut().take(at) {
            if let Live::Open(_) = live {
                *live = Live::Cold(Arc::new(live.meta()));
            }
        }
        match table.live.get(at)? {
            Live::Open(segment) if segment.first_lsn <= lsn => Some(Arc::clone(segment)),
            _ => None,
        }
    }

    /// Where a reader finds `lsn`; `None`: in no segment that there is yet. One that is being
    /// archived at this moment is found here; where the LSN lies before, it is in the
    /// archive, or gone for good.
    pub(crate) fn locate(&self, lsn: Lsn) -> Option<Whereabouts> {
        let table = lock(&self.table);
        let archives = self.archive.is_some();
        let first = table.readable(archives).next()?;
        if lsn < first.first_lsn {
            return Some(Whereabouts::Before(first));
        }
        let holder = table.readable(archives).find(|segment| segment.end > lsn)?;
        Some(Whereabouts::Live(holder))
    }

    /// The first LSN that is still in a segment.
    pub(crate) fn oldest(&self) -> Lsn {
        lock(&self.table).live.front().map_or(0, |s| s.first_lsn)
    }

    /// The end of the oldest segment, below which nothing may be retained for it to be released.
    pub(crate) fn oldest_end(&self) -> Lsn {
        lock(&self.table).live.front().map_or(0, |s| s.end)
    }

    /// How many segments are live and spare, and the bytes that they take.
    pub(crate) fn size(&self) -> (usize, usize, u64) {
        let table = lock(&self.table);
        let live = table.live.iter().map(std::ops::Deref::deref);
        let bytes = live.chain(&table.spare).map(|s| s.data_at + s.end - s.first_lsn);
        (table.live.len(), table.spare.len(), bytes.sum())
    }

    /// Releases the segments that end at or below the LSN that `lowest` gives, oldest first, each
    /// for good before the next, so that a crash never leaves a gap. The guard that comes with the
    /// LSN is held until the segment has left the table: a new holder either is counted or finds it
    /// gone.
    pub(crate) fn release<G>(
        &self,
        mut lowest: impl FnMut() -> Option<(G, Lsn)>,
    ) -> Result<(), HousekeepingError> {
        loop {
            // Before the builder's lock is held, for which who needs room waits: a segment may be
            // read for it.
            if let Some((guard, lsn)) = lowest() {
                drop(guard);
                self.find_beginning(lsn)?;
            }
            // Held so that no spare is renamed while an older one's removal is not yet durable.
            let builder = self.builder();
            if builder.closed {
                return Ok(());
            }
            self.finish_leaving(&builder)?;
            if self.has_surplus() && self.let_spare_go() {
                continue;
            }
            let Some(lsn) = lowest().map(|(_, lsn)| lsn) else {
                return Ok(());
            };
            // What comes to be the oldest has to say where it begins, before what is before it
            // goes.
            let kept_from =
                beginning::record(&*self.device, &self.behind_what_ends_by(lsn), lsn, self.direct)?;
            let first = self.first_below(lsn);
            let Some(first) = first.filter(|first| kept_from.is_some_and(|kept| first.number < kept)) else {
                return Ok(());
            };
            // Spares are older than all that is live.
            let is_spare = first.reusable && self.archive.is_none();
            let leaving = if is_spare {
                None
            } else {
                self.open_to_leave(&first)?
            };
            // A new holder may retain it by now.
            let Some((guard, _)) = lowest().filter(|(_, lsn)| first.end <= *lsn) else {
                return Ok(());
            };
            let mut table = lock(&self.table);
            table.live.pop_front();
            table.leaving = leaving;
            if is_spare {
                table.spare.push_back(first.meta());
            }
            drop((table, guard));
        }
    }

    /// Finds out where the segment begins that is the oldest when the one before it is released, if
    /// that is to be.
    fn find_beginning(&self, lsn: Lsn) -> Result<(), LogError> {
        let Some(first) = self.first_below(lsn) else {
            return Ok(());
        };
        beginning::find(&*self.device, &first, &self.behind_what_ends_by(lsn), lsn)
    }

    /// Parts with what is on its way out; `false` where nothing is.
    fn finish_leaving(&self, builder: &Builder) -> Result<bool, LogError> {
        self.renaming().undo(&*self.device)?;
        let Some(leaving) = lock(&self.table).leaving.clone() else {
            return Ok(false);
        };
        self.part_with(builder, &leaving)?;
        lock(&self.table).leaving = None;
        Ok(true)
    }

    fn has_surplus(&self) -> bool {
        lock(&self.table).spare.len() > SPARES
    }

    /// Sends the oldest spare on its way out, where there is one and nothing else is. The builder's
    /// lock is held.
    fn let_spare_go(&self) -> bool {
        let Some(oldest) = lock(&self.table).spare.front().cloned() else {
            return false;
        };
        let Ok(leaving) = self.open_to_leave(&Live::Cold(Arc::new(oldest))) else {
            return false;
        };
        let mut table = lock(&self.table);
        table.spare.pop_front();
        table.leaving = leaving;
        true
    }

    /// Archives a released segment, or removes it, for good.
    fn part_with(&self, builder: &Builder, segment: &Segment) -> Result<(), LogError> {
        let Some(archive) = &self.archive else {
            return self.remove(builder, segment);
        };
        loop {
            match archive.take(segment) {
                // What is archived goes up to the live log without a gap: older ones make way
                // first.
                Err(error) if error.is_full() => {
                    if !archive.give_up_oldest()? {
                        archive.settle()?;
                        // It must not stay: the next one's release would leave a gap behind it.
                        tracing::warn!(path = %segment.path.display(), %error, "no room to archive a segment; it is removed");
                        return self.remove(builder, segment);
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

    /// Removes a released segment for good: its own name goes with a renaming. If the power brings the
    /// next one back, it is no segment.
    fn remove(&self, builder: &Builder, segment: &Segment) -> Result<(), LogError> {
        match self.take_next_name(builder, &segment.path) {
            // It was removed by hand.
            Err(error) if error.is_not_found() => Ok(()),
            // A file system that writes nothing in place may need room to rename. A reader sees it go as one that
            // is used again.
            Err(error) if error.is_full() => {
                self.renaming().undo(&*self.device)?;
                let file = (segment.path.clone(), Arc::clone(&segment.file));
                remove_for_good(&self.dir, &[file])
            }
            Err(error) => Err(error),
            Ok(next) => {
                let removed = self.device.remove_file(&next).at("remove", &next);
                removed.inspect_err(|_| self.renaming().give_back(&*self.device, &segment.path, &next))
            }
        }
    }

    /// The live segments right behind those that end at or below `lsn`, oldest first.
    fn behind_what_ends_by(&self, lsn: Lsn) -> Vec<Live> {
        let table = lock(&self.table);
        let before = table.live.iter().take_while(|before| before.end <= lsn);
        let next = before.zip(table.live.iter().skip(1)).map(|(_, next)| next);
        next.cloned().collect()
    }

    /// The oldest segment, if it ends at or below `lsn`. The last one is the one that is written
    /// to.
    fn first_below(&self, lsn: Lsn) -> Option<Live> {
        let table = lock(&self.table);
        let first = table.live.front().filter(|first| first.end <= lsn)?;
        (table.live.len() > 1).then(|| first.clone())
    }

    /// Opens what is to be parted with; `None` where it was removed by hand.
    fn open_to_leave(&self, segment: &Live) -> Result<Option<Arc<Segment>>, LogError> {
        match segment.open(&*self.device, OpenMode::ReadWrite) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some).at("open", &segment.path),
        }
    }
}
