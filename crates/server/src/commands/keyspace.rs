//! Keys as such.

use std::sync::Arc;

use collie_db::{Error as DbError, Key, Lsn, Value};
use collie_protocol::{ReplyBuffer, Request};

use super::names::Names;
use super::numbers::is;
use crate::cost::{Aside, LOOKUP};
use crate::exec::{Exec, Flow, Outcome, Pause, Prior};
use crate::failure::{Failure, text};
use crate::glob;
use crate::keyspace::Keyspace;
use crate::session::Shared;
use crate::store::Store;
use crate::transaction::Transaction;
use crate::value;

/// What one step of `KEYS` may cost, in bytes that are read and compared.
const SEARCH_STEP: usize = 16 * 1024 * 1024;

pub(super) fn del(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
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

pub(super) fn exists(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mut count = 0;
    if request.len() == 2 {
        let found = exec.find(request.at(1))?.is_some();
        exec.count_lookup(found);
        count = i64::from(found);
    } else {
        let snapshot = exec.shared.store.db.snapshot();
        for key in request.iter().skip(1) {
            let found = exec.find_at(&snapshot, key)?.is_some();
            exec.count_lookup(found);
            count += i64::from(found);
        }
    }
    exec.reply.integer(count);
    Ok(Flow::Next)
}

pub(super) fn kind(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let found = exec.find(request.at(1))?;
    exec.reply.simple(if found.is_some() { "string" } else { "none" });
    Ok(Flow::Next)
}

pub(super) fn dbsize(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    if let Some(database) = exec.database() {
        let (size, keyspace) = (database.size(), Arc::clone(&database.keyspace));
        exec.note_count(&keyspace)?;
        exec.reply.integer(size);
        return Ok(Flow::Next);
    }
    let keyspace = Arc::clone(&exec.session.keyspace);
    if !keyspace.is_counted() {
        return Ok(Flow::Pause(Pause::Size(keyspace)));
    }
    let size = keyspace.size().0;
    exec.note_count(&keyspace)?;
    exec.reply.integer(size);
    Ok(Flow::Next)
}

pub(super) fn flushdb(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let own = exec.session.db;
    flush(exec, request, |_| vec![own])
}

pub(super) fn flushall(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    flush(exec, request, Store::databases)
}

/// `ASYNC` and `SYNC` are taken, and make no difference: either way the databases are empty at once and the
/// space comes back in the background.
fn flush(exec: &mut Exec<'_>, request: Request<'_>, databases: impl Fn(&Store) -> Vec<u8>) -> Outcome {
    match (request.len(), request.get(1)) {
        (1, _) => {}
        (2, Some(mode)) if is(mode, "ASYNC") || is(mode, "SYNC") => {}
        _ => return Err(text::SYNTAX.into()),
    }
    if let Some(transaction) = &mut exec.transaction {
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
    work: impl FnOnce(&mut Transaction<'_>, &Shared) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (held, spare) = exec.shared.store.lock_all(&mut exec.session.owner, emptied)?;
    exec.begin(held, spare);
    let done = match &mut exec.transaction {
        Some(transaction) => work(transaction, exec.shared),
        None => Ok(()),
    };
    exec.finish(done.is_ok())?;
    done
}

pub(super) fn keys(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let pattern = request.at(1);
    if exec.transaction.is_none() {
        return Ok(Flow::Pause(Pause::Keys(pattern.to_vec())));
    }
    let limit = exec.shared.settings.reply_bytes_max();
    let mut found = Matching::new(pattern, exec.now_ms, limit);
    let mut names = Names::of(exec, glob::literal_prefix(pattern), None)?;
    for item in names.by_ref() {
        if !found.look_at(&item?)? {
            break; // The transaction sees the limit passed and ends.
        }
    }
    exec.session.note(names.seen());
    found.tell(exec.reply);
    Ok(Flow::Next)
}

/// The names that `KEYS` finds.
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

    /// Takes a key where it matches; `false` where the reply becomes too long.
    fn look_at(&mut self, (key, stored): &(Key, Value)) -> Result<bool, Failure> {
        let name = key.get(1..).unwrap_or_default();
        let matches = self.pattern == b"*" || glob::matches(self.pattern, name, false);
        if matches && !value::read_header(stored)?.is_expired(self.now_ms) {
            self.names.bulk(name);
            self.count += 1;
        }
        Ok(self.names.len() <= self.limit)
    }

    fn tell(&self, reply: &mut ReplyBuffer) {
        reply.array(self.count);
        reply.append(&self.names);
    }
}

/// `KEYS` outside of transactions: it goes through all keys in steps.
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
            // The database was emptied meanwhile: what it holds then is looked at.
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
            let item = item?;
            let weight = LOOKUP + item.0.len() * found.pattern.len() + item.1.len();
            if !found.look_at(&item)? {
                break; // The connection sees the limit passed and closes.
            }
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

    /// The largest end of a commit that was seen.
    pub(crate) fn seen(&self) -> Lsn {
        self.names.as_ref().map_or(0, Names::seen)
    }

    pub(crate) fn tell(&self, reply: &mut ReplyBuffer) {
        reply.array(self.count);
        reply.append(&self.found);
    }
}
