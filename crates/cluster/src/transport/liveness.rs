//! Which nodes this one hears from, and what they say of the groups that they lead. Each node tells it to all
//! its peers, anew whenever it changes: a node without a replica of a group has no other way to know.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ids::GroupId;
use crate::transport::wire::{Leads, NodeId};

/// A time this far off is not that of a node that may lead, and a clock that is stepped by more is not
/// followed at once.
pub const SKEW_MAX: Duration = Duration::from_millis(500);
/// A change of the measured skew below this is not reported.
const SKEW_STEP_MS: u64 = 100;

/// All peers, as of the last change.
pub type NodeStates = BTreeMap<NodeId, NodeState>;

/// Whether a node answers. What counts are frames that it sends on the raft connection that this
/// node has made, all of them answers: a node that can be heard but does not hear is not alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It has answered lately.
    Alive,
    /// It is connected, and has been silent for too long.
    Suspect {
        /// Its last frame.
        since: Instant,
    },
    /// It is not connected, and has been silent for too long, or was not heard of yet.
    Unreachable {
        /// Its last frame, or when it was added to the peers.
        since: Instant,
    },
}

/// How far the time that a node goes by is from this node's, as of its last answer to a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skew {
    /// Milliseconds by which it is ahead.
    pub ahead_ms: i64,
    /// By how much this may be wrong: half of what the answer took.
    pub doubt_ms: u64,
}

/// What is known of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// Whether it answers.
    pub liveness: Liveness,
    /// Its time.
    pub skew: Option<Skew>,
    /// The process that was last greeted there; another one after a restart.
    pub boot: Option<[u8; 16]>,
    /// Its feature level when it was last greeted.
    pub level: Option<u32>,
    /// Why it is not connected, if it is not.
    pub problem: Option<String>,
    /// Whether it has refused the last connection: it says why.
    pub refuses: bool,
}

/// Follows one peer, and publishes what changes.
#[derive(Debug)]
pub(super) struct Pulse {
    node: NodeId,
    suspect: Duration,
    states: watch::Sender<NodeStates>,
    now: Mutex<Beats>,
}

#[derive(Debug)]
struct Beats {
    /// Since when there is nothing; the last frame.
    heard: Instant,
    /// Whether there was a frame at all.
    ever: bool,
    connected: bool,
    retired: bool,
    state: NodeState,
}

impl Skew {
    /// Whether the clocks differ by more than [`SKEW_MAX`] for certain.
    pub fn is_excessive(self) -> bool {
        u128::from(self.ahead_ms.unsigned_abs()) > SKEW_MAX.as_millis() + u128::from(self.doubt_ms)
    }

    /// From an answer that says `theirs` and took `round_trip` until now, at `ours`.
    pub(super) fn measured(theirs: u64, ours: u64, round_trip: Duration) -> Self {
        let doubt_ms = u64::try_from(round_trip.as_millis() / 2).unwrap_or(u64::MAX);
        Self {
            ahead_ms: difference_ms(theirs, ours).saturating_add_unsigned(doubt_ms),
            doubt_ms,
        }
    }
}

/// By how much a time is ahead of another one.
pub(super) fn difference_ms(theirs: u64, ours: u64) -> i64 {
    let ahead = i128::from(theirs) - i128::from(ours);
    ahead.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

impl NodeState {
    /// Whether it answers, on a connection that stands.
    pub fn is_connected(&self) -> bool {
        self.is_alive() && self.problem.is_none()
    }

    /// Whether the node answers.
    pub fn is_alive(&self) -> bool {
        self.liveness == Liveness::Alive
    }
}

impl Pulse {
    pub(super) fn new(node: NodeId, suspect: Duration, states: watch::Sender<NodeStates>) -> Self {
        let heard = Instant::now();
        let liveness = Liveness::Unreachable { since: heard };
        let state = NodeState {
            liveness,
            skew: None,
            boot: None,
            level: None,
            problem: None,
            refuses: false,
        };
        states.send_modify(|states| _ = states.insert(node, state.clone()));
        Self {
            node,
            suspect,
            states,
            now: Mutex::new(Beats {
                heard,
                ever: false,
                connected: false,
                retired: false,
                state,
            }),
        }
    }

    /// The raft connection stands.
    pub(super) fn connected(&self, boot: [u8; 16], level: u32) {
        let mut beats = self.now.lock();
        beats.connected = true;
        beats.state.boot = Some(boot);
        beats.state.level = Some(level);
        beats.state.problem = None;
        beats.state.refuses = false;
        beats.beat();
        self.publish(beats);
    }

    /// There is no raft connection.
    pub(super) fn disconnected(&self, problem: String, refuses: bool) {
        let mut beats = self.now.lock();
        beats.connected = false;
        beats.state.problem = Some(problem);
        beats.state.refuses = refuses;
        self.look_at(beats);
    }

    /// A frame came.
    pub(super) fn heard(&self) {
        let mut beats = self.now.lock();
        let was = beats.state.liveness;
        beats.beat();
        if was != Liveness::Alive {
            self.publish(beats);
        }
    }

    /// The answer to a ping came.
    pub(super) fn measured(&self, skew: Skew) {
        let mut beats = self.now.lock();
        let moved = beats.state.skew.is_none_or(|was| {
            was.is_excessive() != skew.is_excessive() || was.ahead_ms.abs_diff(skew.ahead_ms) >= SKEW_STEP_MS
        });
        if moved {
            beats.state.skew = Some(skew);
            self.publish(beats);
        }
    }

    /// When it will have been silent for too long, unless it has been.
    pub(super) fn suspected_at(&self) -> Option<Instant> {
        let beats = self.now.lock();
        (beats.state.liveness == Liveness::Alive).then_some(beats.heard + self.suspect)
    }

    /// Time has passed.
    pub(super) fn look(&self) {
        self.look_at(self.now.lock());
    }

    fn look_at(&self, mut beats: MutexGuard<'_, Beats>) {
        let since = beats.heard;
        let silent = !beats.ever || since.elapsed() >= self.suspect;
        beats.state.liveness = match (silent, beats.connected) {
            (false, _) => Liveness::Alive,
            (true, true) => Liveness::Suspect { since },
            (true, false) => Liveness::Unreachable { since },
        };
        self.publish(beats);
    }

    /// The node is none of the peers any more, and nothing is published of it.
    pub(super) fn retire(&self) {
        let mut beats = self.now.lock();
        beats.retired = true;
        self.states
            .send_if_modified(|states| states.remove(&self.node).is_some());
    }

    /// Publishes what changed, in the order of the changes: under the lock.
    fn publish(&self, beats: MutexGuard<'_, Beats>) {
        if beats.retired {
            return;
        }
        self.states
            .send_if_modified(|states| match states.get_mut(&self.node) {
                Some(state) if *state != beats.state => {
                    state.clone_from(&beats.state);
                    true
                }
                _ => false,
            });
    }
}

impl Beats {
    fn beat(&mut self) {
        self.heard = Instant::now();
        self.ever = true;
        self.state.liveness = Liveness::Alive;
    }
}

/// What a peer has said last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Led {
    boot: [u8; 16],
    count: u64,
    groups: BTreeMap<GroupId, u64>,
    /// Whether it could say so if it were otherwise by now: its connection to this node stands.
    in_touch: bool,
}

