//! `SCAN` and `RANDOMKEY`.

use std::ops::Bound;

use collie_db::{Error as DbError, Family, Iter, Key, Value};
use collie_protocol::Request;
use collie_protocol::number::parse_cursor;

use super::cluster_keys;
use super::names::{Names, search_aside, successor};
use super::page::{Page, ScanOptions};
use super::row::Command;
use crate::cost::PASSED_MAX;
use crate::data::value::{self, DATA};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::Failure;

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("randomkey", 1, randomkey)
        .about("1.0.0", "generic", "Returns a random key.")
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["request_policy:all_shards", "nondeterministic_output"])
        .everywhere(),
    Command::new("scan", -2, scan)
        .about(
            "2.8.0",
            "generic",
            "Lists the keys that match a pattern, in pages.",
        )
        .flags(&["readonly"])
        .categories(&["@keyspace", "@read", "@slow"])
        .tips(&["nondeterministic_output", "request_policy:special"])
        .everywhere(),
];

/// How often `RANDOMKEY` retries if it has drawn an expired key, as in Redis.
const RANDOM_TRIES: usize = 100;

fn scan(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let cursor = parse_cursor(request.at(1)).ok_or("ERR invalid cursor")?;
    let options = ScanOptions::read(request)?;
    if exec.shared.partitions.is_some() {
        return cluster_keys::scan(exec, cursor, &options);
    }
    let db = exec.session.db;
    let after: Option<Vec<u8>> = exec
        .shared
        .store
        .cursors
        .lock()
        .find(db, cursor)
        .map(<[u8]>::to_vec);
    let mut page = Page::new(exec, &options);
    let last = if options.only_other_types {
        None // There are only strings.
    } else {
        match fill(exec, &mut page, after.as_deref()) {
            // The database was emptied meanwhile: its old keys need not be returned.
            Err(Failure::Engine(DbError::FamilyDropped { .. })) => {
                page = Page::new(exec, &options);
                None
            }
            last => last?,
        }
    };
    let next = last.map_or(0, |last| {
        exec.shared.store.cursors.lock().remember(db, user_key(&last))
    });
    page.encode(exec.reply, next);
    Ok(Flow::Next)
}

/// Visits the next keys. Returns the last one that was visited, or passed over, if more may follow.
fn fill(exec: &mut Exec<'_>, page: &mut Page<'_>, after: Option<&[u8]>) -> Result<Option<Key>, Failure> {
    let prefix = page.prefix();
    let mut iter = Names::of(exec, prefix, after)?;
    let mut last = None;
    let mut expired = Vec::new();
    let more = loop {
        if page.is_full() && last.is_some() {
            // Where finding out whether more follow could take long, the next call does.
            break page.has_passed_most() || iter.next().is_some();
        }
        let passed = iter.passed();
        let Some(item) = iter.next() else { break false };
        page.pass(iter.passed() - passed);
        let (key, stored) = match item {
            Err(DbError::Incomplete { at }) => {
                last = Some(at);
                continue;
            }
            item => item?,
        };
        if !page.take(exec, user_key(&key), &stored)? {
            expired.push(key.clone());
        }
        last = Some(key);
    };
    exec.session.note(iter.seen());
    drop(iter);
    for key in expired {
        exec.expire_in_passing(user_key(&key));
    }
    Ok(last.filter(|_| more))
}

fn user_key(key: &[u8]) -> &[u8] {
    key.get(1..).unwrap_or_default()
}

fn randomkey(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    if exec.shared.partitions.is_some() {
        return cluster_keys::randomkey(exec);
    }
    if exec.transaction.is_some() {
        return random_in_transaction(exec);
    }
    for _ in 0..RANDOM_TRIES {
        let family = exec.session.keyspace.family.clone();
        exec.session.note_database(&exec.shared.store)?;
        let drawn = match draw(exec, &family) {
            Err(Failure::Engine(DbError::FamilyDropped { .. })) => None,
            drawn => drawn?,
        };
        exec.note_all();
        let Some((key, stored)) = drawn else { break };
        if !value::read_header(&stored)?.is_expired(exec.now_ms) {
            exec.reply.bulk(user_key(&key));
            return Ok(Flow::Next);
        }
        exec.expire_in_passing(user_key(&key));
    }
    exec.reply.null();
    Ok(Flow::Next)
}

