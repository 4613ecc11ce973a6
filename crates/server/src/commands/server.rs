//! Commands on the whole server: shutdown, its role, the wait for replicas.

use collie_protocol::Request;

use super::numbers::{integer, is, positive, timeout_ms};
use super::row::{Command, container};
use crate::exec::{Deferred, Exec, Flow, Outcome};
use crate::failure::text;
use crate::session::{Ending, Shared};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("function", -2, container)
        .about("7.0.0", "scripting", "Commands about functions; there are none.")
        .categories(&["@slow"])
        .subcommands(SUBCOMMANDS),
    Command::new("shutdown", -1, shutdown)
        .about("1.0.0", "server", "Shuts the server down.")
        .flags(&["admin", "noscript", "loading", "stale", "no_multi", "allow_busy"])
        .categories(&["@admin", "@slow", "@dangerous"]),
    Command::new("time", 1, time)
        .about("2.6.0", "server", "Returns the time of the server.")
        .flags(&["loading", "stale", "fast"])
        .categories(&["@fast"])
        .tips(&["nondeterministic_output"]),
    Command::new("wait", 3, wait)
        .about("3.0.0", "generic", "Waits for replicas; there are none.")
        .flags(&["noscript"])
        .categories(&["@slow", "@connection"])
        .tips(&["request_policy:all_shards", "response_policy:agg_min"]),
    Command::new("waitaof", 4, waitaof)
        .about(
            "7.2.0",
            "generic",
            "Waits until what the connection wrote is on disk.",
        )
        .flags(&["noscript", "blocking"])
        .categories(&["@slow", "@blocking", "@connection"])
        .tips(&["request_policy:all_shards", "response_policy:agg_min"]),
];

/// The subcommands of `FUNCTION`.
const SUBCOMMANDS: &[Command] = &[Command::new("function|flush", -2, function_flush)
    .about("7.0.0", "scripting", "Removes all functions; there are none.")
    .flags(&["write", "noscript"])
    .categories(&["@write", "@slow", "@scripting"])
    .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])];

fn time(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let now_us = exec.shared.clock.wall_us();
    exec.reply.array(2);
    exec.reply
        .bulk_integer(i64::try_from(now_us / 1_000_000).unwrap_or(i64::MAX));
    exec.reply
        .bulk_integer(i64::try_from(now_us % 1_000_000).unwrap_or(0));
    Ok(Flow::Next)
}

fn wait(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let replicas = integer(request.at(1))?;
    let timeout_ms = timeout_ms(request.at(2))?;
    let held = replicas_held(exec.shared);
    if replicas > held {
        return Ok(Flow::Deferred(Deferred::Replicas { timeout_ms, held }));
    }
    exec.reply.integer(held);
    Ok(Flow::Next)
}

/// On how many replicas, beside the one that leads, everything is that was replied: in a cluster all but
/// one of a majority, of the partition with the fewest replicas. Elsewhere there are none.
pub(crate) fn replicas_held(shared: &Shared) -> i64 {
    let Some(partitions) = &shared.partitions else {
        return 0;
    };
    let topology = partitions.cluster.topology();
    let fewest = topology
        .partitions
        .iter()
        .map(|partition| partition.replicas.len() / 2)
        .min();
    i64::try_from(fewest.unwrap_or(0)).unwrap_or(i64::MAX)
}

/// The reply to `WAITAOF` in a cluster: a reply is sent once a majority of the replicas has on disk what
/// it reflects.
pub(super) fn held(exec: &mut Exec<'_>) {
    let held = replicas_held(exec.shared);
    exec.reply.array(2);
    exec.reply.integer(1);
    exec.reply.integer(held);
}

fn waitaof(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let local = integer(request.at(1))?;
    if !(0..=1).contains(&local) {
        return Err("ERR value is out of range, value must between 0 and 1".into());
    }
    let replicas = positive(request.at(2))?;
    let timeout_ms = timeout_ms(request.at(3))?;
    if exec.shared.partitions.is_some() && replicas <= replicas_held(exec.shared) {
        held(exec);
        return Ok(Flow::Next);
    }
    Ok(Flow::Deferred(Deferred::Local {
        wanted: local == 1,
        replicas,
        timeout_ms,
    }))
}

fn shutdown(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mut abort = false;
    let mut other = false;
    let mut ending = Ending::Soon;
    let (mut save, mut nosave) = (false, false);
    for word in request.iter().skip(1) {
        match word {
            _ if is(word, "NOSAVE") => (nosave, other) = (true, true),
            _ if is(word, "SAVE") => (save, other) = (true, true),
            _ if is(word, "NOW") => (ending, other) = (Ending::Now, true),
            _ if is(word, "FORCE") => other = true,
            _ if is(word, "ABORT") => abort = true,
            _ => return Err(text::SYNTAX.into()),
        }
    }
    if (abort && other) || (save && nosave) {
        return Err(text::SYNTAX.into());
    }
    if abort {
        return Err("ERR No shutdown in progress.".into());
    }
    exec.shared.end(ending);
    Ok(Flow::Close)
}

/// There are no functions, so there is nothing to remove.
fn function_flush(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    match (request.len(), request.get(2)) {
        (2, _) => {}
        (3, Some(mode)) if is(mode, "ASYNC") || is(mode, "SYNC") => {}
        _ => return Err("ERR FUNCTION FLUSH only supports SYNC|ASYNC option".into()),
    }
    exec.reply.ok();
    Ok(Flow::Next)
}
