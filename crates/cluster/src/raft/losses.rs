//! Replicas that may have lost entries which they had acknowledged, as those waited for the process alone
//! ([`EntryDurability::Process`](crate::raftlog::EntryDurability::Process)), and the ring that they were in is gone.
//!
//! An entry counts as committed once a majority has acknowledged it, and who leads next has it, as each majority has a
//! replica that has it, which votes for no candidate without. A replica that has lost it would. So from its opening on
//! it neither votes nor stands, until it has again all that it can have acknowledged:
//!
//! 1. It asks a leader of its own last vote for the last entry of that leader's log, and has got as far. A leader has
//!    all that it got acknowledged, and what leaders before it did, by the votes that it has. Votes are always on disk:
//!    the replica cannot have acknowledged anything to a later leader. That the answer comes after the opening is all
//!    that its time matters for: what was acknowledged before is in it.
//! 2. It acknowledges what a leader appends meanwhile: it has that, and all before it.
//! 3. Where too few are left for a leader, what is lost is lost: an operator accepts that, and the replica that has most
//!    of those that answer stands first.
//!
//! This is how replicas recover in Viewstamped Replication (Liskov and Cowling, 2012, section 4.3), with the leader's
//! log in place of a quorum of answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::blocking::blocking;
use crate::ids::{EntryId, ReplicaId};

/// From this feature level of the cluster on replicas answer what one that may have lost entries asks.
pub const LEVEL_OF_LOSSES: u32 = 5;

/// Stores which replicas may have lost entries, for good, or says why it cannot. It blocks.
pub type NoteLosses = Arc<dyn Fn(&BTreeSet<ReplicaId>) -> Result<(), String> + Send + Sync>;

/// The replicas of a node that may have lost entries.
pub struct Losses {
    replicas: Mutex<BTreeMap<ReplicaId, Loss>>,
    note: Option<NoteLosses>,
    /// Held while they are stored.
    noting: Mutex<()>,
}

/// What is known of a replica that may have lost entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// It neither votes nor stands.
    Open,
    /// An operator has accepted it.
    Accepted,
    /// And the replica votes by now, but does not stand: another one has more, or may have.
    VotesOnly {
        /// It votes for those that have this entry: the last one that any had that answered.
        least: Option<EntryId>,
    },
}

impl std::fmt::Debug for Losses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.replicas.lock().iter()).finish()
    }
}

impl Losses {
    /// Of a node whose replicas may have lost entries, which has stored that; `note` stores what is left of them.
    #[must_use]
    pub fn new(replicas: impl IntoIterator<Item = ReplicaId>, note: Option<NoteLosses>) -> Arc<Self> {
        let replicas = replicas.into_iter().map(|replica| (replica, Loss::Open));
        Arc::new(Self {
            replicas: Mutex::new(replicas.collect()),
            note,
            noting: Mutex::default(),
        })
    }

    pub(super) fn of(&self, replica: ReplicaId) -> Option<Loss> {
        self.replicas.lock().get(&replica).copied()
    }

    /// Whether a replica neither votes nor stands.
    pub(super) fn is_open(&self, replica: ReplicaId) -> bool {
        matches!(self.of(replica), Some(Loss::Open | Loss::Accepted))
    }

    /// Whether a replica gives no vote to one whose last entry is this.
    pub(super) fn refuses(&self, replica: ReplicaId, last: Option<EntryId>) -> bool {
        match self.of(replica) {
            Some(Loss::VotesOnly { least }) => last < least,
            _ => self.is_open(replica),
        }
    }

    /// Whether a replica may stand for election.
    pub(super) fn may_stand(&self, replica: ReplicaId) -> bool {
        self.of(replica).is_none()
    }

    /// The replicas that neither vote nor stand.
    pub(crate) fn open(&self) -> BTreeSet<ReplicaId> {
        let replicas = self.replicas.lock();
        let open = replicas
            .iter()
            .filter(|(_, loss)| !matches!(loss, Loss::VotesOnly { .. }));
        open.map(|(replica, _)| *replica).collect()
    }

    /// An operator accepts what these have lost.
    pub(crate) fn accept(&self, replicas: &BTreeSet<ReplicaId>) {
        let mut all = self.replicas.lock();
        for (_, loss) in all.iter_mut().filter(|(replica, _)| replicas.contains(replica)) {
            *loss = Loss::Accepted;
        }
    }

    /// A replica whose loss is accepted votes for those that have this entry.
    pub(super) fn votes(&self, replica: ReplicaId, least: Option<EntryId>) {
        if let Some(loss) = self.replicas.lock().get_mut(&replica) {
            *loss = Loss::VotesOnly { least };
        }
    }

    /// A replica has all again, or its loss is accepted, or it is gone. Where that cannot be stored, it is asked for
    /// again after the next start of the node.
    pub(crate) async fn end(self: &Arc<Self>, replica: ReplicaId) {
        if self.replicas.lock().remove(&replica).is_none() {
            return;
        }
        let this = Arc::clone(self);
        let noted = blocking(move || {
            let _turn = this.noting.lock();
            let left = this.replicas.lock().keys().copied().collect();
            this.note.as_ref().map_or(Ok(()), |note| note(&left))
        });
        if let Err(problem) = noted.await {
            tracing::warn!(
                replica,
                problem,
                "cannot store that a replica has all its entries again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LeaderId;

    /// One that has less may be elected else, although a leader that was not heard yet has more.
    #[test]
    fn an_accepted_loss_gives_votes_to_those_that_have_most() {
        let id = |index| {
            let leader = LeaderId { term: 2, replica: 1 };
            Some(EntryId { leader, index })
        };
        let losses = Losses::new([7], None);
        assert!(losses.refuses(7, id(9)) && !losses.refuses(8, None));
        losses.accept(&BTreeSet::from([7]));
        assert!(losses.refuses(7, id(9)));
        losses.votes(7, id(5));
        assert_eq!(
            [None, id(4), id(5), id(6)].map(|last| losses.refuses(7, last)),
            [true, true, false, false]
        );
        assert!(!losses.is_open(7) && !losses.may_stand(7));
    }
}
