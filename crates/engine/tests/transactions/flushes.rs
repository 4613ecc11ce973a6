//! Isolation does not depend on when memtables are flushed and tables merged: what is a conflict
//! without that is one with it, and nothing else is.

use std::time::Duration;

use collie_db::{
    Concurrency, Db, Durability, Error, Family, Isolation, Options, Result, Transaction, TransactionOptions,
};

use crate::common::{Rng, seeds};
use crate::{is_optimistic, kinds, store, text};

/// What happens to the tables behind a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    Nothing,
    Flush,
    Compaction,
}

const BEHIND: [Behind; 3] = [Behind::Nothing, Behind::Flush, Behind::Compaction];

impl Behind {
    fn happen(self, family: &Family) {
        if self != Self::Nothing {
            family.flush().unwrap();
        }
        if self == Self::Compaction {
            family.compact().unwrap();
        }
    }
}

/// What others do to the guard: values, or `None` for its removal. All end as they began.
const HISTORIES: [(Option<&str>, &[Option<&str>]); 6] = [
    (Some("on"), &[Some("on")]),
    (Some("on"), &[Some("off"), Some("on")]),
    (Some("on"), &[None, Some("on")]),
    (None, &[None]),
    (None, &[Some("on"), None]),
    (None, &[Some("on"), None, None]),
];

/// Calls `run` for each history, with each way in which tables may change behind each of its steps.
fn each_history(run: impl Fn(Option<&str>, &[(Option<&str>, Behind)])) {
    for (before, steps) in HISTORIES {
        for mut way in 0..BEHIND.len().pow(steps.len() as u32) {
            let steps = steps.iter().map(|step| {
                let behind = BEHIND[way % BEHIND.len()];
                way /= BEHIND.len();
                (*step, behind)
            });
            run(before, &steps.collect::<Vec<_>>());
        }
    }
}

fn write(family: &Family, key: &str, value: Option<&str>) {
    match value {
        Some(value) => family.put(key, value),
        None => family.delete(key),
    }
    .unwrap();
}

/// Those whose reads show one moment: the others cannot be in each other's way here, for they wait.
fn of_one_moment() -> impl Iterator<Item = TransactionOptions> {
    kinds().filter(|options| is_optimistic(options) || options.isolation == Isolation::Snapshot)
}

/// A guard against write skew: a transaction that decides on the doctors writes the guard back
/// unchanged.
#[test]
fn a_guard_that_is_written_unchanged_keeps_write_skew_away() {
    for options in of_one_moment() {
        for behind in BEHIND {
            let (_dir, db) = store();
            let family = db.default_family();
            for (key, value) in [("guard", "on"), ("ann", "on call"), ("ben", "on call")] {
                family.put(key, value).unwrap();
            }
            let leave = |tx: Transaction, who: &str, other: &str| -> Result<()> {
                let guard = tx.get_for_update(&family, "guard")?.unwrap();
                tx.put(&family, "guard", guard)?;
                assert_eq!(text(tx.get(&family, other)?).as_deref(), Some("on call"));
                tx.put(&family, who, "away")?;
                tx.commit().map(drop)
            };
            let begin = || {
                let tx = db.transaction(options.clone()).unwrap();
                assert_eq!(text(tx.get(&family, "ben").unwrap()).as_deref(), Some("on call"));
                tx
            };
            let (ann, ben) = (begin(), begin());
            leave(ben, "ben", "ann").unwrap();
            behind.happen(&family);
            let refused = leave(ann, "ann", "ben");
            assert!(
                matches!(refused, Err(Error::Conflict { .. })),
                "{options:?} {behind:?}"
            );
            assert_eq!(text(family.get("ann").unwrap()).as_deref(), Some("on call"));
        }
    }
}

