//! The log when things go wrong: panics in its middle, damage in its files, a full device under old
//! handles.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the real file system from outside"
)]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_io::{Clock, Device, Dir, Entry, File, Mapping, OpenMode, RealDevice, Stat};
use collie_log::{FIRST_LSN, Frame, Level, Log, LogError, LogOptions, LogSet, LogSetOptions, RingMode};

fn small() -> LogOptions {
    LogOptions {
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        max_workers: 16,
        flush_interval: Duration::from_millis(5),
        ..LogOptions::default()
    }
}

fn frames(log: &Log, from: u64) -> Vec<Frame> {
    log.read(from).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn a_panic_in_mid_append_poisons_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let before = log.worker().unwrap().append(0, 0, b"before").unwrap();
    let appended = log.clone();
    let panicked = std::thread::spawn(move || {
        let mut worker = appended.worker().unwrap();
        let _ = worker.append_paused(0, 0, b"never", [&mut |_| (), &mut |_| panic!("on purpose")]);
    });
    assert!(panicked.join().is_err());
    let error = log.worker().unwrap().append(0, 0, b"after").unwrap_err();
    assert!(
        matches!(&error, LogError::Poisoned { cause } if cause.contains("between reserving")),
        "{error}"
    );
    assert!(log.flush(Level::Disk).is_err());
    drop(log);
    let log = Log::open(dir.path(), small()).unwrap();
    let recovered = frames(&log, FIRST_LSN);
    assert_eq!(
        recovered.iter().map(|f| f.start).collect::<Vec<_>>(),
        [before.start]
    );
}

/// Flips a byte in the segment that holds the first frame.
fn damage(dir: &std::path::Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    names.retain(|p| p.extension().is_some_and(|e| e == "seg"));
    names.sort();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&names[0])
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0xff], offset).unwrap();
}

#[test]
fn durable_damage_is_refused_with_its_place_until_repair() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), small()).unwrap();
    let mut worker = log.worker().unwrap();
    let spans: Vec<_> = (0..100_u64)
        .map(|n| {
            let span = worker.append(0, 0, &n.to_le_bytes()).unwrap();
            log.wait(span.end, Level::Disk).unwrap();
            span
        })
        .collect();
    drop(worker);
    log.close().unwrap();
    let device: Arc<dyn collie_io::Device> = Arc::new(collie_io::RealDevice::new());
    let mut seen = 0;
    let clean =
        collie_log::inspect::inspect(&device, dir.path(), |f| seen += u64::from(f.kind < 240)).unwrap();
    assert_eq!((seen, clean.torn), (100, None));
    assert_eq!(
        collie_log::inspect::repair(&device, dir.path()).unwrap().damage,
        None
    );

    let offset = 8192 + (spans[40].start - FIRST_LSN) + 33;
    damage(dir.path(), offset);
    let error = Log::open(dir.path(), small()).unwrap_err();
    match &error {
        LogError::Corrupt {
            path,
            offset,
            lsn,
            found,
            ..
        } => {
            assert_eq!(
                (*lsn, *offset),
                (spans[40].start, 8192 + (spans[40].start - FIRST_LSN))
            );
            assert!(
                path.ends_with("0000000000000001.seg") && found.contains("checksum"),
                "{error}"
            );
        }
        other => panic!("{other}"),
    }
    let repair = collie_log::inspect::repair(&device, dir.path()).unwrap();
    assert_eq!(repair.end, spans[40].start);
    assert!(
        !repair.kept.is_empty() && repair.kept.iter().all(|p| p.exists()),
        "{repair:?}"
    );
    let log = Log::open(dir.path(), small()).unwrap();
    assert_eq!(frames(&log, FIRST_LSN).len(), 40);
}

#[test]
fn an_old_handle_of_a_closed_log_leaves_the_next_one_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        threads: false,
        ..small()
    };
    let old = Log::open(dir.path(), options.clone()).unwrap();
    let mut worker = old.worker().unwrap();
    for n in 0..1_500 {
        worker.append(0, 1, &[n as u8; 300]).unwrap();
    }
    let end = old.flush(Level::Disk).unwrap();
    old.clone().close().unwrap();
    let new = Log::open(dir.path(), options.clone()).unwrap();
    let expected = frames(&new, FIRST_LSN);
    assert_eq!(expected.len(), 1_500);
    // Nothing is below this holder: the old handle would release all segments but the last.
    old.retain("late", end);
    assert!(matches!(worker.append(0, 1, b"late"), Err(LogError::Closed)));
    drop((old, worker));
    new.close().unwrap();
    let again = Log::open(dir.path(), options).unwrap();
    assert_eq!(frames(&again, FIRST_LSN), expected);
}

/// The real device: once it is full no file is made in `dir`, and once its clock or its files are
/// broken they panic.
#[derive(Debug, Default)]
struct Failing {
    real: RealDevice,
    dir: PathBuf,
    full: AtomicBool,
    clock_is_broken: AtomicBool,
    writes_are_broken: Arc<AtomicBool>,
}

