//! Commands about keys.

use super::super::{Command, Keys, command, expire, keyspace, moves, scan, server};
use super::containers;

/// In the order of their names.
pub(super) const COMMANDS: &[Command] = &[
    Command::new("copy", -3, moves::copy)
        .about("6.2.0", "generic", "Copies a key.")
        .flags(&["write", "denyoom"])
        .categories(&["@keyspace", "@write", "@slow"])
        .keys(&[Keys::at(1, &["RO", "access"]), Keys::at(2, &["OW", "update"])])
        .everywhere(),
    Command::new("dbsize", 1, keyspace::dbsize)
        .about("1.0.0", "server", "How many keys the database holds.")
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"])
        .everywhere(),
    Command::new("del", -2, keyspace::del)
        .about("1.0.0", "generic", "Removes keys in one commit.")
        .flags(&["write"])
        .categories(&["@keyspace", "@write", "@slow"])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[Keys::to(1, -1, 1, &["RM", "delete"])]),
    Command::new("exists", -2, keyspace::exists)
        .about("1.0.0", "generic", "How many of the keys are there.")
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[Keys::to(1, -1, 1, &["RO"])]),
    Command::new("expire", -3, expire::expire)
        .about(
            "1.0.0",
            "generic",
            "Sets when a key expires, in seconds from now.",
        )
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("expireat", -3, expire::expireat)
        .about(
            "1.2.0",
            "generic",
            "Sets when a key expires, in seconds since the Unix epoch.",
        )
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("expiretime", 2, expire::expiretime)
        .about(
            "7.0.0",
            "generic",
            "When a key expires, in seconds since the Unix epoch.",
        )
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("flushall", -1, keyspace::flushall)
        .about("1.0.0", "server", "Empties all databases in one commit.")
        .flags(&["write"])
        .categories(&["@keyspace", "@write", "@slow", "@dangerous"])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .everywhere()
        .lasting(),
    Command::new("flushdb", -1, keyspace::flushdb)
        .about("1.0.0", "server", "Empties the database in one commit.")
        .flags(&["write"])
        .categories(&["@keyspace", "@write", "@slow", "@dangerous"])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .everywhere()
        .lasting(),
    Command::new("keys", 2, keyspace::keys)
        .about("1.0.0", "generic", "The names that match a pattern.")
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow", "@dangerous"])
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"])
        .everywhere()
        .lasting(),
    Command::new("move", 3, moves::move_key)
        .about("1.0.0", "generic", "Moves a key to another database.")
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])])
        .everywhere(),
    Command::new("object", -2, command::container)
        .about("2.2.3", "generic", "What is known of how a value is kept.")
        .categories(&["@slow"])
        .subcommands(containers::OBJECT),
    Command::new("persist", 2, expire::persist)
        .about("2.2.0", "generic", "Takes the expiry from a key.")
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("pexpire", -3, expire::pexpire)
        .about(
            "2.6.0",
            "generic",
            "Sets when a key expires, in milliseconds from now.",
        )
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("pexpireat", -3, expire::pexpireat)
        .about(
            "2.6.0",
            "generic",
            "Sets when a key expires, in milliseconds since the Unix epoch.",
        )
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("pexpiretime", 2, expire::pexpiretime)
        .about(
            "7.0.0",
            "generic",
            "When a key expires, in milliseconds since the Unix epoch.",
        )
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("pttl", 2, expire::pttl)
        .about("2.6.0", "generic", "How long a key has to live, in milliseconds.")
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("randomkey", 1, scan::randomkey)
        .about("1.0.0", "generic", "The name of some key.")
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["request_policy:all_shards", "nondeterministic_output"])
        .everywhere(),
    Command::new("rename", 3, moves::rename)
        .about("1.0.0", "generic", "Gives a key another name.")
        .flags(&["write"])
        .categories(&["@keyspace", "@write", "@slow"])
        .keys(&[
            Keys::at(1, &["RW", "access", "delete"]),
            Keys::at(2, &["OW", "update"]),
        ]),
    Command::new("renamenx", 3, moves::renamenx)
        .about("1.0.0", "generic", "Gives a key another name that is free.")
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[
            Keys::at(1, &["RW", "access", "delete"]),
            Keys::at(2, &["OW", "insert"]),
        ]),
    Command::new("scan", -2, scan::scan)
        .about("2.8.0", "generic", "The names that match a pattern, in portions.")
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["nondeterministic_output", "request_policy:special"])
        .everywhere(),
    Command::new("swapdb", 3, moves::swapdb)
        .about("4.0.0", "server", "Swaps two databases.")
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast", "@dangerous"])
        .everywhere()
        .lasting(),
    Command::new("touch", -2, keyspace::exists)
        .about(
            "3.2.1",
            "generic",
            "How many of the keys are there; times of access are not kept.",
        )
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[Keys::to(1, -1, 1, &["RO"])]),
    Command::new("ttl", 2, expire::ttl)
        .about("1.0.0", "generic", "How long a key has to live, in seconds.")
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("type", 2, keyspace::kind)
        .about("1.0.0", "generic", "The type of a value.")
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .keys(&[Keys::at(1, &["RO"])]),
    Command::new("unlink", -2, keyspace::del)
        .about("4.0.0", "generic", "Removes keys in one commit.")
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[Keys::to(1, -1, 1, &["RM", "delete"])]),
    Command::new("wait", 3, server::wait)
        .about("3.0.0", "generic", "Waits for replicas; there are none.")
        .flags(&["noscript"])
        .categories(&["@slow", "@connection"])
        .tips(&["request_policy:all_shards", "response_policy:agg_min"]),
    Command::new("waitaof", 4, server::waitaof)
        .about(
            "7.2.0",
            "generic",
            "Waits until what the connection wrote is on disk.",
        )
        .flags(&["noscript", "blocking"])
        .categories(&["@slow", "@blocking", "@connection"])
        .tips(&["request_policy:all_shards", "response_policy:agg_min"]),
];
