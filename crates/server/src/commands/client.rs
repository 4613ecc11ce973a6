//! `CLIENT`: the connections of the server, and the settings of one.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_protocol::Request;
use collie_protocol::number::parse_i64;

use super::numbers::{integer, is, timeout_ms};
use super::row::{self, Command, container};
use crate::config::Ack;
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};
use crate::session::ReplyMode;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("client", -2, container)
    .about("2.4.0", "connection", "Commands about connections.")
    .categories(&["@slow"])
    .subcommands(SUBCOMMANDS)];

/// The subcommands of `CLIENT`.
const SUBCOMMANDS: &[Command] = &[
    Command::new("client|ack", -2, ack)
        .about(
            "7.0.0",
            "connection",
            "Reports or sets the durability that replies wait for: disk, process or buffered.",
        )
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|caching", 3, caching)
        .about(
            "6.0.0",
            "connection",
            "Controls tracking of the next keys: not supported.",
        )
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|getname", 2, getname)
        .about("2.6.9", "connection", "Returns the name of the connection.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|getredir", 2, getredir)
        .about(
            "6.0.0",
            "connection",
            "Returns where invalidations are sent: nowhere.",
        )
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|help", 2, help)
        .about("5.0.0", "connection", "Returns this text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|id", 2, id)
        .about("5.0.0", "connection", "Returns the id of the connection.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|info", 2, info)
        .about("6.2.0", "connection", "Returns information about the connection.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["nondeterministic_output"]),
    Command::new("client|kill", -3, kill)
        .about("2.4.0", "connection", "Closes connections.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"]),
    Command::new("client|list", -2, list)
        .about("2.4.0", "connection", "Lists all connections.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"])
        .tips(&["nondeterministic_output"]),
    Command::new("client|no-evict", 3, no_evict)
        .about(
            "7.0.0",
            "connection",
            "Exempts the connection from being closed at maxmemory-clients.",
        )
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"]),
    Command::new("client|pause", -3, pause)
        .about("2.9.50", "connection", "Delays commands for a time.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"]),
    Command::new("client|reply", 3, reply)
        .about(
            "3.2.0",
            "connection",
            "Sets which replies are sent: ON, OFF or SKIP.",
        )
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|setinfo", 4, setinfo)
        .about(
            "7.2.0",
            "connection",
            "Sets name and version of the client's library.",
        )
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    Command::new("client|setname", 3, setname)
        .about("2.6.9", "connection", "Sets the name of the connection.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|tracking", -3, tracking)
        .about(
            "6.0.0",
            "connection",
            "Controls tracking of keys for caches: only OFF is supported.",
        )
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|trackinginfo", 2, trackinginfo)
        .about("6.2.0", "connection", "Returns whether keys are tracked: no.")
        .flags(&["noscript", "loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("client|unblock", -3, unblock)
        .about("5.0.0", "connection", "Unblocks a client: none blocks.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"]),
    Command::new("client|unpause", 2, unpause)
        .about("6.2.0", "connection", "Ends a client pause.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous", "@connection"]),
];

fn id(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply
        .integer(i64::try_from(exec.session.client.id).unwrap_or(i64::MAX));
    Ok(Flow::Next)
}

fn getname(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let labels = exec.session.client.labels.lock();
    if labels.name.is_empty() {
        exec.reply.null();
    } else {
        exec.reply.bulk(&labels.name);
    }
    Ok(Flow::Next)
}

fn setname(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    check_label(request.at(2), "Client names")?;
    exec.session.client.labels.lock().name = request.at(2).to_vec();
    exec.reply.ok();
    Ok(Flow::Next)
}

/// Longest name of a client or of its library, in bytes. They are kept as long as the connection.
const LABEL_LEN_MAX: usize = 1024;

/// Refuses what would break the lines of `CLIENT LIST`, or make them very long.
pub(super) fn check_label(label: &[u8], what: &str) -> Result<(), Failure> {
    if label.len() > LABEL_LEN_MAX {
        return Err(format!("ERR {what} cannot be longer than {LABEL_LEN_MAX} bytes.").into());
    }
    if label.iter().all(|byte| matches!(byte, b'!'..=b'~')) {
        return Ok(());
    }
    Err(format!("ERR {what} cannot contain spaces, newlines or special characters.").into())
}

