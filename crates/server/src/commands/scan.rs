//! `SCAN` and `RANDOMKEY`.

use std::ops::Bound;

use collie_db::{Error as DbError, Family, Iter, Key, Value};
use collie_protocol::number::parse_cursor;
use collie_protocol::{ReplyBuffer, Request};

use super::led;
use super::names::{Names, successor};
use super::numbers::{integer, is};
use super::row::Command;
use crate::cost::{Aside, PASSED_MAX};
use crate::data::value::{self, DATA};
use crate::exec::{Exec, Flow, Outcome};
use crate::failure::{Failure, text};
use crate::glob;

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

/// The most keys that one `SCAN` visits, whatever `COUNT` is: the count is a hint, and the thread
/// serves other connections too.
const SCAN_KEYS_MAX: usize = 10_000;
/// One `SCAN` ends after this many bytes of names.
const SCAN_BYTES_MAX: usize = 1024 * 1024;
/// The cost of one key without its value.
const SCAN_KEY: usize = 128;
/// How many bytes of keys and values one `SCAN` reads, and how many comparisons with its pattern it
/// makes, on a thread that may block; and after how many comparisons it moves there.
const SCAN_READ_MAX: usize = 16 * 1024 * 1024;
const SCAN_STEPS_MAX: u64 = 10_000_000;
const SCAN_STEPS_HERE: u64 = 200_000;
/// How often `RANDOMKEY` retries if it has drawn an expired key, as in Redis.
const RANDOM_TRIES: usize = 100;

/// The options of a `SCAN`.
pub(super) struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    pub(super) only_other_types: bool,
}

impl<'a> ScanOptions<'a> {
    fn read(request: Request<'a>) -> Result<ScanOptions<'a>, Failure> {
        let mut options = ScanOptions {
            pattern: None,
            count: 10,
            only_other_types: false,
        };
        let mut i = 2;
        while let Some(word) = request.get(i) {
            match request.get(i + 1) {
                Some(count) if is(word, "COUNT") => {
                    let count = integer(count)?;
                    if count < 1 {
                        return Err(text::SYNTAX.into());
                    }
                    options.count = usize::try_from(count).unwrap_or(SCAN_KEYS_MAX).min(SCAN_KEYS_MAX);
                }
                Some(pattern) if is(word, "MATCH") => options.pattern = Some(pattern).filter(|p| *p != b"*"),
                Some(kind) if is(word, "TYPE") => options.only_other_types = !is(kind, "string"),
                _ => return Err(text::SYNTAX.into()),
            }
            i += 2;
        }
        Ok(options)
    }
}

fn scan(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let cursor = parse_cursor(request.at(1)).ok_or("ERR invalid cursor")?;
    let options = ScanOptions::read(request)?;
    if exec.shared.partitions.is_some() {
        return led::scan(exec, cursor, &options);
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

/// What one `SCAN` returns: the matching keys among those that it visits.
pub(super) struct Page<'o> {
    pattern: Option<&'o [u8]>,
    /// Keys that it visits at most, and that it has visited.
    count: usize,
    looked_at: usize,
    may_block: bool,
    /// Comparisons with the pattern that are left.
    steps: u64,
    /// Bytes of names, and of all that was read.
    bytes: usize,
    read: usize,
    /// Removed entries that it has passed over.
    passed: u64,
    names: ReplyBuffer,
    found: usize,
}

impl<'o> Page<'o> {
    pub(super) fn new(exec: &Exec<'_>, options: &ScanOptions<'o>) -> Page<'o> {
        Page {
            pattern: options.pattern,
            count: options.count,
            looked_at: 0,
            may_block: exec.may_block,
            steps: if exec.may_block {
                SCAN_STEPS_MAX
            } else {
                SCAN_STEPS_HERE
            },
            bytes: 0,
            read: 0,
            passed: 0,
            names: ReplyBuffer::new(),
            found: 0,
        }
    }

    /// Whether it ends before the next key.
    pub(super) fn is_full(&self) -> bool {
        self.looked_at == self.count
            || self.bytes > SCAN_BYTES_MAX
            || self.read > SCAN_READ_MAX
            || self.steps == 0
            || self.passed >= PASSED_MAX
    }

    /// More removed entries were passed over.
    pub(super) fn pass(&mut self, entries: u64) {
        self.passed = self.passed.saturating_add(entries);
    }

    /// Visits a key; `false` if it has expired.
    pub(super) fn take(&mut self, exec: &mut Exec<'_>, name: &[u8], stored: &Value) -> Result<bool, Failure> {
        self.looked_at += 1;
        let weight = SCAN_KEY + name.len() + stored.len();
        self.read = self.read.saturating_add(weight);
        exec.weigh(weight)?;
        if value::read_header(stored)?.is_expired(exec.now_ms) {
            return Ok(false);
        }
        if self.is_match(name)? {
            self.bytes += name.len();
            self.names.bulk(name);
            self.found += 1;
        }
        Ok(true)
    }

    fn is_match(&mut self, name: &[u8]) -> Result<bool, Failure> {
        let Some(pattern) = self.pattern else {
            return Ok(true);
        };
        match glob::matches_within(pattern, name, false, &mut self.steps) {
            Some(is_match) => Ok(is_match),
            None if !self.may_block => Err(Failure::Aside(Aside::Searches)),
            // The last key of this call.
            None => {
                self.steps = 0;
                Ok(glob::matches(pattern, name, false))
            }
        }
    }

    /// Encodes the reply with the cursor of the next page.
    pub(super) fn encode(&self, reply: &mut ReplyBuffer, next: u64) {
        reply.array(2);
        let mut digits = itoa::Buffer::new();
        reply.bulk(digits.format(next).as_bytes());
        reply.array(self.found);
        reply.append(&self.names);
    }
}

/// Visits the next keys. Returns the last one that was visited, or passed over, if more may follow.
fn fill(exec: &mut Exec<'_>, page: &mut Page<'_>, after: Option<&[u8]>) -> Result<Option<Key>, Failure> {
    let prefix = page.pattern.map_or(&b""[..], glob::literal_prefix);
    let mut iter = Names::of(exec, prefix, after)?;
    let mut last = None;
    let mut expired = Vec::new();
    let more = loop {
        if page.is_full() && last.is_some() {
            // Whether more follow shows the next call, where finding that out could take long.
            break page.passed >= PASSED_MAX || iter.next().is_some();
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
        return led::randomkey(exec);
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

/// Many removed entries are passed over: the command goes on where that holds up nobody else.
pub(super) fn search_aside(exec: &Exec<'_>) -> Result<(), Failure> {
    match exec.may_block {
        true => Ok(()),
        false => Err(Failure::Aside(Aside::Searches)),
    }
}
