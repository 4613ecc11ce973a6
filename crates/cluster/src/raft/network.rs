//! How a replica speaks to the others of its group: openraft's network, on the node's connections.
//!
//! Appends that say what is committed, and nothing else, wait for the next entries, which say it too. openraft
//! sends such an append after each commit, if no entries are there to carry it: with many groups and few entries
//! in each that is every other message. A follower needs it to apply what it has, and no client waits for that.
//! Where entries are few and far between it does not wait: the next ones may not come for long.

use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use collie_io::Nanos;
use futures_util::{Stream, StreamExt};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{LogIdOf, SnapshotOf, VoteOf};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use tokio::time::{Instant, Sleep, sleep};

use crate::ids::{LeaderId, ReplicaId};
use crate::raft::body::removes_only;
use crate::raft::links::{Failed, ReplicaLink, ReplicaLinks, failed};
use crate::raft::machine::SnapshotData;
use crate::raft::messages::{from_append, from_transfer, from_vote_request, to_vote_response};
use crate::raft::snapshots::send;
use crate::raft::types::{Groups, Member, from_vote, to_log_id, to_vote};
use crate::transport::PendingResponse;
use crate::transport::wire::{Appended, Refusal, Request, Response};

/// Appends to one follower that have no answer yet.
const PIPELINE: usize = 16;

/// An append that was sent.
struct Sent {
    answer: PendingResponse,
    /// As whose leadership.
    leader: LeaderId,
    /// A moment before that: a lease counts from then.
    at: Nanos,
    /// Whether it has entries.
    has_entries: bool,
    /// Whether its entries only remove; not looked at while no disk is known to be full.
    removes: bool,
    previous: Option<LogIdOf<Groups>>,
    /// The last entry that was sent.
    last: Option<LogIdOf<Groups>>,
    /// Whether it was sent as a whole.
    whole: bool,
}

impl RaftNetworkFactory<Groups> for ReplicaLinks {
    type Network = ReplicaLink;

    async fn new_client(&mut self, target: ReplicaId, member: &Member) -> ReplicaLink {
        ReplicaLink {
            links: self.clone(),
            node: member.node,
            disk: member.disk,
            target,
        }
    }
}

impl ReplicaLink {
    async fn send_append(&self, rpc: AppendEntriesRequest<Groups>) -> Result<Sent, Failed> {
        let next = rpc.prev_log_id.as_ref().map_or(0, |prev| prev.index + 1);
        if rpc.entries.is_empty() && (self.links.purged)().is_some_and(|purged| next <= purged) {
            // Raft then looks anew, and sends tables.
            return Err(NetworkError::from_string("the entries that it lacks are purged").into());
        }
        let at = self.links.leases.now();
        let entries = rpc
            .entries
            .iter()
            .map(|entry| (entry.log_id.index, &entry.payload));
        self.links.leases.sends(from_vote(&rpc.vote).leader, entries);
        let append = from_append(&rpc).map_err(|error| NetworkError::new(&error))?;
        let whole = append.entries.len() == rpc.entries.len();
        let last = append.entries.last().map(|entry| to_log_id(entry.id));
        let (leader, has_entries) = (append.vote.leader, !append.entries.is_empty());
        let mut entries = append.entries.iter();
        let removes =
            self.links.followers.know_full_disks() && entries.all(|entry| removes_only(&entry.payload.0));
        let call = self.to_call(Request::Append(append), self.links.times.append);
        Ok(Sent {
            leader,
            at,
            has_entries,
            removes,
            answer: self
                .links
                .peers
                .send(call)
                .await
                .map_err(|error| failed(&error))?,
            previous: rpc.prev_log_id,
            last: last.or(rpc.prev_log_id),
            whole,
        })
    }

    /// The answer to an append, and whether those that were sent behind it are worth waiting for.
    async fn append_answer(&self, sent: Sent) -> Result<(StreamAppendResult<Groups>, bool), Failed> {
        let answered = sent.answer.wait().await;
        let (leader, followers) = (sent.leader, &self.links.followers);
        match answered {
            Ok(Response::Refusal(Refusal::NoRoom)) => {
                followers.entries(self.target, (self.node, self.disk), true);
            }
            Ok(Response::Refusal(Refusal::Busy)) => {
                followers.takes_entries(self.target, false);
                let text = format!("replica {} takes no entries now", self.target);
                // It is asked again after a pause.
                return Err(Unreachable::from_string(text).into());
            }
            _ => {}
        }
        let answered = match self.answered(answered)? {
            Response::Appended(appended) => appended,
            other => return Err(self.unexpected(&other)),
        };
        if !matches!(answered, Appended::HigherVote(_)) {
            self.links.leases.followed(leader, self.target, sent.at);
        }
        let has = |last: Option<LogIdOf<Groups>>| {
            if let Some(last) = &last {
                followers.has(leader, self.target, last.index);
            }
            match (sent.has_entries, sent.removes) {
                (false, _) => {}
                (true, true) => followers.took_removals(self.target),
                (true, false) => {
                    followers.entries(self.target, (self.node, self.disk), false);
                    followers.takes_entries(self.target, true);
                }
            }
            Ok(last)
        };
        if let (true, Appended::Success, Some(last)) = (sent.has_entries, &answered, &sent.last)
            && followers.is_given_up(last.index)
        {
            followers.entries(self.target, (self.node, self.disk), false);
            let text = format!(
                "replica {} has entry {}, and the log does not keep all those behind it: it gets tables",
                self.target, last.index
            );
            return Err(NetworkError::from_string(text).into());
        }
        Ok(match (answered, sent.previous) {
            (Appended::Success, _) => (has(sent.last), sent.whole),
            (Appended::Partial(upto), _) => (has(upto.map(to_log_id)), false),
            (Appended::Conflict, Some(previous)) => {
                followers.conflicts(leader, self.target, previous.index).await;
                (Err(StreamAppendError::Conflict(previous)), false)
            }
            (Appended::Conflict, None) => {
                let text = format!("replica {} has a conflict with what begins a log", self.target);
                return Err(NetworkError::from_string(text).into());
            }
            (Appended::HigherVote(vote), _) => (Err(StreamAppendError::HigherVote(to_vote(vote))), false),
        })
    }
}

