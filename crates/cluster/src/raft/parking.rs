//! Parking: a group that nothing is asked of sends no messages, and none of its replicas has a timer.
//!
//! A leader that has had nothing to do for a while asks all other members to park; when all do, so does it. From then
//! on a follower counts on this instead of heartbeats: its leader's node answers, is the same process as before, and
//! says that it leads the group in this term. The leader counts on the nodes of all members. Where that holds no
//! longer, a replica goes on as before: a leader sends heartbeats, and a follower, which says so to its leader, stands
//! for election when it has heard none for long enough. So it does when it hears from its group, or is to do anything
//! for it.
//!
//! The safety of the group does not depend on any of this: votes and entries are as they are without it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::ids::{GroupId, LeaderId};
use crate::transport::wire::NodeId;
use crate::transport::{LedByNode, NodeStates};

/// From this feature level of the cluster on groups park.
pub(super) const LEVEL_OF_PARKING: u32 = 2;

/// The process of a node, by what it drew at its start.
pub(super) type Boot = [u8; 16];

/// What a replica that is parked counts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parked {
    /// Who leads.
    pub(super) leader: LeaderId,
    /// Whether that is the replica itself.
    pub(super) leads: bool,
    /// The nodes that are to answer: a follower's is its leader's.
    pub(super) nodes: BTreeMap<NodeId, Boot>,
}

impl Parked {
    /// Whether that still holds.
    pub(super) fn holds(&self, group: GroupId, states: &NodeStates, led: &LedByNode) -> bool {
        let is_led = |node: &NodeId, boot: &Boot| {
            let led = led
                .get(node)
                .filter(|led| led.boot() == *boot && led.is_in_touch());
            led.and_then(|led| led.term_of(group)) == Some(self.leader.term)
        };
        self.nodes.iter().all(|(node, boot)| {
            let state = states.get(node);
            state.is_some_and(|state| state.is_connected() && state.boot == Some(*boot))
                && (self.leads || is_led(node, boot))
        })
    }
}

/// Whether a replica is parked.
#[derive(Debug, Default)]
pub(super) struct Parking {
    now: watch::Sender<Option<Parked>>,
    /// How often the replica was needed.
    needed: AtomicU64,
    /// How often it was parked as the leader, and which of these times a majority has heard from it since.
    parks: AtomicU64,
    heard: AtomicU64,
}

impl Parking {
    /// The receiver is woken when that changes.
    pub(super) fn changes(&self) -> watch::Receiver<Option<Parked>> {
        self.now.subscribe()
    }

    /// What the replica counts on, if it is parked.
    pub(super) fn now(&self) -> Option<Parked> {
        self.now.borrow().clone()
    }

    pub(super) fn is_parked(&self) -> bool {
        self.now.borrow().is_some()
    }

    /// How often the replica was needed.
    pub(super) fn needed(&self) -> u64 {
        self.needed.load(Ordering::Relaxed)
    }

    /// The replica is needed. Says whether it was parked, which it is no longer.
    pub(super) fn need(&self) -> bool {
        // Relaxed: `park` looks at it under the lock of `now`, which is taken here behind it. So either that finds it
        // changed, or this finds the replica parked.
        self.needed.fetch_add(1, Ordering::Relaxed);
        self.is_parked() && self.wake()
    }

    /// Parks the replica, unless it was needed since `needed` was read.
    pub(super) fn park(&self, parked: Parked, needed: u64) -> bool {
        self.now.send_if_modified(|now| {
            let parks = self.needed() == needed;
            if parks {
                self.parks.fetch_add(u64::from(parked.leads), Ordering::Relaxed);
                *now = Some(parked);
            }
            parks
        })
    }

    /// The replica is parked no longer. Says whether it was.
    pub(super) fn wake(&self) -> bool {
        self.now.send_if_modified(|now| now.take().is_some())
    }

    /// The same, if it is parked as it was when that was looked at.
    pub(super) fn wake_from(&self, parked: &Parked) -> bool {
        self.now
            .send_if_modified(|now| now.take_if(|now| now == parked).is_some())
    }

    /// The time for which a leader was parked without a majority having heard from it since, if there is one: raft
    /// takes nothing of it.
    pub(super) fn unheard(&self) -> Option<u64> {
        // Relaxed, also below: `need` comes before, and the lock that it takes orders this behind `park`.
        let parks = self.parks.load(Ordering::Relaxed);
        (self.heard.load(Ordering::Relaxed) < parks).then_some(parks)
    }

    /// A majority has heard from the leader since that time.
    pub(super) fn heard(&self, parks: u64) {
        self.heard.fetch_max(parks, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked() -> Parked {
        Parked {
            leader: LeaderId { term: 3, replica: 7 },
            leads: true,
            nodes: BTreeMap::new(),
        }
    }

    #[test]
    fn a_replica_that_was_needed_meanwhile_does_not_park() {
        let parking = Parking::default();
        let needed = parking.needed();
        assert!(!parking.need(), "it was not parked");
        assert!(!parking.park(parked(), needed));
        assert!(!parking.is_parked());
        assert_eq!(parking.unheard(), None);
        assert!(parking.park(parked(), parking.needed()));
        assert!(parking.need(), "it was parked");
        assert!(!parking.is_parked());
        // One that comes second waits, too.
        assert!(!parking.need());
        let unheard = parking.unheard().unwrap();
        parking.heard(unheard);
        assert_eq!(parking.unheard(), None);
    }

    #[test]
    fn a_look_that_is_late_wakes_nothing_else() {
        let parking = Parking::default();
        assert!(parking.park(parked(), parking.needed()));
        let mut older = parked();
        older.leader.term -= 1;
        assert!(!parking.wake_from(&older));
        assert!(parking.is_parked());
        assert!(parking.wake_from(&parked()));
        assert!(!parking.is_parked());
    }
}
