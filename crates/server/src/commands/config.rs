//! `CONFIG`: parameters are read and changed.

use collie_protocol::Request;

use super::changes::{AnyParameter, ParameterChanges, Refusal};
use super::parameters::ACK;
use super::row::{self, Command, container};
use crate::cost::Aside;
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;
use crate::glob;
use crate::stats::CommandCounter;
use crate::tls::Tls;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("config", -2, container)
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

fn get(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mut wanted: Vec<(&[u8], AnyParameter)> = Vec::new();
    for pattern in request.iter().skip(2) {
        // A plain name is returned as it was spelt.
        let is_plain = glob::literal_prefix(pattern) == pattern;
        for parameter in AnyParameter::all() {
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
            AnyParameter::Other(parameter) => exec.reply.bulk((parameter.get)(exec.shared).as_bytes()),
            AnyParameter::Tls(parameter) => exec.reply.bulk(&(parameter.get)(&tls)),
        }
    }
    Ok(Flow::Next)
}

fn set(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    if !request.len().is_multiple_of(2) {
        return Err(crate::failure::text::SYNTAX.into());
    }
    let shared = exec.shared;
    let one = match exec.may_block {
        true => Some(shared.settings.changing.lock()),
        false => shared.settings.changing.try_lock(),
    };
    let Some(one) = one else {
        return Ok(Flow::Aside(Aside::Waits));
    };
    let mut args = request.iter().skip(2);
    let pairs = std::iter::from_fn(|| Some((args.next()?, args.next()?)));
    let changes = ParameterChanges::validate(shared, one, pairs)?;
    if changes.reads_files() && !exec.may_block {
        return Ok(Flow::Aside(Aside::Waits));
    }
    let session = &mut *exec.session;
    let names = changes.apply(&session.client.addr)?;
    if names.contains(&ACK) && !session.ack_chosen {
        session.ack = shared.settings.ack();
    }
    exec.reply.ok();
    Ok(Flow::Next)
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        match refusal {
            Refusal::Unknown(name) => {
                let start = b"ERR Unknown option or number of arguments for CONFIG SET - '";
                Failure::Bytes([start, &*name, b"'"].concat())
            }
            Refusal::Value { name, why } => {
                format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}").into()
            }
        }
    }
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
    row::help(exec, "config", SUBCOMMANDS)
}
