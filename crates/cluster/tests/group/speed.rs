//! How many commands a group takes on this machine:
//! `cargo test -p collie-cluster --test group speed -- --ignored --nocapture`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use collie_cluster::testing::GroupLimits;
use collie_cluster::testing::proposals::Answer;
use collie_server::cluster::Settled;
use tokio::time::Instant;

use crate::cluster::{self, Cluster};
use crate::seam::{get, incr, value};

const TASKS: usize = 64;
const FOR: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy)]
enum What {
    HotIncr,
    DistinctSets,
    Gets,
    /// By `Replica::execute`, one at a time.
    ExecutedIncr,
    ExecutedSets,
}

async fn one(cluster: &Cluster, what: What, task: usize, n: u64) -> bool {
    let row = format!("key {task} {}", n % 1000).into_bytes();
    let put = |_: &mut dyn collie_server::cluster::Evaluation| Ok((vec![(row.clone(), value(n))], 0, n));
    let settled = match what {
        What::HotIncr => cluster.command(1, &[b"hot"], incr(b"hot")).await.0,
        What::DistinctSets => cluster.command(1, &[&row], put).await.0,
        What::Gets => cluster.command(1, &[&row], get(&row)).await.0,
        What::ExecutedIncr | What::ExecutedSets => {
            let key = if matches!(what, What::ExecutedIncr) {
                0
            } else {
                task
            };
            let leader = cluster.places.iter().find(|place| place.takes_commands());
            let replica = leader.and_then(cluster::Place::replica).unwrap();
            let answer = replica.execute(cluster::incr(cluster::row(key))).await;
            return matches!(answer, Ok(Answer::Reply(_)));
        }
    };
    settled == Settled::Holds
}

#[test]
#[ignore = "it measures"]
fn commands_per_second() {
    let cluster = Arc::new(Cluster::new(GroupLimits::default()));
    cluster.leader(cluster::Place::takes_commands);
    for what in [
        What::HotIncr,
        What::DistinctSets,
        What::Gets,
        What::ExecutedIncr,
        What::ExecutedSets,
    ] {
        let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let began = Instant::now();
        let clients: Vec<_> = (0..TASKS)
            .map(|task| {
                let (cluster, done, stop) = (Arc::clone(&cluster), Arc::clone(&done), Arc::clone(&stop));
                let runtime = cluster.runtime.handle().clone();
                runtime.spawn(async move {
                    let mut n = 0;
                    while !stop.load(Ordering::SeqCst) {
                        assert!(one(&cluster, what, task, n).await);
                        done.fetch_add(1, Ordering::SeqCst);
                        n += 1;
                    }
                })
            })
            .collect();
        std::thread::sleep(FOR);
        let (count, elapsed) = (done.load(Ordering::SeqCst), began.elapsed());
        stop.store(true, Ordering::SeqCst);
        for client in clients {
            cluster.runtime.block_on(client).unwrap();
        }
        println!(
            "{what:?}: {:.0} per second, {TASKS} tasks",
            count as f64 / elapsed.as_secs_f64()
        );
    }
}
