//! `MULTI`, `EXEC`, `DISCARD`, `WATCH` and `UNWATCH`.
//!
//! `EXEC` takes the locks of all keys that its commands name, and of those that the connection
//! watches, in one call and in lock order; if these are very many, or a command accesses more than
//! the keys that it names, it locks all keys. Then it runs the commands in one
//! [transaction](crate::exec_batch) and commits it. The locks are held until the commit is applied,
//! not until it is durable: the reply waits for that, once, as that of any command does.

use std::sync::Arc;

use collie_protocol::Request;
use collie_protocol::number::parse_i64;

use super::call::call;
use super::info::describe;
use super::moves::copy_options;
use super::numbers::is;
use super::row::{Command, Keys};
use super::server;
use super::table::find;
use crate::cost::{Aside, LARGE};
use crate::data::keyspace::{DATABASES, Keyspace};
use crate::data::store::Store;
use crate::data::watch::WATCHED_MAX;
use crate::exec::{Deferred, Exec, Flow, Outcome, Transaction};
use crate::failure::{Failure, text};
use crate::partitions::evaluate::{CommandKeys, evaluate};
use crate::session::Queue;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("discard", 1, discard)
        .about("2.0.0", "transactions", "Discards the queued commands.")
        .flags(&["noscript", "loading", "stale", "fast", "allow_busy"])
        .categories(&["@fast", "@transaction"])
        .immediate(),
    Command::new("exec", 1, exec)
        .about(
            "1.2.0",
            "transactions",
            "Executes the queued commands as one commit.",
        )
        .flags(&["noscript", "loading", "stale", "skip_slowlog"])
        .categories(&["@slow", "@transaction"])
        .immediate(),
    Command::new("multi", 1, multi)
        .about("1.2.0", "transactions", "Begins to queue commands.")
        .flags(&["noscript", "loading", "stale", "fast", "allow_busy"])
        .categories(&["@fast", "@transaction"])
        .immediate(),
    Command::new("unwatch", 1, unwatch)
        .about("2.2.0", "transactions", "Ends the watch of all keys.")
        .flags(&["noscript", "loading", "stale", "fast", "allow_busy"])
        .categories(&["@fast", "@transaction"]),
    Command::new("watch", -2, watch)
        .about(
            "2.2.0",
            "transactions",
            "Makes the next EXEC do nothing if a key changes before it.",
        )
        .flags(&["noscript", "loading", "stale", "fast", "allow_busy"])
        .categories(&["@fast", "@transaction"])
        .keys(&[Keys::to(1, -1, 1, &["RO"])])
        .immediate(),
];

/// The most commands of a transaction that run on the connection's thread.
const COMMANDS_MAX: usize = 256;

fn multi(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    if exec.session.queue.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    exec.session.set_queue(Some(Queue::default()));
    exec.reply.ok();
    Ok(Flow::Next)
}

/// Queues a command.
pub(super) fn queue(exec: &mut Exec<'_>, command: &'static Command, request: Request<'_>) -> Outcome {
    let limit = exec.shared.settings.request_len_max();
    let kept = request.keep();
    let Some(queue) = &mut exec.session.queue else {
        return Ok(Flow::Next);
    };
    queue.bytes += kept.size_bytes() + size_of_val(&kept);
    if queue.bytes > limit {
        exec.shared.counters.request_limit_closed.add(1);
        exec.reply
            .error("ERR the commands since MULTI are larger than client-query-buffer-limit");
        return Ok(Flow::Close);
    }
    queue.may_write |= command.is_write();
    queue.commands.push(kept);
    // Relaxed: a statistic.
    exec.session
        .client
        .queued
        .store(count(queue.commands.len()), std::sync::atomic::Ordering::Relaxed);
    exec.reply.simple("QUEUED");
    Ok(Flow::Next)
}

fn count(len: usize) -> isize {
    isize::try_from(len).unwrap_or(isize::MAX)
}

