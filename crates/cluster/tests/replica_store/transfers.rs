//! Transfers: what they hold, what they check, and what they keep from being purged.

use std::sync::Arc;

use collie_cluster::testing::replica_store::{Machine, MachineError, Missing, Staging, Transfer};
use collie_db::{DiskReserve, RoomUser};
use collie_sim::{Rng, SimDevice};

use crate::plain::{assert_holds, change};
use crate::replica::Replica;
use crate::rules::{group_of, grown};

fn fetch(transfer: &Transfer, staging: &mut Staging) -> u64 {
    let mut fetched = 0;
    while let Some(missing) = staging.missing() {
        let piece = transfer.read(missing.file, missing.offset).unwrap();
        fetched += piece.len() as u64;
        staging.write(missing, &piece).unwrap();
    }
    fetched
}

#[test]
fn entries_behind_a_transfer_are_not_purged() {
    let group = group_of(100, 11);
    let from = Replica::new(1, 1);
    from.append(&group, 100);
    from.apply(&group, 50).unwrap();
    let transfer = from.machine().transfer().unwrap();
    let position = transfer.description().position.clone();
    from.apply(&group, 50).unwrap();
    from.machine().flush().unwrap();
    assert_eq!(Some(&position), group.at(Some(49)).position.as_ref());
    assert_eq!(from.machine().purge_limit([]), Some(49));
    from.purge();
    let to = Replica::new(2, 2);
    let mut staging = to.machine().stage(transfer.description().clone()).unwrap();
    let fetched = fetch(&transfer, &mut staging);
    assert_eq!(fetched, transfer.description().bytes());
    let staged = staging.finish().unwrap();
    let adopted = to.machine().adopt(&staged).unwrap();
    to.drive(adopted.settle()).unwrap();
    assert_holds(to.machine(), &group, "learnt");
    assert_eq!(to.machine().snapshot(), Some(position.clone()));
    let bounds = to.log().bounds();
    assert_eq!(
        (bounds.purged, bounds.last),
        (Some(position.applied), Some(position.applied))
    );
    // The entries behind are still there, and the replica goes on with them.
    to.append(&group, 100);
    to.apply(&group, 100).unwrap();
    assert_holds(to.machine(), &group, "caught up");
    to.reopen(&group, "caught up");
    drop(transfer);
    assert_eq!(from.machine().purge_limit([]), Some(99));
    from.reopen(&group, "the sender");
}

/// What a machine remembers of the tables that it had is not of those that it has now.
#[test]
fn a_machine_with_entries_goes_on_from_what_it_learns() {
    let group = group_of(300, 19);
    let from = Replica::new(1, 1);
    from.append(&group, 300);
    from.apply(&group, 200).unwrap();
    let to = Replica::new(2, 2);
    to.append(&group, 100);
    to.apply(&group, 100).unwrap();
    let staged = to.machine().fetch(&from.machine().transfer().unwrap()).unwrap();
    to.drive(to.machine().adopt(&staged).unwrap().settle()).unwrap();
    to.append(&group, 300);
    to.apply(&group, 100).unwrap();
    assert_holds(to.machine(), &group, "caught up");
}

/// A thread of a runtime neither reads from tables nor waits for an adoption.
#[test]
fn an_entry_is_applied_at_once_or_not_at_all() {
    let group = group_of(60, 23);
    let replica = Replica::new(1, 1);
    replica.append(&group, 60);
    let log = replica.log();
    let (mut at_once, mut later) = (0, 0);
    for entry in log.read(0..60).unwrap() {
        let change = change(&entry.payload);
        let before = replica.machine().applied();
        if replica.machine().try_apply(entry.id, change).unwrap().is_some() {
            at_once += 1;
            continue;
        }
        later += 1;
        assert_eq!(replica.machine().applied(), before, "{}", entry.id);
        replica.machine().apply(entry.id, change).unwrap();
    }
    // The first of each slot that counts keys.
    assert!(at_once > 20 && later > 0, "{at_once} at once, {later} later");
    assert_holds(replica.machine(), &group, "in turns");
}

