//! `CONFIG`.

use collie_protocol::Request;

use super::containers;
use super::parameters::{PARAMETERS, Parameter};
use super::row::Command;
use super::tls_parameters::{TLS_PARAMETERS, TlsParameter};
use crate::cost::Aside;
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;
use crate::glob;
use crate::stats::CommandCounter;
use crate::tls::{AuthClients, Tls, TlsSettings};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("config", -2, containers::container)
    .about("2.0.0", "server", "Commands about the configuration.")
    .categories(&["@slow"])
    .subcommands(SUBCOMMANDS)];

/// The subcommands of `CONFIG`.
const SUBCOMMANDS: &[Command] = &[
    Command::new("config|get", -3, get)
        .about("2.0.0", "server", "Lists the parameters whose names match.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"]),
    Command::new("config|help", 2, help)
        .about("5.0.0", "server", "Returns this text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow"]),
    Command::new("config|resetstat", 2, resetstat)
        .about("2.0.0", "server", "Sets the counters of INFO to zero.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"]),
    Command::new("config|rewrite", 2, rewrite)
        .about(
            "2.8.0",
            "server",
            "Fails: the server does not write its configuration file.",
        )
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"]),
    Command::new("config|set", -4, set)
        .about("2.0.0", "server", "Changes parameters, all or none.")
        .flags(&["admin", "noscript", "loading", "stale"])
        .categories(&["@admin", "@slow", "@dangerous"])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
];

/// A parameter that is known.
#[derive(Clone, Copy)]
enum Known {
    Other(&'static Parameter),
    Tls(&'static TlsParameter),
}

impl Known {
    fn name(self) -> &'static str {
        match self {
            Known::Other(parameter) => parameter.name,
            Known::Tls(parameter) => parameter.name,
        }
    }

    fn find(name: &[u8]) -> Option<Known> {
        let others = PARAMETERS.iter().map(Known::Other);
        others
            .chain(TLS_PARAMETERS.iter().map(Known::Tls))
            .find(|known| known.name().as_bytes().eq_ignore_ascii_case(name))
    }
}

fn get(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mut wanted: Vec<(&[u8], Known)> = Vec::new();
    for pattern in request.iter().skip(2) {
        // A plain name is returned as it was spelt.
        let is_plain = glob::literal_prefix(pattern) == pattern;
        let others = PARAMETERS.iter().map(Known::Other);
        for parameter in others.chain(TLS_PARAMETERS.iter().map(Known::Tls)) {
            let name = parameter.name();
            let is_new = !wanted.iter().any(|(_, known)| known.name() == name);
            if is_new && glob::matches(pattern, name.as_bytes(), true) {
                wanted.push((if is_plain { pattern } else { name.as_bytes() }, parameter));
            }
        }
    }
    let tls = exec.shared.tls.as_ref().map(Tls::settings).unwrap_or_default();
    exec.reply.map(wanted.len());
    for (name, parameter) in wanted {
        exec.reply.bulk(name);
        match parameter {
            Known::Other(parameter) => exec.reply.bulk((parameter.get)(exec.shared).as_bytes()),
            Known::Tls(parameter) => exec.reply.bulk(&(parameter.get)(&tls)),
        }
    }
    Ok(Flow::Next)
}

fn set(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    if !request.len().is_multiple_of(2) {
        return Err(crate::failure::text::SYNTAX.into());
    }
    let shared = exec.shared;
    // What is judged here is what is set, whatever others set at the same time.
    let one = match exec.may_block {
        true => Some(shared.settings.changing.lock()),
        false => shared.settings.changing.try_lock(),
    };
    let Some(_one) = one else {
        return Ok(Flow::Aside(Aside::Waits));
    };
    let mut changes = Vec::new();
    let mut has_password = shared.settings.password().is_some();
    let mut seen: Vec<&str> = Vec::new();
    let mut secured: Option<(&Tls, TlsSettings)> = None;
    let mut args = request.iter().skip(2);
    while let (Some(name), Some(value)) = (args.next(), args.next()) {
        let Some(parameter) = Known::find(name) else {
            let start = b"ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(Failure::Bytes([start, name, b"'"].concat()));
        };
        let name = parameter.name();
        let is_seen = seen.contains(&name);
        seen.push(name);
        match parameter {
            Known::Other(Parameter { set: None, .. }) => {
                return Err(failed(name, &"can't set immutable config"));
            }
            _ if is_seen => return Err(failed(name, &"duplicate parameter")),
            Known::Other(Parameter { set: Some(set), .. }) => {
                if name == REQUIREPASS {
                    has_password = !value.is_empty();
                }
                changes.push(set(shared, value).map_err(|why| failed(name, &why))?);
            }
            Known::Tls(parameter) => {
                let Some(tls) = &shared.tls else {
                    let why = "this server does not listen for TLS: start it with tls-port";
                    return Err(failed(name, &why));
                };
                let (_, settings) = secured.get_or_insert_with(|| (tls, tls.settings()));
                (parameter.set)(settings, value).map_err(|why| failed(name, &why))?;
            }
        }
    }
    let says_who = seen
        .iter()
        .find(|name| name.starts_with("tls-") || **name == REQUIREPASS)
        .copied();
    if let (Some(name), Some(tls)) = (says_who, &shared.tls) {
        let auth_clients = match &secured {
            Some((_, settings)) => settings.auth_clients,
            None => tls.settings().auth_clients,
        };
        if !has_password && auth_clients != AuthClients::Yes && !tls.may_be_open {
            return Err(failed(name, &OPEN_TO_NETWORK));
        }
    }
    if let Some((tls, settings)) = secured {
        if !exec.may_block {
            // Files are read.
            return Ok(Flow::Aside(Aside::Waits));
        }
        let name = says_who.unwrap_or_default();
        let prepared = tls.prepare(settings).map_err(|problem| {
            tracing::warn!(%problem, "new connections go on with the TLS settings that were in force");
            failed(name, &problem)
        })?;
        tls.install(prepared);
        tracing::info!("new connections use the files of TLS as they were read now");
    }
    for change in changes {
        change(exec.shared, exec.session);
    }
    if says_who.is_some() {
        let client = exec.session.client.addr;
        tracing::warn!(%client, parameters = ?seen, "CONFIG SET: who is let in may have changed");
    }
    exec.reply.ok();
    Ok(Flow::Next)
}

const REQUIREPASS: &str = "requirepass";
const OPEN_TO_NETWORK: &str = "this would let in every client of other machines: keep a password, or \
                               tls-auth-clients yes, or start the server with open-to-network";

fn failed(name: &str, why: &dyn std::fmt::Display) -> Failure {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}").into()
}

fn resetstat(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.shared.counters.reset();
    exec.shared.calls.iter().for_each(CommandCounter::reset);
    exec.reply.ok();
    Ok(Flow::Next)
}

fn rewrite(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    match &exec.shared.config_file {
        None => Err("ERR The server is running without a config file".into()),
        Some(file) => Err(format!(
            "ERR Rewriting config file: the server does not write {}; CONFIG GET lists the settings in \
             force, to edit it by hand",
            file.display()
        )
        .into()),
    }
}

fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    containers::help(exec, "config", SUBCOMMANDS)
}
