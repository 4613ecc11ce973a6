//! Commands on whole strings: `GET`, `SET` and their variants, counters, `APPEND`, `STRLEN`.

use std::collections::HashMap;

use collie_protocol::Request;
use collie_protocol::number::parse_i64;

use super::numbers::{StringOptions, Unit, expiry_of, integer};
use super::row::{Command, Keys};
use crate::exec::{Exec, Flow, Found, Outcome, Prior};
use crate::failure::{Failure, text};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("append", 3, append)
        .about("2.0.0", "string", "Adds to the end of a value.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "insert"])]),
    Command::new("decr", 2, decr)
        .about("1.0.0", "string", "Subtracts one from an integer.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("decrby", 3, decrby)
        .about("1.0.0", "string", "Subtracts from an integer.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("get", 2, get)
        .about("1.0.0", "string", "Returns the value of a key.")
        .flags(&["readonly", "fast"])
        .categories(&["@read", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("getdel", 2, getdel)
        .about(
            "6.2.0",
            "string",
            "Returns the value of a key and removes the key.",
        )
        .flags(&["write", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "delete"])]),
    Command::new("getex", -2, getex)
        .about(
            "6.2.0",
            "string",
            "Returns the value of a key, and may change its expiry.",
        )
        .flags(&["write", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"]).notes("RW and UPDATE because it changes the TTL")]),
    Command::new("getset", 3, getset)
        .about("1.0.0", "string", "Sets a value and returns the previous one.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("incr", 2, incr)
        .about("1.0.0", "string", "Adds one to an integer.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("incrby", 3, incrby)
        .about("1.0.0", "string", "Adds to an integer.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
    Command::new("mget", -2, mget)
        .about(
            "1.0.0",
            "string",
            "Returns the values of several keys at one point in time.",
        )
        .flags(&["readonly", "fast"])
        .categories(&["@read", "@string", "@fast"])
        .tips(&["request_policy:multi_shard"])
        .keys(&[Keys::to(1, -1, 1, &["RO", "access"])]),
    Command::new("mset", -3, mset)
        .about("1.0.1", "string", "Sets several keys in one commit.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .keys(&[Keys::to(1, -1, 2, &["OW", "update"])]),
    Command::new("msetnx", -3, msetnx)
        .about(
            "1.0.1",
            "string",
            "Sets several values in one commit if none of the keys exists.",
        )
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .tips(&["request_policy:multi_shard", "response_policy:agg_min"])
        .keys(&[Keys::to(1, -1, 2, &["OW", "insert"])]),
    Command::new("psetex", 4, psetex)
        .about("2.6.0", "string", "Sets a value with an expiry in milliseconds.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .keys(&[Keys::at(1, &["OW", "update"])]),
    Command::new("set", -3, set)
        .about(
            "1.0.0",
            "string",
            "Sets a key, optionally under conditions and with an expiry.",
        )
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .keys(&[Keys::at(1, &["RW", "access", "update", "variable_flags"])
            .notes("RW and ACCESS due to the optional `GET` argument")]),
    Command::new("setex", 4, setex)
        .about("2.0.0", "string", "Sets a value with an expiry in seconds.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@string", "@slow"])
        .keys(&[Keys::at(1, &["OW", "update"])]),
    Command::new("setnx", 3, setnx)
        .about("1.0.0", "string", "Sets a key if it does not exist.")
        .flags(&["write", "denyoom", "fast"])
        .categories(&["@write", "@string", "@fast"])
        .keys(&[Keys::at(1, &["OW", "insert"])]),
    Command::new("strlen", 2, strlen)
        .about("2.2.0", "string", "Returns the length of a value in bytes.")
        .flags(&["readonly", "fast"])
        .categories(&["@read", "@string", "@fast"])
        .keys(&[Keys::at(1, &["RO"])]),
];

/// The longest text of a 64-bit integer.
const DIGITS_MAX: usize = 20;
/// The most that a string takes in a reply beside its bytes.
const BULK_FRAME: usize = 24;

fn get(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let found = exec.find(request.at(1))?;
    exec.count_lookup(found.is_some());
    exec.reply_with_or_null(found.as_ref())?;
    Ok(Flow::Next)
}

fn set(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let options = StringOptions::read(request, true)?;
    let expiry = options.expiry(exec.now_ms, "set")?.map(|(ms, _)| ms);
    let (key, payload) = (request.at(1), request.at(2));
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let is_there = prior.live().is_some();
    let refused = (options.only_if_absent && is_there) || (options.only_if_present && !is_there);
    if options.get {
        exec.reply_with_or_null(prior.live())?;
        exec.count_lookup(is_there);
    }
    if !refused {
        let expiry = if options.keep_ttl {
            prior.live_expiry()
        } else {
            expiry
        };
        exec.store(key, &prior, payload, expiry)?;
    }
    match (options.get, refused) {
        (true, _) => {}
        (false, true) => exec.reply.null(),
        (false, false) => exec.reply.ok(),
    }
    Ok(Flow::Next)
}

fn setex(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_with_expiry(exec, request, Unit::Seconds, "setex")
}

fn psetex(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_with_expiry(exec, request, Unit::Milliseconds, "psetex")
}

fn set_with_expiry(exec: &mut Exec<'_>, request: Request<'_>, unit: Unit, command: &str) -> Outcome {
    let expiry = expiry_of(request.at(2), unit, exec.now_ms, command)?;
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    exec.store(key, &prior, request.at(3), Some(expiry))?;
    exec.reply.ok();
    Ok(Flow::Next)
}

fn getset(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    exec.count_lookup(prior.live().is_some());
    exec.reply_with_or_null(prior.live())?;
    exec.store(key, &prior, request.at(2), None)?;
    Ok(Flow::Next)
}

fn setnx(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let is_there = prior.live().is_some();
    if !is_there {
        exec.store(key, &prior, request.at(2), None)?;
    }
    exec.reply.integer(i64::from(!is_there));
    Ok(Flow::Next)
}

fn getdel(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    exec.count_lookup(prior.live().is_some());
    exec.reply_with_or_null(prior.live())?;
    if prior.live().is_some() {
        exec.remove(key, &prior)?;
    }
    Ok(Flow::Next)
}

fn getex(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let options = StringOptions::read(request, false)?;
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    exec.count_lookup(prior.live().is_some());
    let Some(found) = prior.live() else {
        exec.reply.null();
        return Ok(Flow::Next);
    };
    let expiry = options.expiry(exec.now_ms, "getex")?;
    exec.reply_with(found)?;
    match expiry {
        Some((expiry, true)) if expiry <= exec.now_ms => {
            exec.remove(key, &prior)?;
        }
        Some((expiry, _)) => exec.store_expiry(key, &prior, Some(expiry))?,
        None if options.persist && found.header.expiry_ms.is_some() => {
            exec.store_expiry(key, &prior, None)?;
        }
        None => {}
    }
    Ok(Flow::Next)
}

fn mget(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    if exec.may_block && request.len() > 2 {
        return mget_aside(exec, request);
    }
    exec.reply.array(request.len() - 1);
    if request.len() == 2 {
        let found = exec.find(request.at(1))?;
        exec.count_lookup(found.is_some());
        exec.reply_with_or_null(found.as_ref())?;
        return Ok(Flow::Next);
    }
    // A snapshot, so that an MSET of the same keys is seen as a whole or not at all.
    let snapshot = exec.snapshot();
    for key in request.iter().skip(1) {
        // If one value is large, the others are likely to be.
        let found = exec.find_at(snapshot.as_ref(), key).and_then(|found| {
            exec.reply_with_or_null(found.as_ref())?;
            Ok(found)
        });
        let found = found.map_err(|failure| match failure {
            Failure::Aside(why) => Failure::Aside(why.times(request.len() - 1)),
            failure => failure,
        })?;
        exec.count_lookup(found.is_some());
        if exec.reply_is_too_long() {
            break;
        }
    }
    Ok(Flow::Next)
}

/// `MGET` of values that may be large: finds all of them first, and then copies them into a reply
/// that is large enough.
fn mget_aside(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let snapshot = exec.snapshot();
    let limit = exec.shared.settings.reply_bytes_max();
    let (mut all, mut bytes) = (Vec::with_capacity(request.len() - 1), 0_usize);
    for key in request.iter().skip(1) {
        let found = exec.find_at(snapshot.as_ref(), key)?;
        exec.count_lookup(found.is_some());
        bytes += found.as_ref().map_or(0, Found::len) + BULK_FRAME;
        all.push(found);
        if bytes > limit {
            if exec.transaction.is_some() {
                return Err(text::REPLY_TOO_LARGE.into());
            }
            exec.shared.counters.output_limit_closed.add(1);
            exec.reply.error(text::REPLY_TOO_LARGE);
            return Ok(Flow::Close);
        }
    }
    exec.reply.reserve(bytes + BULK_FRAME);
    exec.reply.array(all.len());
    for found in &all {
        exec.reply_with_or_null(found.as_ref())?;
    }
    Ok(Flow::Next)
}

fn mset(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_several(exec, request, false, "mset")?;
    exec.reply.ok();
    Ok(Flow::Next)
}

fn msetnx(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let is_set = set_several(exec, request, true, "msetnx")?;
    exec.reply.integer(i64::from(is_set));
    Ok(Flow::Next)
}

/// Sets all keys in one commit; none of them if all must be new and one exists.
fn set_several(
    exec: &mut Exec<'_>,
    request: Request<'_>,
    only_if_absent: bool,
    command: &str,
) -> Result<bool, Failure> {
    if request.len().is_multiple_of(2) {
        return Err(text::arity(command).into());
    }
    // If a key occurs twice the last value counts.
    let mut values: HashMap<&[u8], &[u8]> = HashMap::with_capacity(request.len() / 2);
    let mut args = request.iter().skip(1);
    while let (Some(key), Some(payload)) = (args.next(), args.next()) {
        values.insert(key, payload);
    }
    let _locks = exec.lock_several(values.keys().copied())?;
    let mut entries: Vec<(&[u8], &[u8], Prior)> = Vec::with_capacity(values.len());
    for (key, payload) in values {
        entries.push((key, payload, exec.prior(key)?));
    }
    if only_if_absent && entries.iter().any(|(.., prior)| prior.live().is_some()) {
        return Ok(false);
    }
    exec.store_several(&entries)?;
    Ok(true)
}

fn append(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (key, tail) = (request.at(1), request.at(2));
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let Some(found) = prior.live() else {
        exec.store(key, &prior, tail, None)?;
        push_len(exec, tail.len());
        return Ok(Flow::Next);
    };
    if found.len() + tail.len() > exec.shared.settings.bulk_len_max() {
        return Err(text::TOO_LONG.into());
    }
    let len = exec.store_part(key, &prior, found.len(), tail)?;
    push_len(exec, len);
    Ok(Flow::Next)
}

fn strlen(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let found = exec.find(request.at(1))?;
    exec.count_lookup(found.is_some());
    push_len(exec, found.map_or(0, |found| found.len()));
    Ok(Flow::Next)
}

fn push_len(exec: &mut Exec<'_>, len: usize) {
    // A value is at most a few gigabytes long, so that its length fits.
    exec.reply.integer(i64::try_from(len).unwrap_or(i64::MAX));
}

fn incr(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    add(exec, request.at(1), 1)
}

fn decr(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    add(exec, request.at(1), -1)
}

fn incrby(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let by = integer(request.at(2))?;
    add(exec, request.at(1), by)
}

fn decrby(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let by = integer(request.at(2))?;
    let by = by.checked_neg().ok_or("ERR decrement would overflow")?;
    add(exec, request.at(1), by)
}

fn add(exec: &mut Exec<'_>, key: &[u8], by: i64) -> Outcome {
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let before = match prior.live() {
        // A longer one is none, and need not be read.
        Some(found) if found.len() > DIGITS_MAX => return Err(text::NOT_AN_INTEGER.into()),
        Some(found) => {
            let digits = exec.payload(found)?;
            parse_i64(&digits).ok_or(Failure::from(text::NOT_AN_INTEGER))?
        }
        None => 0,
    };
    let after = before.checked_add(by).ok_or(text::OVERFLOW)?;
    let mut digits = itoa::Buffer::new();
    exec.store(key, &prior, digits.format(after).as_bytes(), prior.live_expiry())?;
    exec.reply.integer(after);
    Ok(Flow::Next)
}
