//! Reading released segments back from the archive, from inside and from outside: every frame once and in order, on
//! into the live log, wherever a segment is on its way meanwhile; or an error that says what is there.

#![expect(clippy::disallowed_methods, reason = "damages and removes files from outside")]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_io::{Clock, Device, Dir, Entry, File, OpenMode, RealDevice, Stat};
use collie_log::follow::Follower;
use collie_log::inspect::inspect;
use collie_log::{FIRST_LSN, Frame, Level, Log, LogError, LogOptions, Lsn, RingMode, Span};

const SEGMENT: u64 = 32 << 10;
const HOUR: Duration = Duration::from_secs(3600);

/// Nothing leaves the archive, and nothing happens behind the test's back.
fn options() -> LogOptions {
    LogOptions {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: SEGMENT,
        max_workers: 4,
        threads: false,
        archive_ttl: HOUR,
        ..LogOptions::default()
    }
}

fn payload(n: u64) -> Vec<u8> {
    let len = 8 + n * 131 % 3000;
    format!("{n:08}").bytes().cycle().take(len as usize).collect()
}

fn append(log: &Log, numbers: std::ops::Range<u64>) -> Vec<Span> {
    let mut worker = log.worker().unwrap();
    numbers
        .map(|n| {
            let span = worker.append(1, 2, &payload(n)).unwrap();
            log.wait(span.end, Level::Disk).unwrap();
            span
        })
        .collect()
}

/// Gives up all that is durable.
fn release(log: &Log) {
    log.hold("test", log.durable());
}

fn check<'a>(frames: impl IntoIterator<Item = &'a Frame>, numbers: std::ops::Range<u64>) {
    let mut numbers_left = numbers.clone();
    for frame in frames {
        let Some(n) = numbers_left.next() else {
            panic!("more frames than {numbers:?}");
        };
        assert!(frame.payload == payload(n), "another frame than number {n}");
    }
    assert_eq!(numbers_left.next(), None, "frames of {numbers:?} are missing");
}

fn read(log: &Log, from: Lsn) -> Result<Vec<Frame>, LogError> {
    log.read(from)?.collect()
}

fn follow(device: impl Device + 'static, dir: &Path, from: Option<Lsn>) -> Result<Vec<Frame>, LogError> {
    let device: Arc<dyn Device> = Arc::new(device);
    let mut follower = Follower::open(&device, dir, from)?;
    let mut frames = Vec::new();
    while let Some(followed) = follower.poll_to_end()? {
        frames.push(followed.frame);
    }
    Ok(frames)
}

/// What a reader from the beginning is told, from inside and from outside.
fn refusals(log: &Log, dir: &Path) -> [LogError; 2] {
    [
        read(log, FIRST_LSN).unwrap_err(),
        follow(RealDevice::new(), dir, None).unwrap_err(),
    ]
}

