//! `LATENCY`. Slow commands are in the [slow log](super::slowlog), and the time of each stage of a
//! commit is in `INFO log`. Events are not sampled, so these commands report none, as in a Redis
//! whose latency monitor is off.

use collie_protocol::Request;

use super::row::{self, Command, container};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("latency", -2, container)
    .about(
        "2.8.13",
        "server",
        "Commands about slow events, which are not sampled.",
    )
    .categories(&["@slow"])
    .subcommands(SUBCOMMANDS)];

/// The tips of those whose reply is another one on each node.
const OF_EACH_NODE: &[&str] = &[
    "nondeterministic_output",
    "request_policy:all_nodes",
    "response_policy:special",
];

/// The subcommands of `LATENCY`.
const SUBCOMMANDS: &[Command] = &[
    Command::new("latency|doctor", 2, doctor)
        .about("2.8.13", "server", "Names the commands to use instead.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(OF_EACH_NODE),
    Command::new("latency|graph", 3, graph)
        .about("2.8.13", "server", "Returns a graph of an event: there is none.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(OF_EACH_NODE),
    Command::new("latency|help", 2, help)
        .about("2.8.13", "server", "Returns this text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow"]),
    Command::new("latency|histogram", -2, histogram)
        .about("7.0.0", "server", "Returns the times of commands: not tracked.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(OF_EACH_NODE),
    Command::new("latency|history", 3, nothing)
        .about(
            "2.8.13",
            "server",
            "Returns the times of an event: there are none.",
        )
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(OF_EACH_NODE),
    Command::new("latency|latest", 2, nothing)
        .about("2.8.13", "server", "Returns the latest events: there are none.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(OF_EACH_NODE),
    Command::new("latency|reset", -2, reset)
        .about("2.8.13", "server", "Removes all events.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
];

fn nothing(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.array(0);
    Ok(Flow::Next)
}

fn histogram(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.map(0);
    Ok(Flow::Next)
}

fn reset(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.integer(0);
    Ok(Flow::Next)
}

fn graph(_exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let event = request.at(2);
    Err(Failure::Bytes(
        [b"ERR No samples available for event '", event, b"'"].concat(),
    ))
}

fn doctor(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.verbatim(
        *b"txt",
        b"Events are not sampled here. SLOWLOG GET lists slow commands, INFO log has the time of each stage of a \
          commit.\n",
    );
    Ok(Flow::Next)
}

fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    row::help(exec, "latency", SUBCOMMANDS)
}
