//! What commands see and leave behind, by the rows that they lock: over the deaths of leaders nothing
//! is lost, nothing counts twice, and time does not go back.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::testing::GroupLimits;
use collie_db::Value;
use collie_server::cluster::{Partition, Refused, Rows, Settled, StoredRow, Walked};

use crate::cluster::{Cluster, Place, replica_on};
use crate::seam::{LAST_SLOT, evaluate, get, incr, number, value};

const SLOT: u16 = 5;
const NOW: Duration = Duration::ZERO;

fn cluster() -> Arc<Cluster> {
    Arc::new(Cluster::new(GroupLimits::default()))
}

/// What was answered of a key.
#[derive(Default)]
struct Answered {
    values: BTreeSet<u64>,
    unknown: u64,
}

fn hot(key: usize) -> Vec<u8> {
    format!("hot {key}").into_bytes()
}

/// Reads a key and counts it up, so many times, and adds a key of its own each time.
async fn count(cluster: &Cluster, keys: &[Mutex<Answered>], task: usize, times: usize) {
    for n in 0..times {
        let key = (task + n) % keys.len();
        let row = hot(key);
        let before = keys[key].lock().unwrap().values.last().copied();
        let (settled, seen) = cluster.command(SLOT, &[&row], get(&row)).await;
        assert_eq!(settled, Settled::Holds, "a read changes nothing");
        assert!(
            Some(seen) >= before,
            "{before:?} was answered before {seen} was read"
        );
        let (settled, counted) = cluster.command(SLOT, &[&row], incr(&row)).await;
        {
            let mut answered = keys[key].lock().unwrap();
            match settled {
                Settled::Holds => {
                    assert!(counted > seen, "{seen} was read before {counted} was answered");
                    assert!(answered.values.insert(counted), "{counted} was answered twice");
                }
                _ => answered.unknown += 1,
            }
        }
        let own = format!("own {task} {n} {before:?}").into_bytes();
        cluster.command(SLOT, &[&own], incr(&own)).await;
    }
}

/// The rows of a walk, without those that were removed.
fn stored(rows: Rows) -> impl Iterator<Item = Result<StoredRow, Refused>> {
    rows.filter_map(|found| match found {
        Ok(Walked::Row(row)) => Some(Ok(row)),
        Ok(Walked::Removed { .. }) => None,
        Err(refused) => Some(Err(refused)),
    })
}

/// All rows of a slot on the partition, where it is confirmed to lead.
fn rows_of(cluster: &Cluster, slot: u16) -> Vec<Vec<u8>> {
    cluster.until("rows that hold", || {
        let (partition, _) = cluster.led()?;
        let since = partition.leadership()?;
        let rows: Result<Vec<_>, Refused> = stored(partition.rows_after(None).ok()?).collect();
        let count = partition.key_count(slot..=slot).ok()?;
        let holds = cluster
            .runtime
            .block_on(partition.confirm(since, partition.slots(), None));
        let rows = rows.ok().filter(|_| holds == Settled::Holds)?;
        let rows: Vec<_> = rows.into_iter().filter(|row| row.slot == slot).collect();
        assert_eq!(
            count,
            rows.len() as u64,
            "the keys that were counted, and those there are"
        );
        Some(rows.into_iter().map(|row| row.row).collect())
    })
}

#[test]
fn counts_and_numbers_of_keys_are_exact_after_leaders_die() {
    let cluster = cluster();
    let keys: Arc<Vec<_>> = Arc::new((0..2).map(|_| Mutex::<Answered>::default()).collect());
    for round in 0..2 {
        let answered = || -> usize { keys.iter().map(|key| key.lock().unwrap().values.len()).sum() };
        let before = answered();
        let clients: Vec<_> = (0..6)
            .map(|task| {
                let (cluster, keys) = (Arc::clone(&cluster), Arc::clone(&keys));
                let task = round * 6 + task;
                let runtime = cluster.runtime.handle().clone();
                runtime.spawn(async move { count(&cluster, &keys, task, 15).await })
            })
            .collect();
        cluster.until("counting", || (answered() >= before + 20).then_some(()));
        let leader = cluster.leader(|_| true);
        leader.kill();
        cluster.leader(|place| place.id != leader.id);
        cluster.open(leader);
        for client in clients {
            cluster.runtime.block_on(client).unwrap();
        }
        let leader = cluster.leader(|_| true);
        leader.kill();
        let rows = rows_of(&cluster, SLOT);
        assert!(rows.is_sorted(), "rows are in the order of their bytes");
        cluster.open(leader);
    }
    for (key, answered) in keys.iter().enumerate() {
        let row = hot(key);
        let (_, value) = cluster.run(SLOT, &row, get(&row));
        let answered = answered.lock().unwrap();
        let known = answered.values.len() as u64;
        assert!(
            known <= value && value <= known + answered.unknown,
            "key {key} is {value}; {known} counts were answered, and {} have no known outcome",
            answered.unknown
        );
    }
}

