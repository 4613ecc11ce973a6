//! Commands of a connection: `AUTH`, `HELLO`, `PING`, `SELECT`, `RESET` and others.

use collie_protocol::{Request, Version};

use super::numbers::{database, integer, is};
use super::row::Command;
use crate::exec::{Deferred, Exec, Flow, Outcome};
use crate::failure::{Failure, text};
use crate::session::Shared;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("auth", -2, auth)
        .about("1.0.0", "connection", "Authenticates the connection.")
        .flags(&["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"])
        .categories(&["@fast", "@connection"])
        .open(),
    Command::new("echo", 2, echo)
        .about("1.0.0", "connection", "Returns the message.")
        .flags(&["loading", "stale", "fast"])
        .categories(&["@fast", "@connection"]),
    Command::new("hello", -1, hello)
        .about(
            "6.0.0",
            "connection",
            "Sets the version of the protocol, authenticates and names the connection.",
        )
        .flags(&["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"])
        .categories(&["@fast", "@connection"])
        .open(),
    Command::new("ping", -1, ping)
        .about(
            "1.0.0",
            "connection",
            "Returns PONG, or the message if there is one.",
        )
        .flags(&["fast"])
        .categories(&["@fast", "@connection"])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    Command::new("quit", -1, quit)
        .about("1.0.0", "connection", "Closes the connection.")
        .flags(&["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"])
        .categories(&["@fast", "@connection"])
        .open()
        .immediate(),
    Command::new("reset", 1, reset)
        .about(
            "6.2.0",
            "connection",
            "Resets the connection to its initial state.",
        )
        .flags(&["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"])
        .categories(&["@fast", "@connection"])
        .open()
        .immediate(),
    Command::new("select", 2, select)
        .about("1.0.0", "connection", "Selects another database.")
        .flags(&["loading", "stale", "fast"])
        .categories(&["@fast", "@connection"])
        .everywhere(),
];

/// The version of Redis whose behaviour is implemented; clients choose their features by it.
pub(super) const REDIS_VERSION: &str = "7.0.15";

fn ping(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    match (request.len(), request.get(1)) {
        (1, _) => exec.reply.simple("PONG"),
        (2, Some(message)) => exec.reply.bulk(message),
        _ => return Err(text::arity("ping").into()),
    }
    Ok(Flow::Next)
}

fn echo(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    exec.reply.bulk(request.at(1));
    Ok(Flow::Next)
}

fn quit(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.ok();
    Ok(Flow::Close)
}

fn reset(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.session.reset(exec.shared, exec.reply);
    exec.reply.simple("RESET");
    Ok(Flow::Next)
}

fn select(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let index = database(request.at(1))?;
    if index != 0 && exec.shared.partitions.is_some() {
        return Err("ERR SELECT is not allowed in cluster mode".into());
    }
    match exec.shared.store.keyspace(index) {
        Some(keyspace) => exec.session.select(index, keyspace),
        None => return Ok(Flow::Deferred(Deferred::Select(index))),
    }
    exec.reply.ok();
    Ok(Flow::Next)
}

fn auth(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
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

/// Authenticates the client, or counts a failure. If no password is set, any is accepted for the
/// default user.
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
    exec.session.note_authentication(exec.shared);
    Ok(())
}

fn hello(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
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
    let mode = mode(exec.shared);
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
    reply.bulk(mode.as_bytes());
    reply.bulk(b"role");
    reply.bulk(b"master");
    reply.bulk(b"modules");
    reply.array(0);
}

/// The mode of the server, as `HELLO` and `INFO` report it.
pub(super) fn mode(shared: &Shared) -> &'static str {
    if shared.partitions.is_some() {
        "cluster"
    } else {
        "standalone"
    }
}
