//! Recovery of mutated log directories: segments, archive, ring and names.
//!
//! The directories are those of small programs. What was changed without a good checksum must be
//! reported or be without effect on what comes before it; what carries one is taken for what it
//! says, and must not panic, hang or ask for memory.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_check::images::{DIR, Setup, commit, find};
use collie_check::{Ledger, Survives};
use collie_io::{Device, OpenMode, read_exact_at, write_all_at};
use collie_log::{Compression, FIRST_LSN, Level, Log, LogError, LogOptions, Lsn};
use collie_sim::fuzz::{mutate, run};
use collie_sim::{Image, Rng, SimDevice, VOLATILE_DIR};

/// Where a segment's data begins.
const DATA: usize = 8192;
/// A segment's header stands twice, without and with its checksum so long. docs/design/formats/log.md
const SEGMENT_COPIES: [usize; 2] = [0, DATA / 2];
const SEGMENT_HEADER: usize = 390;
const RING_HEADER: usize = 100;
const FRAME_HEADER: usize = 32;
const SALT_AT: usize = 60;

/// What a program left.
struct World {
    setup: Setup,
    compression: Compression,
    image: Image,
    ledger: Ledger,
    /// The first commit that was not given up.
    oldest: u64,
    /// Where it begins.
    resume_at: Lsn,
}

impl World {
    fn options(&self, device: &SimDevice, resumes: bool) -> LogOptions {
        LogOptions {
            compression: self.compression,
            resume_at: resumes.then_some(self.resume_at),
            ..self.setup.options(device, false)
        }
    }

    /// A program's log, dead in the middle.
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut setup = Setup::small(!rng.one_in(4), rng.coin());
        if rng.one_in(4) {
            setup = setup.padded();
        }
        setup.archive = rng.coin();
        let (device, ledger) = (SimDevice::new(seed), Ledger::new());
        let mut world = Self {
            setup,
            compression: if rng.one_in(3) {
                Compression::Lz4
            } else {
                Compression::None
            },
            image: device.snapshot().process_death(),
            ledger: ledger.clone(),
            oldest: 0,
            resume_at: FIRST_LSN,
        };
        for lives in (0..=rng.below(3)).rev() {
            let log = Log::open(DIR, world.options(&device, false)).unwrap();
            let mut worker = log.worker().unwrap();
            for _ in 0..1 + rng.below(50) {
                let level = if rng.coin() { Level::Disk } else { Level::Process };
                commit(&log, &mut worker, &ledger, 24 + rng.index(2_500), Some(level)).unwrap();
                if rng.one_in(12) {
                    log.flush(Level::Disk).unwrap();
                    ledger.released(log.durable());
                    log.retain("test", log.durable());
                    world.oldest = ledger.len() as u64;
                    world.resume_at = log.durable();
                }
            }
            world.image = device.snapshot().process_death();
            drop(worker);
            if lives > 0 {
                log.close().unwrap();
            }
        }
        world
    }
}

/// What was done to a directory.
#[derive(Debug, Default)]
struct Done {
    /// The ring, by its contents: a frame that it lacks looks as if its process had died in the
    /// middle of it.
    ring: bool,
    /// What was changed carries good checksums.
    sealed: bool,
    /// The caller that opens the log says where it resumes. Otherwise damage in a frame that is the
    /// oldest may pass for the end of one before it (docs/design/testing.md).
    resumes: bool,
}

fn files(device: &SimDevice) -> Vec<PathBuf> {
    let dirs = [DIR.into(), Path::new(DIR).join("archive"), VOLATILE_DIR.into()];
    let mut files = Vec::new();
    for dir in dirs {
        // There is not always an archive.
        for entry in device.list(&dir).unwrap_or_default() {
            if !entry.is_dir() {
                files.push(dir.join(entry.name));
            }
        }
    }
    files
}

fn read(device: &SimDevice, path: &Path) -> Vec<u8> {
    let file = device.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().len as usize];
    read_exact_at(&*file, &mut bytes, 0).unwrap();
    bytes
}

fn write(device: &SimDevice, path: &Path, bytes: &[u8]) {
    let file = device.open(path, OpenMode::OpenOrCreate).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    write_all_at(&*file, bytes, 0).unwrap();
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

/// The frames of a segment that begin in it, as they follow each other; of a ring none is known.
fn frames(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut frames) = (DATA, Vec::new());
    while bytes.len() > at + FRAME_HEADER && word(bytes, at + 8) != 0 {
        frames.push(at);
        let len = (word(bytes, at + 4) & !(1 << 31)) as usize;
        at += (FRAME_HEADER + len).next_multiple_of(8);
    }
    frames
}

fn seal(bytes: &mut [u8], at: usize, len: usize) {
    if let Some(header) = bytes.get_mut(at..at + len) {
        let (covered, sum) = header.split_at_mut(len - 4);
        sum.copy_from_slice(&crc32c::crc32c(covered).to_le_bytes());
    }
}

