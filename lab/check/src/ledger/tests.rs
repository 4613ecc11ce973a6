//! Books made by hand, and what the ledger says of them.

use super::*;

/// Three commits: 0 on disk, 1 in the process, 2 visible only; each saw those before it.
fn book() -> Ledger {
    let ledger = Ledger::new();
    for id in 0..3 {
        assert_eq!(ledger.begin(), id);
        ledger.visible(id, 100 + id);
    }
    ledger.promised(0, Promise::Disk);
    ledger.promised(1, Promise::Process);
    ledger
}

fn found(ids: &[u64]) -> Vec<Commit> {
    let commit = |&id| Commit::whole(id, Some(100 + id));
    ids.iter().map(commit).collect()
}

fn counts(v: &Verdict) -> [u64; 5] {
    [v.acknowledged, v.recovered, v.lost, v.partial, v.reordered]
}

#[test]
fn a_promise_counts_for_the_fault_that_it_names() {
    let ledger = book();
    let now = ledger.now();
    let v = ledger.check(now, Survives::Power, &found(&[0]));
    assert_eq!(counts(&v), [1, 1, 0, 0, 0], "{v}");
    let v = ledger.check(now, Survives::Process, &found(&[0]));
    assert_eq!(counts(&v), [2, 1, 1, 0, 0], "{v}");
    let v = ledger.check(now, Survives::Power, &[]);
    assert_eq!(counts(&v), [1, 0, 1, 0, 0], "{v}");
    let v = ledger.check(0, Survives::Process, &[]);
    assert!(v.holds(), "nothing was promised before the first tick: {v}");
    let v = ledger.check(now, Survives::Damage, &[]);
    assert!(v.holds(), "{v}");
}

#[test]
fn a_later_commit_without_an_earlier_one_is_noticed() {
    let ledger = book();
    let v = ledger.check(0, Survives::Power, &found(&[0, 2]));
    assert_eq!(v.reordered, 1, "{v}");
    let v = ledger.check(0, Survives::Process, &found(&[2]));
    assert_eq!(v.reordered, 2, "{v}");
    let v = ledger.check(0, Survives::Process, &found(&[1, 0]));
    assert_eq!(v.reordered, 1, "{v}");
    let v = ledger.check(0, Survives::Process, &found(&[0, 0]));
    assert_eq!(v.reordered, 1, "{v}");
}

#[test]
fn concurrent_commits_may_survive_alone_only_in_the_ring() {
    let ledger = Ledger::new();
    let (a, b) = (ledger.begin(), ledger.begin());
    ledger.ordered(a, 100);
    ledger.visible(b, 101);
    ledger.promised(b, Promise::Process);
    let now = ledger.now();
    assert!(ledger.check(now, Survives::Process, &found(&[1])).holds());
    assert!(
        ledger
            .check(now, Survives::ProcessThenPower, &found(&[1]))
            .holds()
    );
    assert_eq!(ledger.check(now, Survives::Power, &found(&[1])).reordered, 1);
}

#[test]
fn what_the_program_gave_up_may_be_there_or_not() {
    let ledger = book();
    ledger.released(101);
    let now = ledger.now();
    assert!(ledger.check(now, Survives::Power, &found(&[1, 2])).holds());
    assert!(ledger.check(now, Survives::Power, &found(&[0, 1])).holds());
    let before = ledger.check(now - 1, Survives::Power, &found(&[1, 2]));
    assert_eq!(
        (before.lost, before.reordered),
        (1, 1),
        "it was not given up yet: {before}"
    );
    let later = ledger.after(&found(&[1]));
    assert!(later.check(later.now(), Survives::Power, &found(&[1])).holds());
    assert!(!later.check(later.now(), Survives::Power, &found(&[0])).holds());
}

#[test]
fn parts_strangers_and_ghosts_are_noticed() {
    let ledger = book();
    let torn = Commit::torn(None, Some(100));
    assert_eq!(ledger.check(0, Survives::Damage, &[torn]).partial, 1);
    assert_eq!(ledger.check(0, Survives::Damage, &found(&[9])).partial, 1);
    let later = ledger.after(&found(&[0]));
    assert!(later.check(0, Survives::Power, &found(&[0])).holds());
    let v = later.check(0, Survives::Power, &found(&[0, 1]));
    assert_eq!(v.reordered, 1, "{v}");
    let v = later.check(later.now(), Survives::Power, &[]);
    assert_eq!(v.lost, 1, "what was recovered is durable: {v}");
}

#[test]
fn a_commit_that_saw_what_is_missing_is_noticed() {
    let ledger = Ledger::new();
    let (a, b) = (ledger.begin(), ledger.begin());
    let alone = [Commit::whole(b, None).after(vec![a])];
    let now = ledger.now();
    let v = ledger.check(now, Survives::Process, &alone);
    assert_eq!(counts(&v), [0, 1, 0, 0, 1], "{v}");
    let both = [Commit::whole(a, None), alone[0].clone()];
    assert!(ledger.check(now, Survives::Process, &both).holds());
    ledger.refused(a);
    assert_eq!(ledger.check(now, Survives::Process, &both).reordered, 1);
}

#[test]
fn exactly_what_a_later_commit_removed_is_gone() {
    let ledger = Ledger::new();
    let (old, new) = (ledger.begin(), ledger.begin());
    ledger.promised(old, Promise::Process);
    ledger.removes(new, old);
    let now = ledger.now();
    let (old, new) = (Commit::whole(old, None), Commit::whole(new, None));
    for (found, expected) in [
        (vec![new.clone()], [1, 1, 0, 0, 0]),
        (vec![old.clone()], [1, 1, 0, 0, 0]),
        (vec![], [1, 0, 1, 0, 0]),
        (vec![old.clone(), new.clone()], [1, 2, 0, 0, 1]),
    ] {
        let v = ledger.check(now, Survives::Process, &found);
        assert_eq!(counts(&v), expected, "{found:?}: {v}");
    }
    // It stays removed when its note is gone.
    let later = ledger.after(std::slice::from_ref(&new));
    assert_eq!(later.len(), 1);
    let v = later.check(later.now(), Survives::Process, &[old, new]);
    assert_eq!(counts(&v), [1, 2, 0, 0, 1], "{v}");
}