fn archived(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(dir.join("archive"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

/// The first LSN of an archived segment.
fn first_lsn(path: &Path) -> Lsn {
    u64::from_le_bytes(std::fs::read(path).unwrap()[40..48].try_into().unwrap())
}

#[test]
fn a_reader_goes_from_any_archived_frame_on_into_the_live_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let spans = append(&log, 0..200);
    release(&log);
    assert!(archived(dir.path()).len() > 5 && log.oldest() > FIRST_LSN);
    for (n, span) in spans.iter().enumerate().step_by(7) {
        check(&read(&log, span.start).unwrap(), n as u64..200);
        check(&read(&log, span.end).unwrap(), n as u64 + 1..200);
        // The last frame has no promise yet.
        check(
            &follow(RealDevice::new(), dir.path(), Some(span.start)).unwrap(),
            n as u64..199,
        );
        check(
            &follow(RealDevice::new(), dir.path(), Some(span.end)).unwrap(),
            n as u64 + 1..199,
        );
    }
    check(&follow(RealDevice::new(), dir.path(), None).unwrap(), 0..199);
    for from in [FIRST_LSN - 8, 0] {
        for refused in [
            log.read(from).map(drop),
            follow(RealDevice::new(), dir.path(), Some(from)).map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(
                matches!(error, LogError::Missing { wanted, oldest, .. } if (wanted, oldest) == (from, FIRST_LSN)),
                "{error}"
            );
        }
    }
}

#[test]
fn the_archive_is_read_through_epochs_and_gaps_and_after_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut spans = Vec::new();
    for round in 0..6 {
        // A floor above the end leaves a gap between two epochs.
        let min_lsn = if round % 3 == 2 {
            spans.last().map_or(0, |span: &Span| span.end + (1 << 24))
        } else {
            0
        };
        let log = Log::open(dir.path(), LogOptions { min_lsn, ..options() }).unwrap();
        let first = round * 40;
        spans.extend(append(&log, first..first + 1));
        if min_lsn > 0 {
            release(&log);
            // In the gap, nothing is missing up to the new epoch.
            for from in [min_lsn - 4096, min_lsn - 8] {
                check(&read(&log, from).unwrap(), first..first + 1);
            }
        }
        spans.extend(append(&log, first + 1..first + 40));
        // What one process left to the next is archived by that.
        if round != 3 {
            release(&log);
        }
        let all = round * 40 + 40;
        for n in (0..all).step_by(13) {
            let span = spans[n as usize];
            check(&read(&log, span.start).unwrap(), n..all);
            check(&read(&log, span.end).unwrap(), n + 1..all);
        }
        check(&follow(RealDevice::new(), dir.path(), None).unwrap(), 0..all - 1);
        log.close().unwrap();
        check(&follow(RealDevice::new(), dir.path(), None).unwrap(), 0..all);
    }
    assert!(archived(dir.path()).len() > 8);
}

#[test]
fn a_tail_in_the_archive_holds_nothing_and_from_the_live_log_on_what_it_has_yet_to_give() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 0..100);
    release(&log);
    let mut tail = log.tail("copy", FIRST_LSN).unwrap();
    assert_eq!(log.holders().len(), 1, "only the test's");
    let mut frames = Vec::new();
    while tail.resume_at() < log.oldest() {
        frames.push(tail.try_next().unwrap().unwrap());
        // The live log moves on meanwhile.
        let n = frames.len() as u64;
        if n <= 50 {
            append(&log, 99 + n..100 + n);
            release(&log);
        }
    }
    assert!(frames.len() > 100, "{}", frames.len());
    frames.push(tail.try_next().unwrap().unwrap());
    let holders = log.holders();
    assert!(
        holders
            .iter()
            .any(|(name, at)| name == "tail/copy" && *at <= tail.resume_at()),
        "{holders:?}"
    );
    append(&log, 150..250);
    release(&log);
    assert!(log.oldest() <= tail.resume_at(), "a tail holds what is live");
    while let Some(frame) = tail.try_next().unwrap() {
        frames.push(frame);
    }
    check(&frames, 0..250);
    log.close().unwrap();
    assert!(matches!(tail.try_next(), Err(LogError::Closed)));
}

#[test]
fn what_left_the_archive_is_missing_and_the_error_says_where_the_log_begins() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        archive_ttl: Duration::ZERO,
        archive_bytes: 4 * SEGMENT,
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    append(&log, 0..60);
    release(&log);
    let from = follow(RealDevice::new(), dir.path(), None).unwrap()[0].start;
    let mut tail = log.tail("slow", from).unwrap();
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    let mut follower = Follower::open(&device, dir.path(), None).unwrap();
    assert!(tail.try_next().unwrap().is_some() && follower.poll().unwrap().is_some());
    let first = tail.resume_at();
    append(&log, 60..200);
    release(&log);
    let oldest = first_lsn(&archived(dir.path())[0]);
    let expect = |error: LogError| match error {
        LogError::Missing {
            wanted, oldest: told, ..
        } => assert!(
            wanted >= first && wanted < oldest && told == oldest,
            "{wanted} {told} {oldest}"
        ),
        other => panic!("{other}"),
    };
    // What was begun is read to its end, and nothing behind it.
    let end = loop {
        match tail.try_next() {
            Ok(frame) => assert!(frame.unwrap().end < oldest),
            Err(error) => break error,
        }
    };
    expect(end);
    expect(loop {
        match follower.poll_to_end() {
            Ok(followed) => assert!(followed.unwrap().frame.end < oldest),
            Err(error) => break error,
        }
    });
    expect(read(&log, first).unwrap_err());
    expect(follow(RealDevice::new(), dir.path(), Some(first)).unwrap_err());
}

