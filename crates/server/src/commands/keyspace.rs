//! Keys as such.

use std::ops::Bound;

use collie_db::{Error as DbError, Iter};
use collie_protocol::{ReplyBuffer, Request};

use super::numbers::is;
use crate::exec::{Exec, Flow, Outcome, Pause, Prior};
use crate::failure::{Failure, text};
use crate::glob;
use crate::session::{Session, Shared};
use crate::store::{DATABASES, Keyspace};
use crate::value::{self, DATA};

/// Keys that `KEYS` looks at before it lets other connections have the thread.
const KEYS_STEP: usize = 512;

pub(super) fn del(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let mut keys: Vec<&[u8]> = request.iter().skip(1).collect();
    keys.sort_unstable();
    keys.dedup();
    let _locks = exec.lock_several(keys.iter().copied());
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
    if !exec.session.keyspace.is_counted() {
        return Ok(Flow::Pause(Pause::Size(exec.session.keyspace.clone())));
    }
    exec.note_all();
    exec.reply.integer(exec.session.keyspace.size().0);
    Ok(Flow::Next)
}

pub(super) fn flushdb(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    flush(request, vec![exec.session.keyspace.index])
}

pub(super) fn flushall(_exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    flush(request, (0..DATABASES).collect())
}

/// `ASYNC` and `SYNC` are taken, and make no difference: either way the databases are empty at once and the
/// space comes back in the background.
fn flush(request: Request<'_>, databases: Vec<u8>) -> Outcome {
    match (request.len(), request.get(1)) {
        (1, _) => {}
        (2, Some(mode)) if is(mode, "ASYNC") || is(mode, "SYNC") => {}
        _ => return Err(text::SYNTAX.into()),
    }
    Ok(Flow::Pause(Pause::Flush(databases)))
}

pub(super) fn keys(_exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    Ok(Flow::Pause(Pause::Keys(request.at(1).to_vec())))
}

/// Does `KEYS`: encodes the names that match, letting go of the thread now and then.
pub(crate) async fn collect_keys(
    shared: &Shared,
    session: &mut Session,
    reply: &mut ReplyBuffer,
    pattern: &[u8],
) -> Result<(), Failure> {
    loop {
        session.refresh(&shared.store);
        let mut names = ReplyBuffer::new();
        match matching(shared, session, &mut names, pattern).await {
            // The database was emptied meanwhile: what it holds now is looked at.
            Err(Failure::Engine(DbError::FamilyDropped { .. })) => {}
            Err(error) => return Err(error),
            Ok(count) => {
                reply.array(count);
                reply.append(&names);
                return Ok(());
            }
        }
    }
}

async fn matching(
    shared: &Shared,
    session: &mut Session,
    names: &mut ReplyBuffer,
    pattern: &[u8],
) -> Result<usize, Failure> {
    let now_ms = shared.now_ms();
    let limit = shared.settings.reply_bytes_max();
    let all = pattern == b"*";
    let mut iter = data_range(&session.keyspace, glob::literal_prefix(pattern), None)?;
    let (mut looked_at, mut count) = (0, 0);
    for item in iter.by_ref() {
        let (key, stored) = item?;
        let name = key.get(1..).unwrap_or_default();
        if (all || glob::matches(pattern, name, false)) && !value::read_header(&stored)?.is_expired(now_ms) {
            names.bulk(name);
            count += 1;
            if names.len() > limit {
                break; // The connection sees the limit passed and closes.
            }
        }
        looked_at += 1;
        if looked_at % KEYS_STEP == 0 {
            tokio::task::yield_now().await;
        }
    }
    session.note(iter.seen());
    Ok(count)
}

/// The users' keys that start with `prefix` and come after `after`, in order.
pub(super) fn data_range(keyspace: &Keyspace, prefix: &[u8], after: Option<&[u8]>) -> Result<Iter, DbError> {
    let (mut from, mut scratch) = (Vec::new(), Vec::new());
    value::data_key(&mut from, prefix);
    let to = successor(from.clone());
    let start = match after {
        Some(key) => {
            value::data_key(&mut scratch, key);
            if scratch < from {
                Bound::Included(from)
            } else {
                Bound::Excluded(scratch)
            }
        }
        None => Bound::Included(from),
    };
    if let Bound::Excluded(last) = &start
        && *last >= to
    {
        // Nothing lies there, and a range that ends before it starts is none.
        return keyspace
            .family
            .range((Bound::Included(to.clone()), Bound::Excluded(to)));
    }
    keyspace.family.range((start, Bound::Excluded(to)))
}

/// The first key behind all keys that start with `prefix`. The tag in front of every key is below 0xff.
pub(super) fn successor(mut prefix: Vec<u8>) -> Vec<u8> {
    while prefix.last() == Some(&0xff) {
        prefix.pop();
    }
    match prefix.last_mut() {
        Some(last) => *last += 1,
        None => prefix.push(DATA + 1),
    }
    prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_successor_lies_behind_every_key_with_the_prefix_and_no_further() {
        assert_eq!(successor(b"ka".to_vec()), b"kb");
        assert_eq!(successor(b"ka\xff\xff".to_vec()), b"kb");
        assert_eq!(successor(b"k".to_vec()), b"l");
    }
}
