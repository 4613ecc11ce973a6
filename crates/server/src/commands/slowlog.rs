//! `SLOWLOG`, and the log that it shows.

use std::collections::VecDeque;
use std::sync::Arc;

use collie_protocol::Request;
use collie_protocol::number::parse_i64;
use parking_lot::Mutex;

use crate::clients::Client;
use crate::exec::{Exec, Flow, Outcome};

/// Arguments of a command that are kept, and bytes of each, as in Redis.
const ARGS_MAX: usize = 32;
const ARG_LEN_MAX: usize = 128;

/// Commands that took long, the latest first.
#[derive(Debug, Default)]
pub(crate) struct SlowLog(Mutex<Log>);

#[derive(Debug, Default)]
struct Log {
    next_id: i64,
    entries: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: i64,
    at_s: u64,
    took_us: u64,
    args: Vec<Vec<u8>>,
    addr: String,
    name: Vec<u8>,
}

impl SlowLog {
    /// Notes a command, and forgets the oldest ones beyond `len_max`.
    pub(crate) fn note(
        &self,
        request: Request<'_>,
        client: &Arc<Client>,
        now_ms: u64,
        took_us: u64,
        len_max: usize,
    ) {
        let args = kept_args(request);
        let name = client.labels.lock().name.clone();
        let mut log = self.0.lock();
        let id = log.next_id;
        log.next_id += 1;
        log.entries.push_front(Entry {
            id,
            at_s: now_ms / 1000,
            took_us,
            args,
            addr: client.addr.to_string(),
            name,
        });
        log.entries.truncate(len_max);
    }
}

/// What is kept of a request. A password among it is not: `AUTH` and its kin are not noted at all.
fn kept_args(request: Request<'_>) -> Vec<Vec<u8>> {
    let shown = if request.len() > ARGS_MAX {
        ARGS_MAX - 1
    } else {
        request.len()
    };
    let mut args: Vec<Vec<u8>> = request.iter().take(shown).map(shortened).collect();
    if shown < request.len() {
        args.push(format!("... ({} more arguments)", request.len() - shown).into_bytes());
    }
    args
}

fn shortened(arg: &[u8]) -> Vec<u8> {
    let mut kept = arg.get(..ARG_LEN_MAX).unwrap_or(arg).to_vec();
    if kept.len() < arg.len() {
        kept.extend_from_slice(format!("... ({} more bytes)", arg.len() - kept.len()).as_bytes());
    }
    kept
}

pub(super) fn get(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let count = request.get(2).map_or(Some(10), parse_i64);
    let count = match count {
        Some(-1) => Some(usize::MAX),
        count => count.and_then(|count| usize::try_from(count).ok()),
    };
    let count = count.ok_or("ERR count should be greater than or equal to -1")?;
    let log = exec.shared.slow_log.0.lock();
    let reply = &mut *exec.reply;
    reply.array(count.min(log.entries.len()));
    for entry in log.entries.iter().take(count) {
        reply.array(6);
        reply.integer(entry.id);
        reply.integer(i64::try_from(entry.at_s).unwrap_or(i64::MAX));
        reply.integer(i64::try_from(entry.took_us).unwrap_or(i64::MAX));
        reply.array(entry.args.len());
        entry.args.iter().for_each(|arg| reply.bulk(arg));
        reply.bulk(entry.addr.as_bytes());
        reply.bulk(&entry.name);
    }
    Ok(Flow::Next)
}

pub(super) fn len(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    let len = exec.shared.slow_log.0.lock().entries.len();
    exec.reply.integer(i64::try_from(len).unwrap_or(i64::MAX));
    Ok(Flow::Next)
}

pub(super) fn reset(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    exec.shared.slow_log.0.lock().entries.clear();
    exec.reply.ok();
    Ok(Flow::Next)
}

pub(super) fn help(exec: &mut Exec<'_>, _request: Request<'_>) -> Outcome {
    super::help(exec, "slowlog")
}