fn setinfo(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (attribute, label) = (request.at(2), request.at(3));
    let labels = &exec.session.client.labels;
    if is(attribute, "lib-name") {
        check_label(label, "lib-name")?;
        labels.lock().lib_name = label.to_vec();
    } else if is(attribute, "lib-ver") {
        check_label(label, "lib-ver")?;
        labels.lock().lib_version = label.to_vec();
    } else {
        return Err(Failure::Bytes(
            [b"ERR Unrecognized option '", attribute, b"'"].concat(),
        ));
    }
    exec.reply.ok();
    Ok(Flow::Next)
}

fn info(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    *exec.session.client.last_command.lock() = exec.session.last_command;
    let mut line = exec.session.client.line(exec.now_ms);
    line.push(b'\n');
    exec.reply.verbatim(*b"txt", &line);
    Ok(Flow::Next)
}

/// A type of client. There are no replicas and no subscribers, but a client may name these types.
fn known_type(word: &[u8]) -> Result<bool, Failure> {
    match word {
        _ if is(word, "normal") => Ok(true),
        _ if ["master", "slave", "replica", "pubsub"]
            .iter()
            .any(|known| is(word, known)) =>
        {
            Ok(false)
        }
        _ => Err(Failure::Bytes(
            [b"ERR Unknown client type '", word, b"'"].concat(),
        )),
    }
}

fn list(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    // Other connections update theirs after they have executed their input.
    *exec.session.client.last_command.lock() = exec.session.last_command;
    let mut clients = exec.shared.clients.all();
    match (request.get(2), request.len()) {
        (None, _) => {}
        (Some(word), 4) if is(word, "TYPE") => {
            if !known_type(request.at(3))? {
                clients.clear();
            }
        }
        (Some(word), 4..) if is(word, "ID") => {
            let mut wanted = Vec::with_capacity(request.len() - 3);
            for id in request.iter().skip(3) {
                let id = parse_i64(id)
                    .filter(|id| *id > 0)
                    .and_then(|id| u64::try_from(id).ok());
                wanted.push(id.ok_or("ERR Invalid client ID")?);
            }
            clients.retain(|client| wanted.contains(&client.id));
        }
        _ => return Err(text::SYNTAX.into()),
    }
    let mut lines = Vec::new();
    for client in clients {
        lines.extend_from_slice(&client.line(exec.now_ms));
        lines.push(b'\n');
    }
    exec.reply.verbatim(*b"txt", &lines);
    Ok(Flow::Next)
}

/// Which clients `CLIENT KILL` closes.
#[derive(Default)]
struct KillFilter<'a> {
    id: Option<u64>,
    addr: Option<&'a [u8]>,
    laddr: Option<&'a [u8]>,
    matches_none: bool,
    skip_me: bool,
}