impl RaftNetworkV2<Groups> for ReplicaLink {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Groups>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Groups>, Failed> {
        let sent = self.send_append(rpc).await?;
        let whole = sent.last;
        let (answer, _) = self.append_answer(sent).await?;
        Ok(match answer {
            Ok(last) if last == whole => AppendEntriesResponse::Success,
            Ok(last) => AppendEntriesResponse::PartialSuccess(last),
            Err(StreamAppendError::Conflict(_)) => AppendEntriesResponse::Conflict,
            Err(StreamAppendError::HigherVote(vote)) => AppendEntriesResponse::HigherVote(vote),
        })
    }

    /// Several appends are under way. They are sent one after the other, and the connection and the
    /// follower keep their order; where one fails, what was sent behind it is given up.
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<Groups>, Failed>>, Failed>>
    where
        S: Stream<Item = AppendEntriesRequest<Groups>> + OptionalSend + Unpin + 'static,
    {
        let (sender, receiver) = (self.clone(), self.clone());
        let sent = Coalescing::new(input).then(move |rpc| {
            let link = sender.clone();
            async move { link.send_append(rpc).await }
        });
        let answers = sent.map(move |sent| {
            let link = receiver.clone();
            async move { link.append_answer(sent?).await }
        });
        let until_failure = answers.buffered(PIPELINE).scan(true, |going, answer| {
            let next = going.then_some(answer);
            *going = matches!(next, Some(Ok((_, true))));
            ready(next.map(|answer| answer.map(|(answer, _)| answer)))
        });
        let answers: BoxStream<'s, _> = Box::pin(until_failure);
        Box::pin(ready(Ok(answers)))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Groups>,
        option: RPCOption,
    ) -> Result<VoteResponse<Groups>, Failed> {
        let request = Request::Vote(from_vote_request(&rpc));
        match self.call(request, option.soft_ttl()).await? {
            Response::Voted(answer) => Ok(to_vote_response(&answer)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// openraft's own grants everything: a replica that comes back from behind a cut would then
    /// depose a leader that serves.
    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Groups>,
        option: RPCOption,
    ) -> Result<VoteResponse<Groups>, Failed> {
        let request = Request::PreVote(from_vote_request(&rpc));
        match self.call(request, option.soft_ttl()).await? {
            Response::PreVoted(answer) => Ok(to_vote_response(&answer)),
            other => Err(self.unexpected(&other)),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Groups>,
        snapshot: SnapshotOf<Groups, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Groups>, StreamingError<Groups>> {
        let last = snapshot.meta.last_log_id.map(|last| last.index);
        let SnapshotData::Tables(machine) = snapshot.snapshot else {
            let text = "what came from another node is not sent on before it is installed";
            return Err(NetworkError::from_string(text).into());
        };
        tokio::select! {
            biased;
            closed = cancel => Err(closed.into()),
            sent = send(self, from_vote(&vote), machine) => {
                let answered = sent?;
                if let Some(last) = last.filter(|_| answered == from_vote(&vote)) {
                    self.links.followers.has(answered.leader, self.target, last);
                }
                Ok(SnapshotResponse::new(to_vote(answered)))
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<Groups>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Groups>, Failed> {
        let transfer = from_transfer(&rpc);
        self.links.leases.end(transfer.vote.leader);
        match self.call(Request::Transfer(transfer), option.soft_ttl()).await? {
            // Whether it becomes leader shows in an election.
            Response::Transferred => Ok(Ok(())),
            other => Err(self.unexpected(&other)),
        }
    }
}

/// So long a follower may learn later what is committed.
const DELAY: Duration = Duration::from_millis(20);

/// The appends of `input`, in their order, without those that the next one makes superfluous.
pub(super) struct Coalescing<S> {
    input: S,
    /// When the last entries came.
    entries_at: Option<Instant>,
    /// The ones before came within the delay: so may the next.
    is_busy: bool,
    /// The last append, which has no entries.
    held: Option<AppendEntriesRequest<Groups>>,
    /// When it is sent at the latest.
    timer: Pin<Box<Sleep>>,
    ended: bool,
}

impl<S> Coalescing<S> {
    pub(super) fn new(input: S) -> Self {
        Self {
            input,
            entries_at: None,
            is_busy: false,
            held: None,
            timer: Box::pin(sleep(DELAY)),
            ended: false,
        }
    }
}

impl<S: Stream<Item = AppendEntriesRequest<Groups>> + Unpin> Stream for Coalescing<S> {
    type Item = AppendEntriesRequest<Groups>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while !self.ended {
            match Pin::new(&mut self.input).poll_next(context) {
                Poll::Ready(Some(append)) if append.entries.is_empty() => {
                    if !self.is_busy {
                        return Poll::Ready(Some(append));
                    }
                    if self.held.replace(append).is_none() {
                        self.timer.as_mut().reset(Instant::now() + DELAY);
                    }
                }
                // It follows the same entry, and says as much or more to be committed.
                Poll::Ready(Some(append)) => {
                    let now = Instant::now();
                    let before = self.entries_at.replace(now);
                    self.is_busy = before.is_some_and(|before| now <= before + DELAY);
                    self.held = None;
                    return Poll::Ready(Some(append));
                }
                // A probe: nothing comes behind it until it is answered.
                Poll::Ready(None) => self.ended = true,
                Poll::Pending if self.held.is_none() => return Poll::Pending,
                Poll::Pending => {
                    return self.timer.as_mut().poll(context).map(|()| {
                        // The next entries did not come in time.
                        self.is_busy = false;
                        self.held.take()
                    });
                }
            }
        }
        Poll::Ready(self.held.take())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::StreamExt;
    use openraft::entry::RaftEntry;
    use openraft::{EntryPayload, Vote};
    use tokio::sync::mpsc;

    use super::*;
    use crate::ids::{EntryId, LeaderId};
    use crate::raft::types::to_log_id;

    fn id(index: u64) -> EntryId {
        let leader = LeaderId { term: 1, replica: 1 };
        EntryId { leader, index }
    }

    /// Of so many entries, which says that `committed` is.
    fn append(entries: u64, committed: u64) -> AppendEntriesRequest<Groups> {
        let entry = |index| RaftEntry::new(to_log_id(id(index)), EntryPayload::Blank);
        AppendEntriesRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: None,
            entries: (0..entries).map(entry).collect(),
            leader_commit: Some(to_log_id(id(committed))),
        }
    }

    fn said(append: Option<AppendEntriesRequest<Groups>>) -> Option<(usize, u64)> {
        append.map(|append| {
            (
                append.entries.len(),
                append.leader_commit.map_or(0, |id| id.index),
            )
        })
    }

    fn channel() -> (
        mpsc::UnboundedSender<AppendEntriesRequest<Groups>>,
        Coalescing<impl Stream<Item = AppendEntriesRequest<Groups>> + Unpin>,
    ) {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let input = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
        (sender, Coalescing::new(input))
    }

    #[tokio::test(start_paused = true)]
    async fn entries_say_what_waited_to_be_said() {
        let (sender, mut coalescing) = channel();
        for append in [
            append(1, 0),
            append(2, 1),
            append(0, 2),
            append(0, 3),
            append(1, 3),
        ] {
            sender.send(append).unwrap();
        }
        for expected in [(1, 0), (2, 1), (1, 3)] {
            assert_eq!(said(coalescing.next().await), Some(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_entries_the_newest_commit_is_said_after_the_delay() {
        let (sender, mut coalescing) = channel();
        for _ in 0..2 {
            sender.send(append(1, 0)).unwrap();
            assert_eq!(said(coalescing.next().await), Some((1, 0)));
        }
        let begun = Instant::now();
        sender.send(append(0, 1)).unwrap();
        let later = tokio::spawn(async move {
            sleep(DELAY / 2).await;
            sender.send(append(0, 2)).unwrap();
            // The stream does not end meanwhile.
            sleep(DELAY * 2).await;
        });
        assert_eq!(said(coalescing.next().await), Some((0, 2)));
        assert!(
            begun.elapsed() >= DELAY && begun.elapsed() < DELAY * 3 / 2,
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(said(coalescing.next().await), None);
        later.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn where_entries_are_rare_what_is_committed_is_said_at_once() {
        let (sender, mut coalescing) = channel();
        for committed in 0..3 {
            sender.send(append(1, committed)).unwrap();
            sender.send(append(0, committed + 1)).unwrap();
            let begun = Instant::now();
            assert_eq!(said(coalescing.next().await), Some((1, committed)));
            assert_eq!(said(coalescing.next().await), Some((0, committed + 1)));
            assert_eq!(begun.elapsed(), Duration::ZERO);
            sleep(DELAY * 2).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_is_sent_at_once() {
        let begun = Instant::now();
        let probe = VecDeque::from([append(0, 1)]);
        let mut coalescing = Coalescing::new(futures_util::stream::iter(probe));
        assert_eq!(said(coalescing.next().await), Some((0, 1)));
        assert_eq!(said(coalescing.next().await), None);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
