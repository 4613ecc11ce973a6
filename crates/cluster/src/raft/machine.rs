//! A replica's state machine as openraft wants it. What blocks is done on threads that may, one call after the
//! other. While the replica serves, its commands hear of each entry between its batch and its answer.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::type_config::alias::{EntryOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{EntryPayload, OptionalSend};
use tokio::sync::Notify;

use crate::blocking::blocking;
use crate::ids::EntryId;
use crate::raft::beside::{SplitHost, make_beside};
use crate::raft::body::{self, Body};
use crate::raft::commands::Commands;
use crate::raft::full_device::{failed, when_there_is_room};
use crate::raft::types::{Groups, from_log_id, to_log_id};
use crate::raftlog::ReplicaLog;
use crate::replica_store::{
    ApplyOutcome, Change, Machine, MachineError, MachineOptions, Membership, Position, Staged,
};

/// After so many bytes of entries the thread is left to other tasks for a turn: about a millisecond.
const TURN_BYTES: usize = 1 << 20;
/// An entry counts as so many bytes more than it has.
const TURN_ENTRY: usize = 4096;

/// A snapshot: what is in tables, here, or what was staged from another node.
#[derive(Debug, Clone)]
pub enum SnapshotData {
    /// The tables of a replica of this process. Nothing is linked or copied until
    /// [`Machine::transfer`] is called.
    Tables(Machine),
    /// What came from another node. The snapshot's meta is that of its description.
    Staged(Staged),
}

/// Opens the state machine of the replica whose log this is, in a directory of its own.
///
/// # Errors
/// Those of [`Machine::open`], and the log's.
pub async fn open_machine(
    dir: PathBuf,
    log: ReplicaLog,
    options: MachineOptions,
) -> Result<Machine, MachineError> {
    let opened = blocking(move || Machine::open(dir, log, options)).await?;
    opened.settle().await
}

impl RaftStateMachine<Groups> for Machine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogIdOf<Groups>>, StoredMembershipOf<Groups>), io::Error> {
        let Some(position) = self.position() else {
            return Ok((None, StoredMembershipOf::<Groups>::default()));
        };
        let meta = meta(&position)?;
        Ok((meta.last_log_id, meta.last_membership))
    }

    async fn apply<S>(&mut self, entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Groups>, io::Error>> + Unpin + OptionalSend,
    {
        apply_all((self, None), entries, |_, _, _| Ok(()), || false).await
    }

    /// Not forced, it costs nothing, and there is one as soon as anything is in tables.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        let builder = SnapshotBuilder {
            machine: self.clone(),
            flush: force,
        };
        (force || self.snapshot().is_some()).then_some(builder)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder {
            machine: self.clone(),
            flush: true,
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Groups>,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        install(self, meta, snapshot, || false).await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Groups, SnapshotData>>, io::Error> {
        let position = self.snapshot();
        position
            .map(|position| of_tables(self, Some(&position)))
            .transpose()
    }
}

/// Builds a snapshot of what is in tables.
#[derive(Debug)]
pub struct SnapshotBuilder {
    machine: Machine,
    /// Whether everything that is applied must be in it.
    flush: bool,
}

impl RaftSnapshotBuilder<Groups> for SnapshotBuilder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<Groups, SnapshotData>, io::Error> {
        if self.flush {
            let machine = self.machine.clone();
            blocking(move || machine.flush()).await.map_err(failed)?;
        }
        of_tables(&self.machine, self.machine.snapshot().as_ref())
    }
}

