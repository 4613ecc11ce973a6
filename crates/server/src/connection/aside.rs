//! What a connection has done on threads that may block, while its task waits.

use std::sync::Arc;

use collie_protocol::{Request, RequestParser};

use super::{Connection, signed};
use crate::commands::{self, Search};
use crate::cost::{Aside, HEAVY, LARGE};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;
use crate::session::Session;

/// Steps of a search after its client was asked to go.
const LAST_STEPS: u32 = 100;

/// Why a request is not even tried on a thread that serves connections, if so.
pub(super) fn at_once(session: &Session, request: Request<'_>, is_near: bool) -> Option<Aside> {
    let len = request.consumed();
    if (is_near || len >= LARGE) && commands::may_write(session, request) {
        return Some(if len >= LARGE {
            Aside::Heavy(len)
        } else {
            Aside::Waits
        });
    }
    session.heavy.filter(|_| commands::names_keys(request))
}

impl Connection {
    /// Runs the request that starts at `from` on a thread that may block, once there is room for it. What the command
    /// works on goes there and comes back.
    pub(super) async fn run_aside(&mut self, from: usize, why: Aside, now_ms: u64) -> Outcome {
        let shared = Arc::clone(&self.worker.shared);
        let (client, keyspace) = (
            Arc::clone(&self.session.client),
            Arc::clone(&self.session.keyspace),
        );
        let others = Arc::clone(&shared);
        let _room = others.room.enter(why).await;
        let _turn = match why {
            // Nobody closes it.
            Aside::Searches => others.searches.acquire().await.ok(),
            Aside::Waits | Aside::Heavy(_) => None,
        };
        let holds = signed(why.bytes());
        others.counters.aside.add(1);
        others.clients.hold(holds);
        let mut session = std::mem::replace(&mut self.session, Session::new(&shared, client, keyspace));
        let mut reply = std::mem::take(&mut self.reply);
        let input = std::mem::take(&mut self.input);
        let limits = shared.settings.limits();
        let mut parser = std::mem::replace(&mut self.parser, RequestParser::new(limits));
        let work = move || {
            let rest = input.get(from..).unwrap_or_default();
            // It was found there a moment ago, and is found again.
            let outcome = match parser.parse(rest, session.authenticated) {
                Ok(Some(request)) => {
                    session.clock_ns = shared.clock.monotonic();
                    let mut exec = Exec::new(&shared, &mut session, &mut reply, now_ms);
                    exec.may_block = true;
                    let bytes = why.bytes().max(request.consumed());
                    let run = || commands::run(&mut exec, request);
                    let outcome = shared.pressure.aside(&shared.store.db, bytes, run);
                    let weight = exec.weight;
                    exec.session.heavy = (weight >= HEAVY).then_some(Aside::Heavy(weight));
                    outcome
                }
                Ok(None) | Err(_) => Ok(Flow::Close),
            };
            // Others who wait for room are not to find this memory taken.
            session.trim();
            (session, reply, input, parser, outcome)
        };
        let done = blocking(work).await;
        others.clients.hold(-holds);
        match done {
            Ok((session, reply, input, parser, outcome)) => {
                self.session = session;
                self.reply = reply;
                self.input = input;
                self.parser = parser;
                match outcome {
                    Ok(Flow::Aside(_)) => {
                        Err("ERR internal error: the command would go aside for ever".into())
                    }
                    outcome => outcome,
                }
            }
            // It panicked, and took the replies before with it.
            Err(failure) => {
                self.marks.clear();
                self.reply.error(failure.line());
                Ok(Flow::Close)
            }
        }
    }

    /// Does `KEYS`: goes through all keys in steps, each on a thread that may block, and lets other searches have a step
    /// in between.
    pub(super) async fn search(&mut self, pattern: Vec<u8>) -> Outcome {
        let shared = Arc::clone(&self.worker.shared);
        let limit = shared.settings.reply_bytes_max();
        let mut search = Search::new(pattern, limit);
        let mut steps_left = LAST_STEPS;
        loop {
            // Nobody closes it.
            let _turn = shared.searches.acquire().await;
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
            // What was read is still answered, unless that takes too long.
            if self.session.client.is_closing() {
                steps_left -= 1;
                if steps_left == 0 {
                    return Ok(Flow::Close);
                }
            }
        }
        self.session.note(search.seen());
        search.tell(&mut self.reply);
        Ok(Flow::Next)
    }
}

/// Runs what blocks on a thread made for that.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| format!("ERR internal error: {error}").into())
}
