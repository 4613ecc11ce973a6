//! Commands that set, remove and read the expiry of a key.

use collie_protocol::Request;

use super::numbers::{Unit, integer, is};
use super::row::{Command, Keys};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("expire", -3, expire)
        .about(
            "1.0.0",
            "generic",
            "Sets when a key expires, in seconds from now.",
        )
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("expireat", -3, expireat)
        .about(
            "1.2.0",
            "generic",
            "Sets when a key expires, in seconds since the Unix epoch.",
        )
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("expiretime", 2, expiretime)
        .about(
            "7.0.0",
            "generic",
            "Returns when a key expires, in seconds since the Unix epoch.",
        )
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("persist", 2, persist)
        .about("2.2.0", "generic", "Removes the expiry of a key.")
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("pexpire", -3, pexpire)
        .about(
            "2.6.0",
            "generic",
            "Sets when a key expires, in milliseconds from now.",
        )
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("pexpireat", -3, pexpireat)
        .about(
            "2.6.0",
            "generic",
            "Sets when a key expires, in milliseconds since the Unix epoch.",
        )
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "update"])]),
    Command::new("pexpiretime", 2, pexpiretime)
        .about(
            "7.0.0",
            "generic",
            "Returns when a key expires, in milliseconds since the Unix epoch.",
        )
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("pttl", 2, pttl)
        .about(
            "2.6.0",
            "generic",
            "Returns the time to live of a key, in milliseconds.",
        )
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("ttl", 2, ttl)
        .about(
            "1.0.0",
            "generic",
            "Returns the time to live of a key, in seconds.",
        )
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .tips(&["nondeterministic_output"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
];

fn expire(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_expiry(exec, request, Unit::Seconds, "expire")
}

fn pexpire(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_expiry(exec, request, Unit::Milliseconds, "pexpire")
}

fn expireat(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_expiry(exec, request, Unit::UnixSeconds, "expireat")
}

fn pexpireat(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_expiry(exec, request, Unit::UnixMilliseconds, "pexpireat")
}

/// The conditions under which `EXPIRE` and its variants set the expiry.
#[derive(Debug, Default, Clone, Copy)]
struct Condition {
    only_without: bool,
    only_with: bool,
    only_later: bool,
    only_sooner: bool,
}

impl Condition {
    fn read(request: Request<'_>) -> Result<Condition, Failure> {
        let mut condition = Condition::default();
        for word in request.iter().skip(3) {
            match word {
                _ if is(word, "NX") => condition.only_without = true,
                _ if is(word, "XX") => condition.only_with = true,
                _ if is(word, "GT") => condition.only_later = true,
                _ if is(word, "LT") => condition.only_sooner = true,
                _ => return Err(Failure::Bytes([b"ERR Unsupported option ", word].concat())),
            }
        }
        if condition.only_without && (condition.only_with || condition.only_later || condition.only_sooner) {
            return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
        }
        if condition.only_later && condition.only_sooner {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(condition)
    }

    /// A key without an expiry counts as one that never expires.
    fn allows(&self, now: Option<i64>, wanted: i64) -> bool {
        match now {
            Some(now) => {
                !self.only_without
                    && (!self.only_later || wanted > now)
                    && (!self.only_sooner || wanted < now)
            }
            None => !self.only_with && !self.only_later,
        }
    }
}

fn set_expiry(exec: &mut Exec<'_>, request: Request<'_>, unit: Unit, command: &str) -> Outcome {
    let condition = Condition::read(request)?;
    let value = integer(request.at(2))?;
    let wanted = unit
        .to_unix_ms(value, exec.now_ms)
        .ok_or_else(|| text::expire_time(command))?;
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let Some(found) = prior.live() else {
        exec.reply.integer(0);
        return Ok(Flow::Next);
    };
    let now = found
        .header
        .expiry_ms
        .map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
    if !condition.allows(now, wanted) {
        exec.reply.integer(0);
        return Ok(Flow::Next);
    }
    match u64::try_from(wanted) {
        Ok(wanted) if wanted > exec.now_ms => {
            exec.store_expiry(key, &prior, Some(wanted))?;
        }
        // A time in the past, or before the epoch, removes the key.
        Ok(_) | Err(_) => {
            exec.remove(key, &prior)?;
        }
    }
    exec.reply.integer(1);
    Ok(Flow::Next)
}

fn persist(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let expires = prior.live_expiry().is_some();
    if expires {
        exec.store_expiry(key, &prior, None)?;
    }
    exec.reply.integer(i64::from(expires));
    Ok(Flow::Next)
}

fn ttl(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let now_ms = exec.now_ms;
    reply_with_expiry(exec, request.at(1), |expiry| {
        rounded_seconds(expiry.saturating_sub(now_ms))
    })
}

fn pttl(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let now_ms = exec.now_ms;
    reply_with_expiry(exec, request.at(1), |expiry| expiry.saturating_sub(now_ms))
}

fn expiretime(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    reply_with_expiry(exec, request.at(1), rounded_seconds)
}

fn pexpiretime(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    reply_with_expiry(exec, request.at(1), |expiry| expiry)
}

fn rounded_seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

/// Replies −2 if there is no key, −1 if it has no expiry, or else `form` of the expiry.
fn reply_with_expiry(exec: &mut Exec<'_>, key: &[u8], form: impl Fn(u64) -> u64) -> Outcome {
    let found = exec.find(key)?;
    exec.count_lookup(found.is_some());
    exec.reply.integer(match found {
        None => -2,
        Some(found) => match found.header.expiry_ms {
            None => -1,
            Some(expiry) => i64::try_from(form(expiry)).unwrap_or(i64::MAX),
        },
    });
    Ok(Flow::Next)
}