/// Puts a snapshot in the place of what is there. Where the device of the tables is full, that is tried
/// again and again as long as `waits` says so: a replica that failed for it would be opened no more in
/// the end.
pub(super) async fn install(
    machine: &Machine,
    meta: &SnapshotMetaOf<Groups>,
    snapshot: SnapshotData,
    waits: impl Fn() -> bool + Send + 'static,
) -> Result<(), io::Error> {
    let (machine, meta) = (machine.clone(), meta.clone());
    let adopted = blocking(move || {
        let staged = match snapshot {
            SnapshotData::Staged(staged) => staged,
            SnapshotData::Tables(other) => machine
                .fetch(&other.transfer().map_err(failed)?)
                .map_err(failed)?,
        };
        let position = &staged.description().position;
        if self::meta(position)? != meta {
            let text = format!("expected a snapshot of {meta}, found one of {position}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        when_there_is_room(&position.applied, &waits, || machine.adopt(&staged))
    })
    .await?;
    let machine = adopted.settle().await.map_err(failed)?;
    blocking(move || machine.tidy()).await.map_err(failed)
}

/// Applies entries: on this thread, unless something would be waited for. `applied` gets each before
/// its outcome is sent. Where the device of the tables is full, an entry is applied again and again as
/// long as `waits` says so: it is in the log, and a replica that failed for it would meet the same when
/// it is opened again.
pub(super) async fn apply_all<S, A, W>(
    (machine, splits): (&Machine, Option<&dyn SplitHost>),
    mut entries: S,
    applied: A,
    waits: W,
) -> Result<(), io::Error>
where
    S: Stream<Item = Result<EntryResponder<Groups>, io::Error>> + Unpin + OptionalSend,
    A: Fn(EntryId, &Body, ApplyOutcome) -> io::Result<()>,
    W: Fn() -> bool + Clone + Send + 'static,
{
    let mut bytes = 0;
    while let Some(next) = entries.next().await {
        let (entry, responder) = next?;
        bytes += TURN_ENTRY + size(&entry);
        if let (EntryPayload::Normal(effects), Some(host)) = (&entry.payload, splits)
            && body::is_split(&effects.bytes)
        {
            let entry = (from_log_id(&entry.log_id), &*effects.bytes);
            make_beside(machine, host, entry, waits.clone()).await?;
        }
        let done = with_change(&entry, |id, change| machine.try_apply(id, change).map_err(failed))?;
        let (entry, outcome) = match done {
            Some(outcome) => (entry, outcome),
            None => {
                let (machine, waits) = (machine.clone(), waits.clone());
                let apply = move || {
                    let done = with_change(&entry, |id, change| apply(&machine, id, change, &waits))?;
                    Ok::<_, io::Error>((entry, done))
                };
                blocking(apply).await?
            }
        };
        applied(from_log_id(&entry.log_id), &entry.payload, outcome)?;
        if let Some(responder) = responder {
            responder.send(outcome);
        }
        if bytes >= TURN_BYTES {
            bytes = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// About what an entry has to be copied.
fn size(entry: &EntryOf<Groups>) -> usize {
    match &entry.payload {
        EntryPayload::Normal(effects) => effects.bytes.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    }
}

/// Calls `apply` with what an entry changes.
fn with_change<T>(
    entry: &EntryOf<Groups>,
    apply: impl FnOnce(EntryId, Change<'_>) -> io::Result<T>,
) -> io::Result<T> {
    let members;
    let change = match &entry.payload {
        EntryPayload::Blank => Change::Blank,
        EntryPayload::Normal(effects) => Change::Effects(&effects.bytes),
        EntryPayload::Membership(_) => {
            members = body::encode(&entry.payload)?;
            Change::Members(&members)
        }
    };
    apply(from_log_id(&entry.log_id), change)
}

/// Applies an entry, and blocks.
fn apply(
    machine: &Machine,
    id: EntryId,
    change: Change<'_>,
    waits: &impl Fn() -> bool,
) -> io::Result<ApplyOutcome> {
    when_there_is_room(&id, waits, || machine.apply(id, change))
}

fn of_tables(machine: &Machine, position: Option<&Position>) -> io::Result<SnapshotOf<Groups, SnapshotData>> {
    Ok(Snapshot {
        // Of nothing where nothing was applied; its transfer is refused.
        meta: position.map(meta).transpose()?.unwrap_or_default(),
        snapshot: SnapshotData::Tables(machine.clone()),
    })
}

pub(super) fn meta(position: &Position) -> io::Result<SnapshotMetaOf<Groups>> {
    let membership = position.membership.as_ref().map(stored).transpose()?;
    Ok(SnapshotMeta {
        last_log_id: Some(to_log_id(position.applied)),
        last_membership: membership.unwrap_or_default(),
    })
}

fn stored(membership: &Membership) -> io::Result<StoredMembershipOf<Groups>> {
    match body::decode(membership.id, &membership.members)? {
        EntryPayload::Membership(members) => Ok(StoredMembershipOf::<Groups>::new(
            Some(to_log_id(membership.id)),
            members,
        )),
        other => {
            let text = format!("{}: expected members, found {other}", membership.id);
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
    }
}

pub(super) type Raft = openraft::Raft<Groups, Served>;

/// A [`Machine`], and the commands that learn what it applies.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) machine: Machine,
    pub(super) commands: Arc<Commands>,
    pub(super) splits: Arc<dyn SplitHost>,
    /// Woken when a split was applied.
    pub(super) is_split: Arc<Notify>,
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
        let Self {
            machine,
            commands,
            splits,
            is_split,
        } = self.clone();
        let waits = Arc::clone(&self.commands);
        let of = machine.clone();
        let applied = move |id, body: &Body, outcome| {
            commands.has_applied();
            match body {
                EntryPayload::Blank => commands.began(id, of.recorded().as_deref()),
                EntryPayload::Normal(effects) => {
                    if body::is_split(&effects.bytes) {
                        is_split.notify_one();
                    }
                    commands.applied(id, &effects.bytes, outcome)
                }
                EntryPayload::Membership(_) => Ok(()),
            }
        };
        let waits = move || waits.apply_has_no_room();
        apply_all((&machine, Some(&*splits)), entries, applied, waits).await
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
        // What came may have rows that a split has left.
        self.is_split.notify_one();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Groups, SnapshotData>>, io::Error> {
        self.machine.get_current_snapshot().await
    }
}
