//! Opening a volume: the map, then the records of the log since, then the files themselves.
//!
//! It reads MAP and the log from `replay_from`, cuts each mapped file at its end, and writes a new MAP.
//! Entries behind a file's end, of a commit without its last part, are void. A missing mapped file was
//! removed. Refused:
//!
//! * a log or shadow file without MAP;
//! * a log with another id, or without that place;
//! * files of another identity, or any where the directory is known to have none;
//! * a shadow file that ends before a displaced page;
//! * a mapped file shorter than its end (damage);
//! * displaced pages in a missing directory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use collie_io::{Device, File, OpenMode};
use collie_log::{FIRST_LSN, Log, LogError, LogId, LogOptions, Lsn};
use parking_lot::Mutex;

use super::claims::Claims;
use super::{Files, Missing, OWN, Volume, VolumeOptions};
use crate::FrontError;
use crate::disk::map::{Map, MappedFile, REMEDY, Replay, is_number_of_slots, is_page};
use crate::disk::record::{FileId, Record};
use crate::disk::shadow::Shadow;
use crate::file::{Mapping, Name, PageFile};
use crate::shared::Shared;
use crate::shown::ShownAs;

/// The replay position in the map of a volume that has no log yet.
const NO_LOG_YET: Lsn = 0;

/// What an opening found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Recovered {
    /// The id of the volume's log.
    pub log_id: LogId,
    /// Files with displaced pages.
    pub mapped: usize,
    /// Displaced pages.
    pub displaced: usize,
    /// Files with displaced pages that are missing: removed right before a crash, which did not let
    /// that be recorded, or else lost.
    /// Their pages are given up, or kept: see [`VolumeOptions::missing`].
    pub gone: Vec<PathBuf>,
    /// Files that had grown behind their committed end and were cut there.
    pub cut: usize,
}

impl Volume {
    /// Opens the volume in the directory `root`, which exists; makes it one if it is none yet.
    /// Reads the log since the last map; blocks on the device.
    ///
    /// # Errors
    /// [`FrontError::Locked`]; [`FrontError::Mismatch`] where the page size or the log is another
    /// one, a directory of files with displaced pages is missing, or the displaced pages are not those of these
    /// files, by [`VolumeOptions::identity`] or [`VolumeOptions::plain_by`];
    /// [`FrontError::Corrupt`]; what the log's opening fails with ([`FrontError::Log`]);
    /// [`FrontError::Io`].
    pub fn open(root: &Path, options: VolumeOptions) -> Result<Volume, FrontError> {
        let mut options = options;
        let root = match options.shown_as.take() {
            Some(shown) => {
                options.device = Arc::new(ShownAs {
                    shown: shown.clone(),
                    reached: root.to_owned(),
                    device: options.device,
                });
                shown
            }
            None => root.to_owned(),
        };
        Volume::open_shown(&root, &options)
    }

