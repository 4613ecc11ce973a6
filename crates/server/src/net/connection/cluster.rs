//! What a connection waits for before a command runs, and, in a cluster, before replies are sent.

use std::time::Duration;

use collie_protocol::ReplyBuffer;
use tokio::time::Instant;

use super::{Connection, Mark, Next};
use crate::cluster::Settled;
use crate::exec::Later;
use crate::failure::text;

/// After what time a command that found no thread which may block is tried again.
const THREAD_RETRY: Duration = Duration::from_millis(10);

impl Connection {
    /// Notes what the next command waits for.
    pub(super) fn put_off(&mut self, later: Later) {
        if let Later::Change { limit, .. } = &later {
            let since = self.waiting.map_or_else(Instant::now, |(since, _)| since);
            self.waiting = Some((since, *limit));
        }
        self.later = Some(later);
    }

    /// Waits until the next command may be able to run; `false` when the connection is to close. What
    /// it waits for beside the cluster has happened when the replies before it were sent.
    pub(super) async fn wait_until_later(&mut self) -> bool {
        let (mut changes, since, limit) = match (self.later.take(), self.waiting) {
            (Some(Later::Change { changes, .. }), Some((since, limit))) => (changes, since, limit),
            (Some(Later::Thread), _) => {
                return tokio::select! {
                    biased;
                    () = self.session.client.closed() => false,
                    () = tokio::time::sleep(THREAD_RETRY) => true,
                };
            }
            _ => return true,
        };
        let changed = async {
            if changes.changed().await.is_err() {
                // The cluster has been closed: nothing changes any more.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = self.session.client.closed() => false,
            () = changed => true,
            () = tokio::time::sleep_until(since + limit) => true,
        }
    }

    /// Waits until it is known whether the replies hold. Those of commands that were not executed
    /// become errors. Behind a reply of which it is not known nothing is sent, and the connection is to
    /// close: later commands must not be answered as if that one had been.
    pub(super) async fn settle(&mut self) -> Next {
        self.worker.shared.counters.waits.add(1);
        let settled = self.session.unsettled.settle(self.marks.len()).await;
        if settled.iter().all(|settled| *settled == Settled::Holds) {
            return Next::Read;
        }
        let mut next = Next::Read;
        let mut kept = ReplyBuffer::new();
        let mut marks = Vec::with_capacity(self.marks.len());
        for (i, (mark, settled)) in self.marks.iter().zip(settled).enumerate() {
            let end = self.marks.get(i + 1).map_or(self.reply.len(), |next| next.start);
            let reply = self.reply.as_slice().get(mark.start..end).unwrap_or_default();
            marks.push(Mark {
                start: kept.len(),
                end: mark.end,
            });
            match settled {
                Settled::Holds => kept.raw(reply),
                // The client has turned off the reply to this command.
                Settled::TryAgain if reply.is_empty() => {}
                Settled::TryAgain => kept.error(text::TRY_AGAIN),
                Settled::Unknown => {
                    kept.error(text::UNKNOWN);
                    next = Next::Close;
                    break;
                }
            }
        }
        kept.set_version(self.reply.version());
        self.reply = kept;
        self.marks = marks;
        next
    }
}
