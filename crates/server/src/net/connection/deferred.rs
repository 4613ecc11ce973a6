//! Deferred work: the connection's task runs it on threads that may block, or waits.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;

use super::{Connection, Next};
use crate::commands::{self, Search};
use crate::exec::{Deferred, Exec, Flow, Outcome};
use crate::failure::{Failure, not_durable};
use crate::net::worker::blocking;

/// How often a waiting connection checks whether its client has disconnected.
const GONE_CHECK: Duration = Duration::from_millis(100);
/// Steps that a search may still take after its connection was asked to close.
const LAST_STEPS: u32 = 100;

impl Connection {
    /// Does the work and encodes its reply.
    pub(super) async fn run_deferred(&mut self, deferred: Deferred, start: usize) -> Outcome {
        let shared = Arc::clone(&self.worker.shared);
        match deferred {
            Deferred::Select(index) => {
                let keyspace = blocking(move || shared.store.create(index)).await??;
                self.session.select(index, keyspace);
                self.reply.ok();
            }
            Deferred::Keys(pattern) => return self.search(pattern).await,
            Deferred::Size(keyspace) => {
                keyspace.counted().await?;
                let size = keyspace.size().0;
                let mut exec = Exec::new(&shared, &mut self.session, &mut self.reply, shared.now_ms());
                exec.note_count(&keyspace)?;
                exec.reply.integer(size);
            }
            Deferred::Info(sections) => {
                let text = blocking(move || commands::describe(&shared, &sections)).await?;
                self.reply.verbatim(*b"txt", text.as_bytes());
            }
            Deferred::Local {
                wanted,
                replicas,
                timeout_ms,
            } => {
                self.reply.truncate(start);
                if self.send_before_waiting().await? == Next::Close {
                    return Ok(Flow::Close);
                }
                return self.wait_local(wanted, replicas, timeout_ms).await;
            }
            Deferred::Replicas { timeout_ms, held } => {
                self.reply.truncate(start);
                if self.send_before_waiting().await? == Next::Close {
                    return Ok(Flow::Close);
                }
                if self.sleep(timeout_ms).await == Next::Close {
                    return Ok(Flow::Close);
                }
                self.reply.integer(held);
            }
        }
        Ok(Flow::Next)
    }

    /// Executes `KEYS`: searches all keys in steps, each on a thread that may block, and lets other
    /// searches run between them.
    async fn search(&mut self, pattern: Vec<u8>) -> Outcome {
        let shared = Arc::clone(&self.worker.shared);
        let limit = shared.settings.reply_bytes_max();
        let mut search = Search::new(pattern, limit);
        let mut steps_left = LAST_STEPS;
        loop {
            // The semaphore is never closed.
            let _permit = shared.searches.acquire().await;
            self.session.refresh(&shared.store);
            let (keyspace, now_ms) = (Arc::clone(&self.session.keyspace), shared.now_ms());
            let (stepped, done) = blocking(move || {
                let done = search.step(&keyspace, now_ms);
                (search, done)
            })
            .await?;
            search = stepped;
            self.session.note_database(&shared.store)?;
            if done? {
                break;
            }
            // A search is still finished for a closing connection, unless that takes too long.
            if self.session.client.is_closing() {
                steps_left -= 1;
                if steps_left == 0 {
                    return Ok(Flow::Close);
                }
            }
        }
        self.session.note(search.seen());
        search.encode(&mut self.reply);
        Ok(Flow::Next)
    }

    /// Sends the replies of the commands before the one that waits; see [`Connection::deliver`].
    async fn send_before_waiting(&mut self) -> Result<Next, Failure> {
        self.deliver()
            .await
            .map_err(|error| format!("ERR writing failed: {error}").into())
    }

    /// `WAITAOF`: there are no replicas, so a client that waits for some waits until its timeout.
    async fn wait_local(&mut self, wanted: bool, replicas: i64, timeout_ms: u64) -> Outcome {
        let (end, worker) = (self.session.last, Rc::clone(&self.worker));
        let db = &worker.shared.store.db;
        if wanted && db.durable() < end {
            let reached = tokio::select! {
                reached = worker.disk.reach(end) => Some(reached),
                next = self.sleep(timeout_ms) => {
                    if next == Next::Close {
                        return Ok(Flow::Close);
                    }
                    None
                }
            };
            if let Some(Err(cause)) = reached {
                return Err(not_durable(&cause).into());
            }
        }
        if replicas > 0 && self.sleep(timeout_ms).await == Next::Close {
            return Ok(Flow::Close);
        }
        self.reply.array(2);
        self.reply.integer(i64::from(db.durable() >= end));
        self.reply.integer(commands::replicas_held(&worker.shared));
        Ok(Flow::Next)
    }

    /// Waits for a time, 0 meaning for ever; ends early if the client disconnects or the connection
    /// is to close.
    async fn sleep(&self, timeout_ms: u64) -> Next {
        let gone = async {
            while let Ok(ready) = self.stream.socket().ready(Interest::READABLE).await {
                if ready.is_read_closed() {
                    break;
                }
                tokio::time::sleep(GONE_CHECK).await;
            }
        };
        let time = async {
            match timeout_ms {
                0 => std::future::pending().await,
                ms => tokio::time::sleep(Duration::from_millis(ms)).await,
            }
        };
        tokio::select! {
            () = time => Next::Read,
            () = gone => Next::Close,
            () = self.session.client.closed() => Next::Close,
        }
    }
}
