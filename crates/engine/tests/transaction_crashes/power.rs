//! Histories on a simulated device: in each life its power is cut, its process dies, or it fails
//! first and then one of these.
//!
//! The log and the manifest are on the simulated device. The tables are on a real one, which keeps
//! all that is written to it; they are written in one history of four. `COLLIE_RUNS` sets how many
//! histories, `COLLIE_SEED` one seed alone.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_check::lives::{self, Life};
use collie_db::{CommitMode, Db, Durability, Error, FamilyOptions, Options, RingMode, TransactionOptions};
use collie_io::RealDevice;
use collie_sim::{Fault, FaultKind, PowerCut, SimDevice, SplitDevice, VOLATILE_DIR};

use crate::Replay;
use crate::common::{self, Rng};
use crate::ledger::{Figures, Report, attempts};
use crate::program::{Client, Mixture, Store};

const THREADS: u64 = 5;
const LIVES: u64 = 4;
/// Transactions of a life, at most.
const TRANSACTIONS: u64 = 300;
/// What fails, where something does.
const FAULTS: [FaultKind; 4] = [
    FaultKind::WriteFails,
    FaultKind::SyncFails,
    FaultKind::AnyFails,
    FaultKind::NoSpace,
];

/// Options that stay as they are for a history.
pub(crate) fn options(path: &Path, device: &SimDevice, shared: bool, mixture: Mixture) -> Options {
    let tables = path.join("families");
    let ring = match shared {
        true => RingMode::Shared {
            dir: VOLATILE_DIR.into(),
        },
        false => RingMode::Private,
    };
    Options {
        device: Arc::new(SplitDevice::new(
            tables,
            Arc::new(RealDevice::new()),
            Arc::new(device.clone()),
        )),
        ring,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        durability: mixture.durability,
        default_family: FamilyOptions {
            write_buffer_bytes: if mixture.flushes { 32 << 10 } else { 1 << 20 },
            ..common::small_family()
        },
        ..common::small()
    }
}

/// One life of a store, from its opening to the image that is left of it, and what its clients were
/// reported.
fn live(store: &Store, device: &SimDevice, mixture: Mixture, life: u64, rng: &mut Rng) -> Vec<Report> {
    let reported = Mutex::new(Vec::new());
    let report = |one: Report| reported.lock().unwrap().push(one);
    let first = life * TRANSACTIONS;
    let (next, end) = (AtomicU64::new(first), first + TRANSACTIONS);
    let killed_at = first + rng.below(TRANSACTIONS);
    let slow = Duration::from_micros([0, 300, 3_000][rng.below(3) as usize]);
    device.delay_syncs(slow);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..THREADS)
            .map(|_| {
                let client = Client {
                    store,
                    mixture,
                    rng: Rng::new(rng.next()),
                    marks: (&next, end),
                    report: &report,
                };
                scope.spawn(move || client.run())
            })
            .collect();
        // Relaxed: nothing is handed over by it.
        while next.load(Ordering::Relaxed) < killed_at && clients.iter().any(|client| !client.is_finished()) {
            std::thread::yield_now();
        }
        device.kill();
    });
    reported.into_inner().unwrap()
}

#[test]
fn what_was_promised_survives_power_cuts_deaths_and_failures() {
    let (mut figures, seeds) = (Figures::default(), common::seeds(16));
    let (count, mut cuts, mut failed) = (seeds.len(), 0, 0);
    for seed in seeds {
        let _replay = Replay { seed, test: "power" };
        let (cut, fault) = history(seed, &mut figures);
        (cuts, failed) = (cuts + cut, failed + fault);
    }
    println!(
        "figures: transactions on a device that fails: {count} histories, {cuts} power cuts, {failed} times a failure before the end, {figures}"
    );
}

/// What a transaction saw of a commit that is in doubt by now, and what is read once the log has
/// failed, are of one moment, or the second is refused.
#[test]
fn a_transaction_while_the_log_fails_sees_no_part_of_a_commit() {
    let mixture = Mixture::new(2, false);
    for scans in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let device = SimDevice::new(1);
        let db = Db::open(&path, options(&path, &device, false, mixture)).unwrap();
        let family = db.default_family();
        let begin = || {
            db.transaction(TransactionOptions {
                commit_mode: CommitMode::Async,
                ..TransactionOptions::serializable()
            })
            .unwrap()
        };
        let syncs = device.hold_syncs();
        let writer = begin();
        writer.put(&family, "x", "1").unwrap();
        writer.put(&family, "y", "1").unwrap();
        let written = writer.commit_ticket().unwrap();
        let reader = begin();
        assert_eq!(reader.get(&family, "x").unwrap().as_deref(), Some(&b"1"[..]));
        device.inject(Fault::new(FaultKind::SyncFails));
        drop(syncs);
        assert!(matches!(
            db.wait(written.end(), Durability::Disk),
            Err(Error::Poisoned { .. })
        ));
        for reader in [reader, begin()] {
            let read = match scans {
                true => reader
                    .range(&family, "y"..)
                    .and_then(|rows| rows.collect::<Result<Vec<_>, _>>())
                    .map(|rows| rows.len()),
                false => reader.get(&family, "y").map(|value| value.iter().count()),
            };
            assert!(matches!(read, Err(Error::InDoubt { .. })), "{read:?} of y");
            assert_eq!(reader.get(&family, "z").unwrap(), None);
        }
    }
}

/// One history. How many power cuts, and how many lives in which the device failed before.
fn history(seed: u64, figures: &mut Figures) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mixture = Mixture::new(seed, rng.one_in(4));
    let (shared, pads) = (rng.one_in(2), rng.one_in(4));
    let open = |device: &SimDevice| {
        let options = Options {
            pad_to_block: pads,
            ..options(&path, device, shared, mixture)
        };
        Store::open(&path, options).unwrap()
    };
    let mut device = SimDevice::new(rng.next());
    let (mut all, mut cuts, mut failed) = (Vec::new(), 0, 0);
    device.support_direct(rng.one_in(2));
    let mut store = open(&device);
    for life in 0..LIVES {
        let faults = device.fault_counts();
        if rng.one_in(2) {
            let kind = FAULTS[rng.below(4) as usize];
            let fault = Fault::new(kind).after(rng.below(15));
            device.inject(fault.times(if kind == FaultKind::NoSpace { 3 } else { 1 }));
        }
        let reported = live(&store, &device, mixture, life, &mut rng);
        failed += u64::from(
            FAULTS
                .iter()
                .any(|kind| device.fault_counts().get(kind) != faults.get(kind)),
        );
        let snapshot = device.snapshot();
        let (image, survives) = if rng.one_in(3) {
            (snapshot.process_death(), Durability::Process)
        } else {
            cuts += 1;
            let (_, cut) = PowerCut::WAYS[rng.below(PowerCut::WAYS.len() as u64) as usize];
            (snapshot.power_cut(cut, rng.next()), Durability::Disk)
        };
        drop(store);
        device = image.device();
        store = open(&device);
        all.push(Life {
            attempts: attempts(&reported, survives),
            found: store.found(),
        });
    }
    store.db.close().unwrap();
    all.iter().for_each(|life| figures.note(life));
    if let Err(what) = lives::check(&all, mixture.demand) {
        panic!("{what}");
    }
    (cuts, failed)
}