#[test]
fn behind_an_archived_segment_that_somebody_removed_the_log_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 0..200);
    release(&log);
    let there = archived(dir.path());
    std::fs::remove_file(&there[3]).unwrap();
    for error in [
        read(&log, FIRST_LSN).unwrap_err(),
        follow(RealDevice::new(), dir.path(), Some(FIRST_LSN)).unwrap_err(),
    ] {
        assert!(
            matches!(error, LogError::Missing { oldest, .. } if oldest == first_lsn(&there[4])),
            "{error}"
        );
    }
    let rest = follow(RealDevice::new(), dir.path(), None).unwrap();
    let first = rest[0].start;
    assert!(first >= first_lsn(&there[4]));
    let all = read(&log, first).unwrap();
    check(&all, 200 - all.len() as u64..200);
}

#[test]
fn an_archive_that_lacks_the_end_of_an_epoch_is_told_to_lack_it_and_not_to_be_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("archive");
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 0..60);
    log.close().unwrap();
    // All of the first epoch is archived by the second, whose own segments are live: its end, too, is the archive's.
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 60..61);
    release(&log);
    let first_epoch = archived(dir.path());
    assert!(first_epoch.len() > 2);
    inspect(&device, &archive, |_| {}).unwrap();
    append(&log, 61..120);
    release(&log);
    inspect(&device, &archive, |_| {}).unwrap();
    let last = first_epoch.last().unwrap();
    let begins = first_lsn(last);
    std::fs::remove_file(last).unwrap();
    let mut seen = 0;
    let missing = inspect(&device, &archive, |frame| seen = frame.end).unwrap_err();
    assert!(
        seen <= begins && begins - seen < 4096,
        "all that is there is shown"
    );
    match missing {
        LogError::Missing {
            path, wanted, oldest, ..
        } => {
            assert_eq!((&path, wanted), (&archive, begins));
            assert!(oldest > begins);
        }
        other => panic!("{other}"),
    }
    // Damage before that is damage all the same.
    let mut bytes = std::fs::read(&first_epoch[0]).unwrap();
    bytes[8_192 + 34] ^= 1;
    std::fs::write(&first_epoch[0], bytes).unwrap();
    let damaged = inspect(&device, &archive, |_| {}).unwrap_err();
    assert!(
        matches!(&damaged, LogError::Corrupt { path, .. } if *path == first_epoch[0]),
        "{damaged}"
    );
}

#[test]
fn a_damaged_archived_segment_is_named_with_its_place() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let spans = append(&log, 0..200);
    release(&log);
    let there = archived(dir.path());
    let flip = |path: &Path, at: u64| {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    let (begins, ends) = (first_lsn(&there[2]), first_lsn(&there[3]));
    let hit = spans
        .iter()
        .find(|span| span.start > begins + 4096 && span.end < ends)
        .unwrap();
    let at = 8192 + hit.start - begins;
    flip(&there[2], at + 34);
    for error in refusals(&log, dir.path()) {
        match error {
            LogError::Corrupt {
                path, offset, lsn, ..
            } => {
                assert_eq!((&path, offset, lsn), (&there[2], at, hit.start));
            }
            other => panic!("{other}"),
        }
    }
    // What lies behind the damage can be read, and what lies before damaged headers cannot.
    let n = spans.iter().position(|span| span == hit).unwrap() as u64;
    check(&read(&log, hit.end).unwrap(), n + 1..200);
    flip(&there[4], 48);
    flip(&there[4], 4096 + 48);
    for error in [
        read(&log, hit.end).unwrap_err(),
        follow(RealDevice::new(), dir.path(), Some(hit.end)).unwrap_err(),
    ] {
        assert!(
            matches!(&error, LogError::Corrupt { path, offset: 0, .. } if *path == there[4]),
            "{error}"
        );
    }
    assert!(log.poisoned().is_none());
}

#[test]
fn an_archived_segment_of_another_log_is_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let logs = [&dir, &other].map(|dir| {
        let log = Log::open(dir.path(), options()).unwrap();
        append(&log, 0..100);
        release(&log);
        log
    });
    let (ours, foreign) = (archived(dir.path()), archived(other.path()));
    std::fs::copy(&foreign[2], &ours[2]).unwrap();
    for error in refusals(&logs[0], dir.path()) {
        assert!(
            matches!(&error, LogError::OtherLog { path, .. } if *path == ours[2]),
            "{error}"
        );
    }
    // Nor is another one of this log taken for it.
    std::fs::copy(&ours[1], &ours[2]).unwrap();
    for error in refusals(&logs[0], dir.path()) {
        assert!(
            matches!(&error, LogError::Corrupt { path, .. } if *path == ours[2]),
            "{error}"
        );
    }
}

