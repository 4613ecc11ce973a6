//! The subcommands of commands that are containers.

use super::super::{Command, Keys, client, command, config, latency, object, server, slowlog};

/// Those of `CLIENT`.
pub(super) const CLIENT: &[Command] = &[
    Command::new("client|ack", -2, client::ack)
        .about(
            "7.0.0",
            "connection",
            "Tells or chooses when replies leave: disk, process or buffered.",
        )
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|caching", 3, client::caching)
        .about(
            "6.0.0",
            "connection",
            "Whether to track the next keys: nothing is tracked.",
        )
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|getname", 2, client::getname)
        .about("2.6.9", "connection", "The name of the connection.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|getredir", 2, client::getredir)
        .about("6.0.0", "connection", "Where notices about keys go: nowhere.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|help", 2, client::help)
        .about("5.0.0", "connection", "This text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|id", 2, client::id)
        .about("5.0.0", "connection", "The number of the connection.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|info", 2, client::info)
        .about("6.2.0", "connection", "What is known of the connection.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["nondeterministic_output"]),
    Command::new("client|kill", -3, client::kill)
        .about("2.4.0", "connection", "Closes connections.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"]),
    Command::new("client|list", -2, client::list)
        .about("2.4.0", "connection", "All connections.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"])
        .tips(&["nondeterministic_output"]),
    Command::new("client|no-evict", 3, client::no_evict)
        .about(
            "7.0.0",
            "connection",
            "Whether the connection may be closed for lack of memory.",
        )
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"]),
    Command::new("client|pause", -3, client::pause)
        .about("2.9.50", "connection", "Has commands wait for a time.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"]),
    Command::new("client|reply", 3, client::reply)
        .about("3.2.0", "connection", "Which replies are sent: ON, OFF or SKIP.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|setinfo", 4, client::setinfo)
        .about(
            "7.2.0",
            "connection",
            "Notes name and version of the client's library.",
        )
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    Command::new("client|setname", 3, client::setname)
        .about("2.6.9", "connection", "Names the connection.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|tracking", -3, client::tracking)
        .about(
            "6.0.0",
            "connection",
            "Tracking of keys for caches: only OFF is taken.",
        )
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|trackinginfo", 2, client::trackinginfo)
        .about("6.2.0", "connection", "Whether keys are tracked: no.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|unblock", -3, client::unblock)
        .about(
            "5.0.0",
            "connection",
            "Wakes a client that waits for data: none does.",
        )
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"]),
    Command::new("client|unpause", 2, client::unpause)
        .about("6.2.0", "connection", "Ends a pause.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"]),
];

/// Those of `COMMAND`.
pub(super) const COMMAND: &[Command] = &[
    Command::new("command|count", 2, command::count)
        .about("2.8.13", "server", "How many commands there are.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("command|docs", -2, command::docs)
        .about("7.0.0", "server", "What commands do.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["nondeterministic_output_order"]),
    Command::new("command|getkeys", -4, command::getkeys)
        .about("2.8.13", "server", "The keys in a command line.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("command|getkeysandflags", -4, command::getkeysandflags)
        .about(
            "7.0.0",
            "server",
            "The keys of a command and what it does with them.",
        )
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("command|help", 2, command::help)
        .about("5.0.0", "server", "This text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("command|info", -2, command::info)
        .about("2.8.13", "server", "Commands with arity, flags and keys.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["nondeterministic_output_order"]),
    Command::new("command|list", -2, command::list)
        .about("7.0.0", "server", "Names of commands.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["nondeterministic_output_order"]),
];

/// Those of `CONFIG`.
pub(super) const CONFIG: &[Command] = &[
    Command::new("config|get", -3, config::get)
        .about("2.0.0", "server", "Parameters whose names match.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"]),
    Command::new("config|help", 2, config::help)
        .about("5.0.0", "server", "This text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow"]),
    Command::new("config|resetstat", 2, config::resetstat)
        .about("2.0.0", "server", "Sets the counters of INFO to zero.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"]),
    Command::new("config|rewrite", 2, config::rewrite)
        .about(
            "2.8.0",
            "server",
            "Would write the configuration file; there is none.",
        )
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"]),
    Command::new("config|set", -4, config::set)
        .about("2.0.0", "server", "Changes parameters, all or none.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
];

/// Those of `FUNCTION`.
pub(super) const FUNCTION: &[Command] = &[Command::new("function|flush", -2, server::function_flush)
    .about("7.0.0", "scripting", "Removes all functions; there are none.")
    .flags(&["write", "noscript"])
    .categories(&["@write", "@slow", "@scripting"])
    .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])];

/// Those of `LATENCY`.
pub(super) const LATENCY: &[Command] = &[
    Command::new("latency|doctor", 2, latency::doctor)
        .about("2.8.13", "server", "Where to look instead.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ]),
    Command::new("latency|graph", 3, latency::graph)
        .about("2.8.13", "server", "A graph of an event: there is none.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ]),
    Command::new("latency|help", 2, latency::help)
        .about("2.8.13", "server", "This text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow"]),
    Command::new("latency|histogram", -2, latency::histogram)
        .about("7.0.0", "server", "The times of commands: not kept.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ]),
    Command::new("latency|history", 3, latency::nothing)
        .about("2.8.13", "server", "The times of an event: there are none.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ]),
    Command::new("latency|latest", 2, latency::nothing)
        .about("2.8.13", "server", "The latest events: there are none.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ]),
    Command::new("latency|reset", -2, latency::reset)
        .about("2.8.13", "server", "Forgets all events.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
];

/// Those of `OBJECT`.
pub(super) const OBJECT: &[Command] = &[
    Command::new("object|encoding", 3, object::encoding)
        .about("2.2.3", "generic", "The encoding that Redis would choose.")
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(2, &["RO"])]),
    Command::new("object|freq", 3, object::freq)
        .about("4.0.0", "generic", "How often a key is used: not kept.")
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(2, &["RO"])]),
    Command::new("object|help", 2, object::help)
        .about("6.2.0", "generic", "This text.")
        .flags(&["loading", "stale"])
        .categories(&["@keyspace", "@slow"]),
    Command::new("object|idletime", 3, object::idletime)
        .about(
            "2.2.3",
            "generic",
            "Seconds since the key was used: not kept, so 0.",
        )
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(2, &["RO"])]),
    Command::new("object|refcount", 3, object::refcount)
        .about("2.2.3", "generic", "How many refer to the value: one.")
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(2, &["RO"])]),
];

/// Those of `SLOWLOG`.
pub(super) const SLOWLOG: &[Command] = &[
    Command::new("slowlog|get", -2, slowlog::get)
        .about("2.2.12", "server", "The latest commands that took long.")
        .flags(&["admin", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&["request_policy:all_nodes", "nondeterministic_output"]),
    Command::new("slowlog|help", 2, slowlog::help)
        .about("6.2.0", "server", "This text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow"]),
    Command::new("slowlog|len", 2, slowlog::len)
        .about("2.2.12", "server", "How many are kept.")
        .flags(&["admin", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&[
            "request_policy:all_nodes",
            "response_policy:agg_sum",
            "nondeterministic_output",
        ]),
    Command::new("slowlog|reset", 2, slowlog::reset)
        .about("2.2.12", "server", "Forgets them.")
        .flags(&["admin", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
];
