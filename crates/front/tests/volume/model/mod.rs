//! The page map against a model: random programs, a crash anywhere, and again after recovery.
//!
//! `COLLIE_RUNS` sets how many programs, `COLLIE_SEED` one program alone.

mod spec;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use collie_front::{Existing, FrontError, PageFile, Scope, Volume, VolumeOptions};
use collie_io::Device;
use collie_sim::{Data, Image, Points, PowerCut, Rng, SimDevice};

use spec::{PAGE, SECTOR, Spec};

const ROOT: &str = "/volume";
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Few, so that the shadow file is full at times.
const SLOTS: u32 = 14;
const PAGES: u64 = 10;

fn options(device: &SimDevice) -> VolumeOptions {
    crate::support::options(device, PAGE, SLOTS, 1 << 16)
}

/// A running volume, its model, and the models at each moment of its life.
struct Life {
    device: SimDevice,
    volume: Arc<Volume>,
    spec: Spec,
    moments: Vec<Spec>,
    moment: Arc<AtomicU64>,
    stamp: u64,
}

impl Life {
    /// Something may have happened from here on.
    fn moment(&mut self) {
        self.moments.push(self.spec.clone());
        // Relaxed: the device asks under its own lock, on this thread.
        self.moment
            .store(self.moments.len() as u64 - 1, Ordering::Relaxed);
    }

    fn open(&self, name: &str) -> Arc<PageFile> {
        self.volume.file(Path::new(name)).unwrap()
    }

    fn stamps(&mut self, count: usize) -> Vec<u64> {
        let first = self.stamp + 1;
        self.stamp += count as u64;
        (first..=self.stamp).collect()
    }

    /// Writes sectors, each with a stamp of its own.
    fn write(&mut self, name: &str, offset: u64, sectors: usize, half: bool) -> Result<(), FrontError> {
        let stamps = self.stamps(sectors);
        if let Some(file) = self.spec.file(name) {
            file.write(offset, &stamps, half);
        }
        self.moment();
        let bytes: Vec<u8> = stamps
            .iter()
            .flat_map(|stamp| stamp.to_le_bytes().repeat(SECTOR / 8))
            .collect();
        self.volume.write_at(&self.open(name), &bytes, offset)
    }

    fn set_len(&mut self, name: &str, len: u64) -> Result<(), FrontError> {
        if let Some(file) = self.spec.file(name) {
            file.set_len(len);
        }
        self.moment();
        self.volume.set_len(&self.open(name), len)
    }

