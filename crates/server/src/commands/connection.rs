//! The connection itself.

use collie_protocol::{Request, Version};

use super::numbers::{database, integer, is};
use crate::exec::{Exec, Flow, Outcome, Pause};
use crate::failure::{Failure, text};
use crate::session::ReplyMode;

/// The version of Redis whose behaviour is followed; clients choose what they use by it.
pub(super) const REDIS_VERSION: &str = "7.0.15";

pub(super) fn ping(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    match (request.len(), request.get(1)) {
        (1, _) => exec.reply.simple("PONG"),
        (2, Some(message)) => exec.reply.bulk(message),
        _ => return Err(text::arity("ping").into()),
    }
    Ok(Flow::Next)
}

pub(super) fn echo(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    exec.reply.bulk(request.at(1));
    Ok(Flow::Next)
}

pub(super) fn quit(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.ok();
    Ok(Flow::Close)
}

pub(super) fn reset(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.session.reset(exec.shared, exec.reply);
    exec.reply.simple("RESET");
    Ok(Flow::Next)
}

pub(super) fn select(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let index = database(request.at(1))?;
    match exec.shared.store.keyspace(index) {
        Some(keyspace) => exec.session.select(index, keyspace),
        None => return Ok(Flow::Pause(Pause::Select(index))),
    }
    exec.reply.ok();
    Ok(Flow::Next)
}

pub(super) fn auth(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (user, guess) = match (request.len(), request.get(1), request.get(2)) {
        (2, Some(guess), _) => (None, guess),
        (3, Some(user), Some(guess)) => (Some(user), guess),
        _ => return Err(text::SYNTAX.into()),
    };
    if user.is_none() && exec.shared.settings.password().is_none() {
        return Err(
            "ERR AUTH <password> called without any password configured for the default user. Are you \
                    sure your configuration is correct?"
                .into(),
        );
    }
    log_in(exec, user.unwrap_or(b"default"), guess)?;
    exec.reply.ok();
    Ok(Flow::Next)
}

/// Lets the client in, or counts a failure. Where no password is set, the default user has any.
fn log_in(exec: &mut Exec<'_>, user: &[u8], guess: &[u8]) -> Result<(), Failure> {
    let right = exec
        .shared
        .settings
        .password()
        .is_none_or(|password| password.is(guess));
    if user != b"default" || !right {
        exec.shared.counters.auth_failures.add(1);
        return Err(text::WRONG_PASS.into());
    }
    exec.session.authenticated = true;
    Ok(())
}

pub(super) fn hello(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let version = match request.get(1) {
        None => None,
        Some(word) => {
            let number =
                integer(word).map_err(|_| "ERR Protocol version is not an integer or out of range")?;
            Some(match number {
                2 => Version::Resp2,
                3 => Version::Resp3,
                _ => return Err("NOPROTO unsupported protocol version".into()),
            })
        }
    };
    let mut name = None;
    let mut i = 2;
    while let Some(word) = request.get(i) {
        match (request.get(i + 1), request.get(i + 2)) {
            (Some(user), Some(guess)) if is(word, "AUTH") => {
                log_in(exec, user, guess)?;
                i += 3;
            }
            (Some(wanted), _) if is(word, "SETNAME") => {
                name = Some(wanted);
                super::client::check_label(wanted, "Client names")?;
                i += 2;
            }
            _ => {
                let line = [b"ERR Syntax error in HELLO option '", word, b"'"].concat();
                return Err(Failure::Bytes(line));
            }
        }
    }
    if !exec.session.authenticated {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
                    <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
                    RESP protocol version at the same time"
                .into(),
        );
    }
    if let Some(name) = name {
        exec.session.client.labels.lock().name = name.to_vec();
    }
    if let Some(version) = version {
        exec.session.set_version(exec.reply, version);
    }
    greet(exec);
    Ok(Flow::Next)
}

fn greet(exec: &mut Exec<'_>) {
    let id = i64::try_from(exec.session.client.id).unwrap_or(i64::MAX);
    let reply = &mut *exec.reply;
    reply.map(7);
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(REDIS_VERSION.as_bytes());
    reply.bulk(b"proto");
    reply.integer(if reply.version() == Version::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(id);
    reply.bulk(b"mode");
    reply.bulk(b"standalone");
    reply.bulk(b"role");
    reply.bulk(b"master");
    reply.bulk(b"modules");
    reply.array(0);
}

/// What `CLIENT REPLY` sets.
pub(super) fn reply_mode(exec: &mut Exec<'_>, word: &[u8]) -> Outcome {
    if is(word, "ON") {
        exec.session.reply_mode = ReplyMode::On;
        exec.reply.ok();
    } else if is(word, "OFF") {
        exec.session.reply_mode = ReplyMode::Off;
    } else if is(word, "SKIP") {
        if exec.session.reply_mode != ReplyMode::Off {
            exec.session.reply_mode = ReplyMode::SkipNext;
        }
    } else {
        return Err(text::SYNTAX.into());
    }
    Ok(Flow::Next)
}
