//! Short logs: whatever the layout, the size of the entries and the number of partitions are, and whether
//! a node is away, several times the limit of a log is written, and writes go on by themselves.
//!
//! The retention is the one that ships: parts of the limit. `scripts/long-tests` tries everything with
//! everything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collie_cluster::testing::proposals::Answer;
use collie_cluster::testing::{
    CommandError, Executed, Member, NodeLogStats, NodeOptions, Replica, Retention, Row, Rows, StoreError,
};
use collie_cluster::{Layout, NodeLogOptions};
use collie_log::{LogOptions, RingMode};

use crate::cluster::{CAP, Cluster, Place, Simulated};

/// Rows of each partition that are written again and again.
const ROWS: u64 = 20;
/// What is written, in limits of a log.
const TIMES: u64 = 3;
/// Partitions that are written in the layout with a log for each.
const WRITTEN: u64 = 2;
/// As many limits take hundreds of flushes and purges.
const LONG: u64 = 40;
/// Refusals of a log that is not made shorter for seconds: each client tries again after 5 ms. A machine
/// that stands still for seconds gives each a few.
const REFUSED_IN_VAIN: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Away {
    None,
    /// A node takes entries, and its disk does not answer.
    Lagging,
    /// A node is dead, and comes back.
    Dead,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    layout: Layout,
    bytes: usize,
    partitions: u64,
    away: Away,
}

impl Case {
    /// A log of this limit takes some of the entries.
    fn limit(self) -> u64 {
        match self.bytes {
            ..1_000 => 2 << 20,
            1_000..500_000 => 8 << 20,
            500_000..4_000_000 => 24 << 20,
            _ => 64 << 20,
        }
    }

    /// Commands that wait at the same time.
    fn clients(self) -> u64 {
        if self.bytes < 1_000 { 64 } else { 4 }
    }

    fn adjust(self, options: &mut NodeOptions) {
        let limit = self.limit();
        let log = NodeLogOptions {
            log: LogOptions {
                ring: RingMode::Private,
                // Half of it takes an entry.
                ring_bytes: (4 * self.bytes).next_power_of_two().clamp(1 << 20, 16 << 20),
                segment_bytes: (limit / 16).next_multiple_of(4096),
                max_workers: 4,
                reserve_bytes: Some(0),
                device: Arc::clone(&options.store.shared.log.device),
                ..LogOptions::default()
            },
            log_limit: Some(limit),
            free_min: 0,
            cache_bytes: 1 << 20,
            ..NodeLogOptions::default()
        };
        options.store.layout = self.layout.into();
        options.store.shared = log.clone();
        options.store.private = log;
    }

    fn run(self) {
        let simulated = match self.away {
            Away::Lagging => Simulated::Logs,
            _ => Simulated::Nothing,
        };
        let cluster = Arc::new(Cluster::adjusted(simulated, move |options| self.adjust(options)));
        begin(&cluster, self.partitions);
        // Before all know their group, the first node is needed.
        for partition in 0..self.partitions {
            cluster.runtime.block_on(write(&cluster, partition, 0, 1));
        }
        self.settled(&cluster);
        let other = &cluster.places[2];
        let gate = match self.away {
            Away::None => None,
            Away::Dead => {
                other.kill();
                None
            }
            Away::Lagging => Some(other.device.hold_syncs()),
        };
        _ = self.write(&cluster, TIMES);
        gate.into_iter().for_each(collie_sim::Gate::release);
        if self.away == Away::Dead {
            cluster.open(other);
        }
        self.settled(&cluster);
        _ = self.write(&cluster, 1);
        self.settled(&cluster);
    }