type Hook = Box<dyn FnMut(&str, &Path) + Send>;

/// The real device, and somebody who is called around each operation on names.
#[derive(Clone)]
struct Watched {
    device: Arc<RealDevice>,
    hook: Arc<Mutex<Option<Hook>>>,
    /// So many renames find no space.
    full: Arc<AtomicU32>,
}

impl Watched {
    fn new() -> Self {
        Self {
            device: Arc::new(RealDevice::new()),
            hook: Arc::default(),
            full: Arc::default(),
        }
    }

    fn call(&self, hook: impl FnMut(&str, &Path) + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    fn leave(&self) {
        *self.hook.lock().unwrap() = None;
    }

    /// Operations of the hook itself are not watched.
    fn around<T>(&self, op: &str, path: &Path, run: impl FnOnce() -> T) -> T {
        let call = |moment: &str| {
            let taken = self.hook.lock().unwrap().take();
            if let Some(mut hook) = taken {
                hook(moment, path);
                *self.hook.lock().unwrap() = Some(hook);
            }
        };
        call(&format!("before {op}"));
        let done = run();
        call(&format!("after {op}"));
        done
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

/// A directory that stays open: its syncs are seen as those by its path.
#[derive(Debug)]
struct WatchedDir(Watched, PathBuf);

impl Dir for WatchedDir {
    fn sync(&self) -> io::Result<()> {
        self.0.sync_dir(&self.1)
    }
}

impl Device for Watched {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.around("open", path, || self.device.open(path, mode))
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.around("stat", path, || self.device.stat(path))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.around("list", dir, || self.device.list(dir))
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.device.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let full = self.full.load(Ordering::Relaxed);
        if full > 0 {
            self.full.store(full - 1, Ordering::Relaxed);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.around("rename", from, || self.device.rename(from, to))
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.around("remove", path, || self.device.remove_file(path))
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.device.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.around("sync", dir, || self.device.sync_dir(dir))
    }
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>> {
        Ok(Arc::new(WatchedDir(self.clone(), dir.to_owned())))
    }
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.device.boot_id()
    }
    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.device.random(buf)
    }
    fn uid(&self) -> u32 {
        self.device.uid()
    }
    fn clock(&self) -> &dyn Clock {
        self.device.clock()
    }
}

#[test]
fn at_every_step_of_an_archiving_all_frames_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let device = Watched::new();
    let options = LogOptions {
        device: Arc::new(device.clone()),
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    let spans = append(&log, 0..150);
    let steps = Arc::new(Mutex::new(Vec::new()));
    let tail = Arc::new(Mutex::new(log.tail("before", log.durable()).unwrap()));
    device.call({
        let (log, spans, dir) = (log.clone(), spans.clone(), dir.path().to_owned());
        let (steps, tail) = (Arc::clone(&steps), Arc::clone(&tail));
        move |moment, _| {
            if moment.ends_with("stat") {
                return;
            }
            for n in (0..150).step_by(29) {
                let from = spans[n as usize].start;
                let context = format!("{moment}, from frame {n}");
                let frames = read(&log, from).unwrap_or_else(|e| panic!("{context}: {e}"));
                check(&frames, n..150);
                let frames =
                    follow(RealDevice::new(), &dir, Some(from)).unwrap_or_else(|e| panic!("{context}: {e}"));
                check(&frames, n..149);
            }
            assert!(tail.lock().unwrap().try_next().unwrap().is_none());
            steps.lock().unwrap().push(moment.to_owned());
        }
    });
    release(&log);
    device.leave();
    let steps = steps.lock().unwrap();
    for step in ["before rename", "after rename", "before sync", "after sync"] {
        assert!(steps.iter().filter(|s| *s == step).count() > 2, "{steps:?}");
    }
}

#[test]
fn a_device_without_room_for_a_name_costs_the_oldest_segments_and_leaves_no_gap() {
    for full in [1, 3, 1000] {
        let dir = tempfile::tempdir().unwrap();
        let device = Watched::new();
        let options = LogOptions {
            device: Arc::new(device.clone()),
            ..options()
        };
        let log = Log::open(dir.path(), options).unwrap();
        append(&log, 0..100);
        release(&log);
        let before = archived(dir.path());
        append(&log, 100..200);
        device.full.store(full, Ordering::Relaxed);
        release(&log);
        device.full.store(0, Ordering::Relaxed);
        assert!(log.poisoned().is_none());
        let there = archived(dir.path());
        let lost = before.iter().filter(|path| !there.contains(path)).count();
        assert_eq!(lost, before.len().min(full as usize));
        let frames = follow(RealDevice::new(), dir.path(), None).unwrap();
        check(&frames, 199 - frames.len() as u64..199);
        let frames = read(&log, frames[0].start).unwrap();
        check(&frames, 200 - frames.len() as u64..200);
        let oldest = there.first().map_or(log.oldest(), |first| first_lsn(first));
        assert!(frames[0].start - oldest < SEGMENT, "all that is there is read");
    }
}

/// From outside a directory is not seen all at once: segments move between two looks, and between a look and an open.
#[test]
fn a_follower_misses_no_segment_that_is_archived_while_it_looks() {
    for moment in ["after list", "before open", "before list"] {
        for count in 1..8 {
            let dir = tempfile::tempdir().unwrap();
            let log = Log::open(dir.path(), options()).unwrap();
            append(&log, 0..80);
            let device = Watched::new();
            let (mut calls, moving) = (0, log.clone());
            device.call(move |now, _| {
                calls += u64::from(now == moment);
                if now == moment && calls == count {
                    // All that was listed is archived.
                    append(&moving, 80..120);
                    release(&moving);
                }
            });
            let frames = follow(device, dir.path(), Some(FIRST_LSN))
                .unwrap_or_else(|e| panic!("{moment} {count}: {e}"));
            assert!(frames.len() >= 79);
            check(&frames, 0..frames.len() as u64);
        }
    }
}

/// Without an archive. A follower that stands still between its looks at two of the listed segments finds the first one
/// there, and all others gone: that is not where the log ends.
#[test]
fn a_follower_that_comes_too_late_for_all_but_the_oldest_segment_says_where_the_log_begins() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        archive_ttl: Duration::ZERO,
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    append(&log, 0..100);
    let watched = Watched::new();
    let device: Arc<dyn Device> = Arc::new(watched.clone());
    let mut follower = Follower::open(&device, dir.path(), None).unwrap();
    while follower.poll_to_end().unwrap().is_some() {}
    release(&log);
    let (mut looks, moving) = (0, log.clone());
    watched.call(move |moment, _| {
        looks += u64::from(moment == "after stat");
        if moment == "after stat" && looks == 1 {
            append(&moving, 100..200);
            release(&moving);
        }
    });
    let error = follower.poll().unwrap_err();
    // From outside the log begins with what was released and is not used again yet.
    assert!(
        matches!(error, LogError::Missing { wanted, oldest, .. }
            if wanted == follower.resume_at() && wanted < oldest && oldest <= log.oldest()),
        "{error}"
    );
}

