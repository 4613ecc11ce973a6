//! The commands: one file for each group with its rows of the command table, and the dispatch of a
//! request to its command.

mod bitfields;
mod bitmaps;
mod call;
mod changes;
mod client;
mod cluster;
mod cluster_keys;
mod command;
mod config;
mod connection;
mod duplicate;
mod expire;
mod floats;
mod info;
mod keyspace;
mod latency;
mod lcs;
mod merge;
mod moves;
mod multi;
mod names;
mod nodes;
mod numbers;
mod object;
mod once;
mod page;
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

use collie_protocol::Request;

use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};
use crate::session::Session;

use call::call;
pub use changes::{LiveSettings, SettingsRefused};
pub(crate) use info::describe;
pub(crate) use keyspace::Search;
use row::Command;
pub(crate) use server::replicas_held;
pub(crate) use table::names;
use table::{find, lookup};

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