/// Records that a command was refused, so that the coming `EXEC` fails. If the refused command is
/// `EXEC` itself, the transaction is discarded at once, even if nothing was queued.
pub(super) fn refused(exec: &mut Exec<'_>, request: Request<'_>, failure: Failure) -> Failure {
    if let Some(queue) = &mut exec.session.queue {
        queue.is_broken = true;
    }
    if !request.get(0).is_some_and(|name| is(name, "EXEC")) {
        return failure;
    }
    forget(exec);
    let line = failure.line();
    let why = line.strip_prefix(b"ERR ").unwrap_or(&line);
    Failure::Bytes([b"EXECABORT Transaction discarded because of: ", why].concat())
}

/// Ends the queueing and the watch.
fn forget(exec: &mut Exec<'_>) -> Option<Queue> {
    exec.session.watched.clear();
    exec.session.set_queue(None)
}

fn discard(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    if exec.session.queue.is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    forget(exec);
    exec.reply.ok();
    Ok(Flow::Next)
}

fn watch(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    if exec.session.queue.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    for key in request.iter().skip(1) {
        let _lock = exec.lock(key)?;
        let was_expired = exec.prior(key)?.is_expired();
        let db = exec.session.db;
        if !exec.session.watched.add(db, key, was_expired) {
            return Err(format!("ERR a connection watches at most {WATCHED_MAX} keys").into());
        }
    }
    if let Some(Transaction::Partition(transaction)) = &mut exec.transaction {
        if let Some(leadership) = transaction.leadership() {
            exec.session.watched.led_by(leadership);
        }
        // A watch that begins at a replica which does not lead any more ends with its leadership.
        transaction.forget_reads();
    }
    exec.reply.ok();
    Ok(Flow::Next)
}

fn unwatch(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.session.watched.clear();
    exec.reply.ok();
    Ok(Flow::Next)
}

fn exec(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let Some(queue) = &exec.session.queue else {
        return Err("ERR EXEC without MULTI".into());
    };
    if queue.is_broken {
        forget(exec);
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    if !exec.may_block && queue.bytes >= LARGE {
        return Ok(Flow::Aside(Aside::Heavy(queue.bytes)));
    }
    if !exec.may_block && queue.commands.len() > COMMANDS_MAX {
        return Ok(Flow::Aside(Aside::Waits));
    }
    let rows = rows(queue)?;
    if !exec.may_block && !rows.iter().all(|command| command.can_be_undone()) {
        return Ok(Flow::Aside(Aside::Waits));
    }
    if exec.shared.partitions.is_some() {
        return exec_in_partition(exec, &rows);
    }
    let missing = missing_databases(exec, &rows, queue);
    let uncounted = uncounted_databases(exec, &rows);
    let Some(queue) = exec.session.set_queue(None) else {
        return Ok(Flow::Next);
    };
    let selected = exec.session.db;
    let ran = prepare(exec, &missing, &uncounted)
        .and_then(|()| begin(exec, &rows, &queue))
        .and_then(|()| execute(exec, &rows, &queue));
    let done = exec.finish(ran.is_ok()).and(ran);
    if let Err(Failure::Aside(why)) = done {
        // Nothing of it was done; all of it runs again aside.
        exec.session.set_queue(Some(queue));
        return Ok(Flow::Aside(why));
    }
    exec.session.watched.clear();
    exec.count_noted();
    // A failed transaction has no effect, so that its SELECT has none either.
    if done.is_err()
        && let Some(keyspace) = exec.shared.store.keyspace(selected)
    {
        exec.session.select(selected, keyspace);
    }
    done.map(|()| Flow::Next)
}

/// `EXEC` in a cluster: all commands are evaluated in the partition of their keys at once. A command
/// that names no key runs too, and may run more than once if the partition makes all of them begin
/// anew: none of those has an effect that adds up.
fn exec_in_partition(exec: &mut Exec<'_>, rows: &[&'static Command]) -> Outcome {
    let Some(queue) = exec.session.set_queue(None) else {
        return Ok(Flow::Next);
    };
    let ran = partition_of(exec, rows, &queue).and_then(|keys| {
        let work = |exec: &mut Exec<'_>| execute(exec, rows, &queue).map(|()| Flow::Next);
        match &keys {
            Some(keys) => evaluate(exec, keys, work),
            None => work(exec),
        }
    });
    if matches!(ran, Ok(Flow::Aside(_) | Flow::Later(_)) | Err(Failure::Aside(_))) {
        // Nothing of it was done; all of it runs again.
        exec.session.set_queue(Some(queue));
        return ran;
    }
    exec.session.watched.clear();
    exec.count_noted();
    ran
}

