//! Disks that are full: nothing fails and nothing is lost, and all goes on by itself when there is room.
//!
//! The logs, or the manifests of the tables, or both, are on simulated devices, which give no more room
//! from one moment on. Every count that was answered is there in the end, once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_cluster::testing::proposals::Answer;
use collie_cluster::testing::{
    CommandError, Executed, GroupLimits, Replica, Retention, Row, Rows, StoreError,
};
use collie_db::Value;
use collie_server::cluster::{Refused, Settled};
use collie_sim::{Fault, FaultKind};

use crate::cluster::{Cluster, Place, Simulated, Tally, ask, read, replica_on, row};
use crate::filling::Filling;
use crate::seam::{evaluate, incr, read_applied};

/// Bytes of a row that is written to fill a disk.
pub(crate) const BYTES: usize = 30_000;

fn put(row: Row) -> impl Fn(&mut Rows<'_>) -> Executed<()> + Send + Sync + 'static {
    move |_| {
        let value = Some(vec![7; BYTES]);
        Ok((BTreeMap::from([(row.clone(), value)]), ()))
    }
}

/// Writes a row wherever it is taken, and waits for the answer.
pub(crate) fn write(cluster: &Cluster, n: usize) -> Answer<()> {
    let key = 1_000 + n % 20;
    let written = ask(
        cluster,
        |replica| async move { replica.execute(put(row(key))).await },
    );
    cluster.runtime.block_on(written)
}

/// Writes until something is so, and then so many times more.
fn write_until(cluster: &Cluster, what: &str, more: usize, is_so: impl Fn() -> bool) {
    let mut n = 0;
    while !is_so() {
        assert!(n < 2_000, "{what} does not happen");
        write(cluster, n);
        n += 1;
    }
    for n in 0..more {
        write(cluster, n);
    }
}

impl Place {
    fn problem(&self) -> Option<String> {
        self.replica()?.problem()
    }

    fn is_full(&self) -> bool {
        self.problem()
            .is_some_and(|problem| problem.contains("takes no writes"))
    }

    fn fill(&self) {
        self.device.limit_space(Some(0));
    }

    fn free(&self) {
        self.device.limit_space(None);
    }
}

pub(crate) fn count(cluster: &Arc<Cluster>, tally: &Arc<Tally>) {
    cluster.count(tally, 2, 10, || {});
}

/// No replica waits for anything, nor has one failed.
pub(crate) fn no_problem(cluster: &Cluster) {
    cluster.until("the end of all problems", || {
        let all = cluster.places.iter().all(|place| place.problem().is_none());
        all.then_some(())
    });
}

#[test]
fn a_follower_without_room_catches_up_when_there_is_some() {
    let cluster = Arc::new(Cluster::simulated(Simulated::Logs));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let leader = cluster.leader(|_| true);
    let follower = cluster.places.iter().find(|place| place.id != leader.id).unwrap();
    follower.fill();
    write_until(&cluster, "want of room", 60, || follower.is_full());
    count(&cluster, &tally);
    cluster.until("a follower that is behind", || {
        let (of_leader, own) = (cluster.leader(|_| true).state()?, follower.state()?);
        (own.last < of_leader.last).then_some(())
    });
    // Raft does not stand still there: it hears its leader, and could answer others.
    assert!(follower.is_full(), "{:?}", follower.problem());
    cluster.until("a leader that it follows", || {
        let known = follower.state()?.leader?;
        (Some(known) == cluster.leader(|_| true).state()?.leader).then_some(())
    });
    follower.free();
    count(&cluster, &tally);
    cluster.check(&tally);
    no_problem(&cluster);
}

#[test]
fn a_leader_without_room_hands_over_until_it_has_some() {
    let cluster = Arc::new(Cluster::simulated(Simulated::Logs));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let old = cluster.leader(|_| true);
    old.fill();
    let leads = |place: &Place| place.state().is_some_and(|state| state.leads);
    write_until(&cluster, "a hand-over", 0, || {
        old.is_full()
            && cluster
                .places
                .iter()
                .any(|place| place.id != old.id && leads(place))
    });
    let led = (0..60).filter(|n| {
        write(&cluster, *n);
        leads(old)
    });
    let led = led.count();
    // Where the others' heartbeats are late it may be elected again, and hands over again.
    assert!(led < 30, "it leads, and is full, after {led} of 60 writes");
    count(&cluster, &tally);
    old.free();
    count(&cluster, &tally);
    cluster.check(&tally);
    no_problem(&cluster);
}

/// Many write all the time, until a replica of another node leads.
pub(crate) fn write_until_another_leads(cluster: &Arc<Cluster>, old: &Place) {
    const CLIENTS: usize = 8;
    let ended = Arc::new(AtomicBool::new(false));
    let client = |n: usize| {
        let (cluster, ended) = (Arc::clone(cluster), Arc::clone(&ended));
        async move {
            while !ended.load(Ordering::SeqCst) {
                ask(&cluster, |replica| async move {
                    replica.execute(put(row(1_000 + n))).await
                })
                .await;
            }
        }
    };
    let clients: Vec<_> = (0..CLIENTS).map(|n| cluster.runtime.spawn(client(n))).collect();
    cluster.until("a hand-over", || {
        let mut others = cluster.places.iter().filter(|place| place.id != old.id);
        others
            .any(|place| place.state().is_some_and(|state| state.leads))
            .then_some(())
    });
    ended.store(true, Ordering::SeqCst);
    for client in clients {
        cluster.runtime.block_on(client).unwrap();
    }
}

#[test]
fn a_leader_whose_tables_have_no_room_hands_over() {
    let cluster = Arc::new(Cluster::simulated(Simulated::Tables));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let old = cluster.leader(|_| true);
    old.device.inject(Fault::new(FaultKind::NoSpace).on("MANIFEST"));
    write_until_another_leads(&cluster, old);
    count(&cluster, &tally);
    old.device.heal();
    cluster.check(&tally);
    no_problem(&cluster);
}

#[test]
fn without_room_on_any_node_reads_are_answered() {
    let cluster = Arc::new(Cluster::simulated(Simulated::Logs));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    cluster.places.iter().for_each(Place::fill);
    let leader = || cluster.leader(|_| true).replica().unwrap();
    let attempt = || cluster.runtime.block_on(leader().execute(put(row(1_000))));
    // Where only some are full, another one of them may lead.
    cluster.until("want of room everywhere", || {
        drop(attempt());
        cluster.places.iter().all(Place::is_full).then_some(())
    });
    let vote = leader().state().unwrap().vote;
    let mut refused = 0;
    cluster.until("many refusals", || {
        match attempt() {
            Err(CommandError::Log(full @ StoreError::NoRoom { .. })) => {
                assert!(full.to_string().starts_with("BUSY no space left"), "{full}");
                refused += 1;
            }
            other => panic!("a write has {other:?}"),
        }
        cluster.runtime.block_on(read(&cluster, &row(0)));
        (refused >= 400).then_some(())
    });
    let now = leader().state().unwrap().vote;
    assert_eq!(now, vote, "one that is full hands over to another");
    cluster.places.iter().for_each(Place::free);
    count(&cluster, &tally);
    cluster.check(&tally);
    no_problem(&cluster);
}

#[test]
fn where_most_disks_are_full_reads_are_answered() {
    let cluster = Arc::new(Cluster::simulated(Simulated::Logs));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let leader = cluster.leader(|_| true);
    let others = || cluster.places.iter().filter(|place| place.id != leader.id);
    others().for_each(Place::fill);
    let replica = leader.replica().unwrap();
    let refuses = || {
        let problem = replica.problem();
        problem.is_some_and(|problem| problem.contains("nothing can be committed"))
    };
    // Those that follow are refused.
    cluster.until("want of room on most disks", || {
        drop(cluster.runtime.block_on(replica.execute(put(row(1_000)))));
        refuses().then_some(())
    });
    let vote = replica.state().unwrap().vote;
    for _ in 0..400 {
        let refused = cluster.runtime.block_on(replica.execute(put(row(1_000))));
        match refused {
            Err(full @ CommandError::MostFull { .. }) => {
                assert!(full.to_string().starts_with("BUSY the disks"), "{full}");
            }
            other => panic!("a write has {other:?}"),
        }
        cluster.runtime.block_on(read(&cluster, &row(0)));
    }
    assert_eq!(replica.state().unwrap().vote, vote, "another one leads");
    others().for_each(Place::free);
    count(&cluster, &tally);
    cluster.check(&tally);
    no_problem(&cluster);
}

#[test]
fn a_replica_whose_tables_have_no_room_waits_for_some() {
    let cluster = Arc::new(Cluster::simulated(Simulated::Tables));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let leader = cluster.leader(|_| true);
    let follower = cluster.places.iter().find(|place| place.id != leader.id).unwrap();
    follower
        .device
        .inject(Fault::new(FaultKind::NoSpace).on("MANIFEST"));
    let waits = || {
        let problem = follower.problem();
        problem.is_some_and(|problem| problem.contains("room for its tables"))
    };
    write_until(&cluster, "want of room", 20, waits);
    count(&cluster, &tally);
    let (behind, last) = (follower.state().unwrap().applied, leader.state().unwrap().last);
    assert!(
        behind.map(|id| id.index) < last,
        "{behind:?} of {last:?} is applied"
    );
    follower.device.heal();
    cluster.check(&tally);
    no_problem(&cluster);
}

#[test]
fn a_replica_opened_on_a_full_disk_waits_for_room() {
    let cluster = Arc::new(Cluster::simulated(Simulated::Tables));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let leader = cluster.leader(|_| true);
    let other = cluster.places.iter().find(|place| place.id != leader.id).unwrap();
    other.kill();
    let full = Fault::new(FaultKind::NoSpace).on("MANIFEST");
    other.device.inject(full.clone());
    cluster.open(other);
    cluster.until("a replica that waits for room", || {
        let problem = other.problem()?;
        assert!(!problem.contains("has failed"), "{problem}");
        problem.contains("until there is room").then_some(())
    });
    count(&cluster, &tally);
    other.device.heal();
    cluster.check(&tally);
    no_problem(&cluster);
}

fn remove(row: Row) -> impl Fn(&mut Rows<'_>) -> Executed<()> + Send + Sync + 'static {
    move |_| Ok((BTreeMap::from([(row.clone(), None)]), ()))
}

/// What the logs hold can go when it is in tables, and the manifest has to say so first. A reserve of each
/// disk has room for that: a cluster whose disks were full was not relieved by the removal of all its data.
#[test]
fn where_all_disks_are_full_what_makes_room_has_some() {
    const ROWS: usize = 250;
    let cluster = Arc::new(Cluster::adjusted(Simulated::Disk, |options| {
        options.machine.db.reserve_bytes = Some(256 << 10);
    }));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let attempt = |work: &dyn Fn(&Replica) -> bool| {
        let leader = cluster.leader(|_| true).replica()?;
        if work(&leader) {
            return Some(());
        }
        std::thread::sleep(Duration::from_millis(10));
        None
    };
    let put = |n: usize| {
        attempt(&|leader| {
            let written = leader.execute(put(row(1_000 + n)));
            cluster.runtime.block_on(written).is_ok()
        })
    };
    for n in 0..ROWS {
        cluster.until("a write", || put(n));
    }
    cluster.places.iter().for_each(Place::fill);
    // As far as they are prepared, and as what they hold gets to tables, the logs take more.
    let (mut more, mut refused) = (0, 0);
    while refused < 50 && more < ROWS {
        match put(ROWS + more) {
            Some(()) => more += 1,
            None => refused += 1,
        }
    }
    for n in 0..ROWS + more {
        cluster.until("a removal", || {
            attempt(&|leader| {
                let removed = leader.execute(remove(row(1_000 + n)));
                cluster.runtime.block_on(removed).is_ok()
            })
        });
    }
    for n in 0..ROWS {
        cluster.until("a write that goes on", || put(n));
    }
    count(&cluster, &tally);
    cluster.places.iter().for_each(Place::free);
    cluster.check(&tally);
    no_problem(&cluster);
}

/// It lacks entries that the logs do not keep, so it gets tables, and is shown to wait for their room.
fn a_follower_gets_tables_without_room(part: &str) {
    let device = Filling::new();
    let of_all = device.clone();
    let cluster = Arc::new(Cluster::adjusted(Simulated::Nothing, move |options| {
        options.machine.db.device = Arc::new(of_all.clone());
        options.store.shared.retention = Some(Retention {
            margin: 0,
            lagging: 0,
        });
    }));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    cluster.check(&tally);
    let leader = cluster.leader(|_| true);
    let follower = cluster.places.iter().find(|place| place.id != leader.id).unwrap();
    let had = follower.state().unwrap().last.unwrap();
    follower.kill();
    count(&cluster, &tally);
    cluster.until("a purge", || {
        for replica in cluster.replicas() {
            cluster.runtime.block_on(replica.flush()).ok()?;
        }
        let mut others = cluster.places.iter().filter(|place| place.id != follower.id);
        let purged = |place: &Place| place.state().is_some_and(|state| state.purged > Some(had));
        others.all(purged).then_some(())
    });
    let replica = follower
        .dir
        .path()
        .join("replicas")
        .join(replica_on(follower.id).to_string());
    device.fill(Some(replica.join(part)));
    cluster.open(follower);
    cluster.until("a replica that waits for room", || {
        let problem = follower.problem()?;
        assert!(!problem.contains("has failed"), "{problem}");
        problem.contains("room for its tables").then_some(())
    });
    count(&cluster, &tally);
    device.fill(None);
    cluster.check(&tally);
    no_problem(&cluster);
}

#[test]
fn a_full_follower_gets_tables_when_there_is_room() {
    a_follower_gets_tables_without_room("staged");
}

/// It ended with that, and was opened no more after three times.
#[test]
fn a_full_follower_takes_tables_over_when_there_is_room() {
    a_follower_gets_tables_without_room("store/families/1");
}

/// Nothing of what is submitted reaches a device, so none of it has an outcome.
#[test]
fn effects_without_an_outcome_are_limited_to_64_mib() {
    const SLOT: u16 = 5;
    const LARGE: usize = 400 << 10;
    const MOST: usize = (64 << 20) / LARGE + 1;
    let cluster = Arc::new(Cluster::simulated(Simulated::Logs));
    assert_eq!(cluster.run(SLOT, b"key", incr(b"key")), (Settled::Holds, 1));
    let value = Value::from(&vec![7; LARGE][..]);
    let put = |_: &mut dyn collie_server::cluster::Evaluation| {
        Ok((vec![(b"large".to_vec(), Some(value.clone()))], 0, ()))
    };
    let settlings = cluster.until("a refusal", || {
        let (partition, _) = cluster.led()?;
        let gates: Vec<_> = cluster
            .places
            .iter()
            .map(|place| place.device.hold_syncs())
            .collect();
        let mut settlings = Vec::new();
        let refused = loop {
            match evaluate(&*partition, SLOT, &[b"large"], std::time::Duration::ZERO, put) {
                Ok((settling, ())) => settlings.push(settling),
                Err(refused) => break refused,
            }
            assert!(settlings.len() <= MOST, "{} were taken", settlings.len());
        };
        gates.into_iter().for_each(collie_sim::Gate::release);
        // Another leader may have come meanwhile.
        (refused == Refused::NotNow && settlings.len() >= MOST - 1).then_some(settlings)
    });
    for settling in settlings {
        let settled = cluster.runtime.block_on(settling);
        assert!(
            matches!(settled, Settled::Holds | Settled::Unknown),
            "{settled:?}"
        );
    }
    assert_eq!(cluster.run(SLOT, b"key", incr(b"key")), (Settled::Holds, 2));
    assert_eq!(GroupLimits::default().pending, 4096, "the other limit is not met");
}

/// A log prepares less ahead of need than these entries take. One that waited for its room in the middle of
/// raft would keep all else there waiting, what removes included.
#[test]
fn large_entries_without_room_are_refused_before_raft_has_them() {
    let cluster = Arc::new(Cluster::adjusted(Simulated::Logs, |options| {
        options.store.shared.log.segment_bytes = 64 << 10;
    }));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    cluster.places.iter().for_each(Place::fill);
    let leader = cluster.leader(|_| true).replica().unwrap();
    let large = |n: usize| {
        let (leader, row) = (Arc::clone(&leader), row(2_000 + n));
        cluster.runtime.spawn(async move {
            let put = move |_: &mut Rows<'_>| {
                let value = Some(vec![7; 300_000]);
                Ok((BTreeMap::from([(row.clone(), value)]), ()))
            };
            leader.execute(put).await
        })
    };
    let writes: Vec<_> = (0..4).map(large).collect();
    for write in writes {
        let answer = cluster
            .runtime
            .block_on(async { tokio::time::timeout(crate::cluster::CAP, write).await });
        let answer = answer.expect("a write waits for room").unwrap();
        assert!(matches!(answer, Ok(Answer::TryAgain) | Err(_)), "{answer:?}");
        cluster.runtime.block_on(read(&cluster, &row(0)));
    }
    cluster.places.iter().for_each(Place::free);
    count(&cluster, &tally);
    cluster.check(&tally);
    no_problem(&cluster);
}

/// A cluster whose leader has an entry that its followers have no room for.
fn stuck() -> (Arc<Cluster>, Arc<Tally>, u64) {
    let cluster = Arc::new(Cluster::adjusted(Simulated::Logs, |options| {
        options.store.shared.log.segment_bytes = 64 << 10;
    }));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let leader = cluster.leader(|_| true);
    let others = || cluster.places.iter().filter(|place| place.id != leader.id);
    others().for_each(Place::fill);
    let replica = leader.replica().unwrap();
    cluster.runtime.spawn(async move {
        let put = |_: &mut Rows<'_>| {
            let value = Some(vec![7; 300_000]);
            Ok((BTreeMap::from([(row(2_000), value)]), ()))
        };
        drop(replica.execute(put).await);
    });
    cluster.until("an entry that no follower takes", || {
        let lacks = |place: &Place| Some(place.state()?.last < leader.state()?.last);
        let is_refused = leader.problem()?.contains("nothing can be committed");
        others()
            .all(|place| lacks(place) == Some(true) && is_refused)
            .then_some(())
    });
    let id = leader.id;
    (cluster, tally, id)
}

