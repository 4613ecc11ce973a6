//! Splits of a group, as one replica applies them.

use std::sync::Arc;

use collie_cluster::testing::replica_store::effects::{Effect, EffectsBuf, Split};
use collie_cluster::testing::replica_store::{ApplyOutcome, Beside, Change, Machine, data_key};
use collie_cluster::testing::{Entry, EntryId, LeaderId};
use collie_db::{Db, ExternalJournal, Journal, Options};

use crate::replica::Replica;

const LEADER: LeaderId = LeaderId { term: 1, replica: 1 };

/// All is durable.
#[derive(Debug)]
struct Durable;

impl ExternalJournal for Durable {
    fn durable(&self) -> u64 {
        1 << 60
    }

    fn wait_durable(&self, _: u64) -> std::io::Result<()> {
        Ok(())
    }
}

fn id(index: u64) -> EntryId {
    EntryId {
        leader: LEADER,
        index,
    }
}

fn effects(number: u64, effect: Effect<'_>) -> Vec<u8> {
    let mut buf = EffectsBuf::default();
    buf.push(effect).unwrap();
    [&number.to_le_bytes()[..], buf.bytes()].concat()
}

fn put(number: u64, slot: u16, value: &[u8]) -> Vec<u8> {
    let key = b"key";
    effects(number, Effect::Put { slot, key, value })
}

fn split(number: u64, first: u16) -> Vec<u8> {
    let replicas = Split::pairs([(1, 70), (2, 80)]);
    let split = Split {
        first,
        group: 9,
        replicas: &replicas,
        members: b"the members of group 9",
    };
    effects(number, Effect::Split(split))
}

fn append(replica: &Replica, index: u64, payload: &[u8]) {
    let entry = Entry {
        id: id(index),
        payload: payload.into(),
    };
    replica.drive(replica.log().append(vec![entry], |_| {})).unwrap();
}

fn apply(replica: &Replica, index: u64, payload: &[u8]) -> ApplyOutcome {
    append(replica, index, payload);
    replica
        .machine()
        .apply(id(index), Change::Effects(payload))
        .unwrap()
}

/// A replica that has rows in these slots, one entry for each.
fn with_rows(slots: &[u16]) -> Replica {
    let replica = Replica::new(1, 5);
    for (at, slot) in (0..).zip(slots) {
        let taken = apply(&replica, at, &put(at + 1, *slot, b"first"));
        assert_eq!(taken, ApplyOutcome::Taken);
    }
    replica
}

fn value(machine: &Machine, slot: u16) -> Option<Vec<u8>> {
    let found = machine.db().get(data_key(slot, b"key")).unwrap();
    found.map(|value| value.to_vec())
}

#[test]
fn entries_on_slots_of_another_group_are_not_taken() {
    let replica = with_rows(&[10, 5000]);
    let machine = replica.machine();
    let apply = |index, payload: &[u8]| apply(&replica, index, payload);
    assert_eq!(machine.slots(), 0..=16_383);
    assert_eq!(apply(2, &split(3, 5000)), ApplyOutcome::Taken);
    assert_eq!(machine.slots(), 0..=4999);
    for (index, payload) in [
        (3, put(4, 5000, b"late")),
        (
            4,
            effects(
                4,
                Effect::Delete {
                    slot: 16_383,
                    key: b"key",
                },
            ),
        ),
        (5, effects(4, Effect::Count { slot: 9000, delta: 1 })),
        // Slots that are not its own, or all of its own.
        (6, split(4, 5000)),
        (7, split(4, 0)),
    ] {
        assert_eq!(apply(index, &payload), ApplyOutcome::Skipped, "entry {index}");
    }
    assert_eq!(apply(8, &put(4, 4999, b"own")), ApplyOutcome::Taken);
    assert_eq!(apply(9, &split(5, 11)), ApplyOutcome::Taken);
    assert_eq!(machine.slots(), 0..=10);
    assert_eq!(value(machine, 5000), Some(b"first".to_vec()), "until a merge");
}

#[test]
fn the_replica_beside_has_what_was_applied_before_the_split() {
    let slots = [10, 5000, 9000];
    let replica = with_rows(&slots);
    let machine = replica.machine();
    let payload = split(4, 5000);
    assert_eq!(machine.beside(id(3), &put(4, 1, b"")).unwrap(), None);
    assert_eq!(
        machine.beside(id(3), &split(5, 5000)).unwrap(),
        None,
        "it is not taken"
    );
    let beside = machine.beside(id(3), &payload).unwrap().unwrap();
    let dir = replica.path().with_file_name("70");
    let expected = Beside {
        group: 9,
        replica: 70,
        id: id(3),
        dir: dir.clone(),
    };
    assert_eq!(beside, expected);
    machine.make_tables(&payload, &beside).unwrap();
    // It is made anew after each stop in the middle.
    let mut stops = 0;
    for operations in 0.. {
        replica.device.die_after(operations);
        let made = machine.make_tables(&payload, &beside);
        let is_dead = replica.device.is_dead();
        replica.device.die_after(u64::MAX / 2);
        if made.is_ok() {
            break;
        }
        assert!(is_dead, "{made:?}");
        stops += 1;
    }
    assert!(stops > 10, "{stops}");
    let options = Options {
        journal: Journal::External(Arc::new(Durable)),
        reserve_bytes: Some(0),
        ..Options::default()
    };
    let db = Db::open(dir.join("store"), options).unwrap();
    for slot in slots {
        assert_eq!(db.get(data_key(slot, b"key")).unwrap().unwrap(), "first");
    }
    // What the entry records is recorded of it, so that its first leader goes on behind it.
    assert_eq!(db.get(b"\0p").unwrap().unwrap(), &4_u64.to_le_bytes()[..]);
    assert_eq!(db.get(b"\0b").unwrap().unwrap(), &b"\x88\x13\xff\x3f"[..]);
    assert_eq!(db.flushed(), (1 << 32) + (3 << 16));
    assert_eq!(machine.applied(), Some(id(2)), "the split is yet to be applied");
    assert_eq!(apply(&replica, 3, &payload), ApplyOutcome::Taken);
}

#[test]
fn merges_remove_what_is_hidden_once_tables_say_so() {
    let slots: Vec<u16> = (0..400).collect();
    let replica = with_rows(&slots);
    let machine = replica.machine();
    assert!(!machine.drop_hidden().unwrap());
    let payload = split(401, 100);
    apply(&replica, 400, &payload);
    assert!(machine.drop_hidden().unwrap());
    assert!(!machine.drop_hidden().unwrap());
    for slot in slots {
        assert_eq!(value(machine, slot).is_some(), slot < 100, "{slot}");
    }
}