    fn open_shown(root: &Path, options: &VolumeOptions) -> Result<Volume, FrontError> {
        let device = Arc::clone(&options.device);
        check(root, options)?;
        let own = root.join(OWN);
        device
            .create_dir_all(&own)
            .map_err(FrontError::io("create", &own))?;
        let lock_path = own.join("LOCK");
        let lock = device
            .open(&lock_path, OpenMode::OpenOrCreate)
            .map_err(FrontError::io("open", &lock_path))?;
        if !lock.try_lock().map_err(FrontError::io("lock", &lock_path))? {
            return Err(FrontError::Locked {
                path: root.to_owned(),
            });
        }
        let mut map = match Map::read(&*device, &own)? {
            Some(map) => map,
            None => {
                refuse_without_map(&*device, root)?;
                let map = new_map(&*device, options)?;
                // Its log id is durable before there is a log.
                map.write(&*device, &own)?;
                map
            }
        };
        if map.page_bytes != options.page_bytes {
            return Err(FrontError::Mismatch {
                path: root.to_owned(),
                problem: format!(
                    "its pages have {} bytes, not {}; open it with that size",
                    map.page_bytes, options.page_bytes
                ),
            });
        }
        let log_options = log_options(options, &map);
        let max_payload = log_options.max_payload();
        let log = Log::open(own.join("log"), log_options).map_err(|e| log_is_not_its(&own, e))?;
        if map.replay_from == NO_LOG_YET {
            map.replay_from = log.oldest();
        }
        replay(&log, &own, &mut map)?;
        map.forget_behind_ends();
        refuse_pages_of_others(root, options, &map)?;

        let used = used_slots(&own, &map)?;
        let (path, last) = (own.join("shadow"), used.last().copied());
        map.slots = match last {
            // Nothing is kept in it, and it may never have been made: it gets the configured size.
            None if Shadow::len(&*device, &path)? < Shadow::bytes(map.page_bytes, map.slots) => options.slots,
            _ => map.slots.max(options.slots),
        };
        let shadow = Shadow::open(&*device, &path, map.page_bytes, map.slots, last)?;
        shadow.keep(|slot| used.contains(&slot));
        let shared = Arc::new(Shared::new(
            device,
            root.to_owned(),
            map.page_bytes,
            log,
            max_payload,
            shadow,
            map.next_id,
        ));
        let mut recovered = Recovered {
            log_id: map.log_id,
            mapped: 0,
            displaced: used.len(),
            gone: Vec::new(),
            cut: 0,
        };
        let (files, kept) = open_homes(&shared, &map, options.missing, &mut recovered)?;
        let volume = Volume {
            shared,
            files: Mutex::new(files),
            closing: Mutex::new(()),
            checkpoint: Mutex::new(()),
            names: Claims::default(),
            moves: Mutex::new(()),
            checkpointed: AtomicU64::new(0),
            recovered,
            kept,
            identity: Mutex::new(options.identity.or(map.identity)),
            has_threads: options.threads,
            scheduler: Arc::clone(&options.scheduler),
            _lock: lock,
        };
        // From here on the log is not read again from before; and a file that is gone is so for
        // good, before another one can take its name.
        volume.checkpoint()?;
        Ok(volume)
    }

    /// What keeps the directory locked as long as it lives, after the volume is closed, too.
    pub(crate) fn lock(&self) -> Arc<dyn File> {
        Arc::clone(&self._lock)
    }

    /// Sets whose pages these are, where that became known, or has changed, after the opening. Returns
    /// whether it is new: the next map has it, and no earlier one.
    pub fn identify(&self, identity: Option<NonZeroU64>) -> bool {
        let mut known = self.identity.lock();
        let is_new = identity.is_some() && identity != *known;
        if is_new {
            *known = identity;
        }
        is_new
    }
}

fn check(root: &Path, options: &VolumeOptions) -> Result<(), FrontError> {
    let refused = |problem: String| {
        Err(FrontError::Mismatch {
            path: root.to_owned(),
            problem,
        })
    };
    if !is_page(options.page_bytes) {
        return refused(format!(
            "a page cannot have {} bytes: a multiple of 512, from 512 to 65,536",
            options.page_bytes
        ));
    }
    if !is_number_of_slots(options.slots) {
        return refused(format!(
            "a shadow file cannot have {} pages: from 1 to 2^30",
            options.slots
        ));
    }
    Ok(())
}

fn new_map(device: &dyn Device, options: &VolumeOptions) -> Result<Map, FrontError> {
    let mut id = [0; 16];
    device
        .random(&mut id)
        .map_err(FrontError::io("draw an id for", Path::new("the log")))?;
    Ok(Map {
        page_bytes: options.page_bytes,
        slots: options.slots,
        log_id: LogId(id),
        identity: options.identity,
        replay_from: NO_LOG_YET,
        next_id: 1,
        files: BTreeMap::new(),
    })
}

