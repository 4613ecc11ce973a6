//! What time does in a replica: a leader's heartbeats, and the ticks by which a follower finds that it hears no
//! leader.
//!
//! Raft's own ticker, which does both, is one more timer for each group, and fires five times for each heartbeat.
//! So leaders send their heartbeats at the [beat](crate::beat::Beat) of the node, those of all groups together, and
//! the ticker runs only where an election may be due before the beat after the next one.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;
use tokio::time::{Instant, Interval};

use crate::ids::LeaderId;
use crate::raft::elections::elected;
use crate::raft::machine::Raft;
use crate::raft::options::GroupTimes;
use crate::raft::types::from_leader;

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

/// Sends heartbeats while the replica leads, and has raft tick while an election may be due, until raft ends.
/// Where its ticker may not rest, that does both.
pub(super) async fn tick(raft: Raft, heard: Arc<Heard>, mut beats: Interval, times: GroupTimes) {
    let Some(rest) = Rest::of(&times) else { return };
    let mut metrics = raft.server_metrics();
    let mut is_beat = false;
    loop {
        let leads = {
            let now = metrics.borrow_and_update();
            let leader = elected(now.current_leader, &now.vote);
            let leads = now.state.is_leader() && leader.is_some();
            // Of a vote that is not the leader's nothing was heard.
            let heard = heard.last(from_leader(&now.vote.leader_id));
            let heard = heard.filter(|_| now.vote.committed);
            raft.runtime_config()
                .tick(!rest.may_go_on(Instant::now(), leads, heard));
            leads
        };
        if is_beat && leads && raft.trigger().heartbeat().await.is_err() {
            return;
        }
        is_beat = tokio::select! {
            biased;
            changed = metrics.changed() => match changed {
                Ok(()) => false,
                Err(_) => return,
            },
            _ = beats.tick() => true,
        };
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
