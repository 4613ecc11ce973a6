//! Short programs: a power cut at every operation of the device, every operation failing once and
//! for good, and a full device at every size.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use collie_front::{Existing, FrontError, Scope, Volume, VolumeOptions};
use collie_io::Device;
use collie_sim::{Fault, FaultKind, Image, Points, PowerCut, SimDevice};

const PAGE: usize = 1024;
const PAGES: usize = 6;
const NAMES: [&str; 2] = ["a", "b"];

fn options(device: &SimDevice) -> VolumeOptions {
    crate::support::options(device, PAGE, 5, 1 << 15)
}

/// What a program does.
#[derive(Debug, Clone, Copy)]
enum Step {
    Create(usize),
    /// Pages of a file, from one to another.
    Write(usize, usize, usize),
    Sync(usize),
    /// Cuts a file to a number of pages.
    Cut(usize, usize),
    Unlink(usize),
    Rename(usize, usize),
    Steady,
    Drain,
    Forget,
    Checkpoint,
}

use Step::{Checkpoint, Create, Cut, Drain, Forget, Rename, Steady, Sync, Unlink, Write};

const PROGRAMS: [&[Step]; 5] = [
    &[
        Create(0),
        Write(0, 0, 4),
        Sync(0),
        Write(0, 1, 3),
        Steady,
        Write(0, 1, 2),
        Sync(0),
        Write(0, 3, 6),
        Sync(0),
        Drain,
        Write(0, 0, 2),
        Sync(0),
        Checkpoint,
    ],
    &[
        Create(0),
        Write(0, 0, 6),
        Sync(0),
        Write(0, 2, 5),
        Sync(0),
        Cut(0, 3),
        Write(0, 2, 6),
        Sync(0),
        Checkpoint,
        Cut(0, 1),
        Sync(0),
    ],
    &[
        Create(0),
        Create(1),
        Write(0, 0, 2),
        Write(1, 0, 2),
        Sync(0),
        Sync(1),
        Write(0, 0, 2),
        Write(1, 0, 1),
        Sync(0),
        Steady,
        Unlink(0),
        Checkpoint,
        Create(0),
        Write(0, 0, 3),
        Sync(0),
        Write(0, 0, 3),
        Sync(0),
        Forget,
    ],
    &[
        Create(0),
        Create(1),
        Write(0, 0, 3),
        Write(1, 0, 3),
        Sync(0),
        Sync(1),
        Write(0, 0, 3),
        Steady,
        Rename(0, 1),
        Sync(1),
        Write(1, 0, 3),
        Sync(1),
    ],
    // New names behind the first sync of their directory.
    &[
        Create(0),
        Write(0, 0, 2),
        Sync(0),
        Unlink(0),
        Create(0),
        Create(1),
        Write(0, 0, 2),
        Write(1, 0, 2),
        Sync(0),
        Sync(1),
        Write(1, 0, 2),
        Sync(1),
    ],
];

/// What is known of a name.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// Whether the file must be there.
    must_exist: bool,
    /// For each page the oldest version that may be found, if one must be.
    least: [Option<u64>; PAGES],
}

/// A program under way.
struct Run {
    volume: Volume,
    known: [Known; 2],
    /// Whether the last write of a page failed: behind the committed end it may be half there.
    is_half: [[bool; PAGES]; 2],
    what: String,
    /// Versions never repeat.
    version: u64,
    moments: Arc<Mutex<Vec<[Known; 2]>>>,
}

fn bytes(page: usize, version: u64) -> Vec<u8> {
    (version << 8 | page as u64).to_le_bytes().repeat(PAGE / 8)
}

impl Run {
    fn new(volume: Volume, what: String) -> Run {
        Run {
            volume,
            known: [Known::default(); 2],
            is_half: [[false; PAGES]; 2],
            what,
            version: 0,
            moments: Arc::new(Mutex::new(vec![[Known::default(); 2]])),
        }
    }

    fn moment(&self) {
        self.moments.lock().unwrap().push(self.known);
    }

