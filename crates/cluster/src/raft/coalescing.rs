//! Appends that say what is committed, and nothing else, wait for the next entries, which say it too.
//!
//! openraft sends such an append after each commit, if no entries are there to carry it: with many
//! groups and few entries in each that is every other message. A follower needs it to apply what it
//! has, and no client waits for that. Where entries are few and far between it does not wait: the
//! next ones may not come for long.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use openraft::raft::AppendEntriesRequest;
use tokio::time::{Instant, Sleep, sleep};

use crate::raft::types::Groups;

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
    use crate::raft::ids::to_log_id;

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
    async fn without_entries_the_newest_is_said_after_the_delay_of_the_first() {
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
