//! The table of commands: what `COMMAND` says of each, group by group.
//!
//! Arity, flags, categories, tips and key positions are those of Redis 7.0.15 — a test compares them with a real
//! one — except for what came later (`WAITAOF`, `CLIENT SETINFO`) and for what is Collie's own (`CLIENT ACK`).

mod bitmaps;
mod connection;
mod containers;
mod keys;
mod server;
mod strings;
mod transactions;

use super::Command;

const GROUPS: &[&[Command]] = &[
    bitmaps::COMMANDS,
    connection::COMMANDS,
    keys::COMMANDS,
    server::COMMANDS,
    strings::COMMANDS,
    transactions::COMMANDS,
];

/// How many commands there are.
pub(super) const COUNT: usize = {
    let (mut count, mut group) = (0, 0);
    while group < GROUPS.len() {
        count += GROUPS[group].len();
        group += 1;
    }
    count
};

/// All commands. Sorted; the lookup relies on it and the compiler checks it.
pub(crate) static COMMANDS: &[&Command] = &sorted();

/// The groups' commands in the order of their names.
const fn sorted() -> [&'static Command; COUNT] {
    let mut all = [&GROUPS[0][0]; COUNT];
    let (mut len, mut group) = (0, 0);
    while group < GROUPS.len() {
        let mut i = 0;
        while i < GROUPS[group].len() {
            let command = &GROUPS[group][i];
            let mut at = len;
            while at > 0
                && super::packed(all[at - 1].name.as_bytes()) > super::packed(command.name.as_bytes())
            {
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
