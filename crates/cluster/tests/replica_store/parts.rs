//! Effects in parts, as one replica applies them.

use collie_cluster::testing::replica_store::effects::{self, Effect, EffectsBuf, MAX_BYTES};
use collie_cluster::testing::replica_store::{ApplyOutcome, Change, Machine, MachineError, data_key};
use collie_cluster::testing::{Entry, EntryId, LeaderId};

use crate::replica::Replica;

const LEADER: LeaderId = LeaderId { term: 1, replica: 1 };
const SLOT: u16 = 12;

fn id(index: u64) -> EntryId {
    EntryId {
        leader: LEADER,
        index,
    }
}

/// An entry of the rules that these tests have: its number, and effects.
fn payload(number: u64, effects: &EffectsBuf) -> Vec<u8> {
    [&number.to_le_bytes()[..], effects.bytes()].concat()
}

fn alone(number: u64, effect: Effect<'_>) -> Vec<u8> {
    let mut buf = EffectsBuf::default();
    buf.push(effect).unwrap();
    payload(number, &buf)
}

fn put(number: u64, value: &[u8]) -> Vec<u8> {
    let (slot, key) = (SLOT, b"key");
    alone(number, Effect::Put { slot, key, value })
}

/// Two rows and a count, in entries of 100 bytes each, from this number on.
fn in_parts(number: u64, slot: u16, value: &[u8]) -> Vec<Vec<u8>> {
    let effects = [
        Effect::Put {
            slot,
            key: b"key",
            value,
        },
        Effect::Put {
            slot,
            key: b"other",
            value,
        },
        Effect::Count { slot, delta: 2 },
    ];
    let entries = effects::in_parts(effects.into_iter(), 100).unwrap();
    (number..)
        .zip(&entries)
        .map(|(number, entry)| payload(number, entry))
        .collect()
}

fn apply(replica: &Replica, index: u64, payload: &[u8]) -> Result<ApplyOutcome, MachineError> {
    let entry = Entry {
        id: id(index),
        payload: payload.into(),
    };
    replica.drive(replica.log().append(vec![entry], |_| {})).unwrap();
    replica.machine().apply(id(index), Change::Effects(payload))
}

fn take(replica: &Replica, index: u64, payload: &[u8]) {
    assert_eq!(
        apply(replica, index, payload).unwrap(),
        ApplyOutcome::Taken,
        "entry {index}"
    );
}

fn value(machine: &Machine, slot: u16, key: &[u8]) -> Option<Vec<u8>> {
    let found = machine.db().get(data_key(slot, key)).unwrap();
    found.map(|value| value.to_vec())
}

/// The rows that are neither data nor counts nor positions: parts.
fn kept(machine: &Machine) -> usize {
    let rows = machine
        .db()
        .default_family()
        .range(&[0, b'e'][..]..&[0, b'f'][..]);
    rows.unwrap().count()
}

#[test]
fn parts_change_nothing_before_the_last_and_all_with_it() {
    let replica = Replica::new(1, 5);
    take(&replica, 0, &put(1, b"before"));
    let large = vec![7; 1000];
    let entries = in_parts(2, SLOT, &large);
    let (last, parts) = entries.split_last().unwrap();
    assert!(parts.len() > 20, "{} parts", parts.len());
    let mut index = 1;
    for part in parts {
        take(&replica, index, part);
        index += 1;
        assert_eq!(value(replica.machine(), SLOT, b"key"), Some(b"before".to_vec()));
        assert_eq!(value(replica.machine(), SLOT, b"other"), None);
    }
    assert_eq!(kept(replica.machine()), parts.len() + 1);
    // What would be read from tables is not read on a thread of the runtime.
    let entry = Entry {
        id: id(index),
        payload: last.as_slice().into(),
    };
    replica.drive(replica.log().append(vec![entry], |_| {})).unwrap();
    let machine = replica.machine();
    assert_eq!(machine.try_apply(id(index), Change::Effects(last)).unwrap(), None);
    let taken = machine.apply(id(index), Change::Effects(last)).unwrap();
    assert_eq!(taken, ApplyOutcome::Taken);
    for key in [&b"key"[..], b"other"] {
        assert_eq!(value(machine, SLOT, key), Some(large.clone()));
    }
    assert_eq!((machine.keys_in_slot(SLOT).unwrap(), kept(machine)), (2, 0));
}