#[test]
fn a_key_that_was_written_with_its_old_value_has_changed() {
    for options in of_one_moment() {
        each_history(|before, steps| {
            let (_dir, db) = store();
            let family = db.default_family();
            write(&family, "guard", before);
            family.put("ghost", "x").unwrap();
            family.delete("ghost").unwrap();
            family.flush().unwrap();
            let tx = db.transaction(options.clone()).unwrap();
            assert_eq!(text(tx.get(&family, "guard").unwrap()).as_deref(), before);
            for (value, behind) in steps {
                family.put("beside", "x").unwrap();
                write(&family, "guard", *value);
                family.delete("guard/too").unwrap();
                behind.happen(&family);
            }
            let wrote = |tx: Transaction, key: &str| -> Result<()> {
                tx.get_for_update(&family, key)?;
                tx.put(&family, "other", "x")?;
                tx.commit().map(drop)
            };
            let refused = wrote(tx, "guard");
            assert!(
                matches!(&refused, Err(Error::Conflict { key: Some(key), .. }) if **key == *b"guard"),
                "{options:?} {before:?} {steps:?}: {refused:?}"
            );
        });
        // And only then.
        for key in ["guard", "ghost", "never there"] {
            let (_dir, db) = store();
            let family = db.default_family();
            write(&family, "guard", Some("on"));
            family.put("ghost", "x").unwrap();
            family.delete("ghost").unwrap();
            let tx = db.transaction(options.clone()).unwrap();
            tx.get(&family, key).unwrap();
            family.put("beside", "x").unwrap();
            family.delete("beside").unwrap();
            Behind::Compaction.happen(&family);
            tx.get_for_update(&family, key).unwrap();
            tx.put(&family, "other", "x").unwrap();
            tx.commit().unwrap();
        }
    }
}

#[test]
fn a_range_that_is_as_it_was_has_changed_if_it_was_written() {
    let options = crate::options(Concurrency::Optimistic, Isolation::Serializable);
    for inside in [true, false] {
        each_history(|before, steps| {
            let (_dir, db) = store();
            let family = db.default_family();
            let key = if inside { "g5" } else { "h" };
            write(&family, key, before);
            family.put("g1", "x").unwrap();
            family.flush().unwrap();
            let tx = db.transaction(options.clone()).unwrap();
            let rows = tx.range(&family, "g".."h").unwrap().count();
            assert_eq!(rows, 1 + usize::from(inside && before.is_some()));
            for (value, behind) in steps {
                write(&family, key, *value);
                behind.happen(&family);
            }
            tx.put(&family, "other", "x").unwrap();
            let ended = tx.commit().map(drop);
            match ended {
                Err(Error::Conflict { key: None, .. }) if inside => {}
                Ok(()) if !inside => {}
                other => panic!("{before:?} {steps:?}: {other:?}"),
            }
        });
    }
}

/// Past a limit it is not kept what was removed. Then a transaction that was open all the time is
/// refused with a conflict where it asks for an absent key, and no other.
#[test]
fn a_transaction_that_outlives_too_many_removals_conflicts() {
    const LIMIT: usize = 640;
    let dir = crate::common::fast_dir();
    let options = Options {
        max_row_locks: LIMIT,
        durability: Durability::Process,
        ..crate::common::small()
    };
    let db = crate::common::open(dir.path(), &options);
    let family = db.default_family();
    family.put("there", "x").unwrap();
    let begin = || {
        let tx = db
            .transaction(TransactionOptions {
                snapshot_at_begin: true,
                ..TransactionOptions::default()
            })
            .unwrap();
        assert_eq!(tx.get(&family, "absent").unwrap(), None);
        tx
    };
    let (few, many) = (begin(), begin());
    for n in 0..=LIMIT as u32 {
        family.delete(n.to_be_bytes()).unwrap();
        if n as usize == LIMIT / 2 {
            Behind::Compaction.happen(&family);
            assert_eq!(few.get_for_update(&family, "absent").unwrap(), None);
            let refused = few.get_for_update(&family, 3_u32.to_be_bytes());
            assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
        }
    }
    drop(few);
    let late = begin();
    Behind::Compaction.happen(&family);
    many.get_for_update(&family, "there").unwrap();
    let refused = many.get_for_update(&family, "absent");
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    late.get_for_update(&family, "there").unwrap_err(); // `many` has it.
    drop(many);
    assert_eq!(late.get_for_update(&family, "absent").unwrap(), None);
    late.commit().unwrap();
}

const SLOTS: usize = 4;
const KEYS: u64 = 6;
const STEPS: usize = 500;

