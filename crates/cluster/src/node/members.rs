//! The members of the partitions' groups, which their leaders bring to what the map says.
//!
//! What is to be done is found in the map and in raft alone, so each leader goes on where the one before has stopped:
//! a replica that is to join is first a member without a vote; once those that are to stay have nearly all entries,
//! they get the votes, and the others are no members any more; once that is committed, the map says so.
//!
//! A leader may know an older map than others. Before each step it asks the leader of the map whether the partition
//! is still to have these replicas. If not, another leader of the group has brought it to others since, and this one
//! can commit nothing, or it is to look at the map again. So no group is brought back to replicas that were removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout};

use crate::ids::{GroupId, ReplicaId};
use crate::map::{Map, PartitionRecord};
use crate::node::changing::member;
use crate::node::leaders::give_up_lead;
use crate::node::map_requests::ask;
use crate::node::shared::ClusterInner;
use crate::raft::{Members, Replica};
use crate::transport::wire::MapRequest;

/// A step that takes longer is given up, and taken again.
const STEP: Duration = Duration::from_secs(10);

/// Brings the groups that this node leads to the members that they are to have, until the node ends.
pub(super) async fn keep_members(inner: Arc<ClusterInner>) {
    let mut ticks = inner.peers().beat().every(inner.options.look);
    // What this node leads, or is to be led where, changes with these.
    let (mut changes, mut maps) = (inner.node.changes(), inner.map.subscribe());
    changes.mark_changed();
    let mut groups = BTreeMap::<GroupId, Changing>::new();
    // Of each group one: those that are slow keep no other one.
    let mut steps = FuturesUnordered::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Some((group, done)) = steps.next() => {
                if let Some(changing) = groups.get_mut(&group) {
                    changing.ended(done);
                }
                continue;
            }
        }
        let is_new = changes.has_changed().is_ok_and(|new| new) || maps.has_changed().is_ok_and(|new| new);
        if groups.is_empty() && !is_new {
            continue;
        }
        changes.borrow_and_update();
        let Some(map) = maps.borrow_and_update().clone() else {
            continue;
        };
        let led = led_here(&inner, &map);
        groups.retain(|group, changing| {
            let stays = changing.runs || led.contains_key(group);
            if !stays {
                inner.report(&about(*group), None);
            }
            stays
        });
        for (group, (partition, replica, members)) in led {
            let changing = groups.entry(group).or_insert_with(|| Changing::of(partition));
            changing.look(&inner, partition, &members);
            if changing.runs {
                continue;
            }
            changing.runs = true;
            let hangs = changing.hangs(inner.options.replace_after);
            let (inner, map, partition) = (Arc::clone(&inner), Arc::clone(&map), partition.clone());
            steps.push(async move {
                let step = async {
                    if hangs {
                        let changed = partition.changed;
                        ask(&inner, MapRequest::Hangs { group, changed }).await?;
                    }
                    step(&inner, &map, &partition, &replica).await
                };
                let done = timeout(STEP, step).await;
                let done = done.unwrap_or_else(|_| Err(format!("a step took longer than {STEP:?}")));
                (group, done)
            });
        }
    }
}

type Led<'a> = BTreeMap<GroupId, (&'a PartitionRecord, Arc<Replica>, Members)>;

/// The groups that this node leads and whose members are not as they are to be, also by a replica that the map does
/// not name any more.
fn led_here<'a>(inner: &ClusterInner, map: &'a Map) -> Led<'a> {
    let replicas = inner.node.replicas().into_iter();
    let led = replicas.filter_map(|replica| {
        let partition = map.partitions.get(&replica.group())?;
        // Of a new group that a split has made it is to be said that its replicas have the rows.
        let is_over = partition.wanted.is_empty() && partition.from == 0;
        let done = is_over.then(|| wanted(partition));
        let members = replica.leads_others_than(done.as_ref())?;
        Some((partition.group, (partition, replica, members)))
    });
    led.collect()
}

fn wanted(partition: &PartitionRecord) -> BTreeSet<ReplicaId> {
    let lasting = partition.lasting().iter();
    lasting.map(|member| member.replica).collect()
}

/// A group whose members are being changed, as its leader sees it.
struct Changing {
    /// As of which change of the map.
    changed: u64,
    reached: Reached,
    /// Since when it has not gone on.
    since: Instant,
    /// A step runs.
    runs: bool,
    problem: String,
}

/// How far it is.
#[derive(Default, PartialEq)]
struct Reached {
    all: BTreeSet<ReplicaId>,
    voters: BTreeSet<ReplicaId>,
    is_joint: bool,
    /// The most that new replicas had, ever: one that begins again and again does not go on.
    entries: u64,
    bytes: u64,
}

