//! Commands that run on threads that may block, while the connection's task waits.

use std::sync::Arc;

use collie_protocol::RequestParser;

use super::{Connection, may_wait};
use crate::commands;
use crate::cost::{Aside, HEAVY};
use crate::exec::{Exec, Flow, Later, Outcome};
use crate::net::clients::signed;
use crate::net::worker::blocking;
use crate::session::Session;

impl Connection {
    /// Runs the request that starts at `from` on a thread that may block, once its bytes are
    /// reserved. The session, the reply and the input move to that thread and back.
    pub(super) async fn run_aside(&mut self, from: usize, why: Aside, now_ms: u64) -> Outcome {
        let shared = Arc::clone(&self.worker.shared);
        let (client, keyspace) = (
            Arc::clone(&self.session.client),
            Arc::clone(&self.session.keyspace),
        );
        let others = Arc::clone(&shared);
        let _waiting = match why {
            Aside::Waits => match others.waiters.try_acquire() {
                Ok(permit) => Some(permit),
                Err(_) => return Ok(Flow::Later(Later::Thread)),
            },
            Aside::Heavy(_) | Aside::Searches => None,
        };
        let _reserved = others.aside_budget.reserve(why).await;
        let _permit = match why {
            // The semaphore is never closed.
            Aside::Searches => others.searches.acquire().await.ok(),
            Aside::Waits | Aside::Heavy(_) => None,
        };
        let bytes = signed(why.bytes());
        others.counters.aside.add(1);
        others.clients.charge_aside(bytes);
        let mut session = std::mem::replace(&mut self.session, Session::new(&shared, client, keyspace));
        let mut reply = std::mem::take(&mut self.reply);
        let input = std::mem::take(&mut self.input);
        let limits = shared.settings.limits();
        let may_wait = may_wait(self.waiting);
        let mut parser = std::mem::replace(&mut self.parser, RequestParser::new(limits));
        let work = move || {
            let rest = input.get(from..).unwrap_or_default();
            // The same request was parsed before, so that it is found again.
            let outcome = match parser.parse(rest, session.authenticated) {
                Ok(Some(request)) => {
                    session.clock_ns = shared.clock.monotonic();
                    let mut exec = Exec::new(&shared, &mut session, &mut reply, now_ms);
                    exec.may_block = true;
                    exec.may_wait = may_wait;
                    let bytes = why.bytes().max(request.consumed());
                    let run = || commands::run(&mut exec, request);
                    let outcome = shared.pressure.aside(&shared.store.db, bytes, run);
                    let weight = exec.weight;
                    exec.session.heavy = (weight >= HEAVY).then_some(Aside::Heavy(weight));
                    outcome
                }
                Ok(None) | Err(_) => Ok(Flow::Close),
            };
            // Frees the memory before the next command reserves it.
            session.trim();
            (session, reply, input, parser, outcome)
        };
        let done = blocking(work).await;
        others.clients.charge_aside(-bytes);
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
            // The command panicked, and the replies before it are lost.
            Err(failure) => {
                self.marks.clear();
                self.session.unsettled.clear();
                self.reply.error(failure.line());
                Ok(Flow::Close)
            }
        }
    }
}
