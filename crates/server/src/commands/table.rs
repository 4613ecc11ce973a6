//! The table of all commands, and the lookup of a request's row.
//!
//! `COMMAND` lists this table, `EXEC` and `COLLIE.ONCE` execute commands from it, and they are rows of
//! it: so `command`, `multi`, `once`, `call` and this file import each other.

use collie_protocol::Request;

use super::row::Command;
use super::{
    bitfields, bitmaps, client, cluster, command, config, connection, duplicate, expire, floats, info,
    keyspace, latency, lcs, merge, moves, multi, nodes, object, once, ranges, scan, server, slowlog, strings,
};
use crate::failure::{Failure, text};

const GROUPS: &[&[Command]] = &[
    bitfields::ROWS,
    bitmaps::ROWS,
    client::ROWS,
    cluster::ROWS,
    nodes::ROWS,
    command::ROWS,
    config::ROWS,
    connection::ROWS,
    duplicate::ROWS,
    expire::ROWS,
    floats::ROWS,
    info::ROWS,
    keyspace::ROWS,
    latency::ROWS,
    lcs::ROWS,
    merge::ROWS,
    moves::ROWS,
    multi::ROWS,
    object::ROWS,
    once::ROWS,
    ranges::ROWS,
    scan::ROWS,
    server::ROWS,
    slowlog::ROWS,
    strings::ROWS,
];

/// The longest name that is looked up; no command's name is longer.
const NAME_LEN_MAX: usize = 16;

/// The number of commands.
const COUNT: usize = {
    let (mut count, mut group) = (0, 0);
    while group < GROUPS.len() {
        count += GROUPS[group].len();
        group += 1;
    }
    count
};

/// All commands, sorted by name; the lookup relies on the order and the compiler checks it.
pub(super) static COMMANDS: &[&Command] = &sorted();

/// The groups' commands in order of their names.
const fn sorted() -> [&'static Command; COUNT] {
    let mut all = [&GROUPS[0][0]; COUNT];
    let (mut len, mut group) = (0, 0);
    while group < GROUPS.len() {
        let mut i = 0;
        while i < GROUPS[group].len() {
            let command = &GROUPS[group][i];
            let mut at = len;
            while at > 0 && packed(all[at - 1].name.as_bytes()) > packed(command.name.as_bytes()) {
                all[at] = all[at - 1];
                at -= 1;
            }
            all[at] = command;
            len += 1;
            i += 1;
        }
        group += 1;
    }
    all
}

/// Finds a request's command or subcommand and checks the number of arguments.
pub(super) fn find(request: Request<'_>) -> Result<&'static Command, Failure> {
    let name = request.get(0).unwrap_or_default();
    let Some(command) = lookup(name) else {
        return Err(unknown(request));
    };
    if command.subcommands.is_empty() {
        return checked(command, request);
    }
    let Some(sub) = request.get(1) else {
        return checked(command, request);
    };
    match command
        .subcommands
        .iter()
        .find(|known| known.name.as_bytes().eq_ignore_ascii_case(sub))
    {
        Some(known) => checked(known, request),
        None => {
            let mut line = b"ERR unknown subcommand '".to_vec();
            line.extend(sub.iter().take(128));
            line.extend_from_slice(b"'. Try ");
            line.extend_from_slice(command.name.to_ascii_uppercase().as_bytes());
            line.extend_from_slice(b" HELP.");
            Err(Failure::Bytes(line))
        }
    }
}

fn checked(command: &'static Command, request: Request<'_>) -> Result<&'static Command, Failure> {
    let given = i32::try_from(request.len()).unwrap_or(i32::MAX);
    if (command.arity >= 0 && given != command.arity) || given < -command.arity {
        return Err(text::arity(command.full_name).into());
    }
    Ok(command)
}

/// The names of the commands, in the order of the table.
pub(crate) fn names() -> impl ExactSizeIterator<Item = &'static str> {
    COMMANDS.iter().map(|command| command.name)
}

/// Finds a command by its name in any case.
pub(super) fn lookup(name: &[u8]) -> Option<&'static Command> {
    number(name).and_then(|number| COMMANDS.get(number)).copied()
}