    /// Adds a page as a server does: zeros at times, then versions of it, with work of the daemon in
    /// between.
    fn grow(&mut self, name: &str, at: u64, rng: &mut Rng) -> Result<(), FrontError> {
        if at >= PAGES * PAGE as u64 {
            return Ok(());
        }
        if rng.coin() {
            if let Some(file) = self.spec.file(name) {
                file.write(at, &[0; PAGE / SECTOR], false);
            }
            self.moment();
            self.volume.write_at(&self.open(name), &[0; PAGE], at)?;
        }
        for _ in 0..1 + rng.below(3) {
            self.write(name, at, PAGE / SECTOR, false)?;
            match rng.below(8) {
                0 => self.volume.commit_all(Scope::Steady)?,
                1 => self.volume.drain()?,
                2 => self.volume.settle_grown(true)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn sync(&mut self, name: &str) -> Result<(), FrontError> {
        if let Some(file) = self.spec.file(name) {
            file.sync_begins();
        }
        self.moment();
        let file = self.open(name);
        self.volume.sync(&file)?;
        self.volume.release(file);
        self.spec.synced(name);
        self.moment();
        Ok(())
    }

    /// Reads a file.
    fn look(&mut self, name: &str) {
        let found = read(&self.volume, name);
        let differs = self.spec.file(name).and_then(|file| file.differs(&found));
        assert_eq!(differs, None, "{name}");
    }

    /// A sync, and writes while it waits for the device: these are not part of it.
    fn sync_beside_writes(&mut self, name: &str, rng: &mut Rng) -> Result<(), FrontError> {
        // Writes that find no free slot would wait for the sync.
        if self.volume.free_slots() < 6 {
            return self.sync(name);
        }
        // Behind the end of a plain file they would wait for it as well.
        let len = self.spec.file(name).map_or(0, |file| file.len);
        let mut pages = len.div_ceil(PAGE as u64);
        if pages < PAGES && (pages == 0 || rng.coin()) {
            self.write(name, pages * PAGE as u64, PAGE / SECTOR, false)?;
            pages = PAGES;
        }
        if let Some(file) = self.spec.file(name) {
            file.sync_begins();
        }
        self.moment();
        let file = self.open(name);
        let volume = Arc::clone(&self.volume);
        let gate = self.device.hold_syncs();
        let done = std::thread::scope(|scope| {
            let syncing = scope.spawn(|| volume.sync(&file));
            let mut gate = Some(gate);
            let mut written = Ok(());
            // It may have nothing to sync, and end.
            while gate.as_ref().is_some_and(|gate| gate.at_once() == 0) && !syncing.is_finished() {
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
            for _ in 0..1 + rng.below(4) {
                let page = rng.below(pages) * PAGE as u64;
                written = written.and_then(|()| self.write(name, page, PAGE / SECTOR, false));
            }
            self.look(name);
            if let Some(gate) = gate.take() {
                gate.release();
            }
            written.and(syncing.join().unwrap())
        });
        done?;
        self.spec.synced(name);
        self.moment();
        Ok(())
    }

    /// One operation.
    fn step(&mut self, rng: &mut Rng) -> Result<(), FrontError> {
        let name = NAMES[rng.index(NAMES.len())];
        if self.spec.names[name].0.is_none() {
            self.spec.create(name);
            self.moment();
            let file = self.volume.create(Path::new(name))?;
            assert!(file.is_empty());
            return Ok(());
        }
        let len = self.spec.file(name).map_or(0, |file| file.len);
        match rng.below(28) {
            0..=8 => {
                let page = rng.below(PAGES);
                let pages = 1 + rng.below(2) as usize;
                self.write(name, page * PAGE as u64, pages * PAGE / SECTOR, false)
            }
            9 => {
                // Some sectors, beginning in the first half of a page: one that is exactly the second
                // half would make a whole page of the first half of the next version.
                let sector = rng.below(PAGES) * (PAGE / SECTOR) as u64 + rng.below(2);
                self.write(name, sector * SECTOR as u64, 1 + rng.index(6), false)
            }
            10 | 11 => {
                // One page in two calls, as the kernel may hand it over; in between something else.
                let at = rng.below(PAGES) * PAGE as u64;
                if at + PAGE as u64 > len {
                    return Ok(());
                }
                self.write(name, at, PAGE / SECTOR / 2, true)?;
                match rng.below(3) {
                    0 => self.volume.commit_all(Scope::Steady)?,
                    1 => self.volume.drain()?,
                    _ => {}
                }
                self.write(name, at + PAGE as u64 / 2, PAGE / SECTOR / 2, false)
            }
            12 => self.sync(name),
            13 | 14 => self.sync_beside_writes(name, rng),
            15 | 16 => self.volume.commit_all(Scope::Steady),
            17 => {
                let to = rng.below(PAGES * (PAGE / SECTOR) as u64) * SECTOR as u64;
                if rng.coin() {
                    if let Some(file) = self.spec.file(name).filter(|_| to > len) {
                        file.set_len(to);
                    }
                    self.moment();
                    let from = rng.below(to + 1);
                    let file = self.open(name);
                    return match to - from {
                        0 => self.volume.set_len(&file, to.max(len)),
                        room => self.volume.allocate(&file, from, room),
                    };
                }
                self.set_len(name, to)
            }
            18 => {
                // A handle that outlives the name.
                let kept = rng.coin().then(|| self.open(name));
                if let Some(file) = self.spec.file(name).filter(|_| kept.is_some()) {
                    file.abandon();
                }
                self.spec.unlink(name);
                self.moment();
                self.volume.unlink(Path::new(name))?;
                if let Some(kept) = kept {
                    self.volume.write_at(&kept, &[0xee; PAGE], 0)?;
                    self.volume.set_len(&kept, PAGE as u64 / 2)?;
                    self.volume.sync(&kept)?;
                    self.volume.forget_removed()?;
                    // In place, with no slot of its own.
                    let free = self.volume.free_slots();
                    self.volume.write_at(&kept, &[0xdd; PAGE], 0)?;
                    let mut found = [0; PAGE];
                    assert_eq!(self.volume.read_at(&kept, &mut found, 0)?, PAGE);
                    assert!(found == [0xdd; PAGE] && self.volume.free_slots() == free);
                }
                Ok(())
            }
            19 => {
                let to = NAMES[rng.index(NAMES.len())];
                if to != name {
                    if let Some(file) = self.spec.file(name) {
                        file.sync_begins();
                    }
                    if let Some(file) = self.spec.file(to) {
                        file.sync_begins();
                    }
                    self.spec.rename(name, to);
                    self.moment();
                    self.volume
                        .rename(Path::new(name), Path::new(to), Existing::Replace)?;
                }
                Ok(())
            }
            20 => self.volume.drain(),
            21 => self.volume.checkpoint(),
            22 => self.volume.forget_removed(),
            23 | 24 => {
                // Cut, and grown again by pages that are written twice.
                let to = rng.below(len / PAGE as u64 + 1) * PAGE as u64;
                self.set_len(name, to)?;
                for _ in 0..1 + rng.below(4) {
                    let end = self.spec.file(name).map_or(0, |file| file.len);
                    self.grow(name, end.next_multiple_of(PAGE as u64), rng)?;
                }
                Ok(())
            }
            25 => self.volume.settle_grown(rng.coin()),
            26 => self.grow(name, len.next_multiple_of(PAGE as u64), rng),
            _ => {
                self.look(name);
                Ok(())
            }
        }
    }
}

fn read(volume: &Volume, name: &str) -> Vec<u8> {
    let file = volume.file(Path::new(name)).unwrap();
    let mut bytes = vec![0; file.len() as usize];
    assert_eq!(volume.read_at(&file, &mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// What is there after a crash.
fn look(volume: &Volume) -> Result<BTreeMap<String, Option<Vec<u8>>>, String> {
    let mut found = BTreeMap::new();
    for name in NAMES {
        let content = match volume.file(Path::new(name)) {
            Ok(file) => {
                let mut bytes = vec![0; file.len() as usize];
                volume
                    .read_at(&file, &mut bytes, 0)
                    .map_err(|e| format!("{name} cannot be read: {e}"))?;
                Some(bytes)
            }
            Err(_) => None,
        };
        found.insert(name.to_owned(), content);
    }
    Ok(found)
}

/// A crash of a running volume.
struct Crash {
    image: Image,
    spec: Spec,
    is_durable: bool,
    way: &'static str,
}

/// Runs a program and crashes it at some moments.
fn live(device: &SimDevice, spec: Spec, rng: &mut Rng, crashes: usize) -> Result<Vec<Crash>, String> {
    let moment = Arc::new(AtomicU64::new(0));
    let asked = Arc::clone(&moment);
    device.tag_snapshots(move || asked.load(Ordering::Relaxed));
    device.record(Points::Changes, crashes);
    let volume = Volume::open(Path::new(ROOT), options(device)).map_err(|e| format!("opening: {e}"))?;
    let mut life = Life {
        device: device.clone(),
        volume: Arc::new(volume),
        moments: vec![spec.clone()],
        spec,
        moment,
        stamp: rng.next_u64() >> 20,
    };
    for step in 0..20 + rng.below(60) {
        life.step(rng).map_err(|e| format!("step {step}: {e}"))?;
    }
    let snapshots = device.take_snapshots();
    let crash = |snapshot: collie_sim::Snapshot| {
        let spec = life.moments[snapshot.tag() as usize].clone();
        if rng.one_in(5) {
            let image = snapshot.process_death();
            return Crash {
                image,
                spec,
                is_durable: false,
                way: "process death",
            };
        }
        let (way, mut cut) = PowerCut::WAYS[rng.index(PowerCut::WAYS.len())];
        if cut.data == Data::FreshGarbage {
            // A file grows by zeros before the log has its end, and a record of the log may end with
            // a sector of zeros.
            cut.data = Data::FreshContentGarbage;
        }
        let mut image = snapshot.power_cut(cut, rng.next_u64());
        image.clear_volatile();
        Crash {
            image,
            spec,
            is_durable: true,
            way,
        }
    };
    Ok(snapshots.into_iter().map(crash).collect())
}

/// Opens what a crash left and compares it.
fn recover(crash: &Crash) -> Result<(SimDevice, Spec), String> {
    let device = crash.image.device();
    let volume = Volume::open(Path::new(ROOT), options(&device)).map_err(|e| format!("opening: {e}"))?;
    let mut spec = crash.spec.clone();
    spec.found(&look(&volume)?, crash.is_durable)?;
    volume.checkpoint().map_err(|e| format!("a checkpoint: {e}"))?;
    drop(volume);
    Ok((device, spec))
}

/// Says how to repeat a program that panics.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!("replay: COLLIE_SEED={seed} cargo test -p collie-front --test volume model::");
        }
    }
}

fn program(seed: u64) -> Result<u64, String> {
    let mut rng = Rng::new(seed);
    let device = SimDevice::new(rng.next_u64());
    device.create_dir_all(Path::new(ROOT)).unwrap();
    let mut worlds = vec![(device, Spec::new(&NAMES))];
    let mut images = 0;
    for life in 0..3 {
        let mut next = Vec::new();
        for (device, spec) in worlds {
            let crashes = live(&device, spec, &mut rng, 24).map_err(|e| format!("life {life}: {e}"))?;
            for (number, crash) in crashes.into_iter().enumerate() {
                images += 1;
                let recovered = recover(&crash);
                let recovered =
                    recovered.map_err(|e| format!("life {life}, crash {number} ({}): {e}", crash.way))?;
                if number == 3 {
                    next.push(recovered);
                }
            }
        }
        worlds = next;
    }
    Ok(images)
}

#[test]
fn random_programs_leave_whole_pages_and_what_was_acknowledged() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let seeds = match number("COLLIE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("COLLIE_RUNS").unwrap_or(60),
    };
    let images = Mutex::new(0);
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let replay = Replay(seed);
                    *images.lock().unwrap() += program(seed).unwrap_or_else(|e| panic!("{e}"));
                    drop(replay);
                }
            });
        }
    });
    println!(
        "figures: {} images of {} programs",
        images.lock().unwrap(),
        seeds.end - seeds.start
    );
}
