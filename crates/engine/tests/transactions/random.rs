//! Random transactions of several threads, and whether they were isolated as they should be.
//!
//! `COLLIE_RUNS` sets how many histories of each mixture, `COLLIE_SEED` one seed alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_check::appends::{self, Demand, Step};
use collie_db::{
    Concurrency, Db, Durability, Error, Family, Isolation, Options, Result, Transaction, TransactionOptions,
    Value,
};

use crate::common::{Rng, fast_dir, seeds, small};
use crate::{options, store};

const LISTS: u64 = 6;
const THREADS: u64 = 5;
const TRANSACTIONS: u64 = 80;

fn elements(value: Option<&Value>) -> Vec<u64> {
    let bytes = value.map_or(&[][..], |value| value);
    bytes
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

fn key(list: u64) -> [u8; 8] {
    list.to_be_bytes()
}

/// Runs a random transaction up to its commit.
fn run(
    tx: &Transaction,
    family: &Family,
    rng: &mut Rng,
    next: &AtomicU64,
    steps: &mut Vec<Step>,
) -> Result<()> {
    for _ in 0..1 + rng.below(4) {
        let list = rng.below(LISTS);
        match rng.below(8) {
            0..4 => {
                let read = match rng.below(3) {
                    0 => tx.get(family, key(list))?,
                    _ => tx.get_for_update(family, key(list))?,
                };
                let (mut all, element) = (elements(read.as_ref()), next.fetch_add(1, Ordering::Relaxed));
                steps.push(Step::Read(list, all.clone()));
                all.push(element);
                let bytes: Vec<u8> = all.iter().flat_map(|element| element.to_le_bytes()).collect();
                tx.put(family, key(list), bytes)?;
                steps.push(Step::Append(list, element));
            }
            4..6 => steps.push(Step::Read(list, elements(tx.get(family, key(list))?.as_ref()))),
            _ => {
                // All lists from this one on, or as many as it takes to find one that is there.
                let mut at = list;
                let rows = match rng.one_in(2) {
                    true => tx.range(family, key(list)..)?,
                    false => {
                        let mut rows = tx.iter(family)?;
                        rows.seek(key(list));
                        rows
                    }
                };
                for row in rows {
                    let (found, value) = row?;
                    let found = u64::from_be_bytes((&*found).try_into().unwrap());
                    steps.extend((at..found).map(|absent| Step::Read(absent, Vec::new())));
                    steps.push(Step::Read(found, elements(Some(&value))));
                    at = found + 1;
                    if rng.one_in(3) {
                        at = LISTS;
                        break;
                    }
                }
                steps.extend((at..LISTS).map(|absent| Step::Read(absent, Vec::new())));
            }
        }
        if rng.one_in(2) {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// One thread's transactions.
fn work(
    db: &Db,
    seed: u64,
    kinds: &[TransactionOptions],
    next: &AtomicU64,
) -> (Vec<appends::Transaction>, u64) {
    let (mut rng, family) = (Rng::new(seed), db.default_family());
    let (mut done, mut failed) = (Vec::new(), 0);
    for _ in 0..TRANSACTIONS {
        let options = &kinds[rng.below(kinds.len() as u64) as usize];
        let tx = db.transaction(options.clone()).unwrap();
        let mut steps = Vec::new();
        let ran = run(&tx, &family, &mut rng, next, &mut steps);
        let ended = ran.and_then(|()| {
            if rng.one_in(10) {
                Ok(false)
            } else {
                tx.commit().map(|_| true)
            }
        });
        let committed = match ended {
            Ok(committed) => committed,
            Err(Error::Conflict { .. } | Error::Deadlock { .. }) => {
                failed += 1;
                false
            }
            Err(other) => panic!("{other}"),
        };
        done.push(appends::Transaction { steps, committed });
        if rng.one_in(60) {
            family.flush().unwrap();
        }
        if rng.one_in(100) {
            family.compact().unwrap();
        }
    }
    (done, failed)
}

fn check(kinds: &[TransactionOptions], demand: Demand, name: &str) {
    check_in(store, kinds, demand, name);
}

/// With so few locks that three rows of one transaction become a range.
fn few_locks() -> (tempfile::TempDir, Db) {
    let dir = fast_dir();
    let options = Options {
        durability: Durability::Process,
        max_row_locks: 23,
        ..small()
    };
    let db = Db::open(dir.path(), options).unwrap();
    (dir, db)
}

fn check_in(
    store: impl Fn() -> (tempfile::TempDir, Db),
    kinds: &[TransactionOptions],
    demand: Demand,
    name: &str,
) {
    let (mut committed, mut failed) = (0, 0);
    let seeds = seeds(4);
    let count = seeds.len();
    for seed in seeds {
        let (_dir, db) = store();
        let next = Arc::new(AtomicU64::new(1));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (db, next, kinds) = (db.clone(), Arc::clone(&next), kinds.to_vec());
                std::thread::spawn(move || work(&db, seed * THREADS + thread, &kinds, &next))
            })
            .collect();
        let mut history = Vec::new();
        for thread in threads {
            let (done, lost) = thread.join().unwrap();
            history.extend(done);
            failed += lost;
        }
        let family = db.default_family();
        let end = (0..LISTS).map(|list| Step::Read(list, elements(family.get(key(list)).unwrap().as_ref())));
        history.push(appends::Transaction {
            steps: end.collect(),
            committed: true,
        });
        committed += history.iter().filter(|tx| tx.committed).count();
        if let Err(found) = appends::check(&history, demand) {
            panic!("{found}\nreplay: COLLIE_SEED={seed} cargo test -p collie-db --test transactions {name}");
        }
        assert_eq!(db.stats().transactions.locks, 0);
    }
    println!("figures: {name}: {count} histories, {committed} transactions committed, {failed} failed");
    assert!(failed > 0, "no transactions conflicted: the test means nothing");
}

fn of(concurrency: &[Concurrency], isolation: Isolation) -> Vec<TransactionOptions> {
    concurrency.iter().map(|kind| options(*kind, isolation)).collect()
}

const BOTH: [Concurrency; 2] = [Concurrency::Pessimistic, Concurrency::Optimistic];

#[test]
fn pessimistic_serializable_transactions_are() {
    let kinds = of(&BOTH[..1], Isolation::Serializable);
    check(&kinds, Demand::Serializable, "pessimistic_serializable");
}

#[test]
fn optimistic_serializable_transactions_are() {
    let kinds = of(&BOTH[1..], Isolation::Serializable);
    check(&kinds, Demand::Serializable, "optimistic_serializable");
}

#[test]
fn serializable_transactions_of_both_kinds_are_serializable() {
    check(
        &of(&BOTH, Isolation::Serializable),
        Demand::Serializable,
        "serializable_transactions_of_both",
    );
}

#[test]
fn serializable_transactions_whose_rows_become_ranges_are() {
    check_in(
        few_locks,
        &of(&BOTH, Isolation::Serializable),
        Demand::Serializable,
        "serializable_transactions_whose_rows",
    );
}

#[test]
fn all_four_kinds_beside_each_other_are_snapshots_at_least() {
    let mut kinds = of(&BOTH, Isolation::Snapshot);
    kinds.extend(of(&BOTH, Isolation::Serializable));
    check(&kinds, Demand::Snapshot, "all_four_kinds");
}