/// Removals go, if each is tried for a while.
fn remove_some(cluster: &Cluster) {
    for n in 0..20 {
        cluster.until("a removal", || {
            let leader = cluster.leader(|_| true).replica()?;
            let removed = leader.execute(remove(row(1_000 + n)));
            let removed = cluster.runtime.block_on(removed);
            std::thread::sleep(Duration::from_millis(10));
            matches!(removed, Ok(Answer::Reply(()))).then_some(())
        });
    }
}

/// Nothing that removes can be committed behind it.
#[test]
fn an_entry_that_most_have_no_room_for_yields_to_removals() {
    let (cluster, tally, _) = stuck();
    remove_some(&cluster);
    cluster.runtime.block_on(read(&cluster, &row(0)));
    cluster.places.iter().for_each(Place::free);
    count(&cluster, &tally);
    cluster.check(&tally);
    no_problem(&cluster);
}

/// The leader has such an entry in its log, and one follower lacks an entry that is committed. So the other
/// one is to lead, and the leader before has to take what that one appends, in the room that it has left.
#[test]
fn an_entry_that_waits_keeps_no_room_from_removals() {
    const LARGE: usize = 480_000;
    // For votes and small entries besides what is kept from these, and not for such an entry; and for some removals.
    const FOR_MANY: usize = 400 << 10;
    const FOR_SOME: usize = 200 << 10;
    let cluster = Arc::new(Cluster::adjusted(Simulated::Disk, |options| {
        options.machine.db.reserve_bytes = Some(0);
        options.store.shared.log.segment_bytes = 64 << 10;
    }));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let leader = cluster.leader(|_| true);
    let others: Vec<_> = cluster.places.iter().filter(|p| p.id != leader.id).collect();
    let large = |n: usize| {
        let replica = leader.replica().unwrap();
        cluster.runtime.spawn(async move {
            let value = || Some(vec![7; LARGE]);
            let put = move |_: &mut Rows<'_>| Ok((BTreeMap::from([(row(n), value())]), ()));
            replica.execute(put).await
        })
    };
    others[0].prepare(FOR_MANY);
    others[0].fill();
    let committed = cluster.runtime.block_on(large(2_000)).unwrap();
    assert!(matches!(committed, Ok(Answer::Reply(()))), "{committed:?}");
    cluster.until_lacking(&others[..1], leader);
    others[1].prepare(FOR_MANY);
    others[1].fill();
    let _waits = large(2_001);
    cluster.until_lacking(&others, leader);
    // For removals, and not beside the room of an entry that is in the log already.
    leader.prepare(FOR_SOME);
    leader.fill();
    remove_some(&cluster);
    cluster.places.iter().for_each(Place::free);
    count(&cluster, &tally);
    cluster.check(&tally);
    no_problem(&cluster);
}

