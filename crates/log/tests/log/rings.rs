//! Rings whose logs are gone: which they are, and that no other one is removed.

#![expect(
    clippy::disallowed_methods,
    reason = "removes, moves and damages from outside"
)]
#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Clock, Device, Dir, Entry, File, OpenMode, RealDevice, Stat};
use collie_log::rings::{self, RingState};
use collie_log::{Level, Log, LogOptions, RingMode};

/// A directory for rings, and one for logs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.rings()).unwrap();
        place
    }

    fn rings(&self) -> PathBuf {
        self.0.path().join("rings")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn options(&self) -> LogOptions {
        LogOptions {
            ring_bytes: 1 << 16,
            segment_bytes: 1 << 20,
            reserve_bytes: Some(0),
            ring: RingMode::Shared { dir: self.rings() },
            ..LogOptions::default()
        }
    }

    /// Makes a log with a frame that only its ring has, and leaves it as a kill does: its files stay,
    /// and its locks go.
    fn killed(&self, name: &str) {
        let before = self.files();
        let log = Log::open(self.at(name), self.options()).unwrap();
        let at = log.worker().unwrap().append(1, 1, b"kept").unwrap();
        log.wait(at.end, Level::Process).unwrap();
        let ring = self
            .files()
            .into_iter()
            .find(|path| !before.contains(path))
            .unwrap();
        let (dir, aside) = (self.at(name), self.at("aside"));
        copy(&dir, &aside);
        let bytes = std::fs::read(&ring).unwrap();
        log.close().unwrap();
        // The same directory, by its number, and the same name of the ring.
        for entry in std::fs::read_dir(&aside).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
        }
        std::fs::remove_dir_all(&aside).unwrap();
        std::fs::write(&ring, bytes).unwrap();
        std::fs::set_permissions(&ring, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.rings()).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn states(&self) -> Vec<RingState> {
        let listed = rings::list(&RealDevice::new(), &self.rings()).unwrap();
        listed.into_iter().map(|ring| ring.state).collect()
    }

    fn remove_dead(&self) -> usize {
        let removed = rings::remove_dead(&RealDevice::new(), &self.rings()).unwrap();
        for (ring, outcome) in &removed {
            outcome
                .as_ref()
                .unwrap_or_else(|error| panic!("{ring:?}: {error}"));
        }
        removed.len()
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn frames(place: &Place, name: &str) -> usize {
    let log = Log::open(place.at(name), place.options()).unwrap();
    let oldest = log.oldest();
    let frames = log.read(oldest).unwrap().count();
    log.close().unwrap();
    frames
}

#[test]
fn a_ring_whose_log_was_removed_is_dead_and_named() {
    let place = Place::new();
    place.killed("a");
    assert_eq!(place.states(), [RingState::Left]);
    assert_eq!(place.remove_dead(), 0);
    std::fs::remove_dir_all(place.at("a")).unwrap();
    let dead = rings::dead(&RealDevice::new(), &place.rings()).unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].log_dir.as_deref(), Some(&*place.at("a")));
    assert!(dead[0].bytes > 1 << 16);
    assert_eq!(place.states(), [RingState::Dead]);
    assert_eq!(place.remove_dead(), 1);
    assert!(place.files().is_empty());
}

#[test]
fn a_log_that_was_made_anew_at_the_place_does_not_keep_the_ring() {
    let place = Place::new();
    place.killed("a");
    std::fs::remove_dir_all(place.at("a")).unwrap();
    // One of them may get the number of the directory that was removed.
    let other = Log::open(place.at("b"), place.options()).unwrap();
    let log = Log::open(place.at("a"), place.options()).unwrap();
    let mut states = place.states();
    states.sort_by_key(|state| *state == RingState::InUse);
    assert_eq!(states, [RingState::Dead, RingState::InUse, RingState::InUse]);
    assert_eq!(place.remove_dead(), 1);
    assert_eq!(place.states(), [RingState::InUse, RingState::InUse]);
    log.close().unwrap();
    other.close().unwrap();
}

#[test]
fn a_ring_that_a_process_has_stays_whatever_became_of_its_log() {
    let place = Place::new();
    let log = Log::open(place.at("a"), place.options()).unwrap();
    let files = place.files();
    std::fs::remove_dir_all(place.at("a")).unwrap();
    assert_eq!(place.states(), [RingState::InUse]);
    assert_eq!(place.remove_dead(), 0);
    assert_eq!(place.files(), files);
    drop(log);
}