    /// Writes so many times the limit. Returns how often a client would have learned that a log is full.
    fn write(self, cluster: &Arc<Cluster>, times: u64) -> u64 {
        let partitions = match self.layout {
            Layout::Private => self.partitions.min(WRITTEN),
            _ => self.partitions,
        };
        let logs = if self.layout == Layout::Private {
            partitions
        } else {
            1
        };
        let count = (times * logs * self.limit()).div_ceil(self.bytes as u64 + 50);
        let next = Arc::new(AtomicU64::new(0));
        let refused = Arc::new(AtomicU64::new(0));
        let clients = (0..self.clients()).map(|_| {
            let (cluster, next, refused) = (Arc::clone(cluster), Arc::clone(&next), Arc::clone(&refused));
            cluster.runtime.handle().clone().spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::SeqCst);
                    if n >= count {
                        return;
                    }
                    let written = write(&cluster, n % partitions, n / partitions % ROWS, self.bytes);
                    let written = tokio::time::timeout(CAP, written).await;
                    assert!(
                        written.is_ok(),
                        "{self:?}: write {n} of {count} is not taken: {}",
                        describe(&cluster)
                    );
                    refused.fetch_add(written.unwrap_or(0), Ordering::SeqCst);
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            cluster.runtime.block_on(client).unwrap();
        }
        refused.load(Ordering::SeqCst)
    }

    /// All replicas have the same, and no log is longer than it may be.
    fn settled(self, cluster: &Cluster) {
        for partition in 0..self.partitions {
            cluster.until(
                &format!("{self:?}: a partition {partition} that is everywhere the same"),
                || {
                    let replicas = cluster.places.iter().map(|place| replica(place, partition));
                    let states = replicas.map(|replica| replica?.state().ok());
                    let applied: Option<Vec<_>> = states.map(|state| Some(state?.applied?.index)).collect();
                    let applied = applied?;
                    applied.iter().all(|index| *index == applied[0]).then_some(())
                },
            );
        }
        cluster.until(&format!("{self:?}: short logs"), || {
            let all = cluster.places.iter().flat_map(stats);
            all.into_iter().all(|log| log.used <= log.limit).then_some(())
        });
    }
}

fn id(place: u64, partition: u64) -> u64 {
    1_000 * (partition + 1) + place
}

fn replica(place: &Place, partition: u64) -> Option<Arc<Replica>> {
    place.with(|node, _| node.replica(id(place.id, partition)))?
}

/// Makes the groups of the partitions.
fn begin(cluster: &Cluster, partitions: u64) {
    for partition in 0..partitions {
        let member = |place: &Place| {
            let member = Member {
                node: place.id,
                disk: 0,
                address: place.address.to_string(),
            };
            (id(place.id, partition), member)
        };
        let members: BTreeMap<_, _> = cluster.places.iter().map(member).collect();
        for place in cluster.places.iter().rev() {
            let begun = place
                .with(|node, runtime| runtime.block_on(node.bootstrap(1_000 + partition, members.clone())));
            begun.unwrap().unwrap();
        }
    }
}