/// Refuses a directory that has a log or a shadow file and no map: before there is another one, with
/// which the pages in them would be lost.
fn refuse_without_map(device: &dyn Device, root: &Path) -> Result<(), FrontError> {
    // The map is the first of them that is made.
    for name in ["log", "shadow"] {
        let path = root.join(OWN).join(name);
        match device.lstat(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(FrontError::io("stat", &path)(e)),
            Ok(_) => {
                return Err(FrontError::Mismatch {
                    path: root.to_owned(),
                    problem: format!(
                        "{OWN} has a {name} and no MAP, which says where pages are; bring MAP back; if it is \
                         lost for good, restore a backup"
                    ),
                });
            }
        }
    }
    Ok(())
}

/// Refuses displaced pages that are not of these files: of other ones, or of earlier versions of
/// them. A map without any is of use to all.
fn refuse_pages_of_others(root: &Path, options: &VolumeOptions, map: &Map) -> Result<(), FrontError> {
    let Some(first) = map.files.values().next() else {
        return Ok(());
    };
    let pages = format!(
        "{OWN} has pages of {} files, such as {}",
        map.files.len(),
        first.path.display()
    );
    let problem = match (options.plain_by, options.identity, map.identity) {
        (Some(sign), ..) => format!(
            "{pages}, but none can be there: {sign}, as in a directory that was drained or restored \
             since. Remove {OWN} to use the files as they are, or bring back files and {OWN} of one moment"
        ),
        (None, Some(theirs), Some(its)) if theirs != its => format!(
            "{pages}, of identity {its}; these files have {theirs} (of a cluster, that is its system \
             identifier). Bring back the {OWN} that belongs to them, or else a backup"
        ),
        _ => return Ok(()),
    };
    Err(FrontError::Mismatch {
        path: root.to_owned(),
        problem,
    })
}

fn log_options(options: &VolumeOptions, map: &Map) -> LogOptions {
    LogOptions {
        device: Arc::clone(&options.device),
        ring: options.ring.clone(),
        ring_bytes: options.ring_bytes,
        segment_bytes: options.segment_bytes,
        log_id: Some(map.log_id),
        // A log that is missing is refused, but for one that never was.
        resume_at: (map.replay_from != NO_LOG_YET).then_some(map.replay_from),
        min_lsn: map.replay_from.max(FIRST_LSN),
        threads: options.threads,
        ..LogOptions::default()
    }
}

/// Says what to do about a log that is not that of the map, or not all of it.
fn log_is_not_its(own: &Path, error: LogError) -> FrontError {
    match error {
        LogError::Missing { .. }
        | LogError::LogIdMismatch { .. }
        | LogError::WrongDirectory { .. }
        | LogError::BeginningUnknown { .. } => FrontError::Mismatch {
            path: own.to_owned(),
            problem: format!("{error}; the map needs it for what was written last: {REMEDY}"),
        },
        error => error.into(),
    }
}

/// Applies the records of the log since the map was written.
fn replay(log: &Log, own: &Path, map: &mut Map) -> Result<(), FrontError> {
    let frames = log.read(map.replay_from)?;
    let mut replay = Replay::of(map);
    for frame in frames {
        let frame = frame?;
        match Record::decode(frame.kind, &frame.payload) {
            Some(record) => replay.apply(record),
            None => return Err(bad_record(own, frame.start, frame.kind, frame.payload.len())),
        }
    }
    Ok(())
}

fn bad_record(own: &Path, at: Lsn, kind: u8, len: usize) -> FrontError {
    FrontError::Corrupt {
        path: own.join("log"),
        expected: format!("a record of a page map at LSN {at}; {REMEDY}"),
        found: format!("a frame of kind {kind} with {len} bytes"),
    }
}