    fn step(&mut self, step: Step) -> Result<(), FrontError> {
        let path = |name: usize| Path::new(NAMES[name]);
        match step {
            Create(name) => self.volume.create(path(name)).map(drop),
            Write(name, from, to) => {
                let mut content = Vec::new();
                for page in from..to {
                    self.version += 1;
                    content.extend(bytes(page, self.version));
                }
                self.is_half[name][from..to].fill(true);
                let file = self.volume.file(path(name))?;
                self.volume.write_at(&file, &content, (from * PAGE) as u64)?;
                self.is_half[name][from..to].fill(false);
                Ok(())
            }
            Sync(name) => {
                let file = self.volume.file(path(name))?;
                self.volume.sync(&file)?;
                let pages = file.len() as usize / PAGE;
                let is_known = |page: usize| page < pages && !self.is_half[name][page];
                self.known[name] = Known {
                    must_exist: true,
                    least: std::array::from_fn(|page| {
                        is_known(page).then(|| self.read(name, page)).flatten()
                    }),
                };
                self.moment();
                Ok(())
            }
            Cut(name, pages) => {
                self.known[name].least[pages..].fill(None);
                self.moment();
                let file = self.volume.file(path(name))?;
                self.volume.set_len(&file, (pages * PAGE) as u64)
            }
            Unlink(name) => {
                self.known[name] = Known::default();
                self.moment();
                self.volume.unlink(path(name))
            }
            Rename(from, to) => {
                // The one or the other, until a sync says which.
                (self.known[from], self.known[to]) = (Known::default(), Known::default());
                for page in 0..PAGES {
                    let is_half = self.is_half[from][page] || self.is_half[to][page];
                    (self.is_half[from][page], self.is_half[to][page]) = (is_half, is_half);
                }
                self.moment();
                self.volume.rename(path(from), path(to), Existing::Replace)
            }
            Steady => self.volume.commit_all(Scope::Steady),
            Drain => self.volume.drain(),
            Forget => self.volume.forget_removed(),
            Checkpoint => self.volume.checkpoint(),
        }
    }

    /// The version of a page; `None` where the device does not say.
    fn read(&self, name: usize, page: usize) -> Option<u64> {
        match read(&self.volume, name, page) {
            Ok(Some(found)) => Some(found),
            Err(error) if error.contains("Input/output error") => None,
            wrong => panic!("{}: {wrong:?}", self.what),
        }
    }
}

/// The version of a page, if the file reaches so far.
fn read(volume: &Volume, name: usize, page: usize) -> Result<Option<u64>, String> {
    let file = volume.file(Path::new(NAMES[name])).map_err(|e| e.to_string())?;
    let mut found = vec![0; PAGE];
    let len = volume.read_at(&file, &mut found, (page * PAGE) as u64);
    if len.map_err(|e| format!("page {page} of {}: {e}", NAMES[name]))? < PAGE {
        return Ok(None);
    }
    let stamp = u64::from_le_bytes(found[..8].try_into().unwrap());
    if found != bytes(page, stamp >> 8) {
        return Err(format!("page {page} of {} is no version of it", NAMES[name]));
    }
    Ok(Some(stamp >> 8))
}

/// Compares what is there with what must be.
fn check(volume: &Volume, known: &[Known; 2]) -> Result<(), String> {
    for (name, known) in known.iter().enumerate() {
        if !known.must_exist {
            continue;
        }
        for (page, least) in known.least.iter().enumerate() {
            let Some(least) = least else { continue };
            match read(volume, name, page)? {
                Some(found) if found >= *least => {}
                found => {
                    return Err(format!(
                        "page {page} of {} is version {found:?}, {least} was acknowledged",
                        NAMES[name]
                    ));
                }
            }
        }
    }
    Ok(())
}

fn recover(image: &Image, known: &[Known; 2]) -> Result<(), String> {
    let volume =
        Volume::open(Path::new("/volume"), options(&image.device())).map_err(|e| format!("opening: {e}"))?;
    check(&volume, known)
}

fn device() -> SimDevice {
    let device = SimDevice::new(3);
    device.create_dir_all(Path::new("/volume")).unwrap();
    device
}

