//! The tasks of a replica that runs: proposing, confirming reads, appending what a leader sends, and purging the
//! log.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal};
use openraft::impls::ProgressResponder;
use openraft::raft::{AppendEntriesResponse, ClientWriteResult};
use openraft::{LogIdOptionExt, RaftMetrics, ReadPolicy};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::blocking::blocking;
use crate::ids::ReplicaId;
use crate::proposals::{Outcome, Ticket};
use crate::raft::batching::Batches;
use crate::raft::body::removes_only;
use crate::raft::commands::{Commands, Reader, Waiter};
use crate::raft::followers::{Anew, Followers};
use crate::raft::leases::Promises;
use crate::raft::links::ReplicaLinks;
use crate::raft::machine::Raft;
use crate::raft::messages::{from_appended, to_append};
use crate::raft::parking::Parking;
use crate::raft::ticks::{Heard, wake};
use crate::raft::types::{Groups, from_leader, to_leader};
use crate::raftlog::{Purpose, ReplicaLog, Reserved, StoreError};
use crate::replica_store::{ApplyOutcome, Machine, MachineError, SLOTS};
use crate::transport::Reply;
use crate::transport::wire::{Append, LogEntry, NodeId, Refusal, Request, Response, Room};

/// Appends of a leader that raft has at one time.
const PIPELINE: usize = 16;
/// An entry goes to raft when raft has answered for the one before it, and after this time in any case:
/// far replicas answer late, and raft may never answer for an entry of a term that is over.
const NEXT_ENTRY: Duration = Duration::from_millis(20);

/// Hands entries to raft in the order of their submission, each under the leader that computed it,
/// until `stop`; and says what became of each, however long that takes. What is submitted while raft
/// has an entry goes into the next one together, as far as `log` takes it. What that has no room for is
/// refused.
pub(super) async fn propose(
    raft: Raft,
    commands: Arc<Commands>,
    log: ReplicaLog,
    parking: Arc<Parking>,
    mut stop: watch::Receiver<bool>,
) {
    let mut batches = Batches::new(Arc::clone(&commands), log.largest_entry());
    let mut under_way = FuturesUnordered::new();
    // The entry that the next one waits for, and until when.
    let mut before = None;
    let mut patience = pin!(sleep(NEXT_ENTRY));
    let mut numbers = 0_u64..;
    let became = |outcome: Outcome, waiters: Vec<(Ticket, Waiter)>| {
        for (ticket, waiter) in waiters {
            commands.outcome(ticket, outcome, waiter);
        }
    };
    while !*stop.borrow() {
        while before.is_none()
            && let Some(batch) = batches.next()
        {
            // The rest of a large command, for example.
            if commands.leading.is_lost(&batch.header.ticket.run) {
                became(Outcome::Refused, batch.waiters);
                continue;
            }
            let room = tokio::select! {
                biased;
                room = log.reserve_prepared(batch.without_room as u64, || Purpose::Write) => room.ok(),
                _ = stop.changed() => None,
            };
            let Some(room) = room else {
                became(Outcome::Refused, batch.waiters);
                match *stop.borrow() {
                    true => break,
                    false => continue,
                }
            };
            wake(&raft, &parking).await;
            let number = numbers.next();
            let leader = to_leader(batch.header.ticket.run.leader);
            let (responder, answer) = ProgressResponder::complete_only();
            let (entry, waiters) = batch.into_entry(room);
            let request = raft.write(entry).with_leader(leader);
            match request.responder(responder).await {
                Ok(()) => {
                    before = number;
                    patience.as_mut().reset(Instant::now() + NEXT_ENTRY);
                    under_way.push(async move {
                        let outcome = answer.await.map_or(Outcome::Dropped, outcome);
                        (number, outcome, waiters)
                    });
                }
                Err(_) => became(Outcome::Fatal, waiters),
            }
        }
        tokio::select! {
            biased;
            Some((number, outcome, waiters)) = under_way.next() => {
                became(outcome, waiters);
                before = before.filter(|_| before != number);
            }
            () = &mut patience, if before.is_some() => before = None,
            () = commands.submitted.notified(), if before.is_none() => {}
            _ = stop.changed() => {}
        }
    }
    // No more are submitted; these never reach raft.
    while let Some(batch) = batches.next() {
        became(Outcome::Refused, batch.waiters);
    }
    while let Some((_, outcome, waiters)) = under_way.next().await {
        became(outcome, waiters);
    }
}