#[test]
fn a_log_that_was_moved_finds_its_ring_after_a_removal() {
    for (from, to) in [("a", "b"), ("s/log", "s/other")] {
        let place = Place::new();
        std::fs::create_dir_all(place.at("s")).unwrap();
        place.killed(from);
        std::fs::rename(place.at(from), place.at(to)).unwrap();
        let listed = rings::list(&RealDevice::new(), &place.rings()).unwrap();
        assert_eq!(listed[0].state, RingState::Left);
        assert_eq!(listed[0].log_dir.as_deref(), Some(&*place.at(to)));
        assert_eq!(place.remove_dead(), 0);
        assert_eq!(frames(&place, to), 1);
    }
    // With the directory that it is in; another one has its place.
    let place = Place::new();
    std::fs::create_dir_all(place.at("s")).unwrap();
    place.killed("s/log");
    std::fs::rename(place.at("s"), place.at("t")).unwrap();
    std::fs::create_dir_all(place.at("s/log")).unwrap();
    assert_eq!(place.remove_dead(), 0);
    assert_eq!(frames(&place, "t/log"), 1);
}

#[test]
fn what_cannot_be_judged_is_left_alone() {
    let place = Place::new();
    place.killed("a");
    let ring = place.files().remove(0);
    let whole = std::fs::read(&ring).unwrap();
    std::fs::remove_dir_all(place.at("a")).unwrap();
    // Without the directory's path, as earlier versions made them; damaged; of no length; of another
    // file system, which is not mounted now.
    let (mut older, mut damaged, mut elsewhere) = (whole.clone(), whole.clone(), whole.clone());
    older[256..2048].fill(0);
    damaged[20] ^= 1;
    let far = b"/proc/collie/log";
    let mut home = u16::try_from(far.len()).unwrap().to_le_bytes().to_vec();
    home.extend_from_slice(far);
    let crc = crc32c::crc32c(&home).to_le_bytes();
    elsewhere[256..260].copy_from_slice(&crc);
    elsewhere[260..260 + home.len()].copy_from_slice(&home);
    for bytes in [&older[..], &damaged, &[], &elsewhere] {
        std::fs::write(&ring, bytes).unwrap();
        let states = place.states();
        assert!(matches!(&states[..], [RingState::Unknown(_)]), "{states:?}");
        assert_eq!(place.remove_dead(), 0);
        assert!(ring.exists());
    }
    std::fs::write(&ring, &whole).unwrap();
    assert_eq!(place.remove_dead(), 1);
}

/// The real files, which are looked at by a remover after each change of a ring.
#[derive(Debug)]
struct Watched {
    real: RealDevice,
    rings: PathBuf,
}

#[derive(Debug)]
struct WatchedFile {
    file: Arc<dyn File>,
    rings: Option<PathBuf>,
}

/// Whatever stands in the file, the ring is that of a living process, or cannot be judged.
fn look(rings: &Path) {
    for ring in rings::list(&RealDevice::new(), rings).unwrap() {
        let is_kept = matches!(ring.state, RingState::InUse | RingState::Unknown(_));
        assert!(is_kept, "{ring:?} of a log that is being made");
    }
}

impl Device for Watched {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.real.open(path, mode)?;
        let rings = path.starts_with(&self.rings).then(|| self.rings.clone());
        rings.iter().for_each(|rings| look(rings));
        Ok(Arc::new(WatchedFile { file, rings }))
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
        self.real.clock()
    }
}

impl File for WatchedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let written = self.file.write_at(buf, offset);
        self.rings.iter().for_each(|rings| look(rings));
        written
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        let allocated = self.file.allocate(len);
        self.rings.iter().for_each(|rings| look(rings));
        allocated
    }
    fn stat(&self) -> io::Result<Stat> {
        self.file.stat()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
    fn map(&self, len: usize) -> io::Result<collie_io::Mapping> {
        self.file.map(len)
    }
}

#[test]
fn a_ring_that_is_being_made_is_never_taken_for_a_dead_one() {
    let place = Place::new();
    let watched = Watched {
        real: RealDevice::new(),
        rings: place.rings(),
    };
    let options = LogOptions {
        device: Arc::new(watched),
        ..place.options()
    };
    let log = Log::open(place.at("a"), options).unwrap();
    assert!(log.recovery().ring_shared, "{:?}", log.recovery());
    assert_eq!(place.states(), [RingState::InUse]);
    log.close().unwrap();
}
