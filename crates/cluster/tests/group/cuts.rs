//! A leader that is cut off goes on serving: it answers nothing that is old, and what it submits does
//! not count twice.

use std::sync::Arc;

use collie_cluster::testing::GroupLimits;
use collie_cluster::testing::proposals::Answer;

use crate::cluster::{Cluster, Tally, get, row};
use crate::seam::read_applied;

#[test]
fn a_leader_that_is_cut_off_reads_nothing_old_and_loses_nothing() {
    let cluster = Arc::new(Cluster::new(GroupLimits::default()));
    let tally = Tally::new(2);
    let clients: Vec<_> = (0..4).map(|_| tally.keep_counting(&cluster)).collect();
    let more = |by: usize| {
        let answered = tally.answered();
        cluster.until("counting on", || {
            (tally.answered() >= answered + by).then_some(())
        });
    };
    for _ in 0..2 {
        more(20);
        let old = cluster.leader(|_| true);
        cluster.cut_off(old);
        let new = cluster.leader(|place| place.id != old.id);
        more(4);
        // The old leader, which does not know of the new one, answers no read.
        let replica = old.replica().unwrap();
        let answer = cluster.runtime.block_on(replica.execute(get(row(0))));
        assert!(
            !matches!(answer, Ok(Answer::Reply(_))),
            "node {} leads, and {answer:?}",
            new.id
        );
        let answer = cluster.runtime.block_on(read_applied(&replica, &row(0)));
        assert_eq!(answer, None, "node {} leads", new.id);
        cluster.heal(old);
        cluster.until("the old leader follows", || {
            old.state()
                .filter(|state| !state.leads && state.leader.is_some())
                .map(drop)
        });
    }
    tally.stop();
    for client in clients {
        cluster.runtime.block_on(client).unwrap();
    }
    cluster.check(&tally);
}

#[test]
fn leadership_is_handed_over_on_request() {
    let cluster = Arc::new(Cluster::new(GroupLimits::default()));
    let tally = Tally::new(1);
    let old = cluster.leader(|_| true);
    let other = cluster.places.iter().find(|place| place.id != old.id).unwrap();
    cluster.count(&tally, 2, 10, || {
        cluster.until("another leader", || {
            let old = old.replica().unwrap();
            let to = other.replica().unwrap().id();
            if old.state().ok()?.leads {
                cluster.runtime.block_on(old.transfer_to(to)).ok()?;
            }
            other.state().filter(|state| state.leads).map(drop)
        });
    });
    cluster.check(&tally);
}
