//! What time does in a replica: a leader's heartbeats, and the ticks by which a follower finds that it hears no
//! leader.
//!
//! Raft's own ticker, which does both, is one more timer for each group, and fires five times for each heartbeat.
//! So leaders send their heartbeats at the [beat](crate::beat::Beat) of the node, those of all groups together, and
//! the ticker runs only where an election may be due before the beat after the next one. Where the group is
//! [parked](crate::raft::parking) there is neither.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use openraft::ReadPolicy;
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;
use tokio::time::{Instant, Interval, timeout};

use crate::ids::{EntryId, LeaderId, ReplicaId, Vote};
use crate::raft::elections::elected;
use crate::raft::links::ReplicaLinks;
use crate::raft::machine::Raft;
use crate::raft::options::GroupTimes;
use crate::raft::parking::{Boot, LEVEL_OF_PARKING, Parked, Parking};
use crate::raft::types::{from_leader, from_log_id};
use crate::transport::wire::{NodeId, Park, Request, Response};

/// The last word of a leader that this replica has followed.
#[derive(Debug, Default)]
pub(super) struct Heard {
    now: Mutex<Word>,
}

#[derive(Debug, Default)]
struct Word {
    last: Option<(LeaderId, Instant)>,
    /// What came before does not count.
    since: Option<Instant>,
}

impl Heard {
    /// Raft has followed what this leader sent, and did so after `at`.
    pub(super) fn followed(&self, leader: LeaderId, at: Instant) {
        let mut now = self.now.lock();
        if now.since.is_none_or(|since| at > since) {
            now.last = Some((leader, at));
        }
    }

    /// The leader hands over: raft no longer waits for as long as it may still be there.
    pub(super) fn forget(&self) {
        *self.now.lock() = Word {
            last: None,
            since: Some(Instant::now()),
        };
    }

    fn last(&self, leader: LeaderId) -> Option<Instant> {
        let last = self.now.lock().last;
        last.filter(|(from, _)| *from == leader).map(|(_, at)| at)
    }
}

/// How long raft's ticker may rest.
#[derive(Debug)]
struct Rest {
    /// From a beat until the first tick of a ticker that is started at the next beat.
    until_tick: Duration,
    /// A follower stands for election no sooner after its leader's last word.
    election: Duration,
}

impl Rest {
    /// None where a ticker that is started at a beat may be late for a replica whose leader's word has just
    /// stopped to count.
    fn of(times: &GroupTimes) -> Option<Self> {
        // Raft's ticks are 13/64 of a heartbeat apart, in whole milliseconds.
        let until_tick = times.heartbeat + times.heartbeat / 4 + Duration::from_millis(1);
        let election = times.election_max + times.election_min;
        (until_tick <= times.election_min).then_some(Self { until_tick, election })
    }

    /// Whether the ticker may rest until the next beat in a replica that leads, or heard its leader then.
    fn may_go_on(&self, now: Instant, leads: bool, heard: Option<Instant>) -> bool {
        leads || heard.is_some_and(|at| now + self.until_tick <= at + self.election)
    }
}

/// What makes a replica tick.
pub(super) struct Ticking {
    pub(super) raft: Raft,
    pub(super) heard: Arc<Heard>,
    pub(super) parking: Arc<Parking>,
    pub(super) links: ReplicaLinks,
}

/// Whether the replicas of groups with these times park.
pub(super) fn may_park(times: &GroupTimes) -> bool {
    Rest::of(times).is_some()
}

/// Sends heartbeats while the replica leads, and has raft tick while an election may be due, until raft ends.
/// Where its ticker may not rest, that does both.
pub(super) async fn tick(replica: Ticking, mut beats: Interval) {
    let Ticking {
        raft, heard, parking, ..
    } = &replica;
    let Some(rest) = Rest::of(&replica.links.times) else {
        return;
    };
    let mut metrics = raft.server_metrics();
    let mut changes = parking.changes();
    let mut busy = Busy::until_now();
    let (mut is_beat, mut was_parked) = (false, false);
    loop {
        let parked = changes.borrow_and_update().as_ref().map(|parked| parked.leader);
        let leads = {
            let now = metrics.borrow_and_update();
            let leader = elected(now.current_leader, &now.vote);
            let leads = now.state.is_leader() && leader.is_some();
            let voted = from_leader(&now.vote.leader_id);
            if parked.is_some_and(|leader| leader != voted) {
                parking.wake();
                continue;
            }
            // Of a vote that is not the leader's nothing was heard.
            let heard = heard.last(voted).filter(|_| now.vote.committed);
            let rests = parked.is_some() || rest.may_go_on(Instant::now(), leads, heard);
            raft.runtime_config().tick(!rests);
            leads.then_some(voted)
        };
        if std::mem::replace(&mut was_parked, parked.is_some()) && parked.is_none() {
            // First it sends heartbeats.
            busy.at = Instant::now();
        }
        if let (true, Some(leader), None) = (is_beat, leads, parked)
            && !replica.parks(leader, &mut busy).await
            && raft.trigger().heartbeat().await.is_err()
        {
            return;
        }
        is_beat = tokio::select! {
            biased;
            changed = metrics.changed() => match changed {
                Ok(()) => false,
                Err(_) => return,
            },
            // An error: the sender is in `replica`.
            _ = changes.changed() => false,
            _ = beats.tick(), if parked.is_none() => true,
        };
    }
}