/// One store's run of a random program: what each step answered. `behind` says what happens to the
/// tables before each.
fn transcript(seed: u64, behind: impl Fn(usize) -> Behind) -> Vec<String> {
    let dir = crate::common::fast_dir();
    let options = Options {
        durability: Durability::Buffered,
        lock_timeout: Duration::ZERO,
        ..crate::common::small()
    };
    let db: Db = crate::common::open(dir.path(), &options);
    let families = [
        db.default_family(),
        db.open_family("second", crate::common::small_family()).unwrap(),
    ];
    let mut rng = Rng::new(seed);
    let mut open: [Option<Transaction>; SLOTS] = Default::default();
    let kinds: Vec<_> = kinds().collect();
    let mut answers = Vec::new();
    for step in 0..STEPS {
        for family in &families {
            behind(step).happen(family);
        }
        // All is drawn before anything is done, so that every run of the program takes the same
        // steps.
        let [slot, action, key, value, kind, which, many] =
            [SLOTS as u64, 20, KEYS, 2, 4, 2, 3].map(|n| rng.below(n));
        let (family, key) = (&families[which as usize], format!("k{key}"));
        let value = ["a", "b"][value as usize];
        let shown = |read: Result<Option<collie_db::Value>>| read.map(|value| format!("{value:?}"));
        let answer = match (action, &mut open[slot as usize]) {
            (0, _) => family.put(&key, value).map(|_| "put".into()),
            (1, _) => family.delete(&key).map(|_| "deleted".into()),
            (_, none @ None) => {
                let options = TransactionOptions {
                    lock_timeout: Duration::ZERO,
                    snapshot_at_begin: many == 0,
                    durability: Some(Durability::Buffered),
                    ..kinds[kind as usize].clone()
                };
                *none = Some(db.transaction(options).unwrap());
                Ok("begun".into())
            }
            (2..=3, some) => {
                let tx = some.take().unwrap();
                tx.commit().map(|_| "committed".into())
            }
            (4, some) => {
                *some = None;
                Ok("rolled back".into())
            }
            (5..=7, Some(tx)) => shown(tx.get(family, &key)),
            (8..=9, Some(tx)) => shown(tx.get_for_update(family, &key)),
            (10, Some(tx)) => shown(tx.get_for_share(family, &key)),
            (11..=13, Some(tx)) => tx.put(family, &key, value).map(|()| "put".into()),
            (14..=15, Some(tx)) => tx.delete(family, &key).map(|()| "deleted".into()),
            (16, Some(tx)) => {
                tx.set_savepoint();
                Ok("savepoint".into())
            }
            (17, Some(tx)) => tx.rollback_to_savepoint().map(|()| "back".into()),
            (_, Some(tx)) => tx.range(family, key.as_str()..).and_then(|rows| {
                let rows = rows.take(1 + many as usize);
                Ok(format!("{:?}", rows.collect::<Result<Vec<_>>>()?))
            }),
        };
        answers.push(format!(
            "step {step}, slot {slot}: {}",
            answer.unwrap_or_else(|e| e.to_string())
        ));
    }
    drop(open);
    for family in &families {
        answers.push(format!(
            "{:?}",
            family.iter().unwrap().map(Result::unwrap).collect::<Vec<_>>()
        ));
    }
    answers
}

/// The same random program of transactions of all kinds, once with all in memory and then with
/// flushes and compactions at random points: each step must answer the same, word for word.
#[test]
fn isolation_does_not_depend_on_flush_timing() {
    let (mut steps, mut conflicts) = (0, 0);
    for seed in seeds(12) {
        let calm = transcript(seed, |_| Behind::Nothing);
        steps += calm.len();
        conflicts += calm
            .iter()
            .filter(|answer| answer.contains("run it again"))
            .count();
        for way in 0..4 {
            let mut rng = Rng::new(seed * 4 + way);
            let often = [2, 5, 20, 60][way as usize];
            let behind: Vec<_> = (0..STEPS)
                .map(|_| match rng.one_in(often) {
                    true => BEHIND[1 + rng.below(2) as usize],
                    false => Behind::Nothing,
                })
                .collect();
            let disturbed = transcript(seed, |step| behind[step]);
            let other = calm
                .iter()
                .zip(&disturbed)
                .find(|(calm, disturbed)| calm != disturbed);
            assert_eq!(
                other, None,
                "\nreplay: COLLIE_SEED={seed} cargo test -p collie-db --test transactions flush_timing"
            );
        }
    }
    println!(
        "figures: flush timing: {steps} steps, {conflicts} conflicts, the same in each of 4 disturbed runs"
    );
    assert!(
        conflicts > 0,
        "no transactions conflicted: the test means nothing"
    );
}
