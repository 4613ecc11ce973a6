//! The commands: a table, the way to them, and what each does.

mod bitfields;
mod bitmaps;
mod client;
mod command;
mod config;
mod connection;
mod expire;
mod floats;
mod info;
mod keyspace;
mod latency;
mod lcs;
mod moves;
mod multi;
mod names;
mod numbers;
mod object;
mod ranges;
mod scan;
mod server;
mod slowlog;
mod strings;
mod table;

use collie_protocol::Request;

use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};
use crate::session::Session;

pub(crate) use info::describe;
pub(crate) use keyspace::Search;
pub(crate) use slowlog::SlowLog;
use table::COMMANDS;

/// Longest command name that is looked up; no command's is longer.
const NAME_LEN_MAX: usize = 16;

/// A command or subcommand.
#[derive(Debug)]
pub(crate) struct Command {
    /// In lower case; a subcommand without its container's name.
    pub(crate) name: &'static str,
    /// In full, as it stands in error texts: `client|id`.
    pub(crate) full_name: &'static str,
    /// Arguments, the name included; negative: at least so many.
    arity: i32,
    /// As `COMMAND` lists them.
    flags: &'static [&'static str],
    categories: &'static [&'static str],
    tips: &'static [&'static str],
    keys: &'static [Keys],
    /// Whether a client may call it before it authenticated.
    is_open: bool,
    /// Whether it is executed after `MULTI` too, where others are queued.
    is_immediate: bool,
    /// Whether it works on more than the keys that it names, so that a transaction with it takes all locks.
    is_everywhere: bool,
    /// Whether it takes so long that a transaction with it runs on a thread that may block.
    is_lasting: bool,
    since: &'static str,
    group: &'static str,
    summary: &'static str,
    subcommands: &'static [Command],
    run: fn(&mut Exec<'_>, Request<'_>) -> Outcome,
}

/// Builds the entries of the table.
impl Command {
    const fn new(
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

    /// The version of Redis that brought it, its group there, and what it does.
    const fn about(mut self, since: &'static str, group: &'static str, summary: &'static str) -> Command {
        self.since = since;
        self.group = group;
        self.summary = summary;
        self
    }

    const fn flags(mut self, flags: &'static [&'static str]) -> Command {
        self.flags = flags;
        self
    }

    const fn categories(mut self, categories: &'static [&'static str]) -> Command {
        self.categories = categories;
        self
    }

    const fn tips(mut self, tips: &'static [&'static str]) -> Command {
        self.tips = tips;
        self
    }

    const fn keys(mut self, keys: &'static [Keys]) -> Command {
        self.keys = keys;
        self
    }

    const fn open(mut self) -> Command {
        self.is_open = true;
        self
    }

    const fn immediate(mut self) -> Command {
        self.is_immediate = true;
        self
    }

    const fn everywhere(mut self) -> Command {
        self.is_everywhere = true;
        self
    }

    const fn lasting(mut self) -> Command {
        self.is_lasting = true;
        self
    }

    const fn subcommands(mut self, subcommands: &'static [Command]) -> Command {
        self.subcommands = subcommands;
        self
    }

    /// Whether the slow log has no entry of it: passwords are no entries, and of `EXEC` its commands are.
    fn is_secret(&self) -> bool {
        matches!(self.full_name, "auth" | "hello" | "exec" | "config|set")
    }

    /// Whether it may write.
    pub(crate) fn is_write(&self) -> bool {
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

/// Where a command's keys stand.
#[derive(Debug)]
struct Keys {
    first: i64,
    /// Counted from the first one, or from the end where negative.
    last: i64,
    step: i64,
    flags: &'static [&'static str],
    notes: Option<&'static str>,
}

