//! Duplication, by the nodes that lead partitions: rows get stamps where the map says so, each target has a sender for
//! each partition, and what has gone to all of them is not kept for them any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collie_io::Clock;
use collie_server::cluster::{DuplicationInfo, Figure, id_text};
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::blocking::blocking;
use crate::duplication::{RunningSender, Sender, SenderState, TargetCluster, note, own_id};
use crate::ids::ReplicaId;
use crate::map::{self, Duplications, Map, TargetRecord, origin_of};
use crate::node::map_requests::ask;
use crate::node::shared::ClusterInner;
use crate::raft::Replica;
use crate::replica_store::SentTo;
use crate::transport::wire::{MapRequest, Target};

/// A step that takes longer is given up, and taken again.
const STEP: Duration = Duration::from_secs(10);
/// A sender that has not gone on for so long is a problem.
const STUCK: Duration = Duration::from_secs(10);
/// Marks of removed rows stay for so long at least: what is under way arrives before.
const FORGOTTEN_AFTER_MS: u64 = 3_600_000;

/// After so many looks at the map it is looked what is to be kept no more: half a minute.
const FORGETS: u32 = 60;

/// Has the partitions that this node leads duplicated, until the node ends.
pub(super) async fn duplicate_partitions(inner: Arc<ClusterInner>) {
    let mut ticks = inner.peers().beat().every(inner.options.look);
    let mut maps = inner.map.subscribe();
    // The map may be there already, and not change for long.
    maps.mark_changed();
    let mut duplicator = Duplicator {
        inner,
        targets: BTreeMap::new(),
        tasks: JoinSet::new(),
        forgot: None,
        reported: BTreeSet::new(),
    };
    let mut is_on = false;
    loop {
        tokio::select! {
            _ = maps.changed() => {}
            _ = ticks.tick(), if is_on => {}
            Some(_ended) = duplicator.tasks.join_next() => continue,
        }
        let Some(map) = maps.borrow_and_update().clone() else {
            continue;
        };
        is_on = map.duplications.stamps;
        if is_on {
            duplicator.step(&map).await;
        }
    }
}

struct Duplicator {
    inner: Arc<ClusterInner>,
    /// The targets, each with the addresses that it was named by.
    targets: BTreeMap<u64, (Vec<String>, Arc<TargetCluster>)>,
    /// The senders, which end with this.
    tasks: JoinSet<()>,
    /// When it was looked what is to be kept no more.
    forgot: Option<Instant>,
    /// The targets that problems may have been reported of.
    reported: BTreeSet<String>,
}

impl Duplicator {
    async fn step(&mut self, map: &Map) {
        let own = origin_of(&map.cluster.id);
        let mut led = led(&self.inner, map);
        let without = led.iter().filter(|replica| replica.stamps() != Some(own));
        let begun = without.map(|replica| timeout(STEP, replica.begin_stamps(own)));
        for done in join_all(begun).await {
            if let Ok(Err(error)) = done {
                // It is tried again; commands wait as long as this one would.
                tracing::debug!(%error, "rows get no stamps yet");
            }
        }
        led.retain(|replica| replica.stamps() == Some(own));
        let records = &map.duplications.targets;
        let numbers: BTreeSet<_> = records.iter().map(|target| target.number).collect();
        self.targets.retain(|number, _| numbers.contains(number));
        for record in records {
            self.know(record);
        }
        self.send(own, &led, &map.duplications);
        let pause = self.inner.options.look * FORGETS;
        if self.forgot.is_none_or(|forgot| forgot.elapsed() >= pause) {
            self.forgot = Some(Instant::now());
            for replica in &led {
                forget(&self.inner, replica, &numbers).await;
            }
        }
        self.report(&map.duplications);
    }

    /// Knows a target by the addresses that the map has.
    fn know(&mut self, record: &TargetRecord) {
        let Some(network) = &self.inner.options.targets else {
            return;
        };
        let there = self.targets.get(&record.number);
        if there.is_none_or(|(addresses, _)| *addresses != record.addresses) {
            let addresses = record.addresses.clone();
            let target = TargetCluster::new(Arc::clone(network), record.cluster, addresses.clone());
            self.targets.insert(record.number, (addresses, Arc::new(target)));
            // Those with the addresses before.
            let mut senders = self.inner.senders.lock();
            senders.end(|(_, number), _| *number == record.number);
        }
    }

