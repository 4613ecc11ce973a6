//! Released segments that are kept for a while:
//! [`LogOptions::archive_ttl`](crate::LogOptions::archive_ttl) and
//! [`LogOptions::archive_bytes`](crate::LogOptions::archive_bytes).
//!
//! They lie in a directory of their own, which recovery does not read, under names that are not
//! those of live segments and say when each came there. The oldest go first: when they are too
//! old, when all together take too much, and when the device is full.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Device, File, OpenMode};

use crate::error::{At, LogError, corrupt_at};
use crate::format::SegmentHeader;
use crate::lockfree::sync::{Mutex, lock};
use crate::options::LogOptions;
use crate::segments::files::{file_name, open_if_there, read_header};
use crate::segments::renaming::Renaming;
use crate::segments::segment::Segment;

/// The archive's directory, in the log's.
pub(crate) const DIR: &str = "archive";
/// How often segments that are too old are removed at the least; those with a short time more
/// often.
const PURGE_INTERVAL: Duration = Duration::from_secs(600);

/// The name of a segment that was archived at `ms` milliseconds since 1970.
fn name_of(number: u64, ms: u64) -> String {
    format!("{number:016x}-{ms:012x}.seg")
}

/// The number in an archived segment's name, and the time.
pub(crate) fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (number, ms) = name.strip_suffix(".seg")?.split_once('-')?;
    let (number, ms) = (
        u64::from_str_radix(number, 16).ok()?,
        u64::from_str_radix(ms, 16).ok()?,
    );
    (name_of(number, ms) == name).then_some((number, ms))
}

/// The archived segments in a directory.
pub(crate) struct Listing {
    /// By number: when each was archived, and its path.
    pub(crate) segments: BTreeMap<u64, (u64, PathBuf)>,
    /// Further names of the same segments. A renaming to here is durable in two directories, one
    /// after the other: a crash between the two leaves the segment here and in the log, which
    /// archives it once more, under a later name. Nothing is ever written to it meanwhile, so all
    /// its names show the same bytes.
    pub(crate) again: Vec<PathBuf>,
}

/// Lists the archive in `dir`.
pub(crate) fn list(device: &dyn Device, dir: &Path) -> std::io::Result<Listing> {
    let (mut segments, mut again) = (BTreeMap::new(), Vec::new());
    for entry in device.list(dir)?.into_iter().filter(|entry| !entry.is_dir()) {
        if let Some((number, since)) = parse_name(&entry.name) {
            let path = dir.join(entry.name);
            // Names come sorted, the time behind the number: the last one is the latest.
            again.extend(segments.insert(number, (since, path)).map(|(_, path)| path));
        }
    }
    Ok(Listing { segments, again })
}

/// A segment in the archive.
#[derive(Debug)]
struct ArchivedSegment {
    path: PathBuf,
    bytes: u64,
    /// When it was archived, in milliseconds since 1970.
    since: u64,
}

/// The archive of an open log.
#[derive(Debug)]
pub(crate) struct Archive {
    device: Arc<dyn Device>,
    dir: PathBuf,
    ttl: Duration,
    bytes: u64,
    /// By number, and so oldest first.
    kept: Mutex<BTreeMap<u64, ArchivedSegment>>,
    pub(super) renaming: Renaming,
    /// The segment whose name in the log may be on the device still.
    unsettled: Mutex<Option<u64>>,
}

