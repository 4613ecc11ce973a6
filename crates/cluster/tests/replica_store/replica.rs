//! A replica of a group that lives, dies and is opened again.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use collie_cluster::NodeLogOptions;
use collie_cluster::testing::replica_store::{Machine, MachineError, MachineOptions, OnFlush, Unsettled};
use collie_cluster::testing::{NodeLog, ReplicaLog, Retention};
use collie_db::{FamilyOptions, Options, Shared, SharedOptions};
use collie_log::{Level, LogOptions, RingMode};
use collie_sim::{PowerCut, Rng, SimDevice};
use tempfile::TempDir;

use crate::dying::Dying;
use crate::plain::{Group, Numbered, assert_holds, change};

/// Entries that stay in the log behind what may be purged.
const GROUP: u64 = 1;

pub(crate) struct Replica {
    pub(crate) dir: TempDir,
    pub(crate) id: u64,
    pub(crate) log_device: SimDevice,
    pub(crate) device: Dying,
    pub(crate) node: NodeLog,
    pub(crate) machine: Option<Machine>,
    pub(crate) on_flush: Option<OnFlush>,
}

fn node_log(device: &SimDevice) -> NodeLog {
    let log = LogOptions {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 1 << 20,
        segment_bytes: 1 << 20,
        max_workers: 4,
        reserve_bytes: Some(0),
        threads: false,
        ..LogOptions::default()
    };
    let options = NodeLogOptions {
        log,
        // For those that lack them only.
        retention: Some(Retention {
            margin: 0,
            lagging: 1 << 30,
        }),
        ..NodeLogOptions::default()
    };
    NodeLog::open("/log", options).unwrap()
}

impl Replica {
    pub(crate) fn new(id: u64, seed: u64) -> Self {
        let log_device = SimDevice::new(seed);
        let mut replica = Self {
            dir: tempfile::tempdir().unwrap(),
            id,
            node: node_log(&log_device),
            log_device,
            device: Dying::new(),
            machine: None,
            on_flush: None,
        };
        replica.drive(replica.node.create(GROUP, id)).unwrap();
        let opened = replica.try_open().unwrap();
        replica.machine = Some(replica.drive(opened.settle()).unwrap());
        replica
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("replica")
    }

    pub(crate) fn log(&self) -> ReplicaLog {
        self.node.replica(self.id).unwrap()
    }

    pub(crate) fn machine(&self) -> &Machine {
        self.machine.as_ref().unwrap()
    }

    pub(crate) fn options(&self) -> MachineOptions {
        let shared = SharedOptions {
            device: Arc::new(self.device.clone()),
            ..SharedOptions::default()
        };
        MachineOptions {
            db: Options {
                device: Arc::new(self.device.clone()),
                shared: Some(Shared::new(shared).unwrap()),
                reserve_bytes: Some(0),
                default_family: FamilyOptions {
                    write_buffer_bytes: 64 << 10,
                    ..FamilyOptions::default()
                },
                ..Options::default()
            },
            on_flush: self.on_flush.clone(),
            ..MachineOptions::new(Arc::new(Numbered))
        }
    }

    /// Opens the store; the log is open.
    pub(crate) fn try_open(&self) -> Result<Unsettled, MachineError> {
        Machine::open(self.path(), self.log(), self.options())
    }

    /// Runs a future to its end; what it waits for is brought to the device by hand.
    pub(crate) fn drive<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        for _ in 0..1_000 {
            if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return done;
            }
            self.sync_log();
        }
        panic!("it never ends");
    }

    pub(crate) fn sync_log(&self) {
        // It fails where the device was killed.
        let _ = self.node.log().flush(Level::Disk);
        self.node.complete();
    }

    /// Appends what the log lacks of the group's entries, or a part of it.
    pub(crate) fn append(&self, group: &Group, most: usize) {
        let log = self.log();
        let next = log.bounds().last.map_or(0, |last| last.index as usize + 1);
        let end = (next + most).min(group.entries.len());
        if next < end {
            let entries = group.entries[next..end].to_vec();
            self.drive(log.append(entries, |_| {})).unwrap();
        }
    }

    /// Applies what the log has, up to so many entries. Fails where the device has died.
    pub(crate) fn apply(&self, group: &Group, most: u64) -> Result<(), MachineError> {
        let log = self.log();
        let machine = self.machine();
        let next = machine.applied().map_or(0, |applied| applied.index + 1);
        let end = log
            .bounds()
            .last
            .map_or(0, |last| last.index + 1)
            .min(next + most);
        for entry in log.read(next..end).unwrap() {
            let change = change(&entry.payload);
            // As a replica that serves does it.
            let outcome = match machine.try_apply(entry.id, change)? {
                Some(outcome) => outcome,
                None => machine.apply(entry.id, change)?,
            };
            assert_eq!(outcome, group.outcome(entry.id.index), "{}", entry.id);
        }
        Ok(())
    }

    /// Purges as far as it may.
    pub(crate) fn purge(&self) {
        let log = self.log();
        if let Some(limit) = self.machine().purge_limit([]) {
            let through = log.id(limit).unwrap();
            self.drive(log.purge(through)).unwrap();
        }
    }

    /// The process dies, with or without the power; what is left is opened again.
    pub(crate) fn crash(mut self, rng: &mut Rng, group: &Group, context: &str) -> Self {
        self.device.kill();
        let snapshot = self.log_device.snapshot();
        self.log_device.kill();
        self.machine = None;
        let image = match rng.coin() {
            true => snapshot.process_death(),
            false => {
                let (_, cut) = PowerCut::WAYS[rng.index(PowerCut::WAYS.len())];
                snapshot.power_cut(cut, rng.next_u64())
            }
        };
        self.open_again(image.device(), group, context)
    }

    /// The process dies at this moment: what its threads do afterwards, such as a flush of what is in
    /// memory, is not in what is opened again. Nothing must be writing.
    pub(crate) fn crash_as_it_stands(mut self, group: &Group, context: &str) -> Self {
        let copy = tempfile::tempdir().unwrap();
        copy_all(self.dir.path(), copy.path());
        let image = self.log_device.snapshot().process_death();
        self.device.kill();
        self.log_device.kill();
        self.machine = None;
        self.dir = copy;
        self.open_again(image.device(), group, context)
    }

    /// Opens what is left of the store, and of the log on this device.
    pub(crate) fn open_again(self, log_device: SimDevice, group: &Group, context: &str) -> Self {
        assert!(self.machine.is_none());
        let mut again = Self {
            node: node_log(&log_device),
            log_device,
            device: Dying::new(),
            ..self
        };
        let opened = again
            .try_open()
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        let machine = again.drive(opened.settle()).unwrap();
        assert_holds(&machine, group, context);
        let position = &group.at(machine.applied().map(|id| id.index)).position;
        assert_eq!(&machine.snapshot(), position, "{context}");
        let bounds = again.log().bounds();
        let applied = machine.applied();
        assert!(
            bounds.purged <= applied && applied <= bounds.last,
            "{context}: {applied:?} in {bounds:?}"
        );
        again.machine = Some(machine);
        again
    }

    /// Closes everything, and opens it again.
    pub(crate) fn reopen(mut self, group: &Group, context: &str) -> Self {
        self.machine.take().unwrap().close().unwrap();
        self.sync_log();
        self.node.clone().close().unwrap();
        let device = self.log_device.snapshot().process_death().device();
        self.log_device.kill();
        self.open_again(device, group, context)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the table files lie on the real file system"
)]
fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy_all(&from, &to);
        } else {
            std::fs::copy(&from, &to).unwrap();
        }
    }
}
