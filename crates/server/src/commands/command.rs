//! `COMMAND`: the command table, as clients read it.

use collie_protocol::Request;

use super::numbers::is;
use super::row::{self, Command, Keys};
use super::table::{COMMANDS, find, lookup};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};
use crate::glob;
use collie_protocol::{KeptRequest, ReplyBuffer};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new("command", -1, all)
    .about("2.8.13", "server", "Lists all commands.")
    .flags(&["loading", "stale"])
    .categories(&["@slow", "@connection"])
    .tips(&["nondeterministic_output_order"])
    .subcommands(SUBCOMMANDS)];

/// The subcommands of `COMMAND`.
const SUBCOMMANDS: &[Command] = &[
    Command::new("command|count", 2, count)
        .about("2.8.13", "server", "Returns the number of commands.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("command|docs", -2, docs)
        .about("7.0.0", "server", "Describes commands.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["nondeterministic_output_order"]),
    Command::new("command|getkeys", -4, getkeys)
        .about("2.8.13", "server", "Lists the keys in a command line.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("command|getkeysandflags", -4, getkeysandflags)
        .about(
            "7.0.0",
            "server",
            "Lists the keys in a command line with their flags.",
        )
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("command|help", 2, help)
        .about("5.0.0", "server", "Returns this text.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"]),
    Command::new("command|info", -2, info)
        .about("2.8.13", "server", "Lists commands with arity, flags and keys.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["nondeterministic_output_order"]),
    Command::new("command|list", -2, list)
        .about("7.0.0", "server", "Lists the names of commands.")
        .flags(&["loading", "stale"])
        .categories(&["@slow", "@connection"])
        .tips(&["nondeterministic_output_order"]),
];

fn all(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    if request.len() > 1 {
        return Ok(Flow::Next);
    }
    exec.reply.array(COMMANDS.len());
    for command in COMMANDS {
        describe(exec.reply, command);
    }
    Ok(Flow::Next)
}

fn count(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.reply
        .integer(i64::try_from(COMMANDS.len()).unwrap_or(i64::MAX));
    Ok(Flow::Next)
}

fn info(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    if request.len() == 2 {
        exec.reply.array(COMMANDS.len());
        for command in COMMANDS {
            describe(exec.reply, command);
        }
        return Ok(Flow::Next);
    }
    exec.reply.array(request.len() - 2);
    for name in request.iter().skip(2) {
        match by_full_name(name) {
            Some(command) => describe(exec.reply, command),
            None => exec.reply.null(),
        }
    }
    Ok(Flow::Next)
}

/// A command, or a subcommand by its full name (`client|id`).
fn by_full_name(name: &[u8]) -> Option<&'static Command> {
    let mut parts = name.splitn(2, |&byte| byte == b'|');
    let command = lookup(parts.next().unwrap_or_default())?;
    match parts.next() {
        None => Some(command),
        Some(sub) => command
            .subcommands
            .iter()
            .find(|known| known.name.as_bytes().eq_ignore_ascii_case(sub)),
    }
}

fn describe(reply: &mut ReplyBuffer, command: &Command) {
    reply.array(10);
    reply.bulk(command.full_name.as_bytes());
    reply.integer(command.arity.into());
    reply.set(command.flags.len());
    command.flags.iter().for_each(|flag| reply.simple(flag));
    let (first, last, step) = one_range(command.keys);
    reply.integer(first);
    reply.integer(last);
    reply.integer(step);
    reply.set(command.categories.len());
    command
        .categories
        .iter()
        .for_each(|category| reply.simple(category));
    reply.set(command.tips.len());
    command.tips.iter().for_each(|tip| reply.bulk(tip.as_bytes()));
    reply.set(command.keys.len());
    command.keys.iter().for_each(|keys| describe_keys(reply, keys));
    match command.subcommands.len() {
        0 => reply.set(0),
        count => reply.array(count),
    }
    command.subcommands.iter().for_each(|sub| describe(reply, sub));
}

/// All keys as one range, the older form: the first key, the last one and the step.
fn one_range(keys: &[Keys]) -> (i64, i64, i64) {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else {
        return (0, 0, 0);
    };
    // Counted from the command's name here, and from the first key in the newer form.
    let end = if last.last < 0 {
        last.last
    } else {
        last.first + last.last
    };
    (first.first, end, first.step)
}

fn describe_keys(reply: &mut ReplyBuffer, keys: &Keys) {
    reply.map(if keys.notes.is_some() { 4 } else { 3 });
    if let Some(notes) = keys.notes {
        reply.bulk(b"notes");
        reply.bulk(notes.as_bytes());
    }
    reply.bulk(b"flags");
    reply.set(keys.flags.len());
    keys.flags.iter().for_each(|flag| reply.simple(flag));
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"index");
    reply.bulk(b"spec");
    reply.map(1);
    reply.bulk(b"index");
    reply.integer(keys.first);
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"range");
    reply.bulk(b"spec");
    reply.map(3);
    reply.bulk(b"lastkey");
    reply.integer(keys.last);
    reply.bulk(b"keystep");
    reply.integer(keys.step);
    reply.bulk(b"limit");
    reply.integer(0);
}

