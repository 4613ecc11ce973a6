//! Rules of the state machine, each by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_cluster::testing::replica_store::effects::{Effect, EffectsBuf};
use collie_cluster::testing::replica_store::{ApplyOutcome, Change, Machine, MachineError, data_key};
use collie_sim::Rng;

use crate::plain::{Group, assert_holds};
use crate::replica::Replica;

/// A group with so many entries.
pub(crate) fn group_of(entries: usize, seed: u64) -> Group {
    let mut group = Group::new();
    let mut rng = Rng::new(seed);
    while group.entries.len() < entries {
        group.propose(&mut rng);
    }
    group
}

/// A replica that has applied all of it.
pub(crate) fn grown(group: &Group, id: u64) -> Replica {
    let replica = Replica::new(id, id);
    replica.append(group, group.entries.len());
    replica.apply(group, u64::MAX >> 1).unwrap();
    replica
}

fn entry_of(number: u64, effects: &[Effect<'_>]) -> Vec<u8> {
    let mut buf = EffectsBuf::default();
    effects.iter().for_each(|effect| buf.push(*effect).unwrap());
    [&number.to_le_bytes()[..], buf.bytes()].concat()
}

#[test]
fn what_is_in_tables_is_the_snapshot_and_not_what_is_applied() {
    let group = group_of(60, 1);
    let flushes = Arc::new(AtomicU64::new(0));
    let mut replica = Replica::new(1, 1);
    let told = Arc::clone(&flushes);
    replica.on_flush = Some(Arc::new(move |index| told.store(index, Ordering::Relaxed)));
    let replica = replica.reopen(&group, "told of flushes");
    replica.append(&group, 60);
    replica.apply(&group, 40).unwrap();
    assert_eq!(replica.machine().snapshot(), None);
    replica.machine().flush().unwrap();
    assert_eq!(flushes.load(Ordering::Relaxed), 39);
    replica.apply(&group, 20).unwrap();
    assert_eq!(replica.machine().applied().unwrap().index, 59);
    assert_eq!(replica.machine().snapshot(), group.at(Some(39)).position);
    let replica = replica.crash(&mut Rng::new(1), &group, "not flushed");
    assert_eq!(replica.machine().snapshot(), group.at(Some(39)).position);
}

#[test]
fn purges_stay_behind_what_is_flushed_and_what_is_needed() {
    let group = group_of(100, 2);
    let replica = grown(&group, 1);
    let machine = replica.machine();
    assert_eq!(machine.purge_limit([]), None);
    machine.flush().unwrap();
    assert_eq!(machine.purge_limit([]), Some(99));
    assert_eq!(machine.purge_limit([200, 70]), Some(70));
    replica.purge();
    assert_eq!(machine.purge_limit([]), None, "there is nothing to purge");
    let bounds = replica.log().bounds();
    assert_eq!(bounds.purged.unwrap().index, 99);
}

/// Entries that fill a memtable each: between any two commits there may be a table's end.
#[test]
fn what_tables_call_applied_is_what_they_hold() {
    let mut group = Group::new();
    (0..6).for_each(|_| group.propose_large());
    let replica = grown(&group, 1);
    for _ in 0..2_000 {
        if replica
            .machine()
            .snapshot()
            .is_some_and(|position| position.applied.index >= 4)
        {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let replica = replica.crash(&mut Rng::new(2), &group, "large entries");
    assert!(
        replica
            .machine()
            .applied()
            .is_some_and(|applied| applied.index >= 4)
    );
    replica.apply(&group, u64::MAX >> 1).unwrap();
    assert_holds(replica.machine(), &group, "large entries, again");
}

/// The last entry fills a memtable, which is flushed. Whatever of the entry were in another commit
/// would be in memory.
#[test]
fn an_entry_that_is_in_tables_is_there_with_its_id() {
    for entries in 1..4 {
        let mut group = Group::new();
        (0..entries).for_each(|_| group.propose_large());
        let replica = grown(&group, 1);
        replica.sync_log();
        let last = group.entries.last().unwrap().id;
        let reached = || replica.machine().snapshot().map(|position| position.applied);
        for _ in 0..2_000 {
            if reached() == Some(last) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(reached(), Some(last));
        let replica = replica.crash_as_it_stands(&group, "a flushed entry");
        assert_eq!(replica.machine().applied(), Some(last));
    }
}

/// A journal that is called durable too early leaves tables ahead of the log.
#[test]
fn no_table_is_ahead_of_the_log() {
    let group = group_of(50, 3);
    let replica = grown(&group, 1);
    let durable = replica.log().durable_through();
    assert_eq!(durable, None, "nobody synced");
    replica.machine().flush().unwrap();
    assert_eq!(replica.log().durable_through(), Some(49));
    let crashed = replica.crash(&mut Rng::new(9), &group, "flushed");
    assert_eq!(crashed.machine().applied().unwrap().index, 49);
    assert_eq!(crashed.log().bounds().last.unwrap().index, 49);
}

#[test]
fn entries_are_applied_once_and_in_their_order() {
    let group = group_of(10, 4);
    let replica = grown(&group, 1);
    let machine = replica.machine();
    for (back, change) in [(0, Change::Blank), (3, Change::Members(b"x"))] {
        let id = group.entries[9 - back].id;
        let refused = machine.apply(id, change).unwrap_err();
        assert!(matches!(refused, MachineError::Order { .. }), "{refused}");
    }
    assert_holds(machine, &group, "refused entries");
}

#[test]
fn the_effects_of_an_entry_take_place_in_their_order() {
    let group = group_of(1, 5);
    let replica = grown(&group, 1);
    let machine = replica.machine();
    let mut id = group.entries[0].id;
    let (slot, key) = (9, b"k".as_slice());
    let put = |value| Effect::Put { slot, key, value };
    let entries = [
        (
            vec![put(b"1"), Effect::Delete { slot, key }, put(b"2"), put(b"3")],
            Some(b"3"),
        ),
        (vec![put(b"4"), Effect::Delete { slot, key }], None),
    ];
    let first = group.outcome(0);
    let taken = u64::from(group.entries[0].payload[0] == 2 && first == ApplyOutcome::Taken);
    for (n, (effects, value)) in entries.into_iter().enumerate() {
        id.index += 1;
        let payload = entry_of(taken + 1 + n as u64, &effects);
        assert_eq!(
            machine.apply(id, Change::Effects(&payload)).unwrap(),
            ApplyOutcome::Taken
        );
        let found = machine.db().get(data_key(slot, key)).unwrap();
        assert_eq!(found.as_deref(), value.map(|value| &value[..]));
        // Once more is not once more.
        id.index += 1;
        assert_eq!(
            machine.apply(id, Change::Effects(&payload)).unwrap(),
            ApplyOutcome::Skipped
        );
    }
    id.index += 1;
    for wrong in [
        b"".as_slice(),
        &9_u64.to_le_bytes()[..3],
        &entry_of(3 + taken, &[])[..11],
    ] {
        let refused = machine.apply(id, Change::Effects(wrong)).unwrap_err();
        assert!(matches!(refused, MachineError::Entry { .. }), "{refused}");
    }
}

/// Other clients of the node's thread waited for as long as all of it took.
#[test]
fn a_part_of_the_rows_ends_where_many_were_removed() {
    let mut group = group_of(1, 5);
    let replica = grown(&group, 1);
    let machine = replica.machine();
    let taken = u64::from(group.entries[0].payload[0] == 2 && group.outcome(0) == ApplyOutcome::Taken);
    let slot = 9;
    let keys: Vec<[u8; 4]> = (0..5_000_u32).map(u32::to_be_bytes).collect();
    let (first, last) = (&keys[..4_999], &keys[4_999]);
    let put = |key| Effect::Put {
        slot,
        key,
        value: b"v",
    };
    let puts: Vec<_> = keys.iter().map(|key| put(&key[..])).collect();
    let deletes: Vec<_> = first.iter().map(|key| Effect::Delete { slot, key }).collect();
    for (n, effects) in [puts, deletes].into_iter().enumerate() {
        let mut entry = group.entries[n].clone();
        entry.id.index += 1;
        entry.payload = entry_of(taken + 1 + n as u64, &effects).into();
        let (id, payload) = (entry.id, entry.payload.clone());
        // In the log, as tables are made of what is durable there.
        group.entries.push(entry);
        replica.append(&group, 1);
        let applied = machine.apply(id, Change::Effects(&payload));
        assert_eq!(applied.unwrap(), ApplyOutcome::Taken);
    }
    let (mut after, mut parts, mut rows) = (None::<(u16, Vec<u8>)>, 0, Vec::new());
    loop {
        let behind = after.as_ref().map(|(slot, key)| (*slot, &key[..]));
        let part = machine.rows_after(behind, &(slot..=slot), 16).unwrap();
        parts += 1;
        assert!(part.removed < 3_000, "{} entries in one part", part.removed);
        rows.extend(part.rows.into_iter().map(|row| row.key));
        match part.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(rows, [last.to_vec()]);
    // Behind the slots there is nothing, as for who goes on where a split came meanwhile.
    for beyond in [slot, slot + 1, 16_383] {
        machine.flush().unwrap();
        let part = machine.rows_after(Some((beyond, b"k")), &(0..=slot - 1), 16);
        assert_eq!(part.unwrap().rows, [], "behind slot {beyond}");
    }
    assert!((2..50).contains(&parts), "{parts} parts");
}

/// A log that was purged behind the tables has lost what they lack.
#[test]
fn a_log_that_lacks_what_the_tables_need_is_refused() {
    let group = group_of(40, 6);
    let replica = grown(&group, 1);
    let log = replica.log();
    replica.drive(log.purge_durably(group.entries[20].id)).unwrap();
    let Replica { dir, node, .. } = &replica;
    let other = dir.path().join("other");
    let opened = Machine::open(other, node.replica(1).unwrap(), replica.options());
    assert!(matches!(opened, Err(MachineError::Apart { .. })), "{opened:?}");
}
