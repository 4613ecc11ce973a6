//! Commands about connections.

use super::super::{Command, command, connection};
use super::containers;

/// In the order of their names.
pub(super) const COMMANDS: &[Command] = &[
    Command::new("auth", -2, connection::auth)
        .about("1.0.0", "connection", "Logs the connection in.")
        .flags(&["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"])
        .categories(&["@fast", "@connection"])
        .open(),
    Command::new("client", -2, command::container)
        .about("2.4.0", "connection", "Commands about connections.")
        .categories(&["@slow"])
        .subcommands(containers::CLIENT),
    Command::new("echo", 2, connection::echo)
        .about("1.0.0", "connection", "Answers with the message.")
        .flags(&["loading", "stale", "fast"])
        .categories(&["@fast", "@connection"]),
    Command::new("hello", -1, connection::hello)
        .about(
            "6.0.0",
            "connection",
            "Greets, chooses the version of the protocol, logs in and names the connection.",
        )
        .flags(&["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"])
        .categories(&["@fast", "@connection"])
        .open(),
    Command::new("ping", -1, connection::ping)
        .about(
            "1.0.0",
            "connection",
            "Answers, with the message where one is given.",
        )
        .flags(&["fast"])
        .categories(&["@fast", "@connection"])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    Command::new("quit", -1, connection::quit)
        .about("1.0.0", "connection", "Closes the connection.")
        .flags(&["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"])
        .categories(&["@fast", "@connection"])
        .open()
        .immediate(),
    Command::new("reset", 1, connection::reset)
        .about(
            "6.2.0",
            "connection",
            "Puts the connection back to where it started.",
        )
        .flags(&["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"])
        .categories(&["@fast", "@connection"])
        .open()
        .immediate(),
    Command::new("select", 2, connection::select)
        .about("1.0.0", "connection", "Turns the connection to another database.")
        .flags(&["loading", "stale", "fast"])
        .categories(&["@fast", "@connection"])
        .everywhere(),
];