/// In a transaction: draws a stored key, and picks one of the first keys after it in the
/// transaction's view.
fn random_in_transaction(exec: &mut Exec<'_>) -> Outcome {
    let Some(family) = exec.database().map(|database| database.keyspace.family.clone()) else {
        exec.reply.null();
        return Ok(Flow::Next);
    };
    let drawn = draw(exec, &family)?;
    exec.note_all();
    let start = drawn.as_ref().map(|(key, _)| user_key(key));
    for after in [start, None] {
        let skip = exec.shared.counters.random() % 16;
        let (mut found, mut passed) = (None, 0);
        for item in Names::of(exec, b"", after)? {
            let (key, stored) = match item {
                Err(DbError::Incomplete { .. }) => {
                    search_aside(exec)?;
                    continue;
                }
                item => item?,
            };
            if !value::read_header(&stored)?.is_expired(exec.now_ms) {
                found = Some(key);
                passed += 1;
            }
            if passed > skip {
                break;
            }
        }
        if let Some(key) = found {
            exec.reply.bulk(user_key(&key));
            return Ok(Flow::Next);
        }
    }
    exec.reply.null();
    Ok(Flow::Next)
}

/// Draws a key by descending an implicit tree: from all keys with a common prefix to those with one
/// of the possible next bytes, until one key is left. Every key can be drawn; keys in sparse
/// branches are drawn more often than others.
fn draw(exec: &mut Exec<'_>, family: &Family) -> Result<Option<(Key, Value)>, Failure> {
    let mut prefix = vec![DATA];
    let mut left = PASSED_MAX;
    loop {
        let Some(first) = first_of(exec, family.prefix(&prefix)?, Iter::next, &mut left)? else {
            return Ok(None);
        };
        let Some(last) = first_of(exec, family.prefix(&prefix)?, Iter::next_back, &mut left)? else {
            return Ok(None);
        };
        exec.weigh(first.1.len() + last.1.len())?;
        let common = first
            .0
            .iter()
            .zip(last.0.iter())
            .take_while(|(a, b)| a == b)
            .count();
        // If the first key ends at the fork it is a branch of its own, before all bytes.
        let (Some(&high), low) = (last.0.get(common), first.0.get(common).copied()) else {
            return Ok(Some(first));
        };
        let branches = u64::from(high) + 1 - low.map_or(0, u64::from) + u64::from(low.is_none());
        let branch = exec.shared.counters.random() % branches;
        let byte = match low {
            None if branch == 0 => return Ok(Some(first)),
            None => branch - 1,
            Some(low) => u64::from(low) + branch,
        };
        prefix.clear();
        prefix.extend_from_slice(first.0.get(..common).unwrap_or_default());
        let end = successor(prefix.clone());
        // The byte is at most `high`, so the conversion cannot fail.
        prefix.push(u8::try_from(byte).unwrap_or(high));
        let range = (Bound::Included(prefix.clone()), Bound::Excluded(end));
        match first_of(exec, family.range(range)?, Iter::next, &mut left)? {
            Some((key, _)) => {
                prefix.clear();
                prefix.extend_from_slice(key.get(..=common).unwrap_or_default());
            }
            // The keys there were removed meanwhile: start over.
            None => prefix = vec![DATA],
        }
    }
}

/// The first key from one end. `left` is how many removed entries the command may pass over on the
/// connection's thread.
fn first_of(
    exec: &Exec<'_>,
    mut keys: Iter,
    step: impl Fn(&mut Iter) -> Option<Result<(Key, Value), DbError>>,
    left: &mut u64,
) -> Result<Option<(Key, Value)>, Failure> {
    keys.set_max_skippable_internal_keys((*left).max(1));
    loop {
        match step(&mut keys) {
            Some(Err(DbError::Incomplete { .. })) => search_aside(exec)?,
            first => {
                *left = left.saturating_sub(keys.internal_keys_skipped());
                return Ok(first.transpose()?);
            }
        }
    }
}
