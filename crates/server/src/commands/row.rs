//! A row of the command table: the properties that `COMMAND` reports, and the function that
//! executes the command.
//!
//! Arity, flags, categories, tips and key positions are those of Redis 7.0.15 — a test compares
//! them with a real one — except for what came later (`WAITAOF`, `CLIENT SETINFO`) and for what is
//! Collie's own (`CLIENT ACK`, `COLLIE.ONCE`, `COLLIE.MERGE`).
//!
//! A new command is a row and a function in the file of its group (`GROUPS` in `table.rs` for a new
//! group), a line in docs/book/src/commands.md, and its name in the lists of `tests/server/heavy`,
//! `tests/server/in_doubt`, `tests/cluster/commands`, `tests/cluster/expiry` and collie-lab's
//! `hostile/heavy`; one that Redis lacks in `tests/server/differential`, too. In a cluster its keys and
//! flags alone say where it is executed (`partitioned.rs`). `find`, `prior`, `payload`
//! and `part` weigh what they read (`cost`); other work that grows with values is weighed by the command.

use collie_protocol::Request;

use crate::exec::{Exec, Flow, Outcome};
use crate::failure::text;

/// A command or subcommand.
#[derive(Debug)]
pub(super) struct Command {
    /// In lower case; a subcommand's without its container's name.
    pub(super) name: &'static str,
    /// In full, as in error texts: `client|id`.
    pub(super) full_name: &'static str,
    /// Number of arguments, the name included; negative: the least number.
    pub(super) arity: i32,
    /// As in the reply to `COMMAND`.
    pub(super) flags: &'static [&'static str],
    pub(super) categories: &'static [&'static str],
    pub(super) tips: &'static [&'static str],
    pub(super) keys: &'static [Keys],
    /// Whether a client may call it before it has authenticated.
    pub(super) is_open: bool,
    /// Whether it is executed after `MULTI` too, instead of being queued.
    pub(super) is_immediate: bool,
    /// Whether it accesses more than the keys that it names, so that a transaction with it locks
    /// all keys.
    pub(super) is_everywhere: bool,
    /// Whether it takes so long that a transaction with it runs on a thread that may block.
    pub(super) is_lasting: bool,
    pub(super) since: &'static str,
    pub(super) group: &'static str,
    pub(super) summary: &'static str,
    pub(super) subcommands: &'static [Command],
    pub(super) run: fn(&mut Exec<'_>, Request<'_>) -> Outcome,
}

/// Builds a row.
impl Command {
    pub(super) const fn new(
        full_name: &'static str,
        arity: i32,
        run: fn(&mut Exec<'_>, Request<'_>) -> Outcome,
    ) -> Command {
        Command {
            name: behind_container(full_name),
            full_name,
            arity,
            flags: &[],
            categories: &[],
            tips: &[],
            keys: &[],
            is_open: false,
            is_immediate: false,
            is_everywhere: false,
            is_lasting: false,
            since: "",
            group: "",
            summary: "",
            subcommands: &[],
            run,
        }
    }

    /// The version of Redis that introduced it, its group there, and a summary.
    pub(super) const fn about(
        mut self,
        since: &'static str,
        group: &'static str,
        summary: &'static str,
    ) -> Command {
        self.since = since;
        self.group = group;
        self.summary = summary;
        self
    }

    pub(super) const fn flags(mut self, flags: &'static [&'static str]) -> Command {
        self.flags = flags;
        self
    }

    pub(super) const fn categories(mut self, categories: &'static [&'static str]) -> Command {
        self.categories = categories;
        self
    }

    pub(super) const fn tips(mut self, tips: &'static [&'static str]) -> Command {
        self.tips = tips;
        self
    }

    pub(super) const fn keys(mut self, keys: &'static [Keys]) -> Command {
        self.keys = keys;
        self
    }

    pub(super) const fn open(mut self) -> Command {
        self.is_open = true;
        self
    }

    pub(super) const fn immediate(mut self) -> Command {
        self.is_immediate = true;
        self
    }

    pub(super) const fn everywhere(mut self) -> Command {
        self.is_everywhere = true;
        self
    }

    pub(super) const fn lasting(mut self) -> Command {
        self.is_lasting = true;
        self
    }

    pub(super) const fn subcommands(mut self, subcommands: &'static [Command]) -> Command {
        self.subcommands = subcommands;
        self
    }

    /// Whether it is left out of the slow log: because of passwords, or, for `EXEC`, because its
    /// commands are logged one by one.
    pub(super) fn is_secret(&self) -> bool {
        matches!(self.full_name, "auth" | "hello" | "exec" | "config|set")
    }

    /// Whether dropping the transaction undoes it: it accesses only the keys that it names.
    pub(super) fn can_be_undone(&self) -> bool {
        !self.keys.is_empty() && !self.is_everywhere && !self.is_lasting
    }

    /// Whether it reads keys and changes none.
    pub(super) fn is_read(&self) -> bool {
        self.flags.contains(&"readonly")
    }

    /// Whether it may write.
    pub(super) fn is_write(&self) -> bool {
        self.flags.contains(&"write")
    }
}

/// `id` of `client|id`.
const fn behind_container(full_name: &'static str) -> &'static str {
    let bytes = full_name.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'|' {
            return full_name.split_at(i + 1).1;
        }
        i += 1;
    }
    full_name
}

/// The handler of a container itself. It does nothing: without a subcommand the number of arguments
/// is wrong, which is checked before.
pub(super) fn container(_exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    Err(text::SYNTAX.into())
}

/// The `HELP` of a container: lists its subcommands with their summaries.
pub(super) fn help(exec: &mut Exec<'_>, container: &'static str, subcommands: &[Command]) -> Outcome {
    let title = container.to_ascii_uppercase();
    exec.reply.array(1 + 2 * subcommands.len());
    exec.reply.simple(&format!(
        "{title} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ));
    for sub in subcommands {
        exec.reply.simple(&sub.name.to_ascii_uppercase());
        exec.reply.simple(&format!("    {}", sub.summary));
    }
    Ok(Flow::Next)
}

/// The positions of a command's keys.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) first: i64,
    /// Counted from the first key, or from the end if negative.
    pub(super) last: i64,
    pub(super) step: i64,
    pub(super) flags: &'static [&'static str],
    pub(super) notes: Option<&'static str>,
}

impl Keys {
    /// One key.
    pub(super) const fn at(first: i64, flags: &'static [&'static str]) -> Keys {
        Keys::to(first, 0, 1, flags)
    }

    pub(super) const fn to(first: i64, last: i64, step: i64, flags: &'static [&'static str]) -> Keys {
        Keys {
            first,
            last,
            step,
            flags,
            notes: None,
        }
    }

    pub(super) const fn notes(mut self, notes: &'static str) -> Keys {
        self.notes = Some(notes);
        self
    }

    /// The keys of a request.
    pub(super) fn of<'r>(&self, request: Request<'r>) -> impl Iterator<Item = &'r [u8]> + use<'r> {
        let given = i64::try_from(request.len()).unwrap_or(i64::MAX);
        let last = if self.last < 0 {
            given + self.last
        } else {
            self.first + self.last
        };
        (self.first..=last)
            .step_by(usize::try_from(self.step).unwrap_or(1))
            .filter_map(move |i| usize::try_from(i).ok().and_then(|i| request.get(i)))
    }
}