/// What raft says of a proposal. Only what it says before it appends anything is a refusal.
fn outcome(answer: ClientWriteResult<Groups>) -> Outcome {
    match answer {
        Ok(written) => match written.data {
            ApplyOutcome::Taken => Outcome::Taken,
            ApplyOutcome::Skipped => Outcome::Skipped,
        },
        Err(ClientWriteError::ForwardToLeader(_)) => Outcome::Refused,
        Err(_) => Outcome::Discarded,
    }
}

/// Confirms who leads: one confirmation at a time, for all that wait when it begins. A read that
/// comes later waits for the next, as this one may be of a moment before it.
pub(super) async fn confirm_reads(
    raft: Raft,
    parking: Arc<Parking>,
    mut readers: mpsc::UnboundedReceiver<Reader>,
) {
    while let Some(first) = readers.recv().await {
        let mut waiting = vec![first];
        while let Ok(next) = readers.try_recv() {
            waiting.push(next);
        }
        parking.need();
        // What is committed by then is applied here when this returns. All members hear of it.
        let unheard = parking.unheard();
        let confirmed = raft.ensure_linearizable(ReadPolicy::ReadIndex).await;
        if let (Ok(_), Some(unheard)) = (&confirmed, unheard) {
            parking.heard(unheard);
        }
        let leader = confirmed.ok().map(|read| from_leader(read.committed_leader_id()));
        for reader in waiting {
            // It may wait no longer.
            let _gone = reader.send(leader);
        }
    }
}

