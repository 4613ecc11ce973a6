//! Splitting a group: the entry that does it, which its leader proposes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use openraft::{EntryPayload, Membership};
use tokio::time::Instant;

use crate::ids::{GroupId, ReplicaId};
use crate::proposals::Answer;
use crate::raft::batching::BESIDE_EFFECTS;
use crate::raft::body;
use crate::raft::commands::answer;
use crate::raft::error::CommandError;
use crate::raft::replica::Replica;
use crate::raft::running::Running;
use crate::raft::types::Member;
use crate::replica_store::effects::{Effect, EffectsBuf, Split};

/// The group that a split makes.
#[derive(Debug, Clone)]
pub struct NewGroup {
    /// Its id.
    pub group: GroupId,
    /// Its first slot.
    pub first: u16,
    /// Its members; each is beside a replica of the group that is split.
    pub members: BTreeMap<ReplicaId, Member>,
    /// A replica of the group that is split, and that of the new one beside it.
    pub pairs: Vec<(ReplicaId, ReplicaId)>,
}

impl NewGroup {
    fn encode(&self) -> Result<EffectsBuf, String> {
        let voters = vec![self.members.keys().copied().collect()];
        let membership = Membership::new(voters, self.members.clone()).map_err(|error| error.to_string())?;
        let members =
            body::encode(&EntryPayload::Membership(membership)).map_err(|error| error.to_string())?;
        let pairs = Split::pairs(self.pairs.iter().copied());
        let mut effects = EffectsBuf::default();
        let split = Split {
            first: self.first,
            group: self.group,
            replicas: &pairs,
            members: &members,
        };
        effects
            .push(Effect::Split(split))
            .map_err(|error| error.to_string())?;
        Ok(effects)
    }
}

impl Replica {
    /// The slots of the group, as of the last entry that was applied here.
    pub fn slots(&self) -> Option<RangeInclusive<u16>> {
        Some(self.running().ok()?.machine.slots())
    }

    /// Whether it has rows of a slot, as of the last entry that was applied: one that is just being made has none.
    #[must_use]
    pub fn has_slot(&self, slot: u16) -> bool {
        let Ok(running) = self.running() else { return false };
        running.machine.applied().is_some() && running.machine.slots().contains(&slot)
    }

    /// Splits the group, on the replica that leads: from the entry on, the new group has its slots. Answers when that
    /// is applied here. Commands wait from its submission on.
    ///
    /// # Errors
    /// [`CommandError`]: nothing was split.
    pub async fn split(&self, new: &NewGroup) -> Result<Answer<()>, CommandError> {
        let refused = |problem| CommandError::Split { problem };
        let running = self.running()?;
        // So that little is left to be flushed by who applies the entry: what was written during the first flush, at most.
        self.flush().await?;
        self.flush().await?;
        running.wake().await;
        self.propose_alone(&running, new.encode().map_err(refused)?).await
    }

    /// Submits an effect that is alone in its entry, with which the run ends. Answers when it is applied here.
    pub(super) async fn propose_alone(
        &self,
        running: &Running,
        effects: EffectsBuf,
    ) -> Result<Answer<()>, CommandError> {
        let log = running.machine.log();
        log.admit()?;
        log.check_size(effects.bytes().len() + BESIDE_EFFECTS)?;
        let evaluation = running.commands.leading.begin()?;
        let stamp_ms = evaluation.now_ms(self.options.clock.wall_ms());
        let submitted = running.commands.finish_run(&evaluation, effects, stamp_ms)?;
        let deadline = Instant::now() + self.options.times.command;
        Ok(answer(&running.commands, submitted, (), deadline).await)
    }
}