/// What all peers have said, whether they still answer or not.
pub type LedByNode = BTreeMap<NodeId, Led>;

impl Led {
    /// The process that has said it.
    pub fn boot(&self) -> [u8; 16] {
        self.boot
    }

    /// Whether the connection stands on which it would say what has changed.
    pub fn is_in_touch(&self) -> bool {
        self.in_touch
    }

    /// The term in which the node leads a group, if it does.
    pub fn term_of(&self, group: GroupId) -> Option<u64> {
        self.groups.get(&group).copied()
    }
}

/// What is said here, and what was heard.
#[derive(Debug, Default)]
pub(super) struct Leaders {
    pub(super) own: watch::Sender<Leads>,
    pub(super) heard: watch::Sender<LedByNode>,
}

impl Leaders {
    /// This node leads these groups, each in its term, and no others.
    pub(super) fn set(&self, groups: Vec<(GroupId, u64)>) {
        self.own.send_if_modified(|leads| {
            // The first word ends what a process before this one has said.
            let is_new = leads.count == 0 || leads.groups != groups;
            if is_new {
                leads.count += 1;
                leads.groups = groups;
            }
            is_new
        });
    }

    /// The connection of a process has ended on which it says what it leads.
    pub(super) fn out_of_touch(&self, node: NodeId, boot: [u8; 16]) {
        self.heard.send_if_modified(|all| {
            let known = all.get_mut(&node).filter(|known| known.boot == boot);
            known.is_some_and(|known| std::mem::replace(&mut known.in_touch, false))
        });
    }

    /// A peer has said what it leads. What one connection brings may come behind what a later
    /// connection of the same process has brought.
    pub(super) fn heard(&self, node: NodeId, boot: [u8; 16], leads: &Leads) {
        self.heard.send_if_modified(|all| {
            let is_late = |known: &&mut Led| known.boot == boot && known.count >= leads.count;
            if let Some(known) = all.get_mut(&node).filter(is_late) {
                // Said again, on a new connection.
                return !std::mem::replace(&mut known.in_touch, true);
            }
            let led = Led {
                boot,
                count: leads.count,
                groups: leads.groups.iter().copied().collect(),
                in_touch: true,
            };
            all.insert(node, led);
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_said_last_holds_in_any_order() {
        let leaders = Leaders::default();
        let said = |boot: u8, count, groups: &[(GroupId, u64)]| {
            let leads = Leads {
                count,
                groups: groups.to_vec(),
            };
            leaders.heard(7, [boot; 16], &leads);
        };
        let term = |group| leaders.heard.borrow().get(&7).and_then(|led| led.term_of(group));
        said(1, 2, &[(5, 3)]);
        said(1, 1, &[(5, 2), (6, 1)]);
        assert_eq!((term(5), term(6)), (Some(3), None));
        said(1, 3, &[]);
        assert_eq!(term(5), None);
        // It could not say so any more, until it has said it again.
        let in_touch = || leaders.heard.borrow().get(&7).is_some_and(Led::is_in_touch);
        leaders.out_of_touch(7, [2; 16]);
        assert!(in_touch(), "another process");
        leaders.out_of_touch(7, [1; 16]);
        assert!(!in_touch());
        said(1, 3, &[]);
        assert!(in_touch());
        // Another process counts anew.
        said(2, 1, &[(6, 9)]);
        assert_eq!(term(6), Some(9));
    }

    #[test]
    fn what_is_said_is_counted_where_it_changes() {
        let leaders = Leaders::default();
        for groups in [vec![], vec![(5, 1)], vec![(5, 1)], vec![(5, 2)]] {
            leaders.set(groups);
        }
        assert_eq!(leaders.own.borrow().count, 3, "also that it is nothing");
    }
}