fn docs(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let wanted: Vec<&Command> = if request.len() == 2 {
        COMMANDS.to_vec()
    } else {
        request.iter().skip(2).filter_map(by_full_name).collect()
    };
    exec.reply.map(wanted.len());
    for command in wanted {
        document(exec.reply, command);
    }
    Ok(Flow::Next)
}

fn document(reply: &mut ReplyBuffer, command: &Command) {
    reply.bulk(command.full_name.as_bytes());
    reply.map(if command.subcommands.is_empty() { 3 } else { 4 });
    for (name, text) in [
        ("summary", command.summary),
        ("since", command.since),
        ("group", command.group),
    ] {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if !command.subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(command.subcommands.len());
        command.subcommands.iter().for_each(|sub| document(reply, sub));
    }
}

fn list(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mut names: Vec<&str> = Vec::new();
    for command in COMMANDS {
        names.push(command.full_name);
        names.extend(command.subcommands.iter().map(|sub| sub.full_name));
    }
    match (request.len(), request.get(2), request.get(3), request.get(4)) {
        (2, ..) => {}
        (5, Some(filter), Some(kind), Some(value)) if is(filter, "FILTERBY") => {
            if is(kind, "MODULE") {
                names.clear();
            } else if is(kind, "PATTERN") {
                names.retain(|name| glob::matches(value, name.as_bytes(), true));
            } else if is(kind, "ACLCAT") {
                names.retain(|name| {
                    let command = by_full_name(name.as_bytes());
                    let categories = command.map_or(&[][..], |command| command.categories);
                    categories
                        .iter()
                        .any(|category| value.eq_ignore_ascii_case(&category.as_bytes()[1..]))
                });
            } else {
                return Err(text::SYNTAX.into());
            }
        }
        _ => return Err(text::SYNTAX.into()),
    }
    exec.reply.array(names.len());
    names.iter().for_each(|name| exec.reply.bulk(name.as_bytes()));
    Ok(Flow::Next)
}

/// The command that a request names in argument 2, and the arguments from there on as a request of
/// its own.
fn inner_command(request: Request<'_>) -> Result<(&'static Command, KeptRequest), Failure> {
    let inner = request.keep_from(2);
    let Ok(command) = find(inner.request()).or_else(|_| lookup(request.at(2)).ok_or(())) else {
        return Err("ERR Invalid command specified".into());
    };
    if command.keys.is_empty() {
        return Err("ERR The command has no key arguments".into());
    }
    let given = i64::try_from(inner.request().len()).unwrap_or(i64::MAX);
    let arity = i64::from(command.arity);
    if (arity >= 0 && given != arity) || given < -arity {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    Ok((command, inner))
}

fn getkeys(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (command, inner) = inner_command(request)?;
    let found = command.keys.iter().flat_map(|keys| keys.of(inner.request()));
    let found: Vec<&[u8]> = found.collect();
    exec.reply.array(found.len());
    found.iter().for_each(|key| exec.reply.bulk(key));
    Ok(Flow::Next)
}

fn getkeysandflags(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let (command, inner) = inner_command(request)?;
    let inner = inner.request();
    let mut found: Vec<(&[u8], &[&str])> = Vec::new();
    for keys in command.keys {
        let flags = flags_in(command, keys, inner);
        found.extend(keys.of(inner).map(|key| (key, flags)));
    }
    exec.reply.array(found.len());
    for (key, flags) in found {
        exec.reply.array(2);
        exec.reply.bulk(key);
        exec.reply.set(flags.len());
        flags.iter().for_each(|flag| exec.reply.simple(flag));
    }
    Ok(Flow::Next)
}

/// The flags of a command's keys, where they depend on its arguments.
fn flags_in(command: &Command, keys: &Keys, inner: Request<'_>) -> &'static [&'static str] {
    let says = |words: &[&str]| {
        inner
            .iter()
            .skip(2)
            .any(|arg| words.iter().any(|word| is(arg, word)))
    };
    match command.name {
        "set" if says(&["GET"]) => &["RW", "access", "update"],
        "set" => &["OW", "update"],
        "bitfield" if says(&["SET", "INCRBY"]) => &["RW", "access", "update"],
        "bitfield" => &["RO", "access"],
        _ => keys.flags,
    }
}

fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    row::help(exec, "command", SUBCOMMANDS)
}