impl Keys {
    /// One key.
    const fn at(first: i64, flags: &'static [&'static str]) -> Keys {
        Keys::to(first, 0, 1, flags)
    }

    const fn to(first: i64, last: i64, step: i64, flags: &'static [&'static str]) -> Keys {
        Keys {
            first,
            last,
            step,
            flags,
            notes: None,
        }
    }

    const fn notes(mut self, notes: &'static str) -> Keys {
        self.notes = Some(notes);
        self
    }

    /// The keys in a request.
    fn of<'r>(&self, request: Request<'r>) -> impl Iterator<Item = &'r [u8]> + use<'r> {
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

/// Runs one request that has at least one argument. Between `MULTI` and `EXEC` most are queued instead.
pub(crate) fn run(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let command = match find(request).and_then(|command| allowed(exec, command)) {
        Ok(command) => command,
        Err(_) if is_http(request) => {
            tracing::warn!(
                client = exec.session.client.id,
                "a browser may have been made to talk to this server: its connection is closed"
            );
            return Ok(Flow::Close);
        }
        Err(failure) => return Err(multi::refused(exec, request, failure)),
    };
    exec.session.last_command = command.full_name;
    exec.session.refresh(&exec.shared.store);
    if exec.session.queue.is_some() && !command.is_immediate {
        return multi::queue(exec, command, request);
    }
    call(exec, command, request)
}

/// Executes a command, and notes it where it takes long.
fn call(exec: &mut Exec<'_>, command: &'static Command, request: Request<'_>) -> Outcome {
    let outcome = match (command.run)(exec, request) {
        Err(Failure::Aside(why)) => Ok(Flow::Aside(why)),
        outcome => outcome,
    };
    // It is run again, where it may take its time.
    if matches!(outcome, Ok(Flow::Aside(_))) {
        return outcome;
    }
    // The command before ended when this one began, or nearly so.
    let now_ns = exec.shared.clock.monotonic();
    let took_ns = now_ns.saturating_sub(exec.session.clock_ns);
    exec.session.clock_ns = now_ns;
    if let Some(number) = number(request.get(0).unwrap_or_default()) {
        exec.noted.calls.push((number, outcome.is_err(), took_ns));
    }
    // In a transaction all of them are counted when it ends: it may run again aside.
    if exec.transaction.is_none() {
        exec.hand_in();
    }
    let slow_ns = exec.shared.settings.slow_ns();
    if slow_ns.is_some_and(|slow_ns| took_ns >= slow_ns) && !command.is_secret() {
        let len_max = exec.shared.settings.slow_log_len_max();
        let client = &exec.session.client;
        let slow_log = &exec.shared.slow_log;
        slow_log.note(request, client, exec.now_ms, took_ns / 1000, len_max);
    }
    outcome
}

/// Whether the client may call a command now.
fn allowed(exec: &Exec<'_>, command: &'static Command) -> Result<&'static Command, Failure> {
    if !exec.session.authenticated && !command.is_open {
        return Err(text::NO_AUTH.into());
    }
    if exec.session.queue.is_some() && command.flags.contains(&"no_multi") {
        return Err("ERR Command not allowed inside a transaction".into());
    }
    Ok(command)
}

/// Whether a request is a line of HTTP: what a page sends from a browser must not get to the lines that it
/// hopes are taken for commands. Redis closes at the same two words.
fn is_http(request: Request<'_>) -> bool {
    let name = request.get(0).unwrap_or_default();
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Whether a request names keys whose values may be large, `EXEC` included.
pub(crate) fn names_keys(request: Request<'_>) -> bool {
    lookup(request.get(0).unwrap_or_default())
        .is_some_and(|command| !command.keys.is_empty() || command.name == "exec")
}

/// Whether what a request asks for may write.
pub(crate) fn may_write(session: &Session, request: Request<'_>) -> bool {
    let Some(command) = lookup(request.get(0).unwrap_or_default()) else {
        return false;
    };
    match &session.queue {
        None => command.is_write(),
        Some(queue) => command.name == "exec" && queue.commands.iter().any(|(queued, _)| queued.is_write()),
    }
}

/// Finds a request's command or subcommand and checks the number of arguments.
pub(crate) fn find(request: Request<'_>) -> Result<&'static Command, Failure> {
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

/// The commands' names, in the order of their numbers.
pub(crate) fn names() -> impl ExactSizeIterator<Item = &'static str> {
    COMMANDS.iter().map(|command| command.name)
}

/// Finds a command by its name in any case.
pub(crate) fn lookup(name: &[u8]) -> Option<&'static Command> {
    number(name).and_then(|number| COMMANDS.get(number)).copied()
}

/// The number of the command of that name, in any case: its place in the table.
fn number(name: &[u8]) -> Option<usize> {
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

/// The names of the table alone, packed, so that a search stays within a few cache lines.
static NAMES: [u128; table::COUNT] = {
    let mut names = [0; table::COUNT];
    let mut i = 0;
    while i < names.len() {
        names[i] = packed(COMMANDS[i].name.as_bytes());
        i += 1;
    }
    names
};

/// A name of up to sixteen bytes as one number that sorts as the name does.
const fn packed(name: &[u8]) -> u128 {
    let mut bytes = [0; NAME_LEN_MAX];
    let mut i = 0;
    while i < name.len() && i < NAME_LEN_MAX {
        bytes[i] = name[i];
        i += 1;
    }
    u128::from_be_bytes(bytes)
}

/// The table's names must be short enough to be packed, and in order.
const _: () = {
    let mut i = 0;
    while i < COMMANDS.len() {
        let name = COMMANDS[i].name.as_bytes();
        assert!(name.len() <= NAME_LEN_MAX);
        assert!(i == 0 || packed(COMMANDS[i - 1].name.as_bytes()) < packed(name));
        i += 1;
    }
};

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
    Failure::Bytes(line)
}

/// The `HELP` of a container: its subcommands and what they do.
fn help(exec: &mut Exec<'_>, container: &'static str) -> Outcome {
    let Some(command) = lookup(container.as_bytes()) else {
        return Ok(Flow::Next);
    };
    let title = container.to_ascii_uppercase();
    exec.reply.array(1 + 2 * command.subcommands.len());
    exec.reply.simple(&format!(
        "{title} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ));
    for sub in command.subcommands {
        exec.reply.simple(&sub.name.to_ascii_uppercase());
        exec.reply.simple(&format!("    {}", sub.summary));
    }
    Ok(Flow::Next)
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
}