#[test]
fn two_rows_of_one_command_change_together() {
    let cluster = cluster();
    let names: [[&[u8]; 2]; 2] = [[b"a", b"b"], [b"b", b"a"]];
    let clients: Vec<_> = (0..6)
        .map(|task| {
            let cluster = Arc::clone(&cluster);
            let runtime = cluster.runtime.handle().clone();
            runtime.spawn(async move {
                for n in 0..30 {
                    let writes = n % 3 > 0;
                    let both = |rows: &mut dyn collie_server::cluster::Evaluation| {
                        let (a, b) = (number(rows.get(b"a")?), number(rows.get(b"b")?));
                        let changes = match writes {
                            true => names[0].map(|row| (row.to_vec(), value(a + 1))).to_vec(),
                            false => Vec::new(),
                        };
                        Ok((changes, 0, (a, b)))
                    };
                    let (settled, (a, b)) = cluster.command(SLOT, &names[task % 2], both).await;
                    assert!(a == b || settled != Settled::Holds, "one row of two: {a} and {b}");
                    assert_eq!(a, b, "one row of two, before that is settled");
                }
            })
        })
        .collect();
    for client in clients {
        cluster.runtime.block_on(client).unwrap();
    }
}

#[test]
fn a_row_that_is_locked_is_waited_for_as_long_as_patience_lasts() {
    let cluster = cluster();
    cluster.leader(|_| true);
    let (partition, _) = cluster.until("a leader", || cluster.led());
    let first = partition.begin(SLOT, &[b"b"], NOW).unwrap();
    let refused = |rows: &[&[u8]]| partition.begin(SLOT, rows, NOW).map(drop).err();
    assert_eq!(refused(&[b"c", b"b"]), Some(Refused::Locked));
    assert_eq!(
        refused(&[b"c", b"a"]),
        None,
        "what was locked of a refused set is free"
    );
    // The same row in another slot is another one.
    drop(partition.begin(SLOT + 1, &[b"b"], NOW).unwrap());
    let waits = Arc::clone(&partition);
    let waiting = cluster.runtime.spawn_blocking(move || {
        let patience = Duration::from_secs(60);
        evaluate(&*waits, SLOT, &[b"b"], patience, incr(b"b")).map(|(_, reply)| reply)
    });
    // Many looks, in each of which it may have gone on wrongly.
    for _ in 0..20 {
        assert!(!waiting.is_finished(), "it has not waited");
        assert_eq!(refused(&[b"b"]), Some(Refused::Locked));
        std::thread::yield_now();
    }
    let _settling = first.finish(vec![(b"b".to_vec(), value(7))], 1).unwrap();
    let counted = cluster.runtime.block_on(waiting).unwrap();
    assert_eq!(counted, Ok(8), "it reads what the other submitted");
}

/// Who waits for a row goes on at the moment that it is unlocked.
#[test]
fn threads_that_wait_for_a_row_count_each_once() {
    const THREADS: u64 = 4;
    const EACH: u64 = 400;
    let cluster = cluster();
    cluster.leader(|_| true);
    let (partition, _) = cluster.until("a leader", || cluster.led());
    let counted = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (partition, counted) = (&*partition, &counted);
            scope.spawn(move || {
                for _ in 0..EACH {
                    let patience = Duration::from_secs(60);
                    let done = evaluate(partition, SLOT, &[b"key"], patience, incr(b"key"));
                    counted.lock().unwrap().push(done.unwrap());
                }
            });
        }
    });
    let mut replies = BTreeSet::new();
    for (settling, reply) in counted.into_inner().unwrap() {
        assert!(replies.insert(reply), "{reply} was counted twice");
        assert_eq!(cluster.runtime.block_on(settling), Settled::Holds);
    }
    assert_eq!(replies.last(), Some(&(THREADS * EACH)));
}

