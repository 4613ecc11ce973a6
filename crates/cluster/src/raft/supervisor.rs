//! Opening a replica again when it has failed.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::raft::commands::count;
use crate::raft::quorum::Quorum;
use crate::raft::replica::{Now, ReplicaOptions};
use crate::raft::running::Running;

/// The pause before a replica is opened again, for each of its failures.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs a replica until `stop`. One that fails is opened again from what is durable of it; one that
/// fails too often is quarantined.
pub(super) async fn supervise(
    options: ReplicaOptions,
    now: watch::Sender<Now>,
    mut stop: watch::Receiver<bool>,
) {
    let mut failures = VecDeque::new();
    let replica = options.log.replica();
    let say = |next| {
        now.send_replace(next);
        count(&options.changes);
    };
    loop {
        let failed = match Running::open(&options).await {
            Ok(running) => {
                say(Now::Running(running.clone()));
                let quorum = Quorum::new(replica, options.times.election_max);
                let ended = tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => None,
                    ended = running.ended(quorum) => Some(ended),
                };
                say(Now::Opening);
                if let Err(error) = running.close().await {
                    tracing::warn!(%error, replica, "the store of a replica cannot be closed");
                }
                ended
            }
            Err(error) => Some(error.to_string()),
        };
        let Some(problem) = failed.filter(|_| !*stop.borrow()) else {
            say(Now::Closed);
            return;
        };
        failures.push_back(Instant::now());
        while failures
            .front()
            .is_some_and(|first: &Instant| first.elapsed() > options.times.failures)
        {
            failures.pop_front();
        }
        if failures.len() >= options.limits.failures {
            tracing::error!(
                replica,
                problem,
                "a replica has failed too often, and is opened no more"
            );
            say(Now::Quarantined(problem));
            return;
        }
        tracing::error!(replica, problem, "a replica has failed, and is opened again");
        // What it failed for, such as want of files, may pass.
        let pause = PAUSE * u32::try_from(failures.len()).unwrap_or(u32::MAX);
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            () = sleep(pause) => {}
        }
    }
}
