//! Many threads on one volume: writers that sync, a thread that commits and drains, one that writes
//! the map, readers; and power cuts meanwhile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use collie_front::{PageFile, Scope, Volume, VolumeOptions};
use collie_io::Device;
use collie_sim::{Points, PowerCut, Rng, SimDevice};

const PAGE: usize = 1024;
const FILES: usize = 3;
const PAGES: u64 = 12;
/// So many that commits find some, and so few that slots are used again soon.
const SLOTS: u32 = 40;
const WRITES: u64 = 2_000;

fn options(device: &SimDevice) -> VolumeOptions {
    crate::support::options(device, PAGE, SLOTS, 1 << 16)
}

/// A version of a page: which page it is, and how often it was written.
fn stamp(file: usize, page: u64, version: u64) -> u64 {
    (file as u64) << 56 | page << 40 | version
}

fn bytes(file: usize, page: u64, version: u64) -> Vec<u8> {
    stamp(file, page, version).to_le_bytes().repeat(PAGE / 8)
}

/// The version of a page that was read whole.
fn version(file: usize, page: u64, found: &[u8]) -> u64 {
    let first = u64::from_le_bytes(found[..8].try_into().unwrap());
    let is_whole = found.chunks(8).all(|chunk| chunk == &found[..8]);
    assert!(is_whole, "page {page} of file {file} is half of each of two");
    assert_eq!(
        first >> 40,
        stamp(file, page, 0) >> 40,
        "page {page} of file {file} is another page"
    );
    first & ((1 << 40) - 1)
}

fn read(volume: &Volume, handle: &PageFile, file: usize, page: u64) -> u64 {
    let mut found = vec![0; PAGE];
    let len = volume.read_at(handle, &mut found, page * PAGE as u64).unwrap();
    assert_eq!(len, PAGE);
    version(file, page, &found)
}

/// What was acknowledged: the versions of a file's pages.
type Acknowledged = (usize, [u64; PAGES as usize]);

struct Run {
    volume: Volume,
    files: Vec<Arc<PageFile>>,
    /// The last version of each page whose write has returned.
    written: Vec<AtomicU64>,
    journal: Arc<Mutex<Vec<Acknowledged>>>,
}

impl Run {
    fn written(&self, file: usize, page: u64) -> &AtomicU64 {
        &self.written[file * PAGES as usize + page as usize]
    }

    fn write(&self, file: usize, rng: &mut Rng) {
        let mut versions = [0; PAGES as usize];
        for _ in 0..WRITES {
            let page = rng.below(PAGES);
            let next = versions[page as usize] + 1;
            let content = bytes(file, page, next);
            self.volume
                .write_at(&self.files[file], &content, page * PAGE as u64)
                .unwrap();
            versions[page as usize] = next;
            // Release pairs with the readers' Acquire: who finds the number finds the page.
            self.written(file, page).store(next, Ordering::Release);
            if rng.one_in(6) {
                self.volume.sync(&self.files[file]).unwrap();
                self.journal.lock().unwrap().push((file, versions));
            }
        }
    }

    fn read(&self, rng: &mut Rng) {
        let (file, page) = (rng.index(FILES), rng.below(PAGES));
        let least = self.written(file, page).load(Ordering::Acquire);
        let found = read(&self.volume, &self.files[file], file, page);
        assert!(
            found >= least,
            "page {page} of file {file} is version {found}, {least} was written"
        );
    }
}