#[test]
fn a_leader_that_is_cut_off_holds_nothing_that_it_reads() {
    let cluster = cluster();
    let row = b"key";
    let old = cluster.leader(|_| true);
    let first = cluster.run(SLOT, row, incr(row));
    assert_eq!(first, (Settled::Holds, 1));
    let partition = old.partition().unwrap();
    let since = partition.leadership().unwrap();
    cluster.cut_off(old);
    let new = cluster.leader(|place| place.id != old.id);
    cluster.until("another count", || {
        let (settling, _) = evaluate(&*new.partition()?, SLOT, &[row], NOW, incr(row)).ok()?;
        (cluster.runtime.block_on(settling) == Settled::Holds).then_some(())
    });
    // It does not know, and reads what was. That does not hold.
    match evaluate(&*partition, SLOT, &[row], NOW, get(row)) {
        Ok((settling, seen)) => {
            let settled = cluster.runtime.block_on(settling);
            assert_eq!(settled, Settled::TryAgain, "{seen} was read");
        }
        Err(refused) => assert!(
            matches!(refused, Refused::NotHere | Refused::NotNow),
            "{refused:?}"
        ),
    }
    let confirmed = cluster
        .runtime
        .block_on(partition.confirm(since, partition.slots(), None));
    assert_eq!(confirmed, Settled::TryAgain, "it does not lead");
    assert_eq!(
        partition.applied().unwrap().get(SLOT, row),
        Ok(value(1)),
        "it says what it has"
    );
    cluster.heal(old);
}

#[test]
fn what_is_applied_is_read_of_one_moment() {
    const ROUNDS: u64 = 30;
    let cluster = cluster();
    let leader = cluster.leader(|_| true);
    let follower = cluster.places.iter().find(|place| place.id != leader.id).unwrap();
    let partition = cluster.until("a replica", || follower.partition());
    let names: [&[u8]; 2] = [b"a", b"b"];
    let both = |rows: &mut dyn collie_server::cluster::Evaluation| {
        let (a, b) = (number(rows.get(b"a")?), number(rows.get(b"b")?));
        assert_eq!(a, b);
        let changes = names.map(|row| (row.to_vec(), value(a + 1))).to_vec();
        Ok((changes, 0, a + 1))
    };
    let mut between = 0;
    for _ in 0..ROUNDS {
        let applied = partition.applied().unwrap();
        let a = number(applied.get(SLOT, b"a").unwrap());
        let command = cluster.command(SLOT, &names, both);
        let (_, counted) = cluster.runtime.block_on(command);
        // It is applied there too, before the second row is read.
        cluster.until("the same on the follower", || {
            let now = partition.applied().ok()?.get(SLOT, b"a").ok()?;
            (number(now) >= counted).then_some(())
        });
        between += counted - a;
        assert_eq!(number(applied.get(SLOT, b"b").unwrap()), a);
    }
    assert!(between >= ROUNDS, "entries came between: {between}");
}

#[test]
fn what_was_read_before_leadership_was_lost_does_not_hold() {
    let cluster = cluster();
    let first = cluster.leader(|_| true);
    let partition = first.partition().unwrap();
    let since = cluster.until("leadership", || partition.leadership());
    let confirm = |since| {
        cluster
            .runtime
            .block_on(partition.confirm(since, partition.slots(), None))
    };
    cluster.until("leadership that holds", || {
        (confirm(since) == Settled::Holds).then_some(())
    });
    let lead = |to: &Place| {
        cluster.until("a transfer", || {
            if to.takes_commands() {
                return Some(());
            }
            // It leads nothing, or it is asked again.
            let leader = cluster.leader(|_| true).replica()?;
            cluster
                .runtime
                .block_on(leader.transfer_to(replica_on(to.id)))
                .ok()?;
            None
        });
    };
    lead(cluster.places.iter().find(|place| place.id != first.id).unwrap());
    // A request of before may still move it on.
    cluster.until("leadership that holds again", || {
        lead(first);
        // Until it hears of the others it takes itself for the leader that it was.
        let again = partition.leadership().filter(|again| *again != since)?;
        (confirm(again) == Settled::Holds).then_some(())
    });
    assert_eq!(confirm(since), Settled::TryAgain, "others have led in between");
}