#[test]
fn readers_in_the_archive_and_tails_find_everything_while_segments_go_there() {
    const FRAMES: u64 = 3000;
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        threads: true,
        flush_interval: Duration::from_millis(1),
        ..options()
    };
    let log = Log::open(dir.path(), options).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let rounds = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let readers: Vec<_> = (0..2)
        .map(|outside| {
            let (log, done, dir) = (log.clone(), Arc::clone(&done), dir.path().to_owned());
            let rounds = Arc::clone(&rounds[outside]);
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let frames = if outside == 1 {
                        follow(RealDevice::new(), &dir, Some(FIRST_LSN)).unwrap()
                    } else {
                        read(&log, FIRST_LSN).unwrap()
                    };
                    check(&frames, 0..frames.len() as u64);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let tail = log.tail("all", FIRST_LSN).unwrap();
    let tailing = std::thread::spawn(move || {
        let frames: Vec<_> = tail.map_while(Result::ok).collect();
        check(&frames, 0..FRAMES);
    });
    let made = || rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
    let is_reading = || readers.iter().all(|reader| !reader.is_finished());
    let mut before = made();
    for n in (0..FRAMES).step_by(10) {
        append(&log, n..n + 10);
        release(&log);
        // Each has read all of it some times before the end.
        if n % 500 == 0 {
            while is_reading() && made().iter().zip(before).any(|(now, before)| *now == before) {
                std::thread::yield_now();
            }
            before = made();
        }
    }
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    log.close().unwrap();
    tailing.join().unwrap();
}