/// A file that cannot be written to without a panic once its device's files are broken.
#[derive(Debug)]
struct Fragile {
    real: Arc<dyn File>,
    is_broken: Arc<AtomicBool>,
}

impl File for Fragile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.real.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        assert!(!self.is_broken.load(Ordering::Relaxed), "on purpose");
        self.real.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.real.sync_data()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.real.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.real.allocate(len)
    }
    fn stat(&self) -> io::Result<Stat> {
        self.real.stat()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.real.try_lock()
    }
    fn map(&self, len: usize) -> io::Result<Mapping> {
        self.real.map(len)
    }
}

impl Clock for Failing {
    fn monotonic(&self) -> u64 {
        assert!(!self.clock_is_broken.load(Ordering::Relaxed), "on purpose");
        self.real.clock().monotonic()
    }
    fn wall_ms(&self) -> u64 {
        self.real.clock().wall_ms()
    }
}

impl Device for Failing {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if self.full.load(Ordering::Relaxed) && path.starts_with(&self.dir) && !path.exists() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(Arc::new(Fragile {
            real: self.real.open(path, mode)?,
            is_broken: Arc::clone(&self.writes_are_broken),
        }))
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.real.stat(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.real.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.real.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.real.remove_file(path)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.real.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.real.sync_dir(dir)
    }
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>> {
        self.real.open_dir(dir)
    }
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.real.boot_id()
    }
    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.real.random(buf)
    }
    fn uid(&self) -> u32 {
        self.real.uid()
    }
    fn clock(&self) -> &dyn Clock {
        self
    }
}

#[test]
fn a_log_closed_on_a_full_device_opens_beside_its_old_handles() {
    let dir = tempfile::tempdir().unwrap();
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let device = Arc::new(Failing {
        dir: dir.path().to_owned(),
        ..Failing::default()
    });
    let options = LogOptions {
        device: Arc::clone(&device) as Arc<dyn Device>,
        ring: RingMode::Shared {
            dir: rings.path().to_owned(),
        },
        ..small()
    };
    let old = Log::open(dir.path(), options.clone()).unwrap();
    let mut worker = old.worker().unwrap();
    device.full.store(true, Ordering::Relaxed);
    let mut frames_before = 0;
    for len in [1_000, 0] {
        while let Ok(span) = worker.append(0, 0, &vec![1; len]) {
            old.wait(span.end, Level::Process).unwrap();
            frames_before += 1;
        }
    }
    assert!(old.stats().refused > 0 && old.poisoned().is_none());
    old.clone().close().unwrap();
    let ring_files = || std::fs::read_dir(rings.path()).unwrap().count();
    assert_eq!(ring_files(), 1, "the ring stands in for the mark");
    device.full.store(false, Ordering::Relaxed);
    let new = Log::open(dir.path(), options).unwrap();
    assert_eq!(new.recovery().warnings, [""; 0]);
    assert_eq!(frames(&new, FIRST_LSN).len(), frames_before);
    assert!(matches!(worker.append(0, 0, b"late"), Err(LogError::Closed)));
    drop((old, worker));
    new.close().unwrap();
    assert_eq!(ring_files(), 0);
}

/// The thread goes on for the others.
#[test]
fn a_panic_on_a_sets_thread_poisons_one_log_alone() {
    let dir = tempfile::tempdir().unwrap();
    let device = Arc::new(Failing::default());
    let set = LogSet::new(LogSetOptions {
        flushers: 1,
        period: Duration::from_millis(1),
    })
    .unwrap();
    let options = LogOptions {
        flush_interval: Duration::from_millis(20),
        set: Some(set),
        ..small()
    };
    let other = Log::open(dir.path().join("other"), options.clone()).unwrap();
    let options = LogOptions {
        device: Arc::clone(&device) as Arc<dyn Device>,
        ..options
    };
    let log = Log::open(dir.path().join("log"), options).unwrap();
    let until = |done: &dyn Fn() -> bool| {
        let waits = (0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            done()
        });
        assert!(waits, "not within a minute");
    };
    // Whatever it appends, it is to be sealed.
    log.worker().unwrap().append(0, 0, b"x").unwrap();
    device.clock_is_broken.store(true, Ordering::Relaxed);
    until(&|| log.poisoned().is_some());
    device.clock_is_broken.store(false, Ordering::Relaxed);
    let end = other.worker().unwrap().append(0, 0, b"y").unwrap().end;
    until(&|| other.durable() >= end);
}