/// Entries are applied on another thread: a transfer is of one moment, and says of which.
#[test]
fn while_entries_are_applied_each_transfer_is_of_one_moment() {
    let group = group_of(3_000, 17);
    let from = Replica::new(1, 1);
    from.append(&group, 3_000);
    from.apply(&group, 1).unwrap();
    let mut learnt = 0;
    std::thread::scope(|scope| {
        let applying = scope.spawn(|| from.apply(&group, 3_000).unwrap());
        while !applying.is_finished() || learnt < 2 {
            let transfer = from.machine().transfer().unwrap();
            let to = Replica::new(2, learnt);
            let staged = to.machine().fetch(&transfer).unwrap();
            let adopted = to
                .machine()
                .adopt(&staged)
                .unwrap_or_else(|error| panic!("{error}"));
            to.drive(adopted.settle()).unwrap();
            assert_holds(to.machine(), &group, "learnt meanwhile");
            learnt += 1;
        }
    });
}

#[test]
fn what_is_there_and_right_is_not_fetched_again() {
    let group = group_of(60, 12);
    let from = grown(&group, 1);
    let transfer = from.machine().transfer().unwrap();
    let to = Replica::new(2, 2);
    let mut staging = to.machine().stage(transfer.description().clone()).unwrap();
    let mut fetched = 0;
    // All but the last byte.
    while let Some(missing) = staging
        .missing()
        .filter(|_| staging.bytes() + 1 < transfer.description().bytes())
    {
        let mut piece = transfer.read(missing.file, missing.offset).unwrap();
        piece.truncate(((transfer.description().bytes() - 1 - staging.bytes()) as usize).min(500));
        fetched += piece.len() as u64;
        staging.write(missing, &piece).unwrap();
    }
    assert!(staging.finish().is_err());
    drop(staging);
    let to = to.crash(&mut Rng::new(3), &group, "in the middle");
    let mut staging = to.machine().stage(transfer.description().clone()).unwrap();
    fetched += fetch(&transfer, &mut staging);
    // All but tables comes anew.
    let others = transfer.description().files.iter();
    let others = others.filter(|file| !file.name.contains("/tables/"));
    let (all, others) = (
        transfer.description().bytes(),
        others.map(|file| file.size).sum::<u64>(),
    );
    assert!(others < all / 10, "{others} of {all} bytes");
    assert!((all..=all + others).contains(&fetched), "{fetched}");
    staging.finish().unwrap();
    // Another transfer of the same tables has them as well.
    let again = from.machine().transfer().unwrap();
    let mut staging = to.machine().stage(again.description().clone()).unwrap();
    assert!(fetch(&again, &mut staging) < 1_000);
    let staged = staging.finish().unwrap();
    to.drive(to.machine().adopt(&staged).unwrap().settle()).unwrap();
    assert_holds(to.machine(), &group, "learnt");
    let refused = to.machine().adopt(&staged).unwrap_err();
    assert!(matches!(refused, MachineError::Order { .. }), "{refused}");
}

#[test]
fn a_wrong_byte_is_found_and_fetched_again() {
    let group = group_of(80, 13);
    let from = grown(&group, 1);
    let transfer = from.machine().transfer().unwrap();
    for file in 0..transfer.description().files.len() {
        let to = Replica::new(2, 2);
        let mut staging = to.machine().stage(transfer.description().clone()).unwrap();
        let (mut is_wrong, mut refused, mut fetched) = (true, None, 0);
        while let Some(missing) = staging.missing() {
            let mut piece = transfer.read(missing.file, missing.offset).unwrap();
            if missing == (Missing { file, offset: 0 }) && is_wrong {
                (piece[0], is_wrong) = (piece[0] ^ 4, false);
            }
            fetched += piece.len() as u64;
            // The last piece of the file has it checked.
            refused = refused.or(staging.write(missing, &piece).err());
        }
        let refused = refused.unwrap();
        assert!(matches!(refused, MachineError::Checksum { .. }), "{refused}");
        // That file twice.
        let files = &transfer.description().files;
        let all: u64 = files.iter().map(|file| file.size).sum();
        assert_eq!(fetched, all + files[file].size);
        let staged = staging.finish().unwrap();
        to.drive(to.machine().adopt(&staged).unwrap().settle()).unwrap();
        assert_holds(to.machine(), &group, "learnt");
    }
}

