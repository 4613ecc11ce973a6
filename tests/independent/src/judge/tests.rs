//! The checker finds what it should: each anomaly by hand, through the same way that a store's history takes.

use std::collections::BTreeMap;

use super::{End, Epoch};
use crate::events::{Event, Step, element};
use crate::plan::Plan;

/// A transaction: when it begins and ends, its steps, and whether it commits.
type T<'a> = (u64, u64, &'a [Step], bool);

fn a(list: u32, tx: u64, nth: u64) -> Step {
    Step::Append(list, element(tx, nth))
}

fn r(list: u32, elements: &[(u64, u64)]) -> Step {
    Step::Read(
        list,
        elements.iter().map(|(tx, nth)| element(*tx, *nth)).collect(),
        true,
    )
}

/// What is found in a history where the transaction `n` is the `n`th, from 1.
fn anomalies(txs: &[T<'_>], after: &[(u32, &[(u64, u64)])]) -> Vec<String> {
    let mut at: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    for (id, (begin, end, steps, commits)) in (1..).zip(txs) {
        let thread = u32::try_from(id).unwrap();
        at.entry(*begin).or_default().push(Event::Begin {
            id,
            thread,
            kind: "by hand".into(),
        });
        let event = if *commits {
            Event::Ok {
                id,
                steps: steps.to_vec(),
                end: *end,
                promised: true,
                back: 0,
            }
        } else {
            let appended = steps.iter().filter_map(|step| match step {
                Step::Append(list, element) => Some((*list, *element)),
                Step::Read(..) => None,
            });
            Event::Fail {
                id,
                appended: appended.collect(),
                why: "by hand".into(),
            }
        };
        at.entry(*end).or_default().push(event);
    }
    let lists = |lists: &[(u32, &[(u64, u64)])]| {
        lists
            .iter()
            .map(|(list, elements)| {
                (
                    *list,
                    elements.iter().map(|(tx, nth)| element(*tx, *nth)).collect(),
                )
            })
            .collect()
    };
    let mut epoch = Epoch::new(BTreeMap::new());
    epoch.note(&Event::Emptied { lists: Vec::new() }).unwrap();
    for event in at.into_values().flatten() {
        epoch.note(&event).unwrap();
    }
    epoch.judge(&Plan::new(1), End::Closed, &lists(after)).violations
}

fn finds(anomaly: &str, found: &[String]) {
    assert!(
        found.iter().any(|text| text.contains(anomaly)),
        "no {anomaly} in {found:#?}"
    );
}

const SNAPSHOT: &str = "strong-snapshot-isolation, while it was open: ";
const SERIALIZABLE: &str = "strict-serializable, while it was open: ";

#[test]
fn a_history_without_fault_passes() {
    let txs: &[T<'_>] = &[
        (1, 3, &[r(100, &[]), a(100, 1, 0), a(101, 1, 1)], true),
        (2, 5, &[r(100, &[(1, 0)]), a(100, 2, 0)], true),
        (4, 6, &[a(101, 3, 0)], false),
        (7, 8, &[r(100, &[(1, 0), (2, 0)]), r(101, &[(1, 1)])], true),
    ];
    let found = anomalies(txs, &[(100, &[(1, 0), (2, 0)]), (101, &[(1, 1)])]);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn dirty_write_g0() {
    let txs: &[T<'_>] = &[
        (1, 3, &[a(100, 1, 0), a(101, 1, 1)], true),
        (2, 4, &[a(100, 2, 0), a(101, 2, 1)], true),
    ];
    finds(
        "G0",
        &anomalies(txs, &[(100, &[(1, 0), (2, 0)]), (101, &[(2, 1), (1, 1)])]),
    );
}

#[test]
fn aborted_read_g1a() {
    let txs: &[T<'_>] = &[(1, 3, &[a(100, 1, 0)], false), (2, 4, &[r(100, &[(1, 0)])], true)];
    let found = anomalies(txs, &[(100, &[])]);
    finds("G1a", &found);
    finds("did not commit that", &found);
}

#[test]
fn intermediate_read_g1b() {
    let txs: &[T<'_>] = &[
        (1, 3, &[a(100, 1, 0), a(100, 1, 1)], true),
        (2, 4, &[r(100, &[(1, 0)])], true),
    ];
    finds("G1b", &anomalies(txs, &[(100, &[(1, 0), (1, 1)])]));
}

#[test]
fn circular_information_g1c() {
    let txs: &[T<'_>] = &[
        (1, 3, &[a(100, 1, 0), r(101, &[(2, 0)])], true),
        (2, 4, &[a(101, 2, 0), r(100, &[(1, 0)])], true),
    ];
    finds("G1c", &anomalies(txs, &[(100, &[(1, 0)]), (101, &[(2, 0)])]));
}

#[test]
fn read_skew_g_single() {
    let txs: &[T<'_>] = &[
        (1, 3, &[a(100, 1, 0), a(101, 1, 1)], true),
        (2, 4, &[r(100, &[(1, 0)]), r(101, &[])], true),
    ];
    let found = anomalies(txs, &[(100, &[(1, 0)]), (101, &[(1, 1)])]);
    finds(&format!("{SNAPSHOT}G-single"), &found);
    finds(&format!("{SERIALIZABLE}G-single"), &found);
}

#[test]
fn lost_update() {
    let txs: &[T<'_>] = &[
        (1, 3, &[r(100, &[]), a(100, 1, 0)], true),
        (2, 4, &[r(100, &[]), a(100, 2, 0)], true),
    ];
    finds(
        &format!("{SNAPSHOT}G-single"),
        &anomalies(txs, &[(100, &[(1, 0), (2, 0)])]),
    );
    // As it is where the first one's value was overwritten.
    finds("is gone", &anomalies(txs, &[(100, &[(2, 0)])]));
}

fn skew(holds: bool) -> Vec<String> {
    let read = |list: u32| Step::Read(list, Vec::new(), holds);
    anomalies(
        &[
            (1, 3, &[read(100), a(101, 1, 0)], true),
            (2, 4, &[read(101), a(100, 2, 0)], true),
        ],
        &[(100, &[(2, 0)]), (101, &[(1, 0)])],
    )
}

#[test]
fn write_skew_g2_is_a_fault_only_of_reads_that_hold() {
    let found = skew(true);
    finds(&format!("{SERIALIZABLE}G2-item"), &found);
    assert!(!found.iter().any(|text| text.contains(SNAPSHOT)), "{found:#?}");
    assert!(skew(false).is_empty(), "{:#?}", skew(false));
}

#[test]
fn long_fork() {
    // Two that write apart, and two readers that see them in two orders.
    let txs: &[T<'_>] = &[
        (1, 5, &[a(100, 1, 0)], true),
        (2, 6, &[a(101, 2, 0)], true),
        (3, 7, &[r(100, &[(1, 0)]), r(101, &[])], true),
        (4, 8, &[r(100, &[]), r(101, &[(2, 0)])], true),
    ];
    let found = anomalies(txs, &[(100, &[(1, 0)]), (101, &[(2, 0)])]);
    finds(SNAPSHOT, &found);
    finds(SERIALIZABLE, &found);
}

#[test]
fn stale_read_in_real_time() {
    let txs: &[T<'_>] = &[(1, 2, &[a(100, 1, 0)], true), (3, 4, &[r(100, &[])], true)];
    let found = anomalies(txs, &[(100, &[(1, 0)])]);
    finds(SNAPSHOT, &found);
    finds("realtime", &found);
}

#[test]
fn phantom() {
    // A range without rows is an empty list.
    let txs: &[T<'_>] = &[
        (1, 3, &[r(100, &[]), r(101, &[]), a(100, 1, 0)], true),
        (2, 4, &[r(100, &[]), r(101, &[]), a(101, 2, 0)], true),
    ];
    finds(
        &format!("{SERIALIZABLE}G2-item"),
        &anomalies(txs, &[(100, &[(1, 0)]), (101, &[(2, 0)])]),
    );
}

#[test]
fn forked_order() {
    let txs: &[T<'_>] = &[
        (1, 3, &[a(100, 1, 0)], true),
        (2, 4, &[a(100, 2, 0)], true),
        (3, 5, &[r(100, &[(2, 0)])], true),
    ];
    finds("incompatible-order", &anomalies(txs, &[(100, &[(1, 0), (2, 0)])]));
}

fn after_a_kill(events: &[Event], after: &[(u32, Vec<u64>)]) -> Vec<String> {
    let mut epoch = Epoch::new(BTreeMap::new());
    epoch.note(&Event::Emptied { lists: Vec::new() }).unwrap();
    for event in events {
        epoch.note(event).unwrap();
    }
    epoch
        .judge(&Plan::new(1), End::Killed, &after.iter().cloned().collect())
        .violations
}

fn commit(id: u64, steps: Vec<Step>, end: u64, promised: bool) -> [Event; 2] {
    let thread = u32::try_from(id).unwrap();
    [
        Event::Begin {
            id,
            thread,
            kind: "by hand".into(),
        },
        Event::Ok {
            id,
            steps,
            end,
            promised,
            back: 0,
        },
    ]
}

#[test]
fn what_a_kill_may_take_and_what_not() {
    let first = |promised| commit(1, vec![a(100, 1, 0), a(101, 1, 1)], 10, promised);
    let second = |promised| commit(2, vec![a(100, 2, 0)], 20, promised);
    let both = |one, other| [first(one), second(other)].concat();
    let (whole, nothing) = ((100, vec![element(1, 0)]), (100, vec![]));
    let other = (101, vec![element(1, 1)]);
    // The end that was not promised.
    assert_eq!(
        after_a_kill(&both(true, false), &[whole.clone(), other.clone()]),
        [] as [String; 0]
    );
    assert_eq!(
        after_a_kill(&both(false, false), &[nothing.clone(), (101, vec![])]),
        [] as [String; 0]
    );
    // What was promised, or stands before it.
    finds(
        "was acknowledged",
        &after_a_kill(&both(true, true), &[whole.clone(), other.clone()]),
    );
    finds(
        "was acknowledged",
        &after_a_kill(&both(false, true), &[(100, vec![element(2, 0)]), (101, vec![])]),
    );
    // A part.
    finds(
        "is not",
        &after_a_kill(&both(false, false), &[whole, (101, vec![])]),
    );
    // A later one without an earlier one.
    finds(
        "is there, and",
        &after_a_kill(&both(false, false), &[(100, vec![element(2, 0)]), (101, vec![])]),
    );
    // One that had not come to its commit.
    let open = Event::Begin {
        id: 3,
        thread: 3,
        kind: "by hand".into(),
    };
    finds(
        "did not commit that",
        &after_a_kill(&[open], &[(100, vec![element(3, 0)])]),
    );
}

#[test]
fn what_a_promised_read_has_seen_is_kept() {
    let writer = commit(1, vec![a(100, 1, 0)], 10, false);
    let reader = commit(2, vec![r(100, &[(1, 0)])], 0, true);
    finds("G1a", &after_a_kill(&[writer, reader].concat(), &[(100, vec![])]));
}

#[test]
fn a_snapshot_shows_what_stands_before_it_and_nothing_else() {
    let events = |lsn, seen: &[(u64, u64)]| {
        let [begin, end] = commit(2, vec![r(100, seen)], 0, false);
        let snapshot = Event::Snapshot { id: 2, lsn };
        [
            commit(1, vec![a(100, 1, 0)], 10, true).to_vec(),
            vec![begin, snapshot, end],
        ]
        .concat()
    };
    let after = [(100, vec![element(1, 0)])];
    assert_eq!(after_a_kill(&events(10, &[(1, 0)]), &after), [] as [String; 0]);
    finds("does not show", &after_a_kill(&events(10, &[]), &after));
    finds("shows", &after_a_kill(&events(9, &[(1, 0)]), &after));
}

#[test]
fn an_unacknowledged_commit_may_be_lost_unless_read() {
    let begin = Event::Begin {
        id: 1,
        thread: 1,
        kind: "by hand".into(),
    };
    let committing = Event::Commit {
        id: 1,
        steps: vec![a(100, 1, 0)],
    };
    let events = |promised| {
        let reader = commit(2, vec![r(100, &[(1, 0)])], 0, promised);
        [vec![begin.clone(), committing.clone()], reader.to_vec()].concat()
    };
    let (lost, kept) = ([(100, vec![])], [(100, vec![element(1, 0)])]);
    assert_eq!(after_a_kill(&events(false), &lost), [] as [String; 0]);
    assert_eq!(after_a_kill(&events(true), &kept), [] as [String; 0]);
    finds("G1a", &after_a_kill(&events(true), &lost));
}
