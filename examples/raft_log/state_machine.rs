//! A state machine in memory, for openraft's tests: the list of all commands.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{Stream, TryStreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{EntryPayload, OptionalSend, StoredMembership};

use crate::storage::Types;

type Commands = Vec<String>;

#[derive(Debug, Default)]
struct Applied {
    commands: Commands,
    last: Option<LogIdOf<Types>>,
    membership: StoredMembershipOf<Types>,
    snapshot: Option<SnapshotOf<Types, Commands>>,
}

/// Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateMachine(Arc<Mutex<Applied>>);

impl StateMachine {
    fn applied(&self) -> MutexGuard<'_, Applied> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = Commands;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>)> {
        let applied = self.applied();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut applied = self.applied();
            let id = entry.log_id();
            applied.last = Some(id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(command) => applied.commands.push(command),
                EntryPayload::Membership(membership) => {
                    applied.membership = StoredMembership::new(Some(id), membership);
                }
            }
            if let Some(responder) = responder {
                responder.send(format!("{} commands", applied.commands.len()));
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<Types>, commands: Commands) -> io::Result<()> {
        let snapshot = Snapshot {
            meta: meta.clone(),
            snapshot: commands.clone(),
        };
        *self.applied() = Applied {
            commands,
            last: meta.last_log_id,
            membership: meta.last_membership.clone(),
            snapshot: Some(snapshot),
        };
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, Commands>>> {
        Ok(self.applied().snapshot.clone())
    }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    type SnapshotData = Commands;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, Commands>> {
        let mut applied = self.applied();
        let snapshot = Snapshot {
            meta: SnapshotMeta {
                last_log_id: applied.last,
                last_membership: applied.membership.clone(),
            },
            snapshot: applied.commands.clone(),
        };
        applied.snapshot = Some(snapshot.clone());
        Ok(snapshot)
    }
}