impl Archive {
    /// The archive of the log in `log_dir`, with what is there; `None` where the options ask for
    /// none. What earlier options left is removed then, with a warning.
    pub(crate) fn open(
        log_dir: &Path,
        options: &LogOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Self>, LogError> {
        let archive = Self {
            device: Arc::clone(&options.device),
            dir: log_dir.join(DIR),
            ttl: options.archive_ttl,
            bytes: options.archive_bytes,
            kept: Mutex::default(),
            renaming: Renaming::default(),
            unsettled: Mutex::default(),
        };
        let exists = archive.find(warnings)?;
        *lock(&archive.unsettled) = lock(&archive.kept).keys().next_back().copied();
        let settle = || match archive.settle() {
            // There is no room for a name. It comes before the next segment.
            Err(error) if error.is_full() => Ok(()),
            settled => settled,
        };
        if options.archives() {
            settle()?;
            if !exists {
                archive
                    .device
                    .create_dir_all(&archive.dir)
                    .at("create", &archive.dir)?;
                archive.device.sync_dir(log_dir).at("sync", log_dir)?;
            }
            return Ok(Some(archive));
        }
        let (count, _) = archive.size();
        while archive.give_up_oldest()? {}
        settle()?;
        if count > 0 {
            warnings.push(format!(
                "{count} archived segments were removed from {}: the log is opened without an archive",
                archive.dir.display()
            ));
        }
        Ok(None)
    }

    /// Takes stock; `false` where there is no directory.
    fn find(&self, warnings: &mut Vec<String>) -> Result<bool, LogError> {
        let Listing { segments, again } = match list(&*self.device, &self.dir) {
            Ok(listing) => listing,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e).at("list", &self.dir),
        };
        for path in &again {
            if let Err(error) = self.remove(path) {
                warnings.push(format!(
                    "a segment is archived twice: {error}; the later name counts"
                ));
            }
        }
        for (number, (since, path)) in segments {
            let bytes = self.device.stat(&path).at("stat", &path)?.len;
            lock(&self.kept).insert(number, ArchivedSegment { path, bytes, since });
        }
        Ok(true)
    }

    /// Moves a released segment here, for good: when this returns, it is not in the log's directory
    /// any more, whatever happens.
    pub(crate) fn take(&self, segment: &Segment) -> Result<(), LogError> {
        self.settle()?;
        let mut since = self.now();
        let mut path = self.dir.join(name_of(segment.number, since));
        // A crash may have left it in both places, as two names of one file. Renaming one to the
        // other would do nothing.
        let before = lock(&self.kept)
            .get(&segment.number)
            .map(|kept| kept.path.clone());
        if before.as_ref() == Some(&path) {
            since += 1;
            path = self.dir.join(name_of(segment.number, since));
        }
        let bytes = segment.file.stat().at("stat", &segment.path)?.len;
        let log_dir = self.dir.parent().unwrap_or(&self.dir);
        let rename = || self.rename(&segment.path, &path);
        match rename() {
            Err(e) if e.is_not_found() => {
                if self.is_gone(&segment.path)? {
                    return self.device.sync_dir(log_dir).at("sync", log_dir);
                }
                // Then the archive was removed by hand.
                self.device.create_dir_all(&self.dir).at("create", &self.dir)?;
                lock(&self.kept).clear();
                rename()?;
            }
            renamed => renamed?,
        }
        lock(&self.kept).insert(segment.number, ArchivedSegment { path, bytes, since });
        before.map_or(Ok(()), |before| self.remove(&before))
    }

    /// Renames a segment of the log to one here, for good.
    fn rename(&self, live: &Path, archived: &Path) -> Result<(), LogError> {
        let log_dir = self.dir.parent().unwrap_or(&self.dir);
        self.renaming.rename(&*self.device, live, archived, || {
            // The new name first: a crash in between leaves one of the two, or both, and not none.
            let mut dirs = [&*self.dir, log_dir].into_iter();
            dirs.try_for_each(|dir| self.device.sync_dir(dir).at("sync", dir))
        })
    }

    /// Has the newest segment that this open has found here moved for good. A process that died may have
    /// moved it by a renaming that could be neither synced nor undone, and no later sync makes up for
    /// that: the name that it had in the log is made and removed anew. (A power cut may then take it from
    /// here as well.)
    pub(super) fn settle(&self) -> Result<(), LogError> {
        let mut unsettled = lock(&self.unsettled);
        let Some(number) = *unsettled else {
            return Ok(());
        };
        let log_dir = self.dir.parent().unwrap_or(&self.dir);
        let live = log_dir.join(file_name(number));
        match self.device.open(&live, OpenMode::CreateNew) {
            Ok(file) => {
                drop(file);
                self.device.remove_file(&live).at("remove", &live)?;
                self.device.sync_dir(log_dir).at("sync", log_dir)?;
            }
            // A crash left it in both places: it is yet to be moved.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e).at("create", &live),
        }
        *unsettled = None;
        Ok(())
    }

