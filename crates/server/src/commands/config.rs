//! `CONFIG`.

use collie_protocol::Request;

use super::containers;
use super::parameters::{PARAMETERS, Parameter};
use super::row::Command;
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;
use crate::glob;
use crate::stats::CommandCounter;

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

fn get(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mut wanted: Vec<(&[u8], &Parameter)> = Vec::new();
    for pattern in request.iter().skip(2) {
        // A plain name is returned as it was spelt.
        let is_plain = glob::literal_prefix(pattern) == pattern;
        for parameter in PARAMETERS {
            let name = parameter.name.as_bytes();
            let is_new = !wanted.iter().any(|(_, known)| known.name == parameter.name);
            if is_new && glob::matches(pattern, name, true) {
                wanted.push((if is_plain { pattern } else { name }, parameter));
            }
        }
    }
    exec.reply.map(wanted.len());
    for (name, parameter) in wanted {
        exec.reply.bulk(name);
        exec.reply.bulk((parameter.get)(exec.shared).as_bytes());
    }
    Ok(Flow::Next)
}

fn set(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    if !request.len().is_multiple_of(2) {
        return Err(crate::failure::text::SYNTAX.into());
    }
    let mut changes = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    let mut args = request.iter().skip(2);
    while let (Some(name), Some(value)) = (args.next(), args.next()) {
        let known = PARAMETERS
            .iter()
            .find(|known| known.name.as_bytes().eq_ignore_ascii_case(name));
        let Some(parameter) = known else {
            let start = b"ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(Failure::Bytes([start, name, b"'"].concat()));
        };
        let failed = |why: &str| {
            let name = parameter.name;
            format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")
        };
        let Some(set) = parameter.set else {
            return Err(failed("can't set immutable config").into());
        };
        if seen.contains(&parameter.name) {
            return Err(failed("duplicate parameter").into());
        }
        seen.push(parameter.name);
        changes.push(set(exec.shared, value).map_err(|why| failed(&why))?);
    }
    for change in changes {
        change(exec.shared, exec.session);
    }
    exec.reply.ok();
    Ok(Flow::Next)
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