/// The keys of all commands and the watched ones; `None` if there are none.
fn partition_of(exec: &Exec<'_>, rows: &[&Command], queue: &Queue) -> Result<Option<CommandKeys>, Failure> {
    let named = rows.iter().zip(&queue.commands).flat_map(|(command, kept)| {
        let keys = command.keys.iter();
        keys.flat_map(|keys| keys.of(kept.request()))
    });
    let watched = || exec.session.watched.keys().map(|(_, key, _)| key);
    let only_reads = watched().next().is_none()
        && rows
            .iter()
            .all(|command| command.keys.is_empty() || command.is_read());
    CommandKeys::of(named.chain(watched()), only_reads)
}

/// The rows of the queued commands. The session stores requests only, and each of these was found
/// when it was queued.
fn rows(queue: &Queue) -> Result<Vec<&'static Command>, Failure> {
    queue.commands.iter().map(|kept| find(kept.request())).collect()
}

/// Does what blocks, before any lock is taken.
fn prepare(exec: &Exec<'_>, missing: &[u8], uncounted: &[Arc<Keyspace>]) -> Result<(), Failure> {
    for index in missing {
        exec.shared.store.create(*index)?;
    }
    for keyspace in uncounted {
        tokio::runtime::Handle::current().block_on(keyspace.counted())?;
    }
    Ok(())
}

/// Takes the locks, and spare keyspaces for databases that the commands may empty.
fn begin(exec: &mut Exec<'_>, rows: &[&'static Command], queue: &Queue) -> Result<(), Failure> {
    let (db, store) = (exec.session.db, &exec.shared.store);
    let (held, spare) = if rows.iter().any(|command| command.is_everywhere) {
        store.lock_all(&mut exec.session.owner, || emptied_databases(store, db, rows))?
    } else {
        let named = rows.iter().zip(&queue.commands).flat_map(|(command, kept)| {
            let keys = command.keys.iter();
            keys.flat_map(|keys| keys.of(kept.request())).map(|key| (db, key))
        });
        let watched = exec.session.watched.keys();
        let watched: Vec<_> = watched.map(|(db, key, _)| (db, key.to_vec())).collect();
        let watched = watched.iter().map(|(db, key)| (*db, &**key));
        (exec.lock_keys(named.chain(watched))?, Vec::new())
    };
    exec.begin(held, spare);
    Ok(())
}

/// Whether a watched key has changed, or has expired since the watch began.
fn has_watched_change(exec: &mut Exec<'_>) -> Result<bool, Failure> {
    if let Some(Transaction::Partition(transaction)) = &exec.transaction
        && let Some(leadership) = transaction.leadership()
        && exec.session.watched.keys().next().is_some()
    {
        exec.session.watched.led_by(leadership);
    }
    if exec.session.watched.is_dirty() {
        return Ok(true);
    }
    let watched: Vec<(u8, Vec<u8>)> = exec
        .session
        .watched
        .keys()
        .filter(|(.., was_expired)| !was_expired)
        .map(|(db, key, _)| (db, key.to_vec()))
        .collect();
    let own = exec.session.db;
    let mut has_expired = false;
    for (db, key) in watched {
        exec.session.db = db;
        let prior = exec.prior(&key);
        exec.session.db = own;
        has_expired |= prior?.is_expired();
    }
    Ok(has_expired)
}

