//! Expiry.

use collie_protocol::Request;

use super::numbers::{Unit, integer, is};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};

pub(super) fn expire(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_expiry(exec, request, Unit::Seconds, "expire")
}

pub(super) fn pexpire(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_expiry(exec, request, Unit::Milliseconds, "pexpire")
}

pub(super) fn expireat(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_expiry(exec, request, Unit::UnixSeconds, "expireat")
}

pub(super) fn pexpireat(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    set_expiry(exec, request, Unit::UnixMilliseconds, "pexpireat")
}

/// When `EXPIRE` and its kin may set the expiry.
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

    /// A key without expiry counts as one that expires at the end of time.
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
            exec.store(key, &prior, found.payload(), Some(wanted))?;
        }
        // A time that is past, or before the epoch, removes the key.
        Ok(_) | Err(_) => {
            exec.remove(key, &prior)?;
        }
    }
    exec.reply.integer(1);
    Ok(Flow::Next)
}

pub(super) fn persist(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let key = request.at(1);
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    let found = prior.live().filter(|found| found.header.expiry_ms.is_some());
    if let Some(found) = found {
        exec.store(key, &prior, found.payload(), None)?;
    }
    exec.reply.integer(i64::from(found.is_some()));
    Ok(Flow::Next)
}

pub(super) fn ttl(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let now_ms = exec.now_ms;
    tell(exec, request.at(1), |expiry| {
        rounded_seconds(expiry.saturating_sub(now_ms))
    })
}

pub(super) fn pttl(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let now_ms = exec.now_ms;
    tell(exec, request.at(1), |expiry| expiry.saturating_sub(now_ms))
}

pub(super) fn expiretime(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    tell(exec, request.at(1), rounded_seconds)
}

pub(super) fn pexpiretime(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    tell(exec, request.at(1), |expiry| expiry)
}

fn rounded_seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

/// Answers −2 for no key, −1 for no expiry, or what `form` makes of the expiry.
fn tell(exec: &mut Exec<'_>, key: &[u8], form: impl Fn(u64) -> u64) -> Outcome {
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
