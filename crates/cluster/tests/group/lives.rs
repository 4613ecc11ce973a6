//! Nodes that die and come back while clients count: nothing that was answered is lost, and nothing
//! counts twice.

use std::sync::Arc;

use collie_cluster::testing::GroupLimits;

use crate::cluster::{Cluster, Place, Tally};

fn cluster() -> Arc<Cluster> {
    Arc::new(Cluster::new(GroupLimits::default()))
}

#[test]
fn counts_are_exact_and_reads_see_what_was_answered() {
    let cluster = cluster();
    let tally = Tally::new(3);
    cluster.count(&tally, 6, 20, || {});
    cluster.check(&tally);
}

#[test]
fn a_leader_that_dies_loses_nothing_that_was_answered() {
    a_leader_dies(&cluster());
}

#[test]
fn a_leader_that_dies_loses_nothing_that_was_answered_over_tls() {
    a_leader_dies(&Arc::new(Cluster::secured()));
}

fn a_leader_dies(cluster: &Arc<Cluster>) {
    let tally = Tally::new(2);
    cluster.count(&tally, 4, 25, || {
        cluster.until("counting", || (tally.answered() >= 20).then_some(()));
        let leader = cluster.leader(|_| true);
        leader.kill();
        let answered = tally.answered();
        cluster.leader(|place| place.id != leader.id);
        cluster.until("counting on", || (tally.answered() > answered).then_some(()));
        cluster.open(leader);
    });
    cluster.check(&tally);
}

#[test]
fn a_cluster_that_dies_as_a_whole_goes_on_where_it_was() {
    let cluster = cluster();
    let tally = Tally::new(2);
    for _ in 0..2 {
        cluster.count(&tally, 2, 10, || {});
        cluster.places.iter().for_each(Place::kill);
        cluster.places.iter().for_each(|place| cluster.open(place));
        cluster.check(&tally);
    }
}

#[test]
fn a_follower_behind_the_purge_learns_by_snapshot() {
    let cluster = Arc::new(Cluster::forgetful());
    let tally = Tally::new(2);
    cluster.count(&tally, 2, 5, || {});
    cluster.check(&tally);
    let leader = cluster.leader(|_| true);
    let follower = cluster.places.iter().find(|place| place.id != leader.id).unwrap();
    let had = follower.state().unwrap().last.unwrap();
    follower.kill();
    cluster.count(&tally, 4, 20, || {});
    cluster.until("a purge", || {
        for replica in cluster.replicas() {
            cluster.runtime.block_on(replica.flush()).ok()?;
        }
        let others = || cluster.places.iter().filter(|place| place.id != follower.id);
        let purged = |place: &Place| place.state().is_some_and(|state| state.purged > Some(had));
        others().all(purged).then_some(())
    });
    cluster.open(follower);
    // What it has not got by entries is in its tables.
    cluster.until("an installation", || {
        follower
            .state()
            .filter(|state| state.purged > Some(had))
            .map(drop)
    });
    cluster.check(&tally);
    cluster.count(&tally, 2, 5, || {});
    cluster.check(&tally);
}

/// An operator puts an older copy of a directory in its place: against the rules, but what was
/// acknowledged is there again as soon as the leader hears of it, and the operator learns of it.
#[test]
fn a_follower_that_lost_acknowledged_entries_gets_them_again() {
    let cluster = cluster();
    let tally = Tally::new(2);
    let count = || cluster.count(&tally, 2, 10, || {});
    let mirror = |from: &std::path::Path, to: &std::path::Path| {
        std::fs::remove_dir_all(to).unwrap();
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .args([from, to])
            .status();
        assert!(copied.unwrap().success());
    };
    // A new leader does not know what a follower had acknowledged to the one before.
    let mut is_seen = false;
    for _ in 0..10 {
        count();
        let leader = cluster.leader(|_| true);
        let mut followers = cluster.places.iter().filter(|place| place.id != leader.id);
        let (follower, third) = (followers.next().unwrap(), followers.next().unwrap());
        let (dir, copy) = (follower.dir.path(), tempfile::tempdir().unwrap());
        follower.kill();
        mirror(dir, copy.path());
        cluster.open(follower);
        // Without the third node nothing is committed that the follower has not acknowledged.
        third.kill();
        count();
        let state = leader.state().unwrap();
        cluster.open(third);
        follower.kill();
        mirror(copy.path(), dir);
        cluster.open(follower);
        let replica = leader.replica().unwrap();
        is_seen = cluster.until("a leader that says so, or another leader", || {
            if let Some(problem) = replica.problem() {
                assert!(problem.contains("has lost entry"), "{problem}");
                return Some(true);
            }
            let now = leader.state()?;
            (!now.leads || now.vote != state.vote).then_some(false)
        });
        cluster.until("a follower that has everything again", || {
            let leader = cluster.leader(|_| true);
            (follower.state()?.last == leader.state()?.last).then_some(())
        });
        if is_seen {
            break;
        }
    }
    assert!(is_seen, "ten leaders in a row gave way");
    count();
    cluster.check(&tally);
}