/// Whether it panics where it first asks for the time, or when it writes.
#[test]
fn a_panic_in_the_middle_of_a_flush_poisons_the_log() {
    for in_write in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let device = Arc::new(Failing::default());
        let options = LogOptions {
            device: Arc::clone(&device) as Arc<dyn Device>,
            threads: false,
            ..small()
        };
        let log = Log::open(dir.path(), options).unwrap();
        let span = log.worker().unwrap().append(0, 0, b"x").unwrap();
        let broken = match in_write {
            true => &*device.writes_are_broken,
            false => &device.clock_is_broken,
        };
        broken.store(true, Ordering::Relaxed);
        let leader = log.clone();
        let panicked = std::thread::spawn(move || leader.wait(span.end, Level::Disk));
        assert!(panicked.join().is_err());
        broken.store(false, Ordering::Relaxed);
        // On a thread of its own: a waiter that is not woken would wait for ever.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(log.wait(span.end, Level::Disk)));
        let error = receiver
            .recv_timeout(Duration::from_secs(60))
            .unwrap()
            .unwrap_err();
        assert!(
            matches!(&error, LogError::Poisoned { cause } if cause.contains("in the middle of a flush")),
            "in a write: {in_write}: {error}"
        );
    }
}

#[test]
fn a_waker_that_panics_takes_no_other_wake_up_along() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    #[derive(Default)]
    struct Notes(AtomicBool);
    impl std::task::Wake for Notes {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        threads: false,
        ..small()
    };
    let log = Log::open(dir.path(), options).unwrap();
    let span = log.worker().unwrap().append(0, 0, b"x").unwrap();
    let notes = Arc::new(Notes::default());
    let wakers = [Arc::new(Panics).into(), Arc::clone(&notes).into()];
    let mut futures = [
        log.wait_async(span.end, Level::Disk),
        log.wait_async(span.end, Level::Disk),
    ];
    for (future, waker) in futures.iter_mut().zip(&wakers) {
        let mut context = std::task::Context::from_waker(waker);
        assert!(std::future::Future::poll(std::pin::Pin::new(future), &mut context).is_pending());
    }
    log.wait(span.end, Level::Disk).unwrap();
    assert!(notes.0.load(Ordering::Relaxed));
    assert!(log.durable() >= span.end);
}

#[test]
fn an_archived_segment_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let name = "0000000000000001-000000000001.seg";
    // A link to itself has a segment's name, and cannot be opened.
    std::os::unix::fs::symlink(name, dir.path().join(name)).unwrap();
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    let error = collie_log::inspect::inspect(&device, dir.path(), |_| ()).unwrap_err();
    let expected = format!("cannot open {}", dir.path().join(name).display());
    assert!(error.to_string().starts_with(&expected), "{error}");
}

/// A file that was to be used again got its new name and, before its new header was synced, the
/// power went. What it holds was released, even where all segments between it and the oldest that
/// counts are gone by then.
#[test]
fn a_file_that_was_to_be_used_again_is_no_damaged_segment() {
    let dir = tempfile::tempdir().unwrap();
    let options = || LogOptions {
        ring: RingMode::Private,
        threads: false,
        ..small()
    };
    let segment = |number: u64| dir.path().join(format!("{number:016x}.seg"));
    let open_and_append = || {
        let log = Log::open(dir.path(), options()).unwrap();
        let mut worker = log.worker().unwrap();
        for n in 0..8 {
            worker.append(0, 1, &[n; 300]).unwrap();
        }
        log.flush(Level::Disk).unwrap();
        log.retain("test", log.durable());
        drop(worker);
        log.close().unwrap();
    };
    open_and_append();
    let first = std::fs::read(segment(1)).unwrap();
    (0..3).for_each(|_| open_and_append());
    assert!(!segment(1).exists() && !segment(2).exists());

    std::fs::write(segment(2), &first).unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    log.close().unwrap();
    assert!(!segment(2).exists(), "it is of no use any more");

    // With frames of its new place it was in use, and its own header was destroyed.
    let mut used = first.clone();
    let (_, data) = used.split_at_mut(8_192);
    let frame = data.first_chunk_mut::<32>().unwrap();
    let lsn = u64::from_le_bytes(frame[8..16].try_into().unwrap());
    frame[8..16].copy_from_slice(&(lsn + (1 << 20)).to_le_bytes());
    let next = 32 + 300_usize.next_multiple_of(8);
    data[next + 8..next + 16].copy_from_slice(&(lsn + (1 << 20) + next as u64).to_le_bytes());
    std::fs::write(segment(2), &used).unwrap();
    let refused = Log::open(dir.path(), options()).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("a segment header before the segment's frames"),
        "{refused}"
    );
    std::fs::remove_file(segment(2)).unwrap();

    // Alone it is a log whose other segments are gone, and no reason to begin a fresh one.
    let alone = tempfile::tempdir().unwrap();
    std::fs::write(alone.path().join("0000000000000002.seg"), &first).unwrap();
    let refused = Log::open(alone.path(), options()).unwrap_err();
    assert!(matches!(refused, LogError::Corrupt { .. }), "{refused}");
}