    /// Has a sender for each of these replicas and each target, and no others.
    fn send(&mut self, own: u64, led: &[Arc<Replica>], to: &Duplications) {
        let mut senders = self.inner.senders.lock();
        let is_led = |id: &ReplicaId| led.iter().any(|replica| replica.id() == *id);
        senders.end(|(replica, number), running| {
            !is_led(replica)
                || !self.targets.contains_key(number)
                || running.is_paused != to.paused.contains(number)
                || running.task.is_finished()
        });
        for record in &to.targets {
            let is_paused = to.paused.contains(&record.number);
            let Some((_, target)) = self.targets.get(&record.number) else {
                continue;
            };
            for replica in led {
                let which = (replica.id(), record.number);
                senders.0.entry(which).or_insert_with(|| {
                    let state = Arc::new(SenderState::default());
                    let sender = Sender {
                        replica: Arc::clone(replica),
                        target: Arc::clone(target),
                        number: record.number,
                        theirs: origin_of(&record.cluster),
                        own,
                        is_paused,
                        state: Arc::clone(&state),
                    };
                    RunningSender {
                        group: replica.group(),
                        is_paused,
                        state,
                        task: self.tasks.spawn(sender.run()),
                    }
                });
            }
        }
    }

    fn report(&mut self, to: &Duplications) {
        let names: BTreeSet<_> = to.targets.iter().map(|target| target.name.clone()).collect();
        for gone in self.reported.difference(&names) {
            self.inner.report(&about(gone), None);
        }
        for record in &to.targets {
            let problem = match self.targets.contains_key(&record.number) {
                // What its operator has asked for is none.
                _ if to.paused.contains(&record.number) => None,
                true => stuck(&self.inner, record.number),
                false => Some("this node has no way to other clusters".to_owned()),
            };
            self.inner.report(&about(&record.name), problem);
        }
        self.reported = names;
    }
}

/// The replicas of partitions that this node leads.
fn led(inner: &ClusterInner, map: &Map) -> Vec<Arc<Replica>> {
    let replicas = inner.node.replicas().into_iter();
    replicas
        .filter(|replica| map.partitions.contains_key(&replica.group()) && replica.leads_in().is_some())
        .collect()
}

/// Marks of removed rows go once all targets have them, and positions of targets that are no more at once.
async fn forget(inner: &ClusterInner, replica: &Arc<Replica>, numbers: &BTreeSet<u64>) {
    let reading = Arc::clone(replica);
    let noted = blocking(move || reading.sent_to()).await.unwrap_or_default();
    for (number, _) in noted.iter().filter(|(number, _)| !numbers.contains(number)) {
        if let Err(problem) = note(replica, *number, None).await {
            tracing::debug!(group = replica.group(), problem, "a position stays");
        }
    }
    // Behind what is noted here, and what it has applied since, nothing is missing.
    let applied = replica.applied_index().unwrap_or(u64::MAX);
    let has_all = |number: &u64| {
        let senders = inner.senders.lock();
        let running = senders.0.get(&(replica.id(), *number));
        let now = running.and_then(|running| running.state.now());
        now.is_some_and(|now| matches!(now, SentTo::Tail(index) if index >= applied))
    };
    if numbers.iter().all(has_all) {
        replica.set_forgets_before_ms(inner.clock.wall_ms().saturating_sub(FORGOTTEN_AFTER_MS));
    }
}

fn about(target: &str) -> String {
    format!("the duplication to {target}")
}

/// What keeps senders to a target from going on. Without figures that change all the time: it is logged when it
/// changes.
fn stuck(inner: &ClusterInner, target: u64) -> Option<String> {
    let senders = inner.senders.lock();
    let problems = senders
        .of(target)
        .filter_map(|(_, running)| running.state.problem());
    let stuck: Vec<_> = problems.filter(|(since, _)| *since >= STUCK).collect();
    let (_, text) = stuck.iter().max_by_key(|(since, _)| *since)?;
    Some(format!(
        "{} of the partitions that this node leads have not been sent for {} s or longer: {text}",
        stuck.len(),
        STUCK.as_secs()
    ))
}

