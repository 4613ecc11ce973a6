//! A thousand families, or as many as `COLLIE_FAMILIES` says: open files stay within a bound, idle
//! families do not keep the log, and the work of creating and dropping is proportional to their
//! number. Counted, not timed.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use collie_db::{Batch, Db, Durability, FamilyOptions, Options, WriteOptions};
use collie_io::{Clock, Device, Dir, Entry, File, Mapping, OpenMode, RealDevice, Stat};
use parking_lot::Mutex;

/// Open files belong to the process: these tests run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// How many families; a long run takes ten thousand.
static FAMILIES: LazyLock<usize> =
    LazyLock::new(|| std::env::var("COLLIE_FAMILIES").map_or(1000, |value| value.parse().unwrap()));

fn open_files() -> usize {
    RealDevice::new().list(Path::new("/proc/self/fd")).unwrap().len()
}

fn options() -> Options {
    Options {
        durability: Durability::Buffered,
        max_open_files: 64,
        segment_bytes: 64 << 10,
        ..common::small()
    }
}

fn name(n: usize) -> String {
    format!("family {n:04}")
}

/// One put into each family, in batches across them.
fn put_into_all(db: &Db, value: &str) {
    for chunk in (0..*FAMILIES).collect::<Vec<_>>().chunks(100) {
        let mut batch = Batch::new();
        for n in chunk {
            let family = db.family(&name(*n)).unwrap();
            batch.put(&family, "k", value).unwrap();
        }
        db.write(batch, &WriteOptions::buffered()).unwrap();
    }
}

/// Reads each family's key; the most files that were open meanwhile.
fn read_all(db: &Db, value: &str) -> usize {
    let mut most = 0;
    for n in 0..*FAMILIES {
        let found = db.family(&name(n)).unwrap().get("k").unwrap();
        assert_eq!(found.unwrap(), value, "family {n}");
        most = most.max(open_files());
    }
    most
}

/// The families' tables share `max_open_files`; what else is open does not grow with their number.
#[test]
fn open_files_do_not_grow_with_the_number_of_families() {
    let _alone = ALONE.lock();
    let dir = common::fast_dir();
    let before = open_files();
    // The log's segments, its lock and the store's, the manifest, and what is open for a moment.
    let bound = before + 64 + 32;
    let db = common::open(dir.path(), &options());
    for n in 0..*FAMILIES {
        db.create_family(&name(n), common::small_family()).unwrap();
    }
    put_into_all(&db, "first");
    db.flush().unwrap();
    put_into_all(&db, "second");
    let most = read_all(&db, "second");
    assert!(most <= bound, "{most} files open of {bound}, {before} before");
    db.flush().unwrap();
    let most = read_all(&db, "second");
    assert!(most <= bound, "{most} files open of {bound}, {before} before");
    db.close().unwrap();
    let db = common::open(dir.path(), &options());
    assert_eq!(db.families().len(), *FAMILIES + 1);
    let most = read_all(&db, "second");
    assert!(
        most <= bound,
        "reopened: {most} files open of {bound}, {before} before"
    );
}

fn flushes(db: &Db, family: &str) -> u64 {
    let stats = db.stats();
    let flushes = &stats.families[family].flushes;
    flushes.iter().map(|(_, count)| *count).sum()
}