#[test]
fn threads_see_whole_pages_and_power_cuts_keep_acknowledged() {
    let device = SimDevice::new(7);
    device.create_dir_all(Path::new("/volume")).unwrap();
    let volume = Volume::open(Path::new("/volume"), options(&device)).unwrap();
    let names: Vec<String> = (0..FILES).map(|file| format!("{file}")).collect();
    let files: Vec<_> = names
        .iter()
        .map(|name| volume.create(Path::new(name)).unwrap())
        .collect();
    for (file, handle) in files.iter().enumerate() {
        for page in 0..PAGES {
            volume
                .write_at(handle, &bytes(file, page, 0), page * PAGE as u64)
                .unwrap();
        }
        volume.sync(handle).unwrap();
    }
    let journal = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&journal);
    // Also while a failure of the test is being reported.
    device.tag_snapshots(move || noted.lock().unwrap_or_else(PoisonError::into_inner).len() as u64);
    device.record(Points::Syncs, 60);
    let run = Run {
        volume,
        files,
        written: (0..FILES * PAGES as usize).map(|_| AtomicU64::new(0)).collect(),
        journal,
    };
    let is_over = AtomicBool::new(false);
    // Relaxed: it only ends loops.
    let goes_on = || !is_over.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let run = &run;
        let writers: Vec<_> = (0..FILES)
            .map(|file| scope.spawn(move || run.write(file, &mut Rng::new(file as u64))))
            .collect();
        scope.spawn(move || {
            while goes_on() {
                run.volume.commit_all(Scope::Steady).unwrap();
                run.volume.drain().unwrap();
            }
        });
        scope.spawn(move || {
            while goes_on() {
                run.volume.checkpoint().unwrap();
            }
        });
        for seed in 0..2 {
            let mut rng = Rng::new(100 + seed);
            scope.spawn(move || {
                while goes_on() {
                    run.read(&mut rng);
                }
            });
        }
        let ended: Vec<_> = writers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect();
        is_over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    let journal = run.journal.lock().unwrap();
    let snapshots = device.take_snapshots();
    assert!(snapshots.len() > 30, "{} power cuts", snapshots.len());
    let mut rng = Rng::new(9);
    for (number, snapshot) in snapshots.into_iter().enumerate() {
        let mut acknowledged = [[0; PAGES as usize]; FILES];
        for (file, versions) in &journal[..snapshot.tag() as usize] {
            acknowledged[*file] = *versions;
        }
        let (way, cut) = PowerCut::WAYS[number % PowerCut::WAYS.len()];
        let mut image = snapshot.power_cut(cut, rng.next_u64());
        image.clear_volatile();
        let volume = Volume::open(Path::new("/volume"), options(&image.device())).unwrap();
        for (file, pages) in acknowledged.iter().enumerate() {
            let handle = volume.file(Path::new(&names[file])).unwrap();
            for (page, least) in (0..).zip(pages) {
                let found = read(&volume, &handle, file, page);
                assert!(
                    found >= *least,
                    "cut {number} ({way}): page {page} of file {file} is version {found}, {least} was acknowledged"
                );
            }
        }
    }
}

/// A file that gets its id while the map is being written is in the map, or behind it in the log.
#[test]
fn files_get_their_ids_beside_checkpoints() {
    const FILES: usize = 200;
    let device = crate::small::device();
    let volume = crate::small::open_with(&device, FILES as u32 + 1, 1 << 15);
    for number in 0..FILES {
        let file = volume.create(Path::new(&number.to_string())).unwrap();
        crate::small::write(&volume, &file, 0, 1);
        volume.sync(&file).unwrap();
        crate::small::write(&volume, &file, 0, 2);
        // They go on together, from one sync to the next.
        let gate = device.hold_syncs();
        std::thread::scope(|scope| {
            let syncing = scope.spawn(|| volume.sync(&file));
            gate.wait_for(1);
            let writing = scope.spawn(|| volume.checkpoint());
            while !(syncing.is_finished() && writing.is_finished()) {
                match gate.at_once() {
                    0 => std::thread::yield_now(),
                    _ => gate.let_through(),
                }
            }
            syncing.join().unwrap().unwrap();
            writing.join().unwrap().unwrap();
        });
        gate.release();
        let mut image = device.snapshot().power_cut(PowerCut::WAYS[0].1, 1);
        image.clear_volatile();
        let volume = crate::small::open_with(&image.device(), FILES as u32 + 1, 1 << 15);
        assert_eq!(crate::small::version(&volume, &number.to_string(), 0), 2);
    }
}
