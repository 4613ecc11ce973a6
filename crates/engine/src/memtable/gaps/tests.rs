use std::collections::BTreeMap;

use super::*;
use crate::events::FlushCause;
use crate::test::interleavings::{new_store, put};
use crate::test::{Rng, hold, seeds};
use crate::{Batch, Db, Family, WriteOptions};

fn edge(key: &str) -> Edge {
    Edge::before(key.as_bytes())
}

fn walked(low: &str, high: &str, since: Lsn, passed: u64) -> Walked {
    Walked {
        low: edge(low),
        high: edge(high),
        since,
        seen: since - 1,
        passed,
    }
}

fn noted(gaps: &Gaps) -> Vec<(String, String, Lsn)> {
    let name = |edge: &Edge| match edge {
        Edge::Before(key) => String::from_utf8_lossy(key).trim_end_matches('\0').to_owned(),
        Edge::End => "end".to_owned(),
    };
    let list = gaps.list.load();
    let gaps = list.gaps.iter();
    gaps.map(|gap| (name(&gap.low), name(&gap.high), gap.since))
        .collect()
}

fn gap(low: &str, high: &str, since: Lsn) -> (String, String, Lsn) {
    (low.into(), high.into(), since)
}

#[test]
fn gaps_that_touch_are_passed_at_once_by_reads_that_may() {
    let gaps = Gaps::default();
    gaps.note(&walked("a", "m", 10, 1_000), |_, _| PutSince::No);
    gaps.note(&walked("m", "p", 20, 16), |_, _| PutSince::No);
    assert_eq!(
        noted(&gaps),
        [gap("a", "m", 10), gap("m", "p", 20)],
        "unlike sizes stay apart"
    );
    let past = |at, direction, below| gaps.past(&edge(at), direction, below).map(|jump| jump.to);
    assert_eq!(past("a", Direction::Forward, 20), Some(edge("p")));
    assert_eq!(past("b", Direction::Forward, 19), Some(edge("m")));
    assert_eq!(past("b", Direction::Forward, 9), None);
    assert_eq!(past("p", Direction::Backward, 20), Some(edge("a")));
    assert_eq!(past("p", Direction::Backward, 19), None);
    assert_eq!(
        (
            past("p", Direction::Forward, 99),
            past("a", Direction::Backward, 99)
        ),
        (None, None)
    );
    assert_eq!(gaps.past(&edge("a"), Direction::Forward, 20).unwrap().seen, 19);
    // Alike, they become one.
    gaps.note(&walked("p", "q", 30, 16), |_, _| PutSince::No);
    assert_eq!(noted(&gaps), [gap("a", "m", 10), gap("m", "q", 30)]);
}

#[test]
fn puts_split_gaps_and_those_that_a_note_finds_do() {
    let gaps = Gaps::default();
    gaps.note(&walked("a", "m", 10, 1_000), |_, _| PutSince::No);
    gaps.put(b"m");
    assert_eq!(noted(&gaps), [gap("a", "m", 10)], "its end is not in it");
    gaps.put(b"c");
    assert_eq!(noted(&gaps), [gap("a", "c", 10), gap("c", "m", 10)]);
    gaps.put(b"a");
    assert_eq!(noted(&gaps)[0], gap("a", "c", 10));
    assert_eq!(gaps.past(&edge("a"), Direction::Forward, 10), None);
    let found = [PutSince::Key(Key::from(&b"s"[..])), PutSince::No];
    let mut found = found.into_iter();
    gaps.note(&walked("p", "t", 20, 100), |_, _| found.next().unwrap());
    assert_eq!(noted(&gaps)[2..], [gap("p", "s", 20), gap("s", "t", 20)]);
    gaps.note(&walked("u", "w", 20, 100), |_, _| PutSince::Unknown);
    assert_eq!(noted(&gaps).len(), 4);
    gaps.clear();
    assert_eq!((noted(&gaps), gaps.any()), (Vec::new(), false));
}

