//! Commands about strings.

use super::super::{Command, Keys, floats, lcs, ranges, strings};

/// In the order of their names.
pub(super) const COMMANDS: &[Command] = &[
    Command::new("append", 3, strings::append)
        .about("2.0.0", "string", "Adds to the end of a value.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "insert"])]),
    Command::new("decr", 2, strings::decr)
        .about("1.0.0", "string", "Takes one from an integer.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("decrby", 3, strings::decrby)
        .about("1.0.0", "string", "Takes from an integer.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("get", 2, strings::get)
        .about("1.0.0", "string", "The value of a key.")
        .flags(&["readonly", "fast"])
        .categories(&["@read", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("getdel", 2, strings::getdel)
        .about("6.2.0", "string", "The value of a key, which is removed.")
        .flags(&["write", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "delete"])]),
    Command::new("getex", -2, strings::getex)
        .about(
            "6.2.0",
            "string",
            "The value of a key, whose expiry may be changed.",
        )
        .flags(&["write", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"]).notes("RW and UPDATE because it changes the TTL")]),
    Command::new("getrange", 4, ranges::getrange)
        .about("2.4.0", "string", "A part of a value.")
        .flags(&["readonly"])
        .categories(&["@read", "@string", "@slow"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("getset", 3, strings::getset)
        .about("1.0.0", "string", "Sets a value and gives the one before.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("incr", 2, strings::incr)
        .about("1.0.0", "string", "Adds one to an integer.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("incrby", 3, strings::incrby)
        .about("1.0.0", "string", "Adds to an integer.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("incrbyfloat", 3, floats::incrbyfloat)
        .about("2.6.0", "string", "Adds to a number with decimals.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("lcs", -3, lcs::lcs)
        .about("7.0.0", "string", "The longest common subsequence of two values.")
        .flags(&["readonly"])
        .categories(&["@read", "@string", "@slow"])
        .keys(&[Keys::to(1, 1, 1, &["RO", "access"])]),
    Command::new("mget", -2, strings::mget)
        .about("1.0.0", "string", "The values of several keys, as of one moment.")
        .flags(&["readonly", "fast"])
        .categories(&["@read", "@string", "@fast"])
        .tips(&["request_policy:multi_shard"])
        .keys(&[Keys::to(1, -1, 1, &["RO", "access"])]),
    Command::new("mset", -3, strings::mset)
        .about("1.0.1", "string", "Sets several keys in one commit.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .keys(&[Keys::to(1, -1, 2, &["OW", "update"])]),
    Command::new("msetnx", -3, strings::msetnx)
        .about(
            "1.0.1",
            "string",
            "Sets several values in one commit if none of the keys is there.",
        )
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .tips(&["request_policy:multi_shard", "response_policy:agg_min"])
        .keys(&[Keys::to(1, -1, 2, &["OW", "insert"])]),
    Command::new("psetex", 4, strings::psetex)
        .about("2.6.0", "string", "Sets a value with an expiry in milliseconds.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .keys(&[Keys::at(1, &["OW", "update"])]),
    Command::new("set", -3, strings::set)
        .about(
            "1.0.0",
            "string",
            "Sets a key, under conditions and with an expiry where asked for.",
        )
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .keys(&[Keys::at(1, &["RW", "access", "update", "variable_flags"])
            .notes("RW and ACCESS due to the optional `GET` argument")]),
    Command::new("setex", 4, strings::setex)
        .about("2.0.0", "string", "Sets a value with an expiry in seconds.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .keys(&[Keys::at(1, &["OW", "update"])]),
    Command::new("setnx", 3, strings::setnx)
        .about("1.0.0", "string", "Sets a key that is not there.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["OW", "insert"])]),
    Command::new("setrange", 4, ranges::setrange)
        .about("2.2.0", "string", "Overwrites a part of a value.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("strlen", 2, strings::strlen)
        .about("2.2.0", "string", "The length of a value in bytes.")
        .flags(&["readonly", "fast"])
        .categories(&["@read", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RO"])]),
    Command::new("substr", 4, ranges::getrange)
        .about(
            "1.0.0",
            "string",
            "A part of a value; the older name of GETRANGE.",
        )
        .flags(&["readonly"])
        .categories(&["@read", "@string", "@slow"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
];
