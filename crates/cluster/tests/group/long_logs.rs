//! Logs that are not made shorter, as the disk of the tables does not answer.

use std::sync::Arc;

use collie_cluster::testing::Retention;
use tokio::time::Instant;

use crate::cluster::{Cluster, Simulated, Tally, replica_on};
use crate::full::{BYTES, count, no_problem, write, write_until_another_leads};

#[test]
fn a_leader_whose_log_stays_too_long_hands_over() {
    let cluster = Arc::new(Cluster::adjusted(Simulated::Tables, |options| {
        options.store.shared.log_limit = Some(2 << 20);
        options.store.shared.log.segment_bytes = 128 << 10;
        // The old leader takes nothing while its log is too long, and table files cannot be linked here.
        options.store.shared.retention = Some(Retention {
            margin: 32 << 20,
            lagging: 32 << 20,
        });
    }));
    let tally = Tally::new(2);
    count(&cluster, &tally);
    let old = cluster.leader(|_| true);
    let gate = old.device.hold_syncs();
    write_until_another_leads(&cluster, old);
    let leader = cluster.leader(|place| place.id != old.id).replica().unwrap();
    let back = cluster.runtime.block_on(leader.transfer_to(replica_on(old.id)));
    assert!(back.is_err(), "it takes over, and its log is too long");
    count(&cluster, &tally);
    gate.release();
    cluster.check(&tally);
    no_problem(&cluster);
}

/// It takes an eighth of its limit more every two seconds, and not all that the others commit.
#[test]
fn a_follower_whose_log_is_far_too_long_takes_no_more() {
    const LIMIT: u64 = 2 << 20;
    let cluster = Cluster::adjusted(Simulated::Tables, |options| {
        options.store.shared.log_limit = Some(LIMIT);
        options.store.shared.log.segment_bytes = 128 << 10;
    });
    let leader = cluster.leader(|_| true);
    let follower = cluster.places.iter().find(|place| place.id != leader.id).unwrap();
    let gate = follower.device.hold_syncs();
    let begun = Instant::now();
    for n in 0..5 * LIMIT as usize / BYTES {
        write(&cluster, n);
    }
    let logs = follower.with(|node, _| node.logs()).unwrap();
    let used = logs.iter().map(|log| log.stats().used).max().unwrap();
    let steps = begun.elapsed().as_secs() / 2 + 1;
    // And an append that came before it was so long.
    let most = LIMIT + LIMIT / 3 + LIMIT / 8 * steps + (1 << 20);
    assert!(used > LIMIT && used <= most, "{used} bytes, after {steps} steps");
    gate.release();
}