/// Runs the commands, unless a watched key has changed.
fn execute(exec: &mut Exec<'_>, rows: &[&'static Command], queue: &Queue) -> Result<(), Failure> {
    if has_watched_change(exec)? {
        exec.reply.null_array();
        return Ok(());
    }
    if let Some(Transaction::Partition(transaction)) = &mut exec.transaction {
        transaction.ends(exec.session.watched.watching());
    }
    exec.reply.array(queue.commands.len());
    for (command, kept) in rows.iter().zip(&queue.commands) {
        let start = exec.reply.len();
        exec.session.last_command = command.full_name;
        let outcome = call(exec, command, kept.request()).and_then(|flow| finish_deferred(exec, flow));
        if let Err(failure) = outcome {
            if matches!(failure, Failure::Aside(_) | Failure::Refused(_)) {
                return Err(failure);
            }
            exec.noted.failures += 1;
            exec.reply.truncate(start);
            exec.reply.error(failure.line());
        }
        if exec.reply_is_too_long() {
            return Err(text::REPLY_TOO_LARGE.into());
        }
    }
    exec.session.last_command = "exec";
    let commands = u64::try_from(queue.commands.len()).unwrap_or(u64::MAX);
    exec.shared.counters.commands.add(commands);
    Ok(())
}

/// Completes what is deferred outside of transactions. Inside one it does not wait.
fn finish_deferred(exec: &mut Exec<'_>, flow: Flow) -> Result<(), Failure> {
    match flow {
        Flow::Next | Flow::Close => {}
        Flow::Deferred(Deferred::Local { .. }) if exec.shared.partitions.is_some() => {
            server::held(exec);
        }
        Flow::Deferred(Deferred::Local { .. }) => {
            let is_durable = exec.shared.store.db.durable() >= exec.session.last;
            exec.reply.array(2);
            exec.reply.integer(i64::from(is_durable));
            exec.reply.integer(0);
        }
        Flow::Deferred(Deferred::Replicas { held, .. }) => exec.reply.integer(held),
        Flow::Deferred(Deferred::Info(sections)) => {
            let text = describe(exec.shared, &sections);
            exec.reply.verbatim(*b"txt", text.as_bytes());
        }
        Flow::Aside(why) if !exec.may_block => return Err(Failure::Aside(why)),
        Flow::Deferred(Deferred::Select(_) | Deferred::Keys(_) | Deferred::Size(_))
        | Flow::Aside(_)
        | Flow::Later(_) => {
            return Err("ERR internal error: the command was not prepared for a transaction".into());
        }
    }
    Ok(())
}

/// Databases whose keys must be counted before the commands run.
fn uncounted_databases(exec: &Exec<'_>, rows: &[&'static Command]) -> Vec<Arc<Keyspace>> {
    if !rows.iter().any(|command| command.name == "dbsize") {
        return Vec::new();
    }
    let all = exec
        .shared
        .store
        .keyspaces()
        .into_iter()
        .map(|(_, keyspace)| keyspace);
    all.filter(|keyspace| !keyspace.is_counted()).collect()
}

/// Databases that the commands select and that were never selected before.
fn missing_databases(exec: &Exec<'_>, rows: &[&'static Command], queue: &Queue) -> Vec<u8> {
    let mut missing = Vec::new();
    for (command, kept) in rows.iter().zip(&queue.commands) {
        missing.extend(named_databases(command, kept.request()));
    }
    missing.retain(|index| exec.shared.store.keyspace(*index).is_none());
    missing
}

/// Databases that a command selects or names.
fn named_databases(command: &Command, request: Request<'_>) -> Vec<u8> {
    let named: &[usize] = match command.name {
        "select" => &[1],
        "move" => &[2],
        "swapdb" => &[1, 2],
        "copy" => {
            return copy_options(request)
                .ok()
                .and_then(|(db, _)| db)
                .into_iter()
                .collect();
        }
        _ => &[],
    };
    named
        .iter()
        .filter_map(|&i| request.get(i))
        .filter_map(|arg| u8::try_from(parse_i64(arg)?).ok())
        .filter(|index| *index < DATABASES)
        .collect()
}

/// The databases that may be emptied, each as often as it may be: every time needs a spare
/// keyspace.
fn emptied_databases(store: &Store, own: u8, rows: &[&'static Command]) -> Vec<u8> {
    let mut emptied = Vec::new();
    for command in rows {
        match command.name {
            "flushdb" => emptied.push(own),
            "flushall" => emptied.extend(store.databases()),
            _ => {}
        }
    }
    // A database that was emptied already is emptied again without another keyspace.
    emptied.truncate(usize::from(DATABASES));
    emptied
}