#[test]
fn a_stop_between_adoption_and_purge_is_mended() {
    let group = group_of(90, 14);
    let from = grown(&group, 1);
    let transfer = from.machine().transfer().unwrap();
    for had in [0, 30] {
        let to = Replica::new(2, 2);
        to.append(&group, had);
        to.apply(&group, 10).unwrap();
        let mut staging = to.machine().stage(transfer.description().clone()).unwrap();
        fetch(&transfer, &mut staging);
        let staged = staging.finish().unwrap();
        let unsettled = to.machine().adopt(&staged).unwrap();
        drop(unsettled);
        let to = to.crash(&mut Rng::new(5), &group, "adopted, not purged");
        let bounds = to.log().bounds();
        let applied = to.machine().applied();
        assert_eq!((bounds.purged, bounds.last), (applied, applied));
        // And for good.
        let to = to.crash(&mut Rng::new(6), &group, "mended");
        assert_eq!(to.log().bounds().purged, applied);
    }
}

/// The same gap, and nothing says that the tables were learnt: the log has lost what it had.
#[test]
fn a_log_that_ends_before_the_tables_for_no_reason_is_refused() {
    let group = group_of(30, 15);
    let replica = grown(&group, 1);
    replica.machine().flush().unwrap();
    let log = replica.log();
    replica.drive(log.truncate(Some(group.entries[20].id))).unwrap();
    replica.machine().clone().close().unwrap();
    let opened = replica.try_open();
    assert!(matches!(opened, Err(MachineError::Apart { .. })), "{opened:?}");
}

#[test]
fn pieces_that_were_not_asked_for_are_refused() {
    let group = group_of(30, 16);
    let from = grown(&group, 1);
    let transfer = from.machine().transfer().unwrap();
    let to = Replica::new(2, 2);
    assert!(matches!(to.machine().transfer(), Err(MachineError::Empty { .. })));
    let mut staging = to.machine().stage(transfer.description().clone()).unwrap();
    let size = transfer.description().files[0].size as usize;
    for (file, offset, len) in [(0, 1, 1), (0, 0, size + 1), (99, 0, 1)] {
        let refused = staging
            .write(Missing { file, offset }, &vec![0; len])
            .unwrap_err();
        assert!(matches!(refused, MachineError::Piece { .. }), "{refused}");
    }
    assert!(transfer.read(99, 0).is_err());
    let mut outside = transfer.description().clone();
    outside.files[0].name = "../outside".to_owned();
    assert!(matches!(
        to.machine().stage(outside),
        Err(MachineError::Description(_))
    ));
    let refused = from.machine().stage(transfer.description().clone()).unwrap_err();
    assert!(matches!(refused, MachineError::Order { .. }), "{refused}");
}

/// It would keep the room that is kept back on the disk from being complete, until the next transfer.
#[test]
fn a_transfer_that_was_not_taken_over_goes_without_a_reserve() {
    struct NoLogs;
    impl RoomUser for NoLogs {
        fn withhold_room(&self, _: bool) {}

        fn give_up_spares(&self) -> bool {
            false
        }
    }
    let group = group_of(60, 12);
    let from = grown(&group, 1);
    let transfer = from.machine().transfer().unwrap();
    let mut to = Replica::new(2, 2);
    for whole in [false, true] {
        let mut staging = to.machine().stage(transfer.description().clone()).unwrap();
        if whole {
            fetch(&transfer, &mut staging);
            staging.finish().unwrap();
        } else {
            let missing = staging.missing().unwrap();
            let piece = transfer.read(missing.file, missing.offset).unwrap();
            staging.write(missing, &piece[..piece.len() / 2]).unwrap();
        }
        drop(staging);
        to.machine.take().unwrap().close().unwrap();
        let mut options = to.options();
        let full = SimDevice::new(1);
        full.limit_space(Some(0));
        let reserve = DiskReserve::new(Arc::new(full), "/RESERVE".into(), 1 << 20, Arc::new(NoLogs));
        options.db.disk_reserve = Some(reserve);
        assert!(to.path().join("staged").exists());
        let opened = Machine::open(to.path(), to.log(), options).unwrap();
        assert!(!to.path().join("staged").exists(), "it stays, whole: {whole}");
        to.machine = Some(to.drive(opened.settle()).unwrap());
    }
    let staged = to.machine().fetch(&transfer).unwrap();
    to.drive(to.machine().adopt(&staged).unwrap().settle()).unwrap();
    assert_holds(to.machine(), &group, "learnt");
}
