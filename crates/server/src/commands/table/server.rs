//! Commands about the server.

use super::super::{Command, command, info, server};
use super::containers;

/// In the order of their names.
pub(super) const COMMANDS: &[Command] = &[
    Command::new("command", -1, command::all)
        .about("2.8.13", "server", "All commands.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["nondeterministic_output_order"])
        .subcommands(containers::COMMAND),
    Command::new("config", -2, command::container)
        .about("2.0.0", "server", "Commands about the configuration.")
        .categories(&["@slow"])
        .subcommands(containers::CONFIG),
    Command::new("function", -2, command::container)
        .about("7.0.0", "scripting", "Commands about functions; there are none.")
        .categories(&["@slow"])
        .subcommands(containers::FUNCTION),
    Command::new("info", -1, info::info)
        .about("1.0.0", "server", "How the server does.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@dangerous"])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ])
        .lasting(),
    Command::new("latency", -2, command::container)
        .about("2.8.13", "server", "Events that took long: not sampled.")
        .categories(&["@slow"])
        .subcommands(containers::LATENCY),
    Command::new("shutdown", -1, server::shutdown)
        .about("1.0.0", "server", "Ends the server.")
        .flags(&["admin", "noscript", "loading", "stale", "no_multi", "allow_busy"])
        .categories(&["@admin", "@slow", "@dangerous"]),
    Command::new("slowlog", -2, command::container)
        .about("2.2.12", "server", "Commands that took long.")
        .categories(&["@slow"])
        .subcommands(containers::SLOWLOG),
    Command::new("time", 1, server::time)
        .about("2.6.0", "server", "The time of the server.")
        .flags(&["loading", "stale", "fast"])
        .categories(&["@fast"])
        .tips(&["nondeterministic_output"]),
];
