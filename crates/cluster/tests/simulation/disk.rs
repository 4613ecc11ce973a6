//! The disk of a node. Its log is on a simulated device, which forgets what was not synced. Its tables
//! are real files, as the table library opens its own: they are as they were when the process died.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_io::Device;
use collie_sim::{Fault, FaultKind, PowerCut, Rng, SimDevice, SplitDevice};
use tempfile::TempDir;

use crate::dying::Dying;

/// A sync takes so long, unless the disk is slow.
const SYNC: Duration = Duration::from_millis(6);

pub(crate) struct Disk {
    /// Where it is for the node.
    path: PathBuf,
    /// What is to be removed.
    _dirs: [TempDir; 2],
    state: Mutex<State>,
}

struct State {
    log: SimDevice,
    tables: Dying,
    rng: Rng,
    /// The longest pause before a sync.
    sync: Duration,
    /// Something was made to fail since the process began.
    failing: bool,
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        let log = SimDevice::new(seed);
        // In memory, where there is such a place: nothing here depends on what survives a crash of the
        // machine. By another name, as a simulated device forgets all of /dev/shm in a power cut.
        let real = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap());
        let named = tempfile::tempdir().unwrap();
        let path = named.path().join("disk");
        symlink(real.path(), &path).unwrap();
        let disk = Self {
            path,
            _dirs: [real, named],
            state: Mutex::new(State {
                log,
                tables: Dying::new(),
                rng: Rng::new(seed),
                sync: SYNC,
                failing: false,
            }),
        };
        // The disk is mounted there: it does not vanish.
        disk.log().create_dir_all(&disk.path()).unwrap();
        for dir in disk.path().ancestors().skip(1) {
            disk.log().sync_dir(dir).unwrap();
        }
        disk
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Of both devices.
    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    pub(crate) fn log(&self) -> SimDevice {
        self.lock().log.clone()
    }

    /// The device of the tables, with the clock and the draws of the simulated one.
    pub(crate) fn tables(&self) -> Arc<dyn Device> {
        let state = self.lock();
        Arc::new(SplitDevice::new(
            "/",
            Arc::new(state.tables.clone()),
            Arc::new(state.log.clone()),
        ))
    }

    /// How long the next sync takes.
    pub(crate) fn next_sync(&self) -> Duration {
        let mut state = self.lock();
        let most = state.sync.as_micros() as u64;
        Duration::from_micros(500 + state.rng.below(most))
    }

    /// From now on, syncs take up to so long.
    pub(crate) fn slow(&self, sync: Option<Duration>) {
        self.lock().sync = sync.unwrap_or(SYNC);
    }

    /// From the operation after so many on, nothing happens to the log any more: the process, which
    /// may not notice, dies soon.
    pub(crate) fn stop_after(&self, operations: u64) {
        let mut state = self.lock();
        state.failing = true;
        state
            .log
            .inject(Fault::new(FaultKind::AnyFails).after(operations));
    }

    /// The next sync fails.
    pub(crate) fn fail_sync(&self) {
        let mut state = self.lock();
        state.failing = true;
        state.log.inject(Fault::new(FaultKind::SyncFails).once());
    }

    /// Leaves room for so many bytes.
    pub(crate) fn fill(&self, room: Option<u64>) {
        let mut state = self.lock();
        state.failing |= room.is_some();
        state.log.limit_space(room);
    }

    /// Whether what fails is no wonder.
    pub(crate) fn is_failing(&self) -> bool {
        self.lock().failing
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.lock().log.sim_clock().advance(by.as_nanos() as u64);
    }

    /// How many operations there were.
    pub(crate) fn operations(&self) -> u64 {
        self.lock().log.operations()
    }

    /// The process dies: nothing that is left of it changes anything any more. With `power`, what was
    /// not synced is lost, kept, or torn. Returns how.
    pub(crate) fn die(&self, power: bool) -> &'static str {
        let mut state = self.lock();
        let snapshot = state.log.snapshot();
        state.log.kill();
        state.tables.kill();
        let (way, image) = if power {
            let way = state.rng.index(PowerCut::WAYS.len());
            let (name, cut) = PowerCut::WAYS[way];
            (name, snapshot.power_cut(cut, state.rng.next_u64()))
        } else {
            ("process death", snapshot.process_death())
        };
        state.log = image.device();
        state.tables = Dying::new();
        state.failing = false;
        way
    }
}