#[test]
fn rows_come_in_order_from_any_on_and_of_own_slots_alone() {
    let cluster = cluster();
    cluster.leader(|_| true);
    let mut expected = Vec::new();
    let large = vec![7; 100_000];
    for n in 0..120_u32 {
        let slot = [0, LAST_SLOT / 2, LAST_SLOT][n as usize % 3];
        let row = format!("row {:03}", n * 7 % 120).into_bytes();
        let put = |_: &mut dyn collie_server::cluster::Evaluation| {
            let value = Some(Value::from(&large[..(n as usize * 997) % large.len()]));
            Ok((vec![(row.clone(), value)], 1, ()))
        };
        cluster.run(slot, &row, put);
        expected.push((slot, row));
    }
    expected.sort();
    let leader = cluster.leader(Place::takes_commands);
    let scan = |partition: &dyn Partition, after: Option<(u16, &[u8])>| -> Vec<(u16, Vec<u8>)> {
        let rows = stored(partition.rows_after(after).unwrap());
        rows.map(|row| row.unwrap())
            .map(|row| (row.slot, row.row))
            .collect()
    };
    let all = leader.partition().unwrap();
    assert_eq!(scan(&*all, None), expected);
    for from in [0, 1, 39, 40, 77, 119] {
        let (slot, row) = &expected[from];
        assert_eq!(
            scan(&*all, Some((*slot, row))),
            expected[from + 1..],
            "behind row {from}"
        );
    }
    let half = leader.replica().unwrap().partition(1..=LAST_SLOT - 1);
    let of_half = || expected.iter().filter(|(slot, _)| half.slots().contains(slot));
    assert_eq!(scan(&*half, None), of_half().cloned().collect::<Vec<_>>());
    assert_eq!(scan(&*half, Some((0, b"row"))).len(), of_half().count());
    assert!(scan(&*half, Some((LAST_SLOT, b""))).is_empty());
    assert!(matches!(
        half.begin(0, &[b"row"], NOW).err(),
        Some(Refused::Text(_))
    ));
    assert_eq!(all.key_count(0..=LAST_SLOT), Ok(120));
    assert_eq!(all.key_count(LAST_SLOT..=LAST_SLOT), Ok(40));
    assert_eq!(all.key_count(1..=1), Ok(0));
    // A replica that follows has it, too.
    let follower = cluster.places.iter().find(|place| place.id != leader.id).unwrap();
    cluster.until("the rows on a follower", || {
        let follower = follower.partition()?;
        (scan(&*follower, None) == expected).then_some(())?;
        assert_eq!(follower.key_count(0..=LAST_SLOT), Ok(120));
        assert_eq!(follower.begin(0, &[b"row"], NOW).err(), Some(Refused::NotHere));
        Some(())
    });
}

#[test]
fn a_leader_whose_clock_is_behind_does_not_turn_time_back() {
    let cluster = cluster();
    let newest = AtomicU64::new(0);
    let row = b"key";
    let run = |what: &str| {
        let now = |rows: &mut dyn collie_server::cluster::Evaluation| {
            Ok((vec![(row.to_vec(), value(1))], 0, rows.now_ms()))
        };
        let (_, now) = cluster.run(SLOT, row, now);
        let before = newest.fetch_max(now, Ordering::SeqCst);
        assert!(now >= before, "{what}: {now} ms come behind {before} ms");
    };
    run("the first");
    let old = cluster.leader(|_| true);
    let hour = Duration::from_secs(3600);
    for place in &cluster.places {
        place.set_behind(hour);
    }
    run("a clock that was set back");
    old.kill();
    cluster.leader(|place| place.id != old.id);
    run("another leader");
    cluster.open(old);
    cluster.until("all in tables", || {
        for replica in cluster.replicas() {
            cluster.runtime.block_on(replica.flush()).ok()?;
        }
        Some(())
    });
    cluster.places.iter().for_each(Place::kill);
    for place in &cluster.places {
        place.set_behind(2 * hour);
        cluster.open(place);
    }
    run("after a restart of all");
}