impl Changing {
    fn of(partition: &PartitionRecord) -> Self {
        Self {
            changed: partition.changed,
            reached: Reached::default(),
            since: Instant::now(),
            runs: false,
            problem: String::new(),
        }
    }

    /// Looks how far it is, and reports it if it has not gone on for long.
    fn look(&mut self, inner: &ClusterInner, partition: &PartitionRecord, members: &Members) {
        if self.changed != partition.changed {
            let runs = self.runs;
            *self = Self {
                runs,
                ..Self::of(partition)
            };
        }
        let sending = inner.node.transfers().sending();
        let new = partition
            .wanted
            .iter()
            .filter(|member| !partition.members.contains(member));
        let new = new.map(|member| member.replica);
        let entries = new.clone().filter_map(|id| members.matched.get(&id)).max();
        let bytes = new.filter_map(|id| Some(sending.get(&id)?.sent)).max();
        let now = Reached {
            all: members.all.keys().copied().collect(),
            voters: members.voters.clone(),
            is_joint: members.is_joint,
            entries: self.reached.entries.max(entries.copied().unwrap_or(0)),
            bytes: self.reached.bytes.max(bytes.unwrap_or(0)),
        };
        if now != self.reached {
            (self.reached, self.since) = (now, Instant::now());
        }
        let problem = self.hangs(inner.options.replace_after).then(|| {
            let lasting: Vec<_> = partition.lasting().iter().map(|member| member.node).collect();
            let what = match partition.wanted.is_empty() {
                true => "its split to",
                false => "its move to",
            };
            format!(
                "{what} replicas on nodes {lasting:?} has not gone on for {} s: {}",
                self.since.elapsed().as_secs(),
                self.problem
            )
        });
        inner.report(&about(partition.group), problem);
    }

    fn hangs(&self, after: Duration) -> bool {
        self.since.elapsed() >= after
    }

    fn ended(&mut self, done: Result<(), String>) {
        self.runs = false;
        if let Err(problem) = done {
            tracing::debug!(problem, "the members of a group are not changed yet");
            self.problem = problem;
        }
    }
}

/// What a problem is about.
fn about(group: GroupId) -> String {
    format!("the partition of group {group}")
}

/// The next step for one group, which this node leads.
async fn step(
    inner: &ClusterInner,
    map: &Map,
    partition: &PartitionRecord,
    replica: &Replica,
) -> Result<(), String> {
    let (group, changed) = (partition.group, partition.changed);
    ask(inner, MapRequest::IsUnchanged { group, changed }).await?;
    let mut wanted = wanted(partition);
    let members = replica.members().map_err(|error| error.to_string())?;
    if members.are(&wanted) && members.is_applied {
        if partition.wanted.is_empty() {
            if partition.from == 0 {
                return Ok(());
            }
            let lack = wanted
                .iter()
                .filter(|id| **id != replica.id() && !members.has_nearly_all(**id));
            check_none_lacks(lack)?;
        } else {
            // One more entry: a leader that was deposed cannot commit it, and has nothing to say.
            let confirmed = replica.change_members(wanted.clone()).await;
            confirmed.map_err(|error| error.to_string())?;
        }
        let replicas = wanted.into_iter().collect();
        let moved = MapRequest::Moved {
            group,
            replicas,
            changed,
        };
        return ask(inner, moved).await;
    }
    let new = partition
        .lasting()
        .iter()
        .filter(|member| !members.all.contains_key(&member.replica));
    for joining in new {
        let added = replica.add_learner(joining.replica, member(map, joining)).await;
        added.map_err(|error| error.to_string())?;
    }
    let lack = wanted
        .iter()
        .filter(|id| !members.has_nearly_all(**id) && !members.voters.contains(id));
    check_none_lacks(lack)?;
    if !wanted.contains(&replica.id()) {
        let node_of = |id| partition.node_of(id);
        if give_up_lead(inner, replica, &wanted, node_of).await? {
            return Ok(());
        }
        // None of those that stay votes: they get a vote beside this one, and then one of them leads.
        wanted.insert(replica.id());
    }
    let changed = replica.change_members(wanted).await;
    changed.map_err(|error| error.to_string())
}

fn check_none_lacks<'a>(lack: impl Iterator<Item = &'a ReplicaId>) -> Result<(), String> {
    let lack: Vec<_> = lack.collect();
    match lack.is_empty() {
        true => Ok(()),
        false => Err(format!("replicas {lack:?} have not all entries yet")),
    }
}
