//! The dispatch of commands in a cluster: those that name keys run in the partition of their slot.

use collie_protocol::Request;

use super::call::call;
use super::multi;
use super::once;
use super::row::Command;
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};
use crate::partitions::evaluate::{CommandKeys, check, evaluate};

/// Runs a request, or queues it between `MULTI` and `EXEC`.
pub(super) fn run(exec: &mut Exec<'_>, command: &'static Command, request: Request<'_>) -> Outcome {
    let is_queued = exec.session.queue.is_some() && !command.is_immediate;
    let ran = if is_queued {
        queue(exec, command, request)
    } else {
        run_now(exec, command, request)
    };
    match ran {
        // As in Redis, a redirection while commands are queued makes EXEC fail.
        Err(failure) if is_queued => Err(multi::refused(exec, request, failure)),
        ran => ran,
    }
}

fn run_now(exec: &mut Exec<'_>, command: &'static Command, request: Request<'_>) -> Outcome {
    if command.keys.is_empty() {
        return call(exec, command, request);
    }
    if command.name == once::NAME {
        return once::run(exec, request);
    }
    let keys = command_keys(command, request)?;
    evaluate(exec, &keys, |exec| call(exec, command, request))
}

fn queue(exec: &mut Exec<'_>, command: &'static Command, request: Request<'_>) -> Outcome {
    if is_over_all_keys(command) {
        let name = command.full_name.to_ascii_uppercase();
        return Err(format!("ERR {name} cannot be part of a transaction in a cluster").into());
    }
    if !command.keys.is_empty() {
        let keys = command_keys(command, request)?;
        if let Flow::Later(later) = check(exec, &keys)? {
            return Ok(Flow::Later(later));
        }
    }
    multi::queue(exec, command, request)
}

/// Whether a command works on all keys that this node leads, or on those of a slot.
fn is_over_all_keys(command: &Command) -> bool {
    command.is_everywhere && command.keys.is_empty() && !matches!(command.name, "select" | "swapdb")
}

fn command_keys(command: &Command, request: Request<'_>) -> Result<CommandKeys, Failure> {
    let keys = command.keys.iter().flat_map(|keys| keys.of(request));
    // The arguments of a command that names keys were counted, so that there is one.
    CommandKeys::of(keys, command.is_read())?.ok_or(text::SYNTAX.into())
}