/// Gives headers and frames that were changed the checksums that they need to be believed.
fn seal_all(bytes: &mut [u8], before: &[u8], is_ring: bool) {
    if is_ring {
        seal(bytes, 0, RING_HEADER);
        return;
    }
    for copy in SEGMENT_COPIES {
        seal(bytes, copy, SEGMENT_HEADER);
    }
    let salt = word(bytes, SALT_AT);
    for at in frames(before) {
        let end = at + FRAME_HEADER + (word(bytes, at + 4) & !(1 << 31)) as usize;
        let Some(frame) = bytes.get_mut(at..end) else {
            continue;
        };
        let (head, payload) = frame.split_at_mut(FRAME_HEADER);
        let sum = crc32c::crc32c_append(crc32c::crc32c_append(salt, payload), &head[4..]);
        head[..4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Changes a stretch of a file that matters: a header, or what is not zeros.
fn change_bytes(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
    let (from, to) = match rng.below(8) {
        0 | 1 => (0, 512),
        2 => (DATA / 2, DATA / 2 + 512),
        3 => {
            let frames = frames(bytes);
            let at = frames.get(rng.index(frames.len())).copied().unwrap_or(0);
            (at, at + FRAME_HEADER)
        }
        4 => (0, bytes.len()),
        _ => {
            let from = rng.index(used);
            (from, from + 1 + rng.index(4_096))
        }
    };
    let (from, to) = (from.min(bytes.len()), to.min(bytes.len()));
    let mut part = bytes[from..to].to_vec();
    mutate(rng, &mut part, other.get(from..).unwrap_or_default(), 64 << 10);
    if rng.one_in(8) {
        bytes.splice(from..to, part);
    } else {
        part.resize(to - from, 0);
        bytes[from..to].copy_from_slice(&part);
    }
}

/// Mutates one file, or the names.
fn mutate_directory(rng: &mut Rng, device: &SimDevice, sealed: bool) -> Done {
    let files = files(device);
    let some = |rng: &mut Rng| files[rng.index(files.len())].clone();
    let (path, other) = (some(rng), some(rng));
    let is_ring = path.starts_with(VOLATILE_DIR);
    let other_bytes = read(device, &other);
    if rng.one_in(8) {
        match rng.below(4) {
            0 => device.remove_file(&path).unwrap(),
            1 => write(device, &path, &other_bytes),
            2 => {
                let next = format!("{:016x}.seg", rng.below(12));
                write(device, &Path::new(DIR).join(next), &other_bytes);
            }
            _ => write(device, &path, &[]),
        }
        return Done {
            ring: is_ring,
            ..Done::default()
        };
    }
    let before = read(device, &path);
    let mut bytes = before.clone();
    change_bytes(rng, &mut bytes, &other_bytes);
    if sealed {
        seal_all(&mut bytes, &before, is_ring);
    }
    write(device, &path, &bytes);
    Done {
        resumes: false,
        ring: is_ring,
        sealed,
    }
}

/// What recovery may say about a directory that was changed.
fn check_refusal(error: &LogError, done: &Done) {
    let allowed = matches!(
        error,
        LogError::Corrupt { .. }
            | LogError::Version { .. }
            | LogError::WrongDirectory { .. }
            | LogError::Missing { .. }
            | LogError::LogIdMismatch { .. }
            | LogError::BeginningUnknown { .. }
    );
    assert!(allowed, "{done:?}: {error:?}");
}

/// Whole commits in order, none missing between any two, unless the ring that had it was changed.
fn check_commits(world: &World, log: &Log, done: &Done) -> Result<(), LogError> {
    let found = find(log)?;
    let verdict = world.ledger.check(world.ledger.now(), Survives::Damage, &found);
    assert_eq!(verdict.partial, 0, "{done:?}: {verdict}");
    let ids: Vec<u64> = found.iter().filter_map(|commit| commit.id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{done:?}: {ids:?}");
    if !done.ring {
        assert!(ids.is_sorted_by(|a, b| a + 1 == *b), "{done:?}: {ids:?}");
    }
    if done.resumes && !done.ring {
        let begins = ids.first().is_none_or(|first| *first <= world.oldest);
        assert!(begins, "{done:?}: {} is the oldest, found {ids:?}", world.oldest);
    }
    Ok(())
}

/// Opens what is there, looks at it from outside, and lets life go on.
fn recover(world: &World, device: &SimDevice, done: &Done) {
    let seam = Arc::new(device.clone()) as Arc<dyn Device>;
    // What it says is recovery's to judge; here it must only say something.
    let _ = collie_log::inspect::inspect(&seam, Path::new(DIR), |_| {});
    let log = match Log::open(DIR, world.options(device, done.resumes)) {
        Ok(log) => log,
        Err(error) if done.sealed => return drop(error),
        Err(error) => return check_refusal(&error, done),
    };
    if done.sealed {
        let _ = find(&log);
        let _ = log.close();
        return;
    }
    if let Err(error) = check_commits(world, &log, done) {
        check_refusal(&error, done);
    }
    let mut worker = log.worker().unwrap();
    let end = worker.append(1, 2, b"life goes on").unwrap();
    drop((end, worker));
    log.close().unwrap();
    let again = Log::open(DIR, world.options(device, done.resumes));
    assert!(again.is_ok(), "{done:?}: {:?}", again.err());
}

fn fuzz(name: &str, sealed: bool) {
    let worlds: Vec<World> = (0..12).map(World::new).collect();
    run(name, 400, |rng| {
        let world = &worlds[rng.index(worlds.len())];
        let device = world.image.device();
        let done = Done {
            resumes: rng.coin(),
            ..mutate_directory(rng, &device, sealed)
        };
        recover(world, &device, &done);
    });
}

#[test]
fn a_mutated_log_opens_with_whole_commits_or_names_the_damage() {
    fuzz("log", false);
}

#[test]
fn mutations_with_good_checksums_neither_panic_nor_take_memory() {
    fuzz("log-sealed", true);
}