/// Why nothing of duplication may be asked yet: an older version ends the connection then.
pub(super) fn refused(inner: &ClusterInner) -> Option<String> {
    let level = inner.map()?.cluster.level;
    (level < map::LEVEL_OF_DUPLICATION).then(|| map::duplication_from(level))
}

/// Has the cluster duplicated to another one: asks that first.
pub(super) async fn add(inner: &ClusterInner, name: String, addresses: Vec<String>) -> Result<(), String> {
    if let Some(refused) = refused(inner) {
        return Err(refused);
    }
    let map = inner.map().ok_or("this node has no map yet: ask again")?;
    let network = inner.options.targets.clone();
    let network = network.ok_or("this node has no way to other clusters")?;
    let (own, named) = (map.cluster.id, addresses.clone());
    let cluster = blocking(move || own_id(&*network, &named, &own)).await?;
    let target = Target {
        name,
        cluster,
        addresses,
    };
    ask(inner, MapRequest::Duplicate(target)).await
}

impl ClusterInner {
    /// The targets, as far as this node's partitions go.
    pub(super) fn duplications(&self) -> Vec<DuplicationInfo> {
        let Some(map) = self.map() else { return Vec::new() };
        let applied = |id: ReplicaId| {
            let replica = self.node.replica(id)?;
            replica.applied_index().ok()
        };
        let led: Vec<_> = led(self, &map).iter().map(|replica| replica.id()).collect();
        let targets = map.duplications.targets.iter().map(|target| {
            let senders = self.senders.lock();
            let mut info = DuplicationInfo {
                name: target.name.clone(),
                cluster: id_text(&target.cluster),
                addresses: target.addresses.clone(),
                is_paused: map.duplications.paused.contains(&target.number),
                partitions: map.partitions.len() as u64,
                ..DuplicationInfo::default()
            };
            let sent = |replica: &&ReplicaId| senders.0.contains_key(&(**replica, target.number));
            info.waiting = (led.len() - led.iter().filter(sent).count()) as u64;
            for ((replica, _), running) in senders.of(target.number) {
                // Relaxed: it is shown.
                info.rows += running.state.rows.load(Ordering::Relaxed);
                match running.state.now() {
                    None => info.waiting += 1,
                    Some(SentTo::Copy { .. }) => info.copying += 1,
                    Some(SentTo::Tail(index)) => {
                        info.following += 1;
                        info.lag += applied(*replica).unwrap_or(index).saturating_sub(index);
                    }
                }
                if let Some((since, text)) = running.state.problem() {
                    let group = running.group;
                    let longest = info.problem.get_or_insert((since, String::new()));
                    if longest.1.is_empty() || longest.0 < since {
                        *longest = (since, format!("partition {group}: {text}"));
                    }
                }
            }
            info
        });
        targets.collect()
    }

    /// The same as figures.
    pub(super) fn duplication_figures(&self) -> Vec<Figure> {
        let all = self.duplications();
        let figure = |name, help, is_counter, value: &dyn Fn(&DuplicationInfo) -> u64| Figure {
            name,
            help,
            is_counter,
            samples: all
                .iter()
                .map(|one| (vec![("target", one.name.clone())], value(one)))
                .collect(),
        };
        vec![
            figure(
                "collie_cluster_duplication_lag_entries",
                "Entries of this node's partitions that the target lacks, where all rows were copied",
                false,
                &|one| one.lag,
            ),
            figure(
                "collie_cluster_duplication_copying",
                "Partitions of this node of which all rows are being copied to the target",
                false,
                &|one| one.copying + one.waiting,
            ),
            figure(
                "collie_cluster_duplication_paused",
                "1 where the duplication to the target is paused by command",
                false,
                &|one| u64::from(one.is_paused),
            ),
            figure(
                "collie_cluster_duplicated_rows_total",
                "Rows that were sent to the target",
                true,
                &|one| one.rows,
            ),
        ]
    }
}
