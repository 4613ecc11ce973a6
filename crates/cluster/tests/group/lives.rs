//! Nodes that die and come back while clients count: nothing that was answered is lost, and nothing
//! counts twice.

use std::sync::Arc;

use collie_cluster::GroupLimits;

use crate::cluster::{Cluster, Place, Tally};

fn cluster() -> Arc<Cluster> {
    Arc::new(Cluster::new(GroupLimits::default()))
}

#[test]
fn counts_of_several_tasks_are_exact_and_reads_see_what_was_answered() {
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
    let limits = GroupLimits {
        // Nobody is waited for.
        retention: 0,
        ..GroupLimits::default()
    };
    let cluster = Arc::new(Cluster::new(limits));
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