/// It answers nothing before the first entry of its term is committed, which is behind that one.
#[test]
fn a_new_leader_withdraws_what_most_have_no_room_for() {
    let (cluster, tally, id) = stuck();
    let others = || cluster.places.iter().filter(|place| place.id != id);
    let stand = |stands: bool| {
        for place in others() {
            place.replica().unwrap().set_stands(stands);
        }
    };
    stand(false);
    let leader = cluster.places.iter().find(|place| place.id == id).unwrap();
    let before = leader.state().unwrap();
    leader.kill();
    cluster.open(leader);
    cluster.until("the same leader in a later term", || {
        let now = leader.state()?;
        (now.leads && now.vote > before.vote).then_some(())
    });
    stand(true);
    cluster.until("a read", || {
        let replica = cluster.leader(|_| true).replica()?;
        let row = row(0);
        cluster.runtime.block_on(read_applied(&replica, &row)).map(drop)
    });
    cluster.places.iter().for_each(Place::free);
    count(&cluster, &tally);
    cluster.check(&tally);
    no_problem(&cluster);
}

/// It lacks entries that it has no room for, and removals behind them that would make some: the tables of
/// the others are small by now.
#[test]
fn a_full_follower_gets_tables_that_are_smaller_than_its_own() {
    const ROWS: usize = 250;
    let cluster = Arc::new(Cluster::adjusted(Simulated::Logs, |options| {
        options.machine.db.reserve_bytes = Some(4 << 20);
    }));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let change = |work: &dyn Fn(&Replica) -> bool| {
        cluster.until("a change", || {
            let leader = cluster.leader(|_| true).replica()?;
            work(&leader).then_some(())
        });
    };
    let put = |n: usize| {
        change(&|leader| {
            // Tables are compressed.
            let mut x = n as u64 + 1;
            let value = std::iter::repeat_with(|| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (x >> 56) as u8
            });
            let value: Vec<u8> = value.take(BYTES).collect();
            let put =
                move |_: &mut Rows<'_>| Ok((BTreeMap::from([(row(1_000 + n), Some(value.clone()))]), ()));
            cluster.runtime.block_on(leader.execute(put)).is_ok()
        });
    };
    (0..ROWS).for_each(put);
    let leader = cluster.leader(|_| true);
    let follower = cluster.places.iter().find(|place| place.id != leader.id).unwrap();
    cluster.until("all of it in the follower's tables", || {
        let (of_leader, own) = (leader.state()?, follower.state()?);
        let flushed = cluster.runtime.block_on(follower.replica()?.flush());
        (flushed.is_ok() && own.applied.map(|id| id.index) == of_leader.last).then_some(())
    });
    follower.fill();
    let mut more = 0;
    cluster.until("a follower that is behind", || {
        put(ROWS + more);
        more += 1;
        let (of_leader, own) = (leader.state()?, follower.state()?);
        (follower.is_full() && own.last < of_leader.last).then_some(())
    });
    for n in 0..ROWS + more {
        change(&|leader| {
            let removed = leader.execute(remove(row(1_000 + n)));
            cluster.runtime.block_on(removed).is_ok()
        });
    }
    cluster.until("a follower that has everything", || {
        let leader = cluster.leader(|_| true);
        drop(cluster.runtime.block_on(leader.replica()?.flush()));
        let (of_leader, own) = (leader.state()?, follower.state()?);
        (own.applied.map(|id| id.index) == of_leader.last).then_some(())
    });
    follower.free();
    count(&cluster, &tally);
    cluster.check(&tally);
    no_problem(&cluster);
}
