//! Power cuts that take all that no sync has promised, right after a checkpoint. What a checkpoint
//! has settled is nowhere else.

use std::time::Duration;

use collie_sim::faultfs::{Moment, Names, Trap};
use collie_sim::{Data, Fault, FaultKind, Keep, PowerCut};

use crate::lives::SETTINGS;
use crate::machine::Machine;
use crate::skipped;
use crate::statements::{check_contents, statements};

const NOTHING_ELSE: PowerCut = PowerCut {
    data: Data::Lost,
    lengths: Keep::Lost,
    names: Keep::Lost,
};
/// How long each sync takes, so that what is behind it is not done when the disk stops.
const SLOW: Duration = Duration::from_millis(30);
const PATIENCE: Duration = Duration::from_secs(60);

fn what_a_checkpoint_has_settled_is_kept(names: Names) {
    if skipped() {
        return;
    }
    let mut machine = Machine::new(1, names, "8mb");
    machine.init_again();
    machine.mount().unwrap();
    machine.cluster.start(&SETTINGS).unwrap();
    statements(&machine.cluster);
    machine.cluster.sql("postgres", "CHECKPOINT").unwrap();
    machine.cut(NOTHING_ELSE, 1);
    recover(&mut machine);

    // The disk stops when the last word of a checkpoint is on it.
    let update = "UPDATE pgbench_accounts SET abalance = 1234567 WHERE aid % 50 = 0";
    machine.cluster.sql("postgres", update).unwrap();
    machine.fs.delay_syncs(SLOW).unwrap();
    let is_last = |asked: &collie_sim::faultfs::Asked| {
        asked.kind.syncs() && asked.path.to_string_lossy().ends_with("global/pg_control")
    };
    machine.fs.set_trap(Trap::new(1, Moment::After, is_last)).unwrap();
    let mut checkpoint = machine.cluster.program("psql");
    checkpoint.args(["-X", "-c", "CHECKPOINT"]);
    machine.run_beside(checkpoint);
    let fell = machine.fs.wait_for_stop(PATIENCE).unwrap();
    assert!(fell.is_some(), "there was no checkpoint");
    machine.cut(NOTHING_ELSE, 2);
    recover(&mut machine);
    let updated = "SELECT count(*) FROM pgbench_accounts WHERE abalance = 1234567";
    assert_eq!(machine.cluster.sql("postgres", updated).unwrap().trim(), "2000");
}

fn recover(machine: &mut Machine) {
    machine.mount().unwrap();
    machine.cluster.start(&SETTINGS).unwrap();
    // The unlogged table is empty after a crash.
    machine
        .cluster
        .sql("postgres", "INSERT INTO unlogged SELECT generate_series(1, 5000)")
        .unwrap();
    check_contents(&machine.cluster);
    machine.cluster.amcheck().unwrap();
}

#[test]
fn a_checkpoint_is_kept_where_names_need_directory_syncs() {
    what_a_checkpoint_has_settled_is_kept(Names::Posix);
}

#[test]
fn a_checkpoint_is_kept_where_any_sync_is_one_of_names() {
    what_a_checkpoint_has_settled_is_kept(Names::Journal);
}

/// A sync that fails is final for the mount. The server learns of it before it takes a checkpoint for
/// done, and what it had acknowledged is in its log.
#[test]
fn a_failed_sync_fails_a_checkpoint_and_loses_nothing() {
    if skipped() {
        return;
    }
    let mut machine = Machine::new(1, Names::Posix, "8mb");
    machine.init_again();
    machine.mount().unwrap();
    machine.cluster.start(&SETTINGS).unwrap();
    let update = "CREATE TABLE kept AS SELECT generate_series(1, 20000) AS n; CHECKPOINT;
        UPDATE kept SET n = -n";
    machine.cluster.sql("postgres", update).unwrap();
    // What the server holds in memory is still to be written.
    let failing = Fault::new(FaultKind::SyncFails).on(".collie/shadow");
    machine.fs.inject(failing).unwrap();
    let checkpoint = machine.cluster.sql("postgres", "CHECKPOINT");
    assert!(
        checkpoint.is_err(),
        "a checkpoint was done whose pages are not durable"
    );
    machine.cut(NOTHING_ELSE, 3);
    machine.mount().unwrap();
    machine.cluster.start(&SETTINGS).unwrap();
    let rows = "SELECT count(*), sum(n) FROM kept";
    assert_eq!(
        machine.cluster.sql("postgres", rows).unwrap().trim(),
        "20000|-200010000"
    );
}