/// The leader was deposed, or its run ended: what comes next has nothing of the parts.
#[test]
fn parts_whose_last_never_comes_are_dropped() {
    for ends in 0..3 {
        let replica = Replica::new(1, 5);
        let entries = in_parts(1, SLOT, &[7; 300]);
        let came = 4;
        for (index, part) in (0..).zip(&entries[..came]) {
            take(&replica, index, part);
        }
        assert_eq!(kept(replica.machine()), came + 1);
        let next = came as u64;
        let again = in_parts(next + 1, SLOT, &[8; 300]);
        match ends {
            0 => take(&replica, next, &put(next + 1, b"next")),
            1 => {
                let entry = Entry {
                    id: id(next),
                    payload: (&b""[..]).into(),
                };
                replica.drive(replica.log().append(vec![entry], |_| {})).unwrap();
                replica.machine().apply(id(next), Change::Blank).unwrap();
            }
            // Others begin.
            _ => {
                take(&replica, next, &again[0]);
                assert_eq!(kept(replica.machine()), 2);
                for (index, part) in (next + 1..).zip(&again[1..]) {
                    take(&replica, index, part);
                }
                assert_eq!(value(replica.machine(), SLOT, b"key"), Some(vec![8; 300]));
            }
        }
        assert_eq!(kept(replica.machine()), 0, "case {ends}");
        assert_eq!(value(replica.machine(), SLOT, b"other").is_some(), ends == 2);
    }
}

#[test]
fn parts_of_slots_of_another_group_are_not_taken() {
    let replica = Replica::new(1, 5);
    let pairs = effects::Split::pairs([(1, 70)]);
    let split = Effect::Split(effects::Split {
        first: 5000,
        group: 9,
        replicas: &pairs,
        members: b"members",
    });
    take(&replica, 0, &alone(1, split));
    let entries = in_parts(2, 6000, &[7; 300]);
    let (last, parts) = entries.split_last().unwrap();
    for (index, part) in (1..).zip(parts) {
        take(&replica, index, part);
    }
    let skipped = apply(&replica, entries.len() as u64, last).unwrap();
    assert_eq!(skipped, ApplyOutcome::Skipped);
    assert_eq!(kept(replica.machine()), 0);
    assert_eq!(value(replica.machine(), 6000, b"key"), None);
}

/// No leader of ours writes these: the replica says so and stops, as its data would not be that of others.
#[test]
fn parts_that_are_not_those_that_came_are_an_error() {
    let part = |number| {
        let bytes = b"bytes";
        alone(3, Effect::Part { number, bytes })
    };
    let all = |count, bytes| alone(3, Effect::Parts { count, bytes });
    for (wrong, says) in [
        (part(3), "part 3 behind 2 of them"),
        (part(1), "part 1 behind 2 of them"),
        (all(3, 168), "3 of 168 bytes, behind 2 of 168"),
        (all(2, 167), "2 of 167 bytes, behind 2 of 168"),
        (all(2, 168), "expected"),
    ] {
        let replica = Replica::new(1, 5);
        let entries = in_parts(1, SLOT, &[7; 300]);
        for (index, part) in (0..).zip(&entries[..2]) {
            take(&replica, index, part);
        }
        let error = apply(&replica, 2, &wrong).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let replica = Replica::new(1, 5);
    let error = apply(&replica, 0, &alone(1, Effect::Parts { count: 1, bytes: 5 })).unwrap_err();
    assert!(error.to_string().contains("behind 0 of 0"), "{error}");
}

#[test]
fn what_is_cut_into_parts_is_what_their_bytes_say() {
    let value = vec![7; 3 << 20];
    let put = |key| Effect::Put {
        slot: SLOT,
        key,
        value: &value,
    };
    let all = [put(b"a"), put(b"b"), put(b"c")];
    for most in [1, 50, 1000, MAX_BYTES] {
        let few = if most < 1000 { &all[..0] } else { &all[..] };
        let delete = Effect::Delete {
            slot: SLOT,
            key: b"gone",
        };
        let effects = few.iter().copied().chain([delete]);
        let entries = effects::in_parts(effects.clone(), most).unwrap();
        let mut joined = Vec::new();
        let (last, parts) = entries.split_last().unwrap();
        for (expected, entry) in (0..).zip(parts) {
            let effects = effects::decode(entry.bytes()).unwrap();
            let [Effect::Part { number, bytes }] = effects[..] else {
                panic!("{effects:?}");
            };
            assert_eq!(number, expected);
            assert!(entry.bytes().len() <= most.max(17), "{}", entry.bytes().len());
            joined.extend_from_slice(bytes);
        }
        let count = parts.len() as u32;
        let bytes = joined.len() as u64;
        assert_eq!(
            effects::decode(last.bytes()).unwrap(),
            [Effect::Parts { count, bytes }]
        );
        assert_eq!(
            effects::decode_parts(&joined).unwrap(),
            effects.collect::<Vec<_>>()
        );
    }
    // Parts have no parts.
    let nested = effects::in_parts([Effect::Stamps(7)].into_iter(), 1000);
    assert!(nested.is_err());
    assert!(effects::decode_parts(&alone(1, Effect::Stamps(7))[8..]).is_err());
}
