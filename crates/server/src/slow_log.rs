//! The slow log: commands that took long, with their arguments and clients.

use std::collections::VecDeque;
use std::sync::Arc;

use collie_protocol::Request;
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::net::clients::Client;

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

/// A command that took long, and its client.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: i64,
    pub(crate) at_s: u64,
    pub(crate) took_us: u64,
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) addr: String,
    pub(crate) name: Vec<u8>,
}

impl SlowLog {
    /// Adds a command, and removes the oldest entries beyond `len_max`.
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

    /// The entries, the latest first. Commands that would be added wait while the guard is held.
    pub(crate) fn entries(&self) -> MappedMutexGuard<'_, VecDeque<Entry>> {
        MutexGuard::map(self.0.lock(), |log| &mut log.entries)
    }
}

/// The arguments to keep. Passwords are not among them: `AUTH` and `HELLO` are not logged at all.
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