#[test]
fn a_power_cut_at_any_operation_leaves_what_was_acknowledged() {
    let mut images = 0;
    for program in PROGRAMS {
        let device = device();
        let volume = Volume::open(Path::new("/volume"), options(&device)).unwrap();
        let mut run = Run::new(volume, format!("{program:?}"));
        let moments = Arc::clone(&run.moments);
        // Also while a failure of the test is being reported.
        device.tag_snapshots(move || moments.lock().unwrap_or_else(PoisonError::into_inner).len() as u64 - 1);
        device.record(Points::Changes, usize::MAX);
        for step in program {
            run.step(*step).unwrap();
        }
        let moments = run.moments.lock().unwrap();
        for (number, snapshot) in device.take_snapshots().into_iter().enumerate() {
            let known = &moments[snapshot.tag() as usize];
            let at = snapshot.at().map(ToString::to_string);
            for (way, cut) in PowerCut::WAYS {
                let mut image = snapshot.power_cut(cut, number as u64);
                image.clear_volatile();
                recover(&image, known).unwrap_or_else(|e| panic!("{program:?}, {way} at {at:?}: {e}"));
                images += 1;
            }
            recover(&snapshot.process_death(), known)
                .unwrap_or_else(|e| panic!("{program:?}, process death at {at:?}: {e}"));
        }
    }
    assert!(images > 2_000, "{images} images");
    println!("figures: {images} images");
}

/// Runs a program on a device that misbehaves, and looks at what is left.
fn run_with(program: &[Step], fault: impl Fn(&SimDevice), what: &str) -> bool {
    let device = device();
    let volume = Volume::open(Path::new("/volume"), options(&device)).unwrap();
    let mut run = Run::new(volume, format!("{program:?}, {what}"));
    fault(&device);
    let mut failed = false;
    for step in program {
        failed |= run.step(*step).is_err();
    }
    device.heal();
    device.limit_space(None);
    // Readers go on; a write that failed may have left half of a page for them, not for recovery.
    let mut seen = run.known;
    for (known, is_half) in seen.iter_mut().zip(run.is_half) {
        for (least, is_half) in known.least.iter_mut().zip(is_half) {
            *least = least.filter(|_| !is_half);
        }
    }
    check(&run.volume, &seen).unwrap_or_else(|e| panic!("{program:?}, {what}, alive: {e}"));
    for name in 0..NAMES.len() {
        if let Err(error) = run.step(Sync(name)) {
            let is_said = matches!(
                error,
                FrontError::Poisoned { .. } | FrontError::Io { .. } | FrontError::Log(_)
            );
            assert!(is_said, "{program:?}, {what}: {error}");
        }
    }
    for (number, (way, cut)) in PowerCut::WAYS.into_iter().enumerate() {
        let mut image = device.snapshot().power_cut(cut, number as u64);
        image.clear_volatile();
        recover(&image, &run.known).unwrap_or_else(|e| panic!("{program:?}, {what}, {way}: {e}"));
    }
    failed
}

#[test]
fn faults_once_or_for_good_lose_nothing_that_was_acknowledged() {
    let kinds = [
        FaultKind::AnyFails,
        FaultKind::WriteFails,
        FaultKind::SyncFails,
        FaultKind::NoSpace,
    ];
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let (program, kind) = (n % PROGRAMS.len(), n / PROGRAMS.len());
                    let Some(kind) = kinds.get(kind) else { return };
                    for after in 0.. {
                        let mut fired = false;
                        for times in [1, u64::MAX] {
                            let device = Mutex::new(None);
                            let inject = |sim: &SimDevice| {
                                sim.inject(Fault::new(*kind).after(after).times(times));
                                *device.lock().unwrap() = Some(sim.clone());
                            };
                            let what = format!("{kind:?} after {after}, {times} times");
                            failed.fetch_add(
                                u64::from(run_with(PROGRAMS[program], inject, &what)),
                                Ordering::Relaxed,
                            );
                            let device = device.lock().unwrap().take();
                            fired |= device.is_some_and(|device| device.fired(*kind) > 0);
                        }
                        if !fired {
                            break;
                        }
                    }
                }
            });
        }
    });
    let failed = failed.load(Ordering::Relaxed);
    assert!(failed > 500, "{failed} programs met a failure");
    println!("figures: {failed} programs met a failure");
}

#[test]
fn a_device_that_is_full_at_any_size_refuses_and_loses_nothing() {
    let mut failed = 0;
    for program in PROGRAMS {
        for bytes in (0..64).map(|blocks| blocks * 512) {
            let full = |device: &SimDevice| device.limit_space(Some(bytes));
            failed += usize::from(run_with(program, full, &format!("room for {bytes} bytes")));
        }
    }
    assert!(failed > 20, "{failed} programs met a full device");
}