/// The slots with committed pages; none has two.
fn used_slots(own: &Path, map: &Map) -> Result<BTreeSet<crate::disk::record::Slot>, FrontError> {
    let mut used = BTreeSet::new();
    for file in map.files.values() {
        for (&page, &(slot, _)) in &file.pages {
            if slot.0 >= map.slots || !used.insert(slot) {
                return Err(FrontError::Corrupt {
                    path: own.join("MAP"),
                    expected: format!("for each page a slot of its own, below {}; {REMEDY}", map.slots),
                    found: format!("slot {} of page {page} of {}", slot.0, file.path.display()),
                });
            }
        }
    }
    Ok(used)
}

/// Mapped files that are missing and stay mapped.
type Kept = BTreeMap<FileId, MappedFile>;

/// Opens the mapped files, and cuts them to their committed ends.
fn open_homes(
    shared: &Arc<Shared>,
    map: &Map,
    missing: Missing,
    recovered: &mut Recovered,
) -> Result<(Files, Kept), FrontError> {
    if missing == Missing::GiveUp {
        // Before any file is cut.
        refuse_without_dirs(shared, map)?;
    }
    let (mut files, mut kept) = (Files::default(), Kept::new());
    for (&id, mapped) in &map.files {
        let path = shared.root.join(&mapped.path);
        let home = match shared.device.open(&path, OpenMode::ReadWrite) {
            Ok(home) => home,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if mapped.has_pages() {
                    recovered.gone.push(mapped.path.clone());
                }
                recovered.displaced -= mapped.pages.len();
                if missing == Missing::Keep {
                    kept.insert(id, mapped.clone());
                    continue;
                }
                // The process may have died, and the removal not be durable yet.
                shared.sync_removal(&mapped.path)?;
                shared
                    .shadow
                    .give_back(mapped.pages.values().map(|(slot, _)| *slot));
                continue;
            }
            Err(e) => return Err(FrontError::io("open", &path)(e)),
        };
        let stat = home.stat().map_err(FrontError::io("stat", &path))?;
        if stat.len < mapped.end {
            return Err(too_short(&path, stat.len, mapped));
        }
        if stat.len > mapped.end {
            recovered.cut += 1;
            home.set_len(mapped.end)
                .map_err(FrontError::io("set the length of", &path))?;
        }
        let name = Name::Known {
            path: mapped.path.clone(),
            is_durable: true,
        };
        let displaced = mapped.pages.iter().map(|(&page, &committed)| (page, committed));
        let file = PageFile::open(
            Arc::clone(shared),
            home,
            Mapping::Mapped(id),
            name,
            mapped.end,
            displaced,
            false,
        );
        files.open.insert((stat.dev, stat.ino), Arc::new(file));
        recovered.mapped += usize::from(mapped.has_pages());
    }
    Ok((files, kept))
}

/// Refuses a map with displaced pages of files in a directory that is missing: before a directory is
/// removed, the removal of its files is recorded. So it is on a file system that is not mounted, or was
/// not copied.
fn refuse_without_dirs(shared: &Shared, map: &Map) -> Result<(), FrontError> {
    let mut there = BTreeSet::new();
    for mapped in map.files.values().filter(|mapped| mapped.has_pages()) {
        let dir = mapped.path.parent().unwrap_or(Path::new(""));
        if !there.insert(dir) {
            continue;
        }
        let full = shared.root.join(dir);
        match shared.device.stat(&full.join("")) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(FrontError::Mismatch {
                    path: full,
                    problem: format!(
                        "it is missing, and {OWN} has pages of files in it, such as {}; mount the file \
                         system that it is on, or bring it back. If it was removed on purpose, make an \
                         empty directory of that name: then the pages are given up",
                        mapped.path.display()
                    ),
                });
            }
            Err(e) => return Err(FrontError::io("stat", &full)(e)),
        }
    }
    Ok(())
}

fn too_short(path: &Path, len: u64, mapped: &MappedFile) -> FrontError {
    FrontError::Corrupt {
        path: path.to_owned(),
        expected: format!(
            "at least {} bytes, its committed end; bring the file back as it was, or restore a backup",
            mapped.end
        ),
        found: format!("{len} bytes"),
    }
}