/// Hands a leader's appends to raft, in their order, and answers each when it is durable. Those that the log
/// has no room for are refused, and raft goes on meanwhile: it hears its leader, and answers others.
pub(super) async fn append(
    raft: Raft,
    log: ReplicaLog,
    (heard, parking, promises): (Arc<Heard>, Arc<Parking>, Arc<Promises>),
    mut appends: mpsc::UnboundedReceiver<(Append, Reply)>,
) {
    let appends = stream::poll_fn(move |context| appends.poll_recv(context));
    let turns = Arc::clone(&promises);
    let admitted = appends.then(move |(append, reply)| {
        let (log, turns) = (log.clone(), Arc::clone(&turns));
        async move {
            let mut room = reserve(&log, append.entries.iter()).await;
            if !matches!(room, Ok(RoomForEntries::Reserved(_)) | Err(_)) {
                // What was here already needs none: a leader that does not know what this replica has may
                // send it again, before what is new.
                let is_new = |entry: &&LogEntry| !log.had(entry.id);
                room = reserve(&log, append.entries.iter().filter(is_new)).await;
            }
            // Here, where one comes after the other, they keep their order.
            (append, reply, room, turns.append().await)
        }
    });
    let answered = admitted.map(|(append, reply, room, turn)| {
        let (raft, heard) = (raft.clone(), Arc::clone(&heard));
        let (parking, promises) = (Arc::clone(&parking), Arc::clone(&promises));
        async move {
            let room = match room {
                Ok(RoomForEntries::Reserved(room)) => room,
                Ok(RoomForEntries::NotOnDisk) => return reply.send(Response::Refusal(Refusal::NoRoom)),
                Ok(RoomForEntries::NotInLog) => return reply.send(Response::Refusal(Refusal::Busy)),
                Err(error) => return reply.send(Response::Refusal(Refusal::failed(error.to_string()))),
            };
            let (leader, began) = (append.vote.leader, Instant::now());
            let answer = match to_append(append) {
                Ok(rpc) => raft.append_entries(rpc).await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if !matches!(answer, Err(_) | Ok(AppendEntriesResponse::HigherVote(_))) {
                heard.followed(leader, began);
                promises.followed(leader);
                parking.need();
            }
            drop(turn);
            // It is taken.
            drop(room);
            reply.send(match answer {
                Ok(answer) => Response::Appended(from_appended(&answer)),
                Err(error) => Response::Refusal(Refusal::failed(error)),
            });
        }
    });
    pin!(answered.buffered(PIPELINE)).for_each(ready).await;
}

/// Whether the log takes entries of a leader.
enum RoomForEntries {
    Reserved(Reserved),
    /// The disk is full.
    NotOnDisk,
    /// The log is far beyond its limit, and is being made shorter.
    NotInLog,
}

/// Reserves room for entries of a leader. Those that begin a term or change members count as removals. The log
/// always takes those of group 0: nodes go by its map.
async fn reserve(
    log: &ReplicaLog,
    entries: impl Iterator<Item = &LogEntry> + Clone,
) -> Result<RoomForEntries, StoreError> {
    let bytes = entries.clone().map(LogEntry::bytes).sum();
    let purpose = || match entries.clone().all(|entry| removes_only(&entry.payload.0)) {
        true => Purpose::Remove,
        false => Purpose::Write,
    };
    let reserved = match log.reserve_prepared(bytes, purpose).await {
        Err(full) if full.is_no_room() => return Ok(RoomForEntries::NotOnDisk),
        reserved => reserved?,
    };
    let is_any = bytes == 0 || log.group() == 0;
    Ok(
        match is_any || log.takes_of_leader(&reserved) || purpose() == Purpose::Remove {
            true => RoomForEntries::Reserved(reserved),
            false => RoomForEntries::NotInLog,
        },
    )
}

/// From one attempt to remove what a split has left to the next.
const DROP_AGAIN: Duration = Duration::from_secs(60);

/// Removes what splits leave in the tables, one merge of them at a time.
pub(super) async fn drop_hidden(machine: Machine, is_split: Arc<Notify>, one: Arc<Semaphore>) {
    // Without splits there is nothing to look for.
    let mut is_whole = machine.slots() == (0..=SLOTS - 1);
    loop {
        if is_whole {
            is_split.notified().await;
        }
        // An error: it is never closed.
        let turn = one.acquire().await;
        let merged = {
            let machine = machine.clone();
            // Nothing is freed before the merge ends, and before the other replica's has.
            let look = move || match machine.has_room_for(2 * machine.bytes()) {
                true => machine.drop_hidden().map(Some),
                false => Ok(None),
            };
            blocking(look).await
        };
        is_whole = matches!(merged, Ok(Some(false)));
        match merged.map(|merged| merged.unwrap_or(false)) {
            Ok(true) => {
                let replica = machine.log().replica();
                tracing::info!(
                    replica,
                    "rows that went to another group with a split are removed"
                );
                drop(turn);
                // It is looked again whether all are; without a pause, what cannot be removed would be merged for ever.
                _ = timeout(DROP_AGAIN, is_split.notified()).await;
            }
            Ok(false) if is_whole => {}
            Ok(false) => {
                drop(turn);
                sleep(DROP_AGAIN).await;
            }
            Err(MachineError::Db(collie_db::Error::Closed)) => return,
            Err(error) => {
                tracing::warn!(%error, "rows that a split has left are not removed yet");
                drop(turn);
                sleep(DROP_AGAIN).await;
            }
        }
    }
}

/// Has raft send everything anew to followers whose logs went back.
pub(super) async fn send_anew(raft: Raft, mut asked: mpsc::UnboundedReceiver<Anew>) {
    while let Some((follower, done)) = asked.recv().await {
        // Errors: raft has ended, or does not lead.
        drop(raft.trigger().allow_next_revert(&follower, true).await);
        // It waits no longer.
        let _gone = done.send(());
    }
}

/// Raft has a snapshot of what was flushed within this time, or is asked again: while it builds one, it
/// ignores requests for the next.
const SNAPSHOT_WITHIN: Duration = Duration::from_millis(100);

/// A follower that has refused entries for so many times the longest time for an election, for want of room,
/// is asked whether it takes tables.
const TABLES_AFTER: u32 = 4;

/// After each flush, and whenever the log wants room: gives raft its new snapshot, and purges the entries
/// that the log does not keep. Followers that lack some of them get tables.
///
/// openraft 0.10.0-alpha.37 panics where a purge overtakes an apply that is queued (issue 2116 there).
/// None of these can: what is flushed was applied before.
pub(super) async fn purge(
    raft: Raft,
    machine: Machine,
    flushed: Arc<Notify>,
    followers: Arc<Followers>,
    links: ReplicaLinks,
) {
    loop {
        let mut want_tables = Vec::new();
        tokio::select! {
            () = flushed.notified() => {}
            () = machine.log().purge_wanted() => {}
            () = followers.refused() => {
                want_tables = followers.without_room_for(links.times.election_max * TABLES_AFTER);
                if want_tables.is_empty() {
                    continue;
                }
            }
        }
        let in_tables = machine.snapshot().map(|position| position.applied.index);
        if has_snapshot(&raft, in_tables).await.is_err() {
            return;
        }
        let lag = lag(&raft);
        let unsent = unsent(&machine).await;
        machine.log().note_holding(machine.holding(&lag, &unsent));
        let limit = match take_tables(&want_tables, &machine, &lag, &links).await {
            takers if takers.is_empty() => {
                let needed = lag.iter().map(|(_, _, last)| *last);
                machine.purge_limit(needed.chain(unsent.iter().copied()))
            }
            takers => {
                let others = lag.iter().filter(|(id, ..)| !takers.contains(id));
                let others = others.map(|(_, _, last)| *last);
                machine.purge_limit_for_tables(others.chain(unsent.iter().copied()))
            }
        };
        let Some(limit) = limit else {
            continue;
        };
        // Raft purges nothing that its snapshot lacks, and more was flushed meanwhile.
        if has_snapshot(&raft, Some(limit)).await.is_err() {
            return;
        }
        if raft.trigger().purge_log(limit).await.is_err() {
            return;
        }
        followers.give_up_below(limit);
        machine.log().note_holding(machine.holding(&lag, &unsent));
    }
}

/// The entries that each target of duplication has: those behind are still to be sent.
async fn unsent(machine: &Machine) -> Vec<u64> {
    if machine.stamps().is_none() {
        return Vec::new();
    }
    let reading = machine.clone();
    match blocking(move || reading.sent_to()).await {
        Ok(sent) => sent.into_iter().map(|(_, sent)| sent.needed()).collect(),
        // It is a problem of duplication, which reports it, and begins anew.
        Err(_) => Vec::new(),
    }
}

/// Those of the followers that have room for tables, and none for entries. What was removed since may have
/// made the tables small, and a full disk is relieved when they take the place of its own.
async fn take_tables(
    want: &[ReplicaId],
    machine: &Machine,
    lag: &[(ReplicaId, NodeId, u64)],
    links: &ReplicaLinks,
) -> Vec<ReplicaId> {
    let mut takers = Vec::new();
    for (id, node, _) in lag.iter().filter(|(id, ..)| want.contains(id)) {
        let bytes = machine.bytes();
        let asked = links.ask((*node, *id), Request::Room(Room { bytes }));
        if matches!(asked.await, Ok(Response::HasRoom)) {
            tracing::info!(
                follower = id,
                node,
                bytes,
                "a follower without room for entries gets tables"
            );
            takers.push(*id);
        }
    }
    takers
}

/// Returns when raft's snapshot has everything up to this index, which is in tables.
///
/// # Errors
/// Raft has ended.
async fn has_snapshot(raft: &Raft, index: Option<u64>) -> Result<(), Fatal<Groups>> {
    let has = |now: &RaftMetrics<Groups>| now.snapshot.index() >= index;
    while !has(&raft.metrics().borrow_watched()) {
        raft.trigger().snapshot().await?;
        // An error: it is asked again, or has ended, which that request returns.
        drop(
            raft.wait(Some(SNAPSHOT_WITHIN))
                .metrics(has, "a snapshot of what is flushed")
                .await,
        );
    }
    Ok(())
}

/// The members as their leader knows them: the last entry that each of the others has. None on a follower.
fn lag(raft: &Raft) -> Vec<(ReplicaId, NodeId, u64)> {
    let metrics = raft.metrics();
    let now = metrics.borrow_watched();
    let nodes = now.membership_config.membership();
    let matched = now.replication.iter().flatten();
    matched
        .filter(|(id, _)| **id != now.id)
        .map(|(id, last)| {
            let node = nodes.get_node(id).map_or(0, |member| member.node);
            (*id, node, last.index().unwrap_or(0))
        })
        .collect()
}