/// The index in the table of the command with that name, in any case.
pub(super) fn number(name: &[u8]) -> Option<usize> {
    let mut lower = [0; NAME_LEN_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let index = NAMES.binary_search(&packed(lower)).ok()?;
    // A name that ends in zero bytes is packed like one without them.
    COMMANDS
        .get(index)
        .is_some_and(|command| command.name.len() == name.len())
        .then_some(index)
}

/// The packed names of the table, separate from it so that a search stays within a few cache lines.
static NAMES: [u128; COUNT] = {
    let mut names = [0; COUNT];
    let mut i = 0;
    while i < names.len() {
        names[i] = packed(COMMANDS[i].name.as_bytes());
        i += 1;
    }
    names
};

/// A name of up to sixteen bytes as a number that sorts like the name.
const fn packed(name: &[u8]) -> u128 {
    let mut bytes = [0; NAME_LEN_MAX];
    let mut i = 0;
    while i < name.len() && i < NAME_LEN_MAX {
        bytes[i] = name[i];
        i += 1;
    }
    u128::from_be_bytes(bytes)
}

/// Checks that the names are short enough to be packed, and in order.
const _: () = {
    let mut i = 0;
    while i < COMMANDS.len() {
        let name = COMMANDS[i].name.as_bytes();
        assert!(name.len() <= NAME_LEN_MAX);
        assert!(i == 0 || packed(COMMANDS[i - 1].name.as_bytes()) < packed(name));
        i += 1;
    }
};

/// Redis' commands for scripts. Some client libraries send them by themselves, as for locks.
const SCRIPTS: [&[u8]; 7] = [
    b"EVAL",
    b"EVALSHA",
    b"EVAL_RO",
    b"EVALSHA_RO",
    b"SCRIPT",
    b"FCALL",
    b"FCALL_RO",
];
const NO_SCRIPTS: &[u8] = b"(this server runs no scripts)";

fn unknown(request: Request<'_>) -> Failure {
    let mut args = Vec::new();
    for arg in request.iter().skip(1) {
        if args.len() >= 128 {
            break;
        }
        let room = 128 - args.len();
        args.push(b'\'');
        args.extend(arg.iter().take(room).take_while(|&&byte| byte != 0));
        args.extend_from_slice(b"' ");
    }
    let mut line = b"ERR unknown command '".to_vec();
    line.extend(
        request
            .get(0)
            .unwrap_or_default()
            .iter()
            .take(128)
            .take_while(|&&byte| byte != 0),
    );
    line.extend_from_slice(b"', with args beginning with: ");
    line.extend_from_slice(&args);
    let name = request.get(0).unwrap_or_default();
    if SCRIPTS.iter().any(|script| name.eq_ignore_ascii_case(script)) {
        line.extend_from_slice(NO_SCRIPTS);
    }
    Failure::Bytes(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_only_whole() {
        for command in COMMANDS {
            let found = lookup(command.name.to_ascii_uppercase().as_bytes()).unwrap();
            assert_eq!(found.name, command.name);
            assert_eq!(found.full_name, command.name);
            for sub in command.subcommands {
                assert_eq!(sub.full_name, format!("{}|{}", command.name, sub.name));
            }
        }
        for name in ["", "ge", "gett", "get\0", "averyveryverylongcommandname"] {
            assert!(lookup(name.as_bytes()).is_none(), "{name:?}");
        }
    }

    /// A row of the first table has the names of commands, or that of a container and of subcommands.
    #[test]
    fn the_book_lists_all_commands_and_no_others() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/commands.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows = page.lines().skip_while(|line| !line.starts_with("|---"));
        let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
        let mut listed = std::collections::BTreeSet::new();
        for row in rows {
            let names = row.split('|').nth(1).unwrap().to_lowercase();
            let mut names = names.split_whitespace();
            let first = lookup(names.next().unwrap().as_bytes()).unwrap();
            listed.insert(first.name);
            for name in names {
                let is_sub = first.subcommands.iter().any(|sub| sub.name == name);
                match lookup(name.as_bytes()) {
                    _ if is_sub => {}
                    Some(command) => assert!(listed.insert(command.name), "{name} is listed twice"),
                    None => panic!("{name} is no command"),
                }
            }
        }
        let missing = COMMANDS.iter().filter(|command| !listed.contains(command.name));
        let missing: Vec<_> = missing.map(|command| command.name).collect();
        assert!(missing.is_empty(), "docs/book/src/commands.md lacks {missing:?}");
    }
}
