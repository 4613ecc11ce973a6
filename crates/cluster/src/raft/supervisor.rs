//! Opening a replica again when it has failed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::raft::commands::count as changed;
use crate::raft::elections::Elections;
use crate::raft::quorum::Quorum;
use crate::raft::replica::{Now, ReplicaError, ReplicaOptions};
use crate::raft::running::Running;

/// The pause before a replica is opened again, for each of its failures.
const PAUSE: Duration = Duration::from_millis(500);
/// The pause before it is looked again whether there is room for opening it.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

/// The failures of a replica that count together.
pub(super) struct Failures {
    within: Duration,
    known: Mutex<(VecDeque<Instant>, String)>,
}

impl Failures {
    /// None yet. Those within so long count together.
    pub(super) fn new(within: Duration) -> Self {
        Self {
            within,
            known: Mutex::default(),
        }
    }

    /// Adds one; says how many count.
    fn add(&self, problem: &str) -> usize {
        let mut known = self.known.lock();
        known.0.push_back(Instant::now());
        problem.clone_into(&mut known.1);
        drop(known);
        self.last().0
    }

    /// How many count now, and the last one.
    pub(super) fn last(&self) -> (usize, String) {
        let mut known = self.known.lock();
        let (times, _) = &mut *known;
        while times.front().is_some_and(|first| first.elapsed() > self.within) {
            times.pop_front();
        }
        (known.0.len(), known.1.clone())
    }
}

/// Runs a replica until `stop`. One that fails is opened again from what is durable of it; one that
/// fails too often is quarantined. One whose disk is full waits until it can be opened.
pub(super) async fn supervise(
    options: ReplicaOptions,
    (failures, elections): (Arc<Failures>, Arc<Elections>),
    now: watch::Sender<Now>,
    mut stop: watch::Receiver<bool>,
) {
    let replica = options.log.replica();
    let say = |next| {
        now.send_replace(next);
        changed(&options.changes);
    };
    loop {
        let failed = match Running::open(&options, &elections).await {
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
            Err(ReplicaError::Machine(error)) if error.is_no_room() && !*stop.borrow() => {
                let problem = error.to_string();
                if !matches!(&*now.borrow(), Now::NoRoom(_)) {
                    tracing::error!(
                        replica,
                        problem,
                        "a replica is opened as soon as there is room on its disk"
                    );
                }
                say(Now::NoRoom(problem));
                pause(ROOM_PAUSE, &mut stop).await;
                continue;
            }
            Err(error) => Some(error.to_string()),
        };
        let Some(problem) = failed.filter(|_| !*stop.borrow()) else {
            say(Now::Closed);
            return;
        };
        let count = failures.add(&problem);
        if count >= options.limits.failures {
            tracing::error!(
                replica,
                problem,
                "a replica has failed too often, and is opened no more: the others of its group go on; remove the cause, \
                 and start the node again"
            );
            say(Now::Quarantined(problem));
            return;
        }
        tracing::error!(replica, problem, "a replica has failed, and is opened again");
        // What it failed for, such as want of files, may pass.
        pause(PAUSE * u32::try_from(count).unwrap_or(u32::MAX), &mut stop).await;
    }
}

/// Ends with `stop` at the latest.
async fn pause(time: Duration, stop: &mut watch::Receiver<bool>) {
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => {}
        () = sleep(time) => {}
    }
}
