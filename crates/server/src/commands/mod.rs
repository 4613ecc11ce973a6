//! The commands: one file for each group with its rows of the command table, and the dispatch of a
//! request to its command.

mod bitfields;
mod bitmaps;
mod changes;
mod client;
mod cluster;
mod command;
mod config;
mod connection;
mod containers;
mod expire;
mod floats;
mod info;
mod keyspace;
mod latency;
mod lcs;
mod led;
mod moves;
mod multi;
mod names;
mod numbers;
mod object;
mod once;
mod parameters;
mod partitioned;
mod ranges;
mod row;
mod scan;
mod server;
mod shape;
mod slowlog;
mod strings;
mod table;
mod tls_parameters;

use collie_db::Error as DbError;
use collie_protocol::Request;

use crate::exec::{Exec, Flow, Noted, Outcome};
use crate::failure::{Failure, text};
use crate::session::Session;

pub(crate) use changes::Changes;
pub(crate) use info::describe;
pub(crate) use keyspace::Search;
use row::Command;
pub(crate) use server::replicas_held;
pub(crate) use table::names;
use table::{find, lookup, number};

/// Runs one request that has at least one argument. Between `MULTI` and `EXEC` most commands are
/// queued instead.
pub(crate) fn run(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let command = match find(request).and_then(|command| allowed(exec, command)) {
        Ok(command) => command,
        Err(_) if is_http(request) => {
            tracing::warn!(
                client = exec.session.client.id,
                "a browser may have been made to talk to this server: its connection is closed"
            );
            return Ok(Flow::Close);
        }
        Err(failure) => return Err(multi::refused(exec, request, failure)),
    };
    exec.session.last_command = command.full_name;
    if exec.shared.partitions.is_some() {
        return partitioned::run(exec, command, request);
    }
    exec.session.refresh(&exec.shared.store);
    if exec.session.queue.is_some() && !command.is_immediate {
        return multi::queue(exec, command, request);
    }
    call(exec, command, request)
}

/// Executes a command, and adds it to the slow log if it took long.
fn call(exec: &mut Exec<'_>, command: &'static Command, request: Request<'_>) -> Outcome {
    let outcome = match run_anew(exec, command, request) {
        Err(Failure::Aside(why)) => Ok(Flow::Aside(why)),
        outcome => outcome,
    };
    // It has done nothing, and will run again: on a thread that may block, or later.
    if matches!(
        outcome,
        Ok(Flow::Aside(_) | Flow::Later(_)) | Err(Failure::Refused(_))
    ) {
        return outcome;
    }
    exec.pay();
    // The previous command ended when this one began, or nearly so.
    let now_ns = exec.shared.clock.monotonic();
    let took_ns = now_ns.saturating_sub(exec.session.clock_ns);
    exec.session.clock_ns = now_ns;
    if let Some(number) = number(request.get(0).unwrap_or_default()) {
        exec.noted.calls.push((number, outcome.is_err(), took_ns));
    }
    // The commands of a transaction are counted when it ends: it may run again aside.
    if exec.transaction.is_none() {
        exec.count_noted();
    }
    let slow_ns = exec.shared.settings.slow_ns();
    if slow_ns.is_some_and(|slow_ns| took_ns >= slow_ns) && !command.is_secret() {
        let len_max = exec.shared.settings.slow_log_len_max();
        let client = &exec.session.client;
        let slow_log = &exec.shared.slow_log;
        slow_log.note(request, client, exec.now_ms, took_ns / 1000, len_max);
    }
    outcome
}

/// How often a command is executed if its database is emptied each time.
const TRIES: usize = 8;

/// Executes a command. If its database is emptied when it has taken its snapshot, that does not have
/// the pieces of newer values: then it is executed once more. It has changed nothing, as a command
/// that writes holds a lock, which keeps the database.
fn run_anew(exec: &mut Exec<'_>, command: &'static Command, request: Request<'_>) -> Outcome {
    let start = exec.reply.len();
    let mut tries = 0;
    loop {
        let outcome = (command.run)(exec, request);
        let is_emptied = matches!(
            outcome,
            Err(Failure::Engine(
                DbError::FamilyDropped { .. } | DbError::FamilyTooNew { .. }
            ))
        );
        tries += 1;
        if !is_emptied || exec.transaction.is_some() || tries == TRIES {
            return outcome;
        }
        exec.reply.truncate(start);
        exec.noted = Noted::default();
        exec.session.refresh(&exec.shared.store);
    }
}

/// Whether the client may call a command now.
fn allowed(exec: &Exec<'_>, command: &'static Command) -> Result<&'static Command, Failure> {
    if !exec.session.authenticated && !command.is_open {
        return Err(text::NO_AUTH.into());
    }
    if exec.session.queue.is_some() && command.flags.contains(&"no_multi") {
        return Err("ERR Command not allowed inside a transaction".into());
    }
    Ok(command)
}

/// Whether a request is a line of HTTP. A web page can make a browser send such a request with
/// lines in its body that would be taken for commands. Redis closes the connection at the same two
/// words.
fn is_http(request: Request<'_>) -> bool {
    let name = request.get(0).unwrap_or_default();
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Whether a request names keys whose values may be large; `EXEC` does.
pub(crate) fn names_keys(request: Request<'_>) -> bool {
    lookup(request.get(0).unwrap_or_default())
        .is_some_and(|command| !command.keys.is_empty() || command.name == "exec")
}

/// Whether a request may write.
pub(crate) fn may_write(session: &Session, request: Request<'_>) -> bool {
    let Some(command) = lookup(request.get(0).unwrap_or_default()) else {
        return false;
    };
    match &session.queue {
        None => command.is_write(),
        Some(queue) => command.name == "exec" && queue.may_write,
    }
}
