//! The state machine of a replica that serves: its commands hear of each entry between its batch and
//! its answer.

use std::io;
use std::sync::Arc;

use futures_util::Stream;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{EntryPayload, OptionalSend};

use crate::raft::body::Body;
use crate::raft::commands::Commands;
use crate::raft::machine::{SnapshotBuilder, SnapshotData, apply_all, install};
use crate::raft::types::Groups;
use crate::replica_store::Machine;

/// A [`Machine`], and the commands that learn what it applies.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) machine: Machine,
    pub(super) commands: Arc<Commands>,
}

impl RaftStateMachine<Groups> for Served {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogIdOf<Groups>>, StoredMembershipOf<Groups>), io::Error> {
        self.machine.applied_state().await
    }

    async fn apply<S>(&mut self, entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Groups>, io::Error>> + Unpin + OptionalSend,
    {
        let Self { machine, commands } = self.clone();
        let waits = Arc::clone(&self.commands);
        let applied = move |id, body: &Body, outcome| {
            commands.has_applied();
            match body {
                EntryPayload::Blank => commands.began(id, machine.recorded().as_deref()),
                EntryPayload::Normal(effects) => commands.applied(id, &effects.bytes, outcome),
                EntryPayload::Membership(_) => Ok(()),
            }
        };
        apply_all(&self.machine, entries, applied, move || waits.apply_has_no_room()).await
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        self.machine.try_create_snapshot_builder(force).await
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        self.machine.get_snapshot_builder().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Groups>,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        // Whatever this replica submitted is behind what it learns.
        self.commands.follow();
        let waits = Arc::clone(&self.commands);
        install(&self.machine, meta, snapshot, move || waits.no_room_for_tables()).await?;
        self.commands.has_applied();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Groups, SnapshotData>>, io::Error> {
        self.machine.get_current_snapshot().await
    }
}