    /// Removes a name for good; one that is gone already is as good.
    fn remove(&self, path: &Path) -> Result<(), LogError> {
        match self.device.remove_file(path) {
            // It was removed by hand.
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            removed => {
                removed.at("remove", path)?;
                // Should a crash bring it back, the next open finds it and it is removed again.
                self.device.sync_dir(&self.dir).at("sync", &self.dir)
            }
        }
    }

    /// Whether a released segment was removed by hand.
    fn is_gone(&self, path: &Path) -> Result<bool, LogError> {
        match self.device.stat(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(true),
            stat => stat.at("stat", path).map(|_| false),
        }
    }

    /// Removes what is too old, and the oldest of what is too much.
    pub(crate) fn purge(&self) -> Result<(), LogError> {
        let now = self.now();
        for kept in lock(&self.kept).values_mut() {
            // A clock that was stepped back keeps nothing for longer than its time from now on.
            kept.since = kept.since.min(now);
        }
        while self.oldest_is_due(now) {
            self.give_up_oldest()?;
        }
        Ok(())
    }

    fn oldest_is_due(&self, now: u64) -> bool {
        let kept = lock(&self.kept);
        let total: u64 = kept.values().map(|kept| kept.bytes).sum();
        let ttl = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        kept.values().next().is_some_and(|oldest| {
            let age = now.saturating_sub(oldest.since);
            ttl > 0 && age >= ttl || self.bytes > 0 && total > self.bytes
        })
    }

    /// Removes the oldest segment; `false` where there is none.
    pub(crate) fn give_up_oldest(&self) -> Result<bool, LogError> {
        let Some((number, oldest)) = lock(&self.kept).pop_first() else {
            return Ok(false);
        };
        if let Err(error) = self.remove(&oldest.path) {
            lock(&self.kept).insert(number, oldest);
            return Err(error);
        }
        Ok(true)
    }

    /// How long until what is too old is to be removed.
    pub(crate) fn interval(&self) -> Duration {
        match self.ttl {
            Duration::ZERO => PURGE_INTERVAL,
            ttl => PURGE_INTERVAL.min(ttl / 2).max(Duration::from_millis(100)),
        }
    }

    /// How many segments are here, and the bytes that they take.
    pub(crate) fn size(&self) -> (usize, u64) {
        let kept = lock(&self.kept);
        (kept.len(), kept.values().map(|kept| kept.bytes).sum())
    }

    /// The numbers and paths of the segments that are here, newest first.
    pub(crate) fn newest_first(&self) -> Vec<(u64, PathBuf)> {
        let kept = lock(&self.kept);
        let newest_first = kept.iter().rev();
        newest_first
            .map(|(number, kept)| (*number, kept.path.clone()))
            .collect()
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    fn now(&self) -> u64 {
        self.device.clock().wall_ms()
    }
}

/// An archived segment's header, and the file that it was read from.
pub(crate) struct ArchivedFile {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn File>,
}

/// Opens an archived segment and reads its header; `None` where it is gone. Files are not kept open:
/// the archive may be cleaned under its readers, and what is read next may be gone by then.
pub(crate) fn open(device: &dyn Device, path: &Path) -> Result<Option<ArchivedFile>, LogError> {
    let Some(file) = open_if_there(device, path)? else {
        return Ok(None);
    };
    match read_header(&*file, path)? {
        Some(header) => Ok(Some(ArchivedFile { header, file })),
        None => Err(corrupt_at(
            path,
            0,
            0,
            "the header of an archived segment",
            "damage in both copies of it",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::files::parse_file_name;

    #[test]
    fn archived_names_and_live_names_are_told_apart() {
        for (number, ms) in [(1, 0), (255, 1_700_000_000_000), (u64::MAX, u64::MAX)] {
            let name = name_of(number, ms);
            assert_eq!(parse_name(&name), Some((number, ms)));
            assert_eq!(parse_file_name(&name), None);
            assert_eq!(parse_name(&file_name(number)), None);
        }
        for name in ["LOCK", "1-2.seg", "0000000000000001-00000000000A.seg"] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }
}