/// One family is written, 999 lie idle: they need no table, and they let the log go.
#[test]
fn a_thousand_idle_families_do_not_keep_the_log() {
    let _alone = ALONE.lock();
    let dir = common::fast_dir();
    let limit = 256 << 10;
    let options = Options {
        max_total_wal_size: Some(limit),
        default_family: FamilyOptions::default(),
        ..options()
    };
    let db = common::open(dir.path(), &options);
    for n in 0..*FAMILIES {
        db.create_family(&name(n), FamilyOptions::default()).unwrap();
    }
    assert_eq!(db.stats().max_total_wal_size, limit);
    let warnings = db.stats().warnings;
    assert!(
        warnings
            .iter()
            .any(|w| w.contains(&format!("{} families", *FAMILIES + 1)) && w.contains("max_total_wal_size")),
        "{warnings:?}"
    );
    let syncs = db.stats().log.unwrap().syncs;
    for n in 0..4000 {
        db.put(format!("{n:08}"), [3; 500]).unwrap();
    }
    db.flush_wal(Durability::Disk).unwrap();
    let flushed = |db: &Db| flushes(db, "default") > 0 && db.stats().wal_bytes <= limit + (64 << 10);
    let mut looks = 0;
    while !flushed(&db) {
        // The size is looked at when something is written.
        db.put("more", [3; 500]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        looks += 1;
        assert!(looks < 100_000, "{} bytes", db.stats().wal_bytes);
    }
    let stats = db.stats();
    let count = |family: &str| flushes(&db, family);
    assert_eq!(
        (0..*FAMILIES).map(|n| count(&name(n))).sum::<u64>(),
        0,
        "they were empty"
    );
    // Far from one for each of them and each time; what is written while it is waited for is synced
    // by and by.
    let syncs = stats.log.unwrap().syncs - syncs;
    assert!(syncs < *FAMILIES as u64 + looks, "{syncs} syncs, {looks} looks");
}

/// What was written to the manifest, by whatever name.
#[derive(Debug, Default)]
struct Counting {
    device: RealDevice,
    manifest_bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
struct CountingFile {
    file: Arc<dyn File>,
    bytes: Arc<AtomicU64>,
}

impl File for CountingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<usize> {
        let written = self.file.write_at(buf, offset)?;
        self.bytes.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.file.sync_data()
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> std::io::Result<()> {
        self.file.allocate(len)
    }
    fn stat(&self) -> std::io::Result<Stat> {
        self.file.stat()
    }
    fn try_lock(&self) -> std::io::Result<bool> {
        self.file.try_lock()
    }
    fn map(&self, len: usize) -> std::io::Result<Mapping> {
        self.file.map(len)
    }
}

impl Device for Counting {
    fn open(&self, path: &Path, mode: OpenMode) -> std::io::Result<Arc<dyn File>> {
        let file = self.device.open(path, mode)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(if name.starts_with("MANIFEST") {
            Arc::new(CountingFile {
                file,
                bytes: Arc::clone(&self.manifest_bytes),
            })
        } else {
            file
        })
    }
    fn stat(&self, path: &Path) -> std::io::Result<Stat> {
        self.device.stat(path)
    }
    fn list(&self, dir: &Path) -> std::io::Result<Vec<Entry>> {
        self.device.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> std::io::Result<()> {
        self.device.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.device.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> std::io::Result<()> {
        self.device.remove_file(path)
    }
    fn remove_dir_all(&self, dir: &Path) -> std::io::Result<()> {
        self.device.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> std::io::Result<()> {
        self.device.sync_dir(dir)
    }
    fn open_dir(&self, dir: &Path) -> std::io::Result<Arc<dyn Dir>> {
        self.device.open_dir(dir)
    }
    fn boot_id(&self) -> std::io::Result<[u8; 16]> {
        self.device.boot_id()
    }
    fn uid(&self) -> u32 {
        self.device.uid()
    }
    fn random(&self, out: &mut [u8]) -> std::io::Result<()> {
        self.device.random(out)
    }
    fn clock(&self) -> &dyn Clock {
        self.device.clock()
    }
}

/// Each family costs its own lines in the manifest and its share of a rewriting, however many there
/// are.
#[test]
fn the_last_family_costs_no_more_writes_than_the_first() {
    let _alone = ALONE.lock();
    let dir = common::fast_dir();
    let path: PathBuf = dir.path().join("db");
    let device = Counting::default();
    let bytes = Arc::clone(&device.manifest_bytes);
    let options = Options {
        device: Arc::new(device),
        ..options()
    };
    let db = common::open(&path, &options);
    let written = |work: &dyn Fn(usize), range: std::ops::Range<usize>| {
        let before = bytes.load(Ordering::Relaxed);
        range.for_each(work);
        bytes.load(Ordering::Relaxed) - before
    };
    let half = *FAMILIES / 2;
    let create = |n: usize| drop(db.create_family(&name(n), common::small_family()).unwrap());
    let remove = |n: usize| db.drop_family(&db.family(&name(n)).unwrap()).unwrap();
    let works: [&dyn Fn(usize); 2] = [&create, &remove];
    for work in works {
        let (first, second) = (written(work, 0..half), written(work, half..*FAMILIES));
        // A change is 1 KiB, and a base in between some.
        let bound = half as u64 * 2048;
        assert!(
            first <= bound && second <= bound,
            "{first} and {second} bytes of {bound}"
        );
    }
    db.close().unwrap();
    assert_eq!(common::open(&path, &options).families(), ["default"]);
}

/// How long large commits over all families take, one after the other, on a disk and with the default
/// options. The figures of decision 18 are those of 2,100 families: `COLLIE_FAMILIES=2100`.
#[test]
#[ignore = "prints figures, and takes minutes"]
fn large_commits_over_all_families() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    for n in 0..*FAMILIES {
        db.create_family(&name(n), FamilyOptions::default()).unwrap();
    }
    let clock = RealDevice::new();
    let seconds = |since: u64| (clock.clock().monotonic() - since) as f64 / 1e9;
    let started = clock.clock().monotonic();
    for n in 0..6_u8 {
        let mut batch = Batch::new();
        for family in 0..*FAMILIES {
            let family = db.family(&name(family)).unwrap();
            batch.put(&family, [n], vec![n; (24 << 20) / *FAMILIES]).unwrap();
        }
        let began = clock.clock().monotonic();
        db.write(batch, &WriteOptions::disk()).unwrap();
        println!(
            "figures: commit {n} over {} families: {:.2} s",
            *FAMILIES,
            seconds(began)
        );
    }
    db.flush().unwrap();
    println!("figures: all flushed after {:.2} s", seconds(started));
}
