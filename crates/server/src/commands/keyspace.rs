//! Commands on keys whatever their values are: `DEL`, `EXISTS`, `KEYS`, `DBSIZE`, `FLUSHALL` and others.

use std::sync::Arc;

use collie_db::{Error as DbError, Key, Lsn, Value};
use collie_protocol::{ReplyBuffer, Request};

use super::cluster_keys;
use super::names::{Names, search_aside};
use super::numbers::is;
use super::row::{Command, Keys};
use crate::cost::{Aside, LOOKUP, PASSED_MAX};
use crate::data::keyspace::Keyspace;
use crate::data::store::Store;
use crate::data::value;
use crate::exec::{Deferred, Exec, Flow, Outcome, Prior, Transaction};
use crate::exec_batch::StoreTransaction;
use crate::failure::{Failure, text};
use crate::glob;
use crate::session::Shared;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("dbsize", 1, dbsize)
        .about("1.0.0", "server", "Returns the number of keys in the database.")
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"])
        .everywhere(),
    Command::new("del", -2, del)
        .about("1.0.0", "generic", "Removes keys in one commit.")
        .flags(&["write"])
        .categories(&["@keyspace", "@write", "@slow"])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[Keys::to(1, -1, 1, &["RM", "delete"])]),
    Command::new("exists", -2, exists)
        .about("1.0.0", "generic", "Counts how many of the keys exist.")
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[Keys::to(1, -1, 1, &["RO"])]),
    Command::new("flushall", -1, flushall)
        .about("1.0.0", "server", "Empties all databases in one commit.")
        .flags(&["write"])
        .categories(&["@keyspace", "@write", "@slow", "@dangerous"])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .everywhere()
        .lasting(),
    Command::new("flushdb", -1, flushdb)
        .about("1.0.0", "server", "Empties the database in one commit.")
        .flags(&["write"])
        .categories(&["@keyspace", "@write", "@slow", "@dangerous"])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .everywhere()
        .lasting(),
    Command::new("keys", 2, keys)
        .about("1.0.0", "generic", "Lists the keys that match a pattern.")
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow", "@dangerous"])
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"])
        .everywhere()
        .lasting(),
    Command::new("touch", -2, exists)
        .about(
            "3.2.1",
            "generic",
            "Counts how many of the keys exist; access times are not tracked.",
        )
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[Keys::to(1, -1, 1, &["RO"])]),
    Command::new("type", 2, kind)
        .about("1.0.0", "generic", "Returns the type of a value.")
        .flags(&["readonly", "fast"])
        .categories(&["@keyspace", "@read", "@fast"])
        .keys(&[Keys::at(1, &["RO"])]),
    Command::new("unlink", -2, del)
        .about("4.0.0", "generic", "Removes keys in one commit.")
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[Keys::to(1, -1, 1, &["RM", "delete"])]),
];

/// The cost limit of one step of `KEYS`, in bytes that are read and compared.
const SEARCH_STEP: usize = 16 * 1024 * 1024;

fn del(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mut keys: Vec<&[u8]> = request.iter().skip(1).collect();
    keys.sort_unstable();
    keys.dedup();
    let _locks = exec.lock_several(keys.iter().copied())?;
    let mut entries: Vec<(&[u8], Prior)> = Vec::with_capacity(keys.len());
    let mut live = 0;
    for key in keys {
        let prior = exec.prior(key)?;
        live += i64::from(prior.live().is_some());
        entries.push((key, prior));
    }
    exec.remove_several(&entries)?;
    exec.reply.integer(live);
    Ok(Flow::Next)
}

fn exists(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mut count = 0;
    if request.len() == 2 {
        let found = exec.find(request.at(1))?.is_some();
        exec.count_lookup(found);
        count = i64::from(found);
    } else {
        let snapshot = exec.snapshot();
        for key in request.iter().skip(1) {
            let found = exec.find_at(snapshot.as_ref(), key)?.is_some();
            exec.count_lookup(found);
            count += i64::from(found);
        }
    }
    exec.reply.integer(count);
    Ok(Flow::Next)
}

fn kind(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let found = exec.find(request.at(1))?;
    exec.reply.simple(if found.is_some() { "string" } else { "none" });
    Ok(Flow::Next)
}

fn dbsize(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    if exec.shared.partitions.is_some() {
        return cluster_keys::dbsize(exec);
    }
    if let Some(database) = exec.database() {
        let (size, keyspace) = (database.size(), Arc::clone(&database.keyspace));
        exec.note_count(&keyspace)?;
        exec.reply.integer(size);
        return Ok(Flow::Next);
    }
    let keyspace = Arc::clone(&exec.session.keyspace);
    if !keyspace.is_counted() {
        return Ok(Flow::Deferred(Deferred::Size(keyspace)));
    }
    let size = keyspace.size().0;
    exec.note_count(&keyspace)?;
    exec.reply.integer(size);
    Ok(Flow::Next)
}

fn flushdb(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let own = exec.session.db;
    flush(exec, request, |_| vec![own])
}

fn flushall(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    flush(exec, request, Store::databases)
}