#[test]
fn of_two_that_overlap_the_one_for_more_reads_stays() {
    let gaps = Gaps::default();
    gaps.note(&walked("d", "g", 20, 1_000), |_, _| PutSince::No);
    gaps.note(&walked("a", "m", 30, 16), |_, _| PutSince::No);
    assert_eq!(
        noted(&gaps),
        [gap("a", "d", 30), gap("d", "g", 20), gap("g", "m", 30)]
    );
    gaps.note(&walked("b", "e", 10, 100_000), |_, _| PutSince::No);
    let expected = [
        gap("a", "b", 30),
        gap("b", "e", 10),
        gap("e", "g", 20),
        gap("g", "m", 30),
    ];
    assert_eq!(noted(&gaps), expected);
}

#[test]
fn the_gap_that_saves_least_is_discarded() {
    let gaps = Gaps::default();
    for n in 0..2 * MOST as u64 {
        let (low, high) = (format!("{n:04}"), format!("{n:04}x"));
        let passed = if n == 0 { 110 } else { 100 };
        gaps.note(&walked(&low, &high, 10, passed), |_, _| PutSince::No);
        assert!(
            gaps.past(&edge("0000"), Direction::Forward, 10).is_some(),
            "used again and again"
        );
    }
    assert_eq!(gaps.list.load().gaps.len(), MOST);
    gaps.note(&walked("x", "y", 10, WORTH), |_, _| PutSince::No);
    assert_eq!(
        gaps.past(&edge("x"), Direction::Forward, 10),
        None,
        "small ones displace nothing"
    );
}

fn remove(family: &Family, key: &str) {
    family.delete_with(key, &WriteOptions::buffered()).unwrap();
}

/// A store where `k00` to `k99` were put and removed.
fn removed() -> (tempfile::TempDir, Db, Family) {
    let (dir, db) = new_store();
    let family = db.default_family();
    for n in 0..100 {
        put(&family, &format!("k{n:02}"), "v");
        remove(&family, &format!("k{n:02}"));
    }
    (dir, db, family)
}

fn keys(family: &Family) -> Vec<String> {
    let keys = family.iter().unwrap();
    keys.map(|entry| String::from_utf8_lossy(&entry.unwrap().0).into_owned())
        .collect()
}

/// Each way in which a key may be put between what an iterator saw and its note.
#[test]
fn a_key_that_is_put_while_a_gap_is_noted_is_found() {
    for point in ["a gap is announced", "a gap is searched"] {
        for flushes in [false, true] {
            let (_dir, _db, family) = removed();
            let walk = {
                let family = family.clone();
                hold(point, move || keys(&family)).at_point()
            };
            put(&family, "k50", "new");
            if flushes {
                family.flush().unwrap();
            }
            assert!(walk.finish().is_empty(), "it began before");
            assert_eq!(keys(&family), ["k50"], "at {point:?}, flushed: {flushes}");
        }
    }
}

#[test]
fn a_key_that_was_put_before_a_gap_is_noted_is_found() {
    for flushes in [false, true] {
        let (_dir, db, family) = removed();
        let before = db.snapshot();
        put(&family, "k50", "new");
        if flushes {
            family.flush().unwrap();
        }
        assert_eq!(before.iter(&family).unwrap().count(), 0);
        assert_eq!(keys(&family), ["k50"], "flushed: {flushes}");
    }
}

/// The commit is in no memtable yet when the gap is searched, and leaves no keys one by one.
#[test]
fn a_large_commit_beside_a_note_is_found() {
    for point in ["a gap is announced", "a gap is searched"] {
        let (_dir, db, family) = removed();
        let walk = {
            let family = family.clone();
            hold(point, move || keys(&family)).at_point()
        };
        let mut batch = Batch::new();
        batch.put(&family, "k50", "new").unwrap();
        // Larger than the ring.
        batch.put(&family, "z", vec![7; 200 << 10]).unwrap();
        db.write(batch, &WriteOptions::buffered()).unwrap();
        walk.finish();
        assert_eq!(keys(&family), ["k50", "z"], "at {point:?}");
    }
}

