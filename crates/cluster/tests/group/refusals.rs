//! Commands that are refused, or that are not waited for: nothing of them stays behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collie_cluster::testing::GroupLimits;
use collie_server::cluster::{Refused, Settled};

use crate::cluster::{CAP, Cluster, Place};
use crate::seam::{evaluate, get, incr, value};

const SLOT: u16 = 5;
const NOW: Duration = Duration::ZERO;

fn cluster(pending: usize) -> Arc<Cluster> {
    Arc::new(Cluster::new(GroupLimits {
        pending,
        ..GroupLimits::default()
    }))
}

#[test]
fn commands_that_find_no_room_are_woken_when_there_is_some() {
    let cluster = cluster(1);
    let refused = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let (cluster, refused) = (Arc::clone(&cluster), Arc::clone(&refused));
            let runtime = cluster.runtime.handle().clone();
            runtime.spawn(async move {
                let mut note = |why: &Refused| {
                    if *why == Refused::NotNow {
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                };
                for _ in 0..20 {
                    // It waits for changes, and for nothing else.
                    let counted = cluster.command_noting(SLOT, &[b"key"], &mut note, incr(b"key"));
                    assert_eq!(counted.await.0, Settled::Holds);
                }
            })
        })
        .collect();
    for client in clients {
        cluster.runtime.block_on(client).unwrap();
    }
    assert!(refused.load(Ordering::SeqCst) > 0, "there was always room");
    let read = cluster.run(SLOT, b"key", get(b"key"));
    assert_eq!(read, (Settled::Holds, 120));
}

#[test]
fn commands_that_nobody_waits_for_take_effect_and_keep_no_room() {
    const LEFT: u64 = 100;
    let cluster = cluster(4);
    let mut left = 0;
    cluster.until("commands that are left alone", || {
        let (partition, _) = cluster.led()?;
        while left < LEFT {
            // It is dropped at once, and never polled.
            drop(evaluate(&*partition, SLOT, &[b"key"], NOW, incr(b"key")).ok()?);
            left += 1;
        }
        Some(())
    });
    let counted = cluster.run(SLOT, b"key", incr(b"key"));
    assert_eq!(counted, (Settled::Holds, LEFT + 1));
    // There is room for as many as before.
    cluster.until("room for all", || {
        let (partition, _) = cluster.led()?;
        let all: Result<Vec<_>, _> = (0..4)
            .map(|_| evaluate(&*partition, SLOT, &[b"key"], NOW, incr(b"key")))
            .collect();
        all.ok().map(drop)
    });
}

#[test]
fn what_is_waited_for_keeps_no_replica_open() {
    let cluster = cluster(100);
    cluster.leader(|_| true);
    let (partition, _) = cluster.until("a leader", || cluster.led());
    let (write, _) = evaluate(&*partition, SLOT, &[b"key"], NOW, incr(b"key")).unwrap();
    let (read, _) = evaluate(&*partition, SLOT, &[b"key"], NOW, get(b"key")).unwrap();
    let confirms = partition.confirm(partition.leadership().unwrap(), partition.slots(), None);
    let mut rows = partition.rows_after(None).unwrap();
    drop(rows.next());
    drop(partition);
    let leader = cluster.leader(|_| true);
    leader.kill();
    // It waits until the files of what died are not locked any more.
    cluster.open(leader);
    let settle = |settling| {
        let settled = async { tokio::time::timeout(CAP, settling).await };
        cluster.runtime.block_on(settled).unwrap()
    };
    let settled = settle(write);
    assert!(
        matches!(settled, Settled::Holds | Settled::Unknown),
        "{settled:?}: it may have been executed"
    );
    assert_eq!(settle(read), Settled::TryAgain);
    assert_eq!(settle(confirms), Settled::TryAgain);
    drop(rows);
}

#[test]
fn keys_that_no_row_adds_are_not_submitted() {
    let cluster = cluster(100);
    let first = cluster.run(SLOT, b"key", incr(b"key"));
    assert_eq!(first.0, Settled::Holds);
    let (partition, _) = cluster.until("a leader", || cluster.led());
    let last = || cluster.leader(|_| true).state().unwrap().last;
    let before = last();
    let nonsense = |_: &mut dyn collie_server::cluster::Evaluation| Ok((Vec::new(), 1, ()));
    let refused = evaluate(&*partition, SLOT, &[b"key"], NOW, nonsense).map(drop);
    assert!(matches!(refused, Err(Refused::Text(_))), "{refused:?}");
    assert_eq!(last(), before, "nothing was submitted");
    let next = cluster.run(SLOT, b"key", incr(b"key"));
    assert_eq!(next, (Settled::Holds, 2));
}

#[test]
fn a_command_that_is_dropped_or_stale_changes_nothing() {
    let cluster = cluster(100);
    let row: &[u8] = b"key";
    cluster.leader(|_| true);
    let (partition, _) = cluster.until("a leader", || cluster.led());
    let mut dropped = partition.begin(SLOT, &[row], NOW).unwrap();
    assert_eq!(dropped.get(row), Ok(None));
    drop(dropped);
    let mut stale = partition.begin(SLOT, &[row], NOW).unwrap();
    let leadership = stale.leadership();
    // The leader is cut off, and another one counts.
    let old = cluster.leader(|_| true);
    assert_eq!(leadership.replica, old.replica().unwrap().id());
    cluster.cut_off(old);
    cluster.leader(|place| place.id != old.id);
    cluster.heal(old);
    cluster.until("the old leader follows", || {
        old.state().filter(|state| !state.leads).map(drop)
    });
    cluster.until("the end of its run", || {
        matches!(stale.get(row), Err(Refused::Stale)).then_some(())
    });
    let finished = stale.finish(vec![(row.to_vec(), value(9))], 1).map(drop);
    assert_eq!(finished, Err(Refused::Stale));
    let counted = cluster.run(SLOT, row, incr(row));
    assert_eq!(counted, (Settled::Holds, 1));
}

#[test]
fn nodes_learn_who_leads_by_their_changes() {
    let cluster = cluster(100);
    let old = cluster.leader(Place::takes_commands);
    let others: Vec<_> = cluster.places.iter().filter(|place| place.id != old.id).collect();
    let mut changes: Vec<_> = others.iter().map(|place| place.changes().unwrap()).collect();
    old.kill();
    let waited = async {
        loop {
            let leaders: Vec<_> = others
                .iter()
                .map(|place| place.replica().unwrap().leader())
                .collect();
            let known = |leader: &Option<u64>| leader.is_some_and(|id| id != 100 + old.id);
            if leaders.iter().all(known) && leaders[0] == leaders[1] {
                return leaders[0];
            }
            // Nothing else wakes it.
            let (one, other) = changes.split_at_mut(1);
            tokio::select! {
                biased;
                changed = one[0].changed() => changed.unwrap(),
                changed = other[0].changed() => changed.unwrap(),
            }
        }
    };
    let waited = async { tokio::time::timeout(CAP, waited).await };
    let leader = cluster.runtime.block_on(waited);
    assert!(leader.is_ok(), "nobody says that another node leads");
    cluster.open(old);
}