impl<'a> KillFilter<'a> {
    fn read(request: Request<'a>) -> Result<KillFilter<'a>, Failure> {
        let mut filter = KillFilter {
            skip_me: true,
            ..KillFilter::default()
        };
        let mut i = 2;
        while let Some(word) = request.get(i) {
            let value = request.get(i + 1).ok_or(text::SYNTAX)?;
            if is(word, "ID") {
                let id = parse_i64(value)
                    .and_then(|id| u64::try_from(id).ok())
                    .filter(|id| *id > 0);
                filter.id = Some(id.ok_or("ERR client-id should be greater than 0")?);
            } else if is(word, "TYPE") {
                filter.matches_none |= !known_type(value)?;
            } else if is(word, "ADDR") {
                filter.addr = Some(value);
            } else if is(word, "LADDR") {
                filter.laddr = Some(value);
            } else if is(word, "USER") {
                if value != b"default" {
                    return Err(Failure::Bytes([b"ERR No such user '", value, b"'"].concat()));
                }
            } else if is(word, "SKIPME") && (is(value, "yes") || is(value, "no")) {
                filter.skip_me = is(value, "yes");
            } else {
                return Err(text::SYNTAX.into());
            }
            i += 2;
        }
        Ok(filter)
    }

    /// Whether it selects the client with that number and those addresses.
    fn takes(&self, id: u64, addr: SocketAddr, laddr: SocketAddr, is_own: bool) -> bool {
        !self.matches_none
            && self.id.is_none_or(|wanted| wanted == id)
            && self
                .addr
                .is_none_or(|wanted| wanted == addr.to_string().as_bytes())
            && self
                .laddr
                .is_none_or(|wanted| wanted == laddr.to_string().as_bytes())
            && !(self.skip_me && is_own)
    }
}

fn kill(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let is_old_form = request.len() == 3;
    let filter = if is_old_form {
        KillFilter {
            addr: Some(request.at(2)),
            ..KillFilter::default()
        }
    } else {
        KillFilter::read(request)?
    };
    let own = Arc::clone(&exec.session.client);
    let victims: Vec<_> = exec
        .shared
        .clients
        .all()
        .into_iter()
        .filter(|client| filter.takes(client.id, client.addr, client.laddr, Arc::ptr_eq(client, &own)))
        .collect();
    if is_old_form && victims.is_empty() {
        return Err("ERR No such client".into());
    }
    let mut own_too = false;
    for victim in &victims {
        victim.close();
        own_too |= Arc::ptr_eq(victim, &own);
    }
    if is_old_form {
        exec.reply.ok();
    } else {
        exec.reply
            .integer(i64::try_from(victims.len()).unwrap_or(i64::MAX));
    }
    Ok(if own_too { Flow::Close } else { Flow::Next })
}

fn reply(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mode = request.at(2);
    if is(mode, "ON") {
        exec.session.reply_mode = ReplyMode::On;
        exec.reply.ok();
    } else if is(mode, "OFF") {
        exec.session.reply_mode = ReplyMode::Off;
    } else if is(mode, "SKIP") {
        if exec.session.reply_mode != ReplyMode::Off {
            exec.session.reply_mode = ReplyMode::SkipNext;
        }
    } else {
        return Err(text::SYNTAX.into());
    }
    Ok(Flow::Next)
}

fn no_evict(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let on = is(request.at(2), "on");
    if !on && !is(request.at(2), "off") {
        return Err(text::SYNTAX.into());
    }
    // Relaxed: read by the same connection, and by `CLIENT LIST`.
    exec.session.client.no_evict.store(on, Ordering::Relaxed);
    exec.reply.ok();
    Ok(Flow::Next)
}

fn pause(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let everything = match (request.len(), request.get(3)) {
        (3, _) => true,
        (4, Some(mode)) if is(mode, "ALL") => true,
        (4, Some(mode)) if is(mode, "WRITE") => false,
        (4, _) => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
        _ => return Err(text::SYNTAX.into()),
    };
    exec.shared
        .client_pause
        .start(timeout_ms(request.at(2))?, everything);
    exec.reply.ok();
    Ok(Flow::Next)
}

fn unpause(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.shared.client_pause.end();
    exec.reply.ok();
    Ok(Flow::Next)
}

/// No command blocks for lack of data, so there is no client to unblock.
fn unblock(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    match (request.len(), request.get(3)) {
        (3, _) => {}
        (4, Some(reason)) if is(reason, "TIMEOUT") || is(reason, "ERROR") => {}
        (4, _) => return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".into()),
        _ => return Err(text::SYNTAX.into()),
    }
    integer(request.at(2))?;
    exec.reply.integer(0);
    Ok(Flow::Next)
}

/// Keys are not tracked for clients that cache them. Turning tracking off is allowed.
fn tracking(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    if is(request.at(2), "OFF") {
        exec.reply.ok();
        Ok(Flow::Next)
    } else if is(request.at(2), "ON") {
        Err("ERR CLIENT TRACKING is not supported by this server".into())
    } else {
        Err(text::SYNTAX.into())
    }
}

fn trackinginfo(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let reply = &mut *exec.reply;
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(1);
    reply.bulk(b"off");
    reply.bulk(b"redirect");
    reply.integer(-1);
    reply.bulk(b"prefixes");
    reply.array(0);
    Ok(Flow::Next)
}

fn caching(_exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    Err(
        "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled"
            .into(),
    )
}

fn getredir(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply.integer(-1);
    Ok(Flow::Next)
}

/// Returns or sets the durability that this connection's replies wait for.
fn ack(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let Some(word) = request.get(2) else {
        exec.reply.bulk(exec.session.ack.name().as_bytes());
        return Ok(Flow::Next);
    };
    if request.len() > 3 {
        return Err(text::SYNTAX.into());
    }
    let wanted = std::str::from_utf8(word)
        .ok()
        .and_then(|word| Ack::from_str(word).ok());
    let wanted = wanted.ok_or("ERR ack must be one of disk, process, buffered")?;
    exec.session.ack = wanted;
    exec.session.ack_chosen = true;
    exec.reply.ok();
    Ok(Flow::Next)
}

fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    row::help(exec, "client", SUBCOMMANDS)
}