#[test]
fn a_put_that_is_not_applied_when_a_gap_is_searched_is_found() {
    let (_dir, _db, family) = removed();
    let writer = {
        let family = family.clone();
        hold("appended", move || put(&family, "k50", "slow")).at_point()
    };
    assert!(keys(&family).is_empty());
    assert!(family.state().gaps().any(), "a gap is noted");
    writer.finish();
    assert_eq!(keys(&family), ["k50"]);
}

/// What a read saw by a jump counts as seen.
#[test]
fn the_newest_removal_of_a_gap_is_seen() {
    let (_dir, db, family) = removed();
    let end = db.snapshot().lsn();
    let mut first = family.iter().unwrap();
    assert!(first.next().is_none());
    let mut second = family.iter().unwrap();
    assert!(second.next().is_none());
    assert_eq!((first.seen(), second.seen()), (end, end));
    assert!(first.internal_keys_skipped() >= 100 && second.internal_keys_skipped() < 10);
}

/// Puts, removals, scans of all kinds, snapshots and flushes against a model, with so few keys that
/// gaps are noted, split, joined and used all the time.
#[test]
fn scans_that_jump_show_what_is_there() {
    for seed in seeds(6) {
        let mut rng = Rng::new(seed);
        let (_dir, db) = new_store();
        let family = db.default_family();
        let mut model: BTreeMap<String, u64> = BTreeMap::new();
        let mut snapshots = Vec::new();
        let mut skipped = 0;
        for n in 0..6_000 {
            let key = format!("{:03}", rng.below(400));
            match rng.below(100) {
                0..25 => {
                    put(&family, &key, &n.to_string());
                    model.insert(key, n);
                }
                25..70 => {
                    remove(&family, &key);
                    model.remove(&key);
                }
                70 => drop(
                    db.store()
                        .rotate(family.state(), FlushCause::Manual, |_| true)
                        .unwrap(),
                ),
                71 if rng.below(4) == 0 => family.flush().unwrap(),
                72 => snapshots.push((db.snapshot(), model.clone())),
                73 if !snapshots.is_empty() => {
                    drop(snapshots.remove(rng.below(snapshots.len() as u64) as usize))
                }
                74 => {
                    // A stretch of all of them.
                    let from = rng.below(400);
                    for n in from..(from + rng.below(150)).min(400) {
                        remove(&family, &format!("{n:03}"));
                        model.remove(&format!("{n:03}"));
                    }
                }
                _ => {
                    let mut range = [format!("{:03}", rng.below(400)), key];
                    range.sort();
                    let [low, high] = range;
                    let at = rng.below(2 * snapshots.len() as u64 + 2) as usize;
                    let (mut iter, shown) = match snapshots.get(at) {
                        Some((snapshot, shown)) => (
                            snapshot
                                .range::<String>(&family, low.clone()..=high.clone())
                                .unwrap(),
                            shown,
                        ),
                        None => (
                            family.range::<String>(low.clone()..=high.clone()).unwrap(),
                            &model,
                        ),
                    };
                    iter.set_max_skippable_internal_keys([0, 0, 5, 50][rng.below(4) as usize]);
                    let backward = rng.below(3) == 0;
                    let most = [1, 3, 1_000][rng.below(3) as usize];
                    let mut found: Vec<(String, u64)> = Vec::new();
                    while found.len() < most {
                        let next = if backward { iter.next_back() } else { iter.next() };
                        match next {
                            None => break,
                            Some(Err(crate::Error::Incomplete { .. })) => {}
                            Some(entry) => {
                                let (key, value) = entry.unwrap();
                                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                                found.push((text(&key), text(&value).parse().unwrap()));
                            }
                        }
                    }
                    skipped += iter.internal_keys_skipped();
                    let inside = shown.range(low..=high).map(|(key, n)| (key.clone(), *n));
                    let expected: Vec<_> = match backward {
                        true => inside.rev().take(most).collect(),
                        false => inside.take(most).collect(),
                    };
                    assert_eq!(found, expected, "seed {seed}, step {n}");
                }
            }
        }
        println!(
            "seed {seed}: {skipped} skipped, {:?}",
            family.state().gaps().list.load().gaps.len()
        );
    }
}