/// `ASYNC` and `SYNC` are accepted and make no difference: in either case the databases are empty
/// at once and the space is freed in the background.
fn flush(exec: &mut Exec<'_>, request: Request<'_>, databases: impl Fn(&Store) -> Vec<u8>) -> Outcome {
    match (request.len(), request.get(1)) {
        (1, _) => {}
        (2, Some(mode)) if is(mode, "ASYNC") || is(mode, "SYNC") => {}
        _ => return Err(text::SYNTAX.into()),
    }
    if exec.shared.partitions.is_some() {
        return cluster_keys::flush(exec);
    }
    if let Some(Transaction::Store(transaction)) = &mut exec.transaction {
        transaction.empty(exec.shared, &databases(&exec.shared.store))?;
    } else if exec.may_block {
        let store = &exec.shared.store;
        let emptied = || databases(store);
        rearrange(exec, emptied, |transaction, shared| {
            transaction.empty(shared, &emptied())
        })?;
    } else {
        return Ok(Flow::Aside(Aside::Waits));
    }
    exec.reply.ok();
    Ok(Flow::Next)
}

/// Empties or swaps databases in a transaction of its own.
pub(super) fn rearrange(
    exec: &mut Exec<'_>,
    emptied: impl Fn() -> Vec<u8>,
    work: impl FnOnce(&mut StoreTransaction<'_>, &Shared) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (held, spare) = exec.shared.store.lock_all(&mut exec.session.owner, emptied)?;
    exec.begin(held, spare);
    let done = match &mut exec.transaction {
        Some(Transaction::Store(transaction)) => work(transaction, exec.shared),
        Some(Transaction::Partition(_)) | None => Ok(()),
    };
    exec.finish(done.is_ok())?;
    done
}

fn keys(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let pattern = request.at(1);
    if exec.shared.partitions.is_some() {
        return cluster_keys::keys(exec, pattern);
    }
    if exec.transaction.is_none() {
        return Ok(Flow::Deferred(Deferred::Keys(pattern.to_vec())));
    }
    let limit = exec.shared.settings.reply_bytes_max();
    let mut found = Matching::new(pattern, exec.now_ms, limit);
    let mut names = Names::of(exec, glob::literal_prefix(pattern), None)?;
    for item in names.by_ref() {
        let item = match item {
            Err(DbError::Incomplete { .. }) => {
                search_aside(exec)?;
                continue;
            }
            item => item?,
        };
        if !found.take_if_matching(&item)? {
            break; // The transaction checks the limit too, and ends.
        }
    }
    exec.session.note(names.seen());
    found.encode(exec.reply);
    Ok(Flow::Next)
}

/// The keys that `KEYS` has found.
struct Matching<'a> {
    pattern: &'a [u8],
    now_ms: u64,
    limit: usize,
    names: ReplyBuffer,
    count: usize,
}

impl<'a> Matching<'a> {
    fn new(pattern: &'a [u8], now_ms: u64, limit: usize) -> Matching<'a> {
        Matching {
            pattern,
            now_ms,
            limit,
            names: ReplyBuffer::new(),
            count: 0,
        }
    }

    /// Adds a key if it matches; `false` if the reply becomes too long.
    fn take_if_matching(&mut self, (key, stored): &(Key, Value)) -> Result<bool, Failure> {
        let name = key.get(1..).unwrap_or_default();
        let matches = self.pattern == b"*" || glob::matches(self.pattern, name, false);
        if matches && !value::read_header(stored)?.is_expired(self.now_ms) {
            self.names.bulk(name);
            self.count += 1;
        }
        Ok(self.names.len() <= self.limit)
    }

    fn encode(&self, reply: &mut ReplyBuffer) {
        reply.array(self.count);
        reply.append(&self.names);
    }
}

/// `KEYS` outside of transactions: it searches all keys in steps.
pub(crate) struct Search {
    pattern: Vec<u8>,
    limit: usize,
    found: ReplyBuffer,
    count: usize,
    names: Option<Names>,
}

impl Search {
    pub(crate) fn new(pattern: Vec<u8>, limit: usize) -> Search {
        Search {
            pattern,
            limit,
            found: ReplyBuffer::new(),
            count: 0,
            names: None,
        }
    }

    /// One step, on a thread that may block; `true` after the last.
    pub(crate) fn step(&mut self, keyspace: &Keyspace, now_ms: u64) -> Result<bool, Failure> {
        match self.walk(keyspace, now_ms) {
            // The database was emptied meanwhile: search its new keyspace.
            Err(Failure::Engine(DbError::FamilyDropped { .. })) => {
                *self = Search::new(std::mem::take(&mut self.pattern), self.limit);
                Ok(false)
            }
            walked => walked,
        }
    }

    fn walk(&mut self, keyspace: &Keyspace, now_ms: u64) -> Result<bool, Failure> {
        let names = match &mut self.names {
            Some(names) => names,
            slot => slot.insert(Names::stored(
                &keyspace.family,
                glob::literal_prefix(&self.pattern),
                None,
            )?),
        };
        let mut found = Matching {
            pattern: &self.pattern,
            now_ms,
            limit: self.limit,
            names: std::mem::take(&mut self.found),
            count: self.count,
        };
        let mut left = SEARCH_STEP;
        let mut is_done = true;
        for item in names.by_ref() {
            let weight = match item {
                Err(DbError::Incomplete { .. }) => LOOKUP * PASSED_MAX as usize,
                item => {
                    let item = item?;
                    if !found.take_if_matching(&item)? {
                        break; // The connection checks the limit too, and closes.
                    }
                    LOOKUP + item.0.len() * found.pattern.len() + item.1.len()
                }
            };
            left = left.saturating_sub(weight);
            if left == 0 {
                is_done = false;
                break;
            }
        }
        self.count = found.count;
        self.found = found.names;
        Ok(is_done)
    }

    /// The largest end of a commit that the search saw.
    pub(crate) fn seen(&self) -> Lsn {
        self.names.as_ref().map_or(0, Names::seen)
    }

    pub(crate) fn encode(&self, reply: &mut ReplyBuffer) {
        reply.array(self.count);
        reply.append(&self.found);
    }
}
