//! `SLOWLOG`: the commands that took long.

use collie_protocol::Request;
use collie_protocol::number::parse_i64;

use super::row::{self, Command, container};
use crate::exec::{Exec, Flow, Outcome};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("slowlog", -2, container)
    .about("2.2.12", "server", "Commands about the slow log.")
    .categories(&["@slow"])
    .subcommands(SUBCOMMANDS)];

/// The subcommands of `SLOWLOG`.
const SUBCOMMANDS: &[Command] = &[
    Command::new("slowlog|get", -2, get)
        .about("2.2.12", "server", "Lists the latest slow commands.")
        .flags(&["admin", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&["request_policy:all_nodes", "nondeterministic_output"]),
    Command::new("slowlog|help", 2, help)
        .about("6.2.0", "server", "Returns this text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow"]),
    Command::new("slowlog|len", 2, len)
        .about("2.2.12", "server", "Returns the number of entries.")
        .flags(&["admin", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&[
            "request_policy:all_nodes",
            "response_policy:agg_sum",
            "nondeterministic_output",
        ]),
    Command::new("slowlog|reset", 2, reset)
        .about("2.2.12", "server", "Removes all entries.")
        .flags(&["admin", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
];

fn get(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let count = request.get(2).map_or(Some(10), parse_i64);
    let count = match count {
        Some(-1) => Some(usize::MAX),
        count => count.and_then(|count| usize::try_from(count).ok()),
    };
    let count = count.ok_or("ERR count should be greater than or equal to -1")?;
    let entries = exec.shared.slow_log.entries();
    let reply = &mut *exec.reply;
    reply.array(count.min(entries.len()));
    for entry in entries.iter().take(count) {
        reply.array(6);
        reply.integer(entry.id);
        reply.integer(i64::try_from(entry.at_s).unwrap_or(i64::MAX));
        reply.integer(i64::try_from(entry.took_us).unwrap_or(i64::MAX));
        reply.array(entry.args.len());
        entry.args.iter().for_each(|arg| reply.bulk(arg));
        reply.bulk(entry.addr.as_bytes());
        reply.bulk(&entry.name);
    }
    Ok(Flow::Next)
}

fn len(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let len = exec.shared.slow_log.entries().len();
    exec.reply.integer(i64::try_from(len).unwrap_or(i64::MAX));
    Ok(Flow::Next)
}

fn reset(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.shared.slow_log.entries().clear();
    exec.reply.ok();
    Ok(Flow::Next)
}

fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    row::help(exec, "slowlog", SUBCOMMANDS)
}
