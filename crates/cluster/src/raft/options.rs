//! What a replica consists of, how long anything of a group may take, and how much there may be.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use collie_io::Clock;
use collie_server::cluster::Reads;
use openraft::{Config, SnapshotPolicy};
use tokio::sync::{Semaphore, watch};

use crate::beat::Beat;
use crate::raft::beside::SplitHost;
use crate::raft::followers::FullDisks;
use crate::raft::losses::Losses;
use crate::raft::transfers::Transfers;
use crate::raftlog::ReplicaLog;
use crate::replica_store::MachineOptions;
use crate::transport::Peers;

/// Times of a group. All its replicas have the same.
#[derive(Debug, Clone)]
pub struct GroupTimes {
    /// From one heartbeat of a leader to the next. Default 500 ms.
    pub heartbeat: Duration,
    /// A follower that has not heard a leader for [`election_max`](Self::election_max), and then for so
    /// long, at least, asks for votes. A replica that is opened gives no vote for so long, and a leader's lease is
    /// nine tenths of it. Default 1 s.
    pub election_min: Duration,
    /// And for so long at most. A replica votes for no other while it may have heard a leader within
    /// this time: so long, at least, a group is without a leader when its leader dies. Default 1.5 s.
    pub election_max: Duration,
    /// A leader that has had nothing to do for so long asks the members to park. Default 3 s.
    pub park: Duration,
    /// An append that is not answered for so long is sent anew. Default 2 s.
    pub append: Duration,
    /// The same for a part of a snapshot. Default 30 s.
    pub piece: Duration,
    /// How long a replica may take to install a snapshot that is there. Default 10 min.
    pub install: Duration,
    /// A client waits so long for its command. Default 10 s.
    pub command: Duration,
    /// Failures within so long count together. Default 10 min.
    pub failures: Duration,
}

/// How much there may be.
#[derive(Debug, Clone)]
pub struct GroupLimits {
    /// Proposals without an outcome. Default 4,096.
    pub pending: usize,
    /// A replica that failed so often within [`GroupTimes::failures`] is opened no more. Default 3.
    pub failures: usize,
}

impl Default for GroupTimes {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            election_min: Duration::from_secs(1),
            election_max: Duration::from_millis(1500),
            park: Duration::from_secs(3),
            append: Duration::from_secs(2),
            piece: Duration::from_secs(30),
            install: Duration::from_secs(600),
            command: Duration::from_secs(10),
            failures: Duration::from_secs(600),
        }
    }
}

impl Default for GroupLimits {
    fn default() -> Self {
        Self {
            pending: 4096,
            failures: 3,
        }
    }
}

pub(super) fn config(times: &GroupTimes, stands: bool) -> Config {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Config {
        cluster_name: "collie".to_owned(),
        heartbeat_interval: ms(times.heartbeat),
        election_timeout_min: ms(times.election_min),
        election_timeout_max: ms(times.election_max),
        install_snapshot_timeout: ms(times.install),
        // Snapshots are what is flushed, and purges are ours: see `purging`.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        enable_pre_vote: Some(true),
        enable_elect: stands,
        // A leader that restarts has forgotten its runs: it must not go on in its old term.
        enable_leader_restore: Some(false),
        api_channel_size: Some(256),
        notification_channel_size: Some(256),
        state_machine_channel_size: Some(64),
        ..Config::default()
    }
}

/// What a replica consists of.
#[derive(Clone)]
pub struct ReplicaOptions {
    /// The directory of its state machine, its own.
    pub dir: PathBuf,
    /// Its log.
    pub log: ReplicaLog,
    /// How its state machine is opened. The replica learns of flushes.
    pub machine: MachineOptions,
    /// The node's connections.
    pub peers: Arc<Peers>,
    /// The clock that entries are stamped by.
    pub clock: Arc<dyn Clock>,
    /// Of the node: when its leaders send their heartbeats.
    pub beat: Beat,
    /// How it makes sure, where it leads, that reads are of the newest state.
    pub reads: Reads,
    /// How long anything may take.
    pub times: GroupTimes,
    /// How much there may be.
    pub limits: GroupLimits,
    /// Of the node: moves when another replica leads, as far as this one knows, when a run of this
    /// one begins or ends, and when a command that was refused for the moment may begin.
    pub changes: watch::Sender<u64>,
    /// Of the node: what its leaders learn of the disks of others.
    pub full: Arc<FullDisks>,
    /// Of the node: the tables that are sent to others.
    pub transfers: Arc<Transfers>,
    /// Of the node: the replicas that may have lost entries.
    pub losses: Arc<Losses>,
    /// Of the node: one replica at a time removes what splits have left.
    pub merging: Arc<Semaphore>,
    /// The node, for the replicas that splits put beside this one.
    pub splits: Arc<dyn SplitHost>,
}