/// What a leader had to do last.
#[derive(Debug)]
struct Busy {
    last: Option<u64>,
    needed: u64,
    at: Instant,
}

impl Busy {
    fn until_now() -> Self {
        Self {
            last: None,
            needed: 0,
            at: Instant::now(),
        }
    }
}

impl Ticking {
    /// Parks the group that this replica leads, if it has had nothing to do for long and all members agree.
    async fn parks(&self, leader: LeaderId, busy: &mut Busy) -> bool {
        let last = self.raft.metrics().borrow_watched().last_log_index;
        let needed = self.parking.needed();
        if (last, needed) != (busy.last, busy.needed) {
            let at = Instant::now();
            *busy = Busy { last, needed, at };
        }
        let times = &self.links.times;
        if busy.at.elapsed() < times.park || self.links.peers.level() < LEVEL_OF_PARKING {
            return false;
        }
        // In vain: not again at once.
        busy.at = Instant::now();
        // Without heartbeats meanwhile: they would wake those that have agreed.
        let asked = timeout(times.heartbeat / 2, self.members_park(leader)).await;
        let Ok(Some(nodes)) = asked else { return false };
        let parked = Parked {
            leader,
            leads: true,
            nodes,
        };
        // What has changed meanwhile was not seen by who looks.
        let (states, led) = (self.links.peers.states(), self.links.peers.leaders());
        let is_parked = self.parking.park(parked.clone(), needed);
        let holds = parked.holds(self.links.group, &states.borrow(), &led.borrow());
        if is_parked && !holds {
            self.parking.wake_from(&parked);
        }
        is_parked && holds
    }

    /// Asks all other members to park. If all do: their nodes.
    async fn members_park(&self, leader: LeaderId) -> Option<BTreeMap<NodeId, Boot>> {
        let (members, last) = self.members_that_have_all()?;
        let vote = Vote {
            leader,
            committed: true,
        };
        let nodes = {
            let states = self.links.peers.states();
            let states = states.borrow();
            let answers = |(node, _): &(NodeId, _)| {
                let state = states.get(node).filter(|state| state.is_connected())?;
                Some((*node, state.boot?))
            };
            members.iter().map(answers).collect::<Option<_>>()?
        };
        let ask = |member| self.links.ask(member, Request::Park(Park { vote, last }));
        let asked = join_all(members.into_iter().map(ask)).await;
        let all_do = asked
            .into_iter()
            .all(|answer| matches!(answer, Ok(Response::Parked)));
        all_do.then_some(nodes)
    }

    /// The other members and the last entry, if that is applied here, all members have it, and no change of members is
    /// half done.
    fn members_that_have_all(&self) -> Option<(Vec<(NodeId, ReplicaId)>, EntryId)> {
        let metrics = self.raft.metrics();
        let now = metrics.borrow_watched();
        let last = now
            .last_applied
            .filter(|last| Some(last.index) == now.last_log_index)?;
        let membership = now.membership_config.membership();
        let matched = now.replication.as_ref()?;
        let others = membership.nodes().filter(|(id, _)| **id != now.id);
        let having_all = others
            .map(|(id, member)| (matched.get(id) == Some(&Some(last))).then_some((member.node, *id)))
            .collect::<Option<Vec<_>>>()?;
        (membership.get_joint_config().len() == 1).then(|| (having_all, from_log_id(&last)))
    }
}

/// The replica has something to do. Where its group is parked, a majority hears from it before this returns, so that
/// raft takes what it proposes; unless there is none.
pub(super) async fn wake(raft: &Raft, parking: &Parking) {
    parking.need();
    if let Some(unheard) = parking.unheard() {
        // An error: what is asked of raft next says why.
        if raft.ensure_linearizable(ReadPolicy::ReadIndex).await.is_ok() {
            parking.heard(unheard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticker_that_rests_is_in_time_for_the_first_election() {
        let times = GroupTimes::default();
        let rest = Rest::of(&times).unwrap();
        let heard = Instant::now();
        // The next beat, and a tick of the ticker that is started there.
        let wakes = times.heartbeat + times.heartbeat * 13 / 64;
        let mut rested = 0;
        for ms in (0..5000).step_by(10) {
            let beat = heard + Duration::from_millis(ms);
            if rest.may_go_on(beat, false, Some(heard)) {
                rested = ms;
                assert!(
                    beat + wakes < heard + times.election_max + times.election_min,
                    "{ms} ms"
                );
            }
        }
        assert!(rested >= 1800, "rested for {rested} ms");
        assert!(rest.may_go_on(heard, true, None));
        assert!(!rest.may_go_on(heard, false, None));
    }

    #[test]
    fn a_ticker_never_rests_where_elections_follow_too_soon() {
        let times = GroupTimes {
            election_min: Duration::from_millis(600),
            ..GroupTimes::default()
        };
        assert!(Rest::of(&times).is_none());
    }

    #[test]
    fn a_leaders_word_counts_until_it_hands_over() {
        let heard = Heard::default();
        let leader = LeaderId { term: 3, replica: 1 };
        let before = Instant::now();
        heard.followed(leader, before);
        assert_eq!(heard.last(leader), Some(before));
        assert_eq!(heard.last(LeaderId { term: 4, replica: 1 }), None);
        heard.forget();
        heard.followed(leader, before);
        assert_eq!(heard.last(leader), None, "raft has followed it before");
        let after = Instant::now() + Duration::from_millis(1);
        heard.followed(leader, after);
        assert_eq!(heard.last(leader), Some(after));
    }
}