fn put(row: Row, bytes: usize) -> impl Fn(&mut Rows<'_>) -> Executed<()> + Send + Sync + 'static {
    move |_| Ok((BTreeMap::from([(row.clone(), Some(vec![7; bytes]))]), ()))
}

fn remove(row: Row) -> impl Fn(&mut Rows<'_>) -> Executed<()> + Send + Sync + 'static {
    move |_| Ok((BTreeMap::from([(row.clone(), None)]), ()))
}

fn row(n: u64) -> Row {
    Row {
        slot: 5,
        key: format!("row {n}").into_bytes(),
    }
}

/// Writes a row, wherever and whenever that is taken. Returns how often a client would have learned that a
/// log is full: while it is being made shorter, commands wait.
async fn write(cluster: &Cluster, partition: u64, n: u64, bytes: usize) -> u64 {
    let mut refused = 0;
    loop {
        for place in &cluster.places {
            let Some(replica) = replica(place, partition) else {
                continue;
            };
            match replica.execute(put(row(n), bytes)).await {
                Ok(Answer::Reply(()) | Answer::Unknown) => return refused,
                Err(CommandError::Log(StoreError::Full { lasts: true, .. })) => refused += 1,
                Ok(Answer::TryAgain) | Err(_) => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn stats(place: &Place) -> Vec<NodeLogStats> {
    let logs = place.with(|node, _| node.logs()).unwrap_or_default();
    logs.iter().map(|log| log.stats()).collect()
}

fn describe(cluster: &Cluster) -> String {
    let logs = cluster.places.iter().flat_map(|place| {
        let logs = place.with(|node, _| node.logs()).unwrap_or_default();
        logs.into_iter()
            .map(|log| format!("\n{log:?}: {:?}, held by {:?}", log.stats(), log.log().holders()))
    });
    logs.collect()
}

const LAYOUTS: [Layout; 3] = [Layout::PerDisk, Layout::Shared, Layout::Private];
const AWAY: [Away; 3] = [Away::None, Away::Lagging, Away::Dead];
/// Of 8 MiB, the server's largest value.
const LARGEST: usize = (8 << 20) - (320 << 10);

fn case(layout: Layout, bytes: usize, partitions: u64, away: Away) {
    Case {
        layout,
        bytes,
        partitions,
        away,
    }
    .run();
}

#[test]
fn small_entries_never_fill_the_log() {
    case(Layout::PerDisk, 100, 1, Away::None);
}

#[test]
fn a_node_that_is_away_does_not_fill_the_logs_of_others() {
    case(Layout::PerDisk, 64 << 10, 16, Away::Dead);
}

#[test]
fn a_node_that_lags_does_not_fill_the_logs_of_others() {
    case(Layout::Shared, 64 << 10, 4, Away::Lagging);
}

/// The log is purged as fast as tables are flushed, and not some seconds later.
#[test]
fn no_write_is_refused_while_tables_are_flushed_again_and_again() {
    let case = Case {
        layout: Layout::Shared,
        bytes: 64 << 10,
        partitions: 4,
        away: Away::None,
    };
    let cluster = Arc::new(Cluster::adjusted(Simulated::Nothing, move |options| {
        case.adjust(options)
    }));
    begin(&cluster, case.partitions);
    let refused = case.write(&cluster, LONG);
    assert!(
        refused < REFUSED_IN_VAIN,
        "{refused} refusals: {}",
        describe(&cluster)
    );
    case.settled(&cluster);
}

/// These logs are made when the node runs.
#[test]
fn logs_of_single_partitions_never_fill_either() {
    case(Layout::Private, 1 << 20, 4, Away::None);
}

#[test]
fn the_largest_entries_never_fill_a_log_of_64_mib() {
    case(Layout::Private, LARGEST, 1, Away::Dead);
}

#[test]
#[ignore = "108 cases take an hour"]
fn everything_with_everything_never_fills_the_log() {
    for layout in LAYOUTS {
        for bytes in [100, 64 << 10, 1 << 20, LARGEST] {
            for partitions in [1, 16, 64] {
                for away in AWAY {
                    println!("{layout:?}, {bytes} bytes, {partitions} partitions, away: {away:?}");
                    case(layout, bytes, partitions, away);
                }
            }
        }
    }
}

/// Nothing is flushed here, so the log lets go of nothing.
#[test]
fn a_full_log_takes_what_removes_and_says_who_holds_it() {
    let case = Case {
        layout: Layout::Shared,
        bytes: 64 << 10,
        partitions: 1,
        away: Away::None,
    };
    let cluster = Arc::new(Cluster::adjusted(Simulated::Tables, move |options| {
        case.adjust(options);
        let family = &mut options.machine.db.default_family;
        family.write_buffer_bytes = 64 << 20;
        family.max_write_buffers = 4;
    }));
    let full = collie_sim::Fault::new(collie_sim::FaultKind::NoSpace).on("MANIFEST");
    cluster
        .places
        .iter()
        .for_each(|place| place.device.inject(full.clone()));
    let run = |command: &dyn Fn() -> Executed<()>| {
        let leader = cluster.leader(|_| true).replica().unwrap();
        let (changes, ()) = command().unwrap();
        let effects = move |_: &mut Rows<'_>| Ok((changes.clone(), ()));
        cluster.runtime.block_on(leader.execute(effects))
    };
    let mut n = 0;
    let refused = cluster.until("a full log", || {
        n += 1;
        let put = || Ok((BTreeMap::from([(row(n % ROWS), Some(vec![7; 64 << 10]))]), ()));
        match run(&put) {
            Err(CommandError::Log(full @ StoreError::Full { lasts: true, .. })) => Some(full),
            _ => None,
        }
    });
    let text = refused.to_string();
    assert!(
        text.starts_with("BUSY log full (") && text.contains("entries that its tables do not have"),
        "{text}"
    );
    let leader = cluster.leader(|_| true);
    let problem = leader.replica().unwrap().problem().unwrap();
    assert!(
        problem.contains("holds") && problem.contains("its tables do not have"),
        "{problem}"
    );
    for n in 0..ROWS {
        let taken = cluster
            .runtime
            .block_on(leader.replica().unwrap().execute(remove(row(n))));
        assert!(matches!(taken, Ok(Answer::Reply(()))), "{taken:?}");
    }
    cluster.places.iter().for_each(|place| place.device.heal());
    cluster.until("writes that are taken again", || {
        let put = || Ok((BTreeMap::from([(row(1), Some(vec![7; 64 << 10]))]), ()));
        matches!(run(&put), Ok(Answer::Reply(()))).then_some(())
    });
}

/// Of other options than those that ship: raft takes the refusal of an append for the end of a replica.
#[test]
fn an_entry_that_no_frame_takes_ends_no_replica() {
    let cluster = Arc::new(Cluster::adjusted(Simulated::Nothing, |options| {
        let shared = &mut options.store.shared;
        shared.retention = Some(Retention {
            margin: 0,
            lagging: 0,
        });
        shared.log.ring_bytes = 1 << 20;
        // Half of it is the largest frame.
        if options.peers.identity.node == 3 {
            shared.log.ring_bytes = 128 << 10;
        }
    }));
    begin(&cluster, 1);
    let run = |bytes: usize| cluster.runtime.block_on(write(&cluster, 0, 0, bytes));
    let small = &cluster.places[2];
    let lead = |place: &Place| {
        cluster.until("another leader", || {
            let leads = |place: &&Place| {
                let state = replica(place, 0).and_then(|replica| replica.state().ok());
                state.is_some_and(|state| state.leads)
            };
            let leader = cluster.places.iter().find(leads)?;
            if leader.id == place.id {
                return Some(());
            }
            drop(
                cluster
                    .runtime
                    .block_on(replica(leader, 0)?.transfer_to(id(place.id, 0))),
            );
            None
        });
    };
    run(1);
    lead(small);
    // Its own log has no room for it in one entry.
    cluster.until("a write in parts", || {
        let replica = replica(small, 0)?;
        let large = replica.execute(put(row(0), 100 << 10));
        matches!(cluster.runtime.block_on(large), Ok(Answer::Reply(()))).then_some(())
    });
    lead(&cluster.places[0]);
    run(100 << 10);
    let last = |place: &Place| replica(place, 0)?.state().ok()?.applied.map(|id| id.index);
    let large = cluster.places.iter().filter_map(last).max();
    // It gets tables, as it cannot have the entry.
    cluster.until("the node is past the large entry", || {
        for place in &cluster.places {
            drop(cluster.runtime.block_on(replica(place, 0)?.flush()));
        }
        run(1);
        let problem = replica(small, 0)?.problem();
        assert!(problem.is_none(), "{problem:?}");
        (last(small) > large).then_some(())
    });
}
