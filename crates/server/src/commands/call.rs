//! The execution of one command, with its statistics and the slow log.

use collie_db::Error as DbError;
use collie_protocol::Request;

use super::row::Command;
use super::table::number;
use crate::exec::{Exec, Flow, Noted, Outcome};
use crate::failure::Failure;

/// Executes a command, and adds it to the slow log if it took long.
pub(super) fn call(exec: &mut Exec<'_>, command: &'static Command, request: Request<'_>) -> Outcome {
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
    exec.throttle();
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
