//! Counters for `INFO`. They are statistics and order nothing, so all accesses are Relaxed.

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter on a cache line of its own, since all threads that serve connections update it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The calls of one command and their cost so far. On a cache line of its own, as a [`Counter`].
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct CommandCounter {
    calls: AtomicU64,
    failures: AtomicU64,
    ns: AtomicU64,
}

/// Calls of a command, those that failed, and the time that they took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Calls {
    pub(crate) calls: u64,
    pub(crate) failures: u64,
    pub(crate) ns: u64,
}

impl CommandCounter {
    pub(crate) fn add(&self, more: Calls) {
        self.calls.fetch_add(more.calls, Ordering::Relaxed);
        self.ns.fetch_add(more.ns, Ordering::Relaxed);
        if more.failures > 0 {
            self.failures.fetch_add(more.failures, Ordering::Relaxed);
        }
    }

    pub(crate) fn reset(&self) {
        for number in [&self.calls, &self.failures, &self.ns] {
            number.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> Calls {
        Calls {
            calls: self.calls.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            ns: self.ns.load(Ordering::Relaxed),
        }
    }
}

/// Consecutive calls of the same command, which are added to the shared counters together, so that
/// a pipeline updates them once.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    command: usize,
    calls: Calls,
}

impl Tally {
    /// Adds a call of the command with that number in the table.
    pub(crate) fn note(&mut self, command: usize, has_failed: bool, ns: u64, counters: &[CommandCounter]) {
        if command != self.command {
            self.flush(counters);
            self.command = command;
        }
        self.calls.calls += 1;
        self.calls.failures += u64::from(has_failed);
        self.calls.ns += ns;
    }

    /// Adds the calls to the shared counters.
    pub(crate) fn flush(&mut self, counters: &[CommandCounter]) {
        let calls = std::mem::take(&mut self.calls);
        if calls.calls > 0
            && let Some(counter) = counters.get(self.command)
        {
            counter.add(calls);
        }
    }
}

/// The statistics of a server. `CONFIG RESETSTAT` sets all to zero.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: Counter,
    pub(crate) connections_refused: Counter,
    pub(crate) clients_evicted: Counter,
    pub(crate) clients_timed_out: Counter,
    pub(crate) unauthenticated_timed_out: Counter,
    pub(crate) output_limit_closed: Counter,
    pub(crate) request_limit_closed: Counter,
    pub(crate) protocol_errors: Counter,
    pub(crate) commands: Counter,
    pub(crate) commands_failed: Counter,
    /// Times that a connection waited for its replies to become durable; `commands` divided by it
    /// is the number of commands that share one wait.
    pub(crate) waits: Counter,
    /// Times that a connection yielded its thread before all requests that it had read were
    /// executed.
    pub(crate) yields: Counter,
    /// Commands that ran on a thread that may block.
    pub(crate) aside: Counter,
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) expired: Counter,
    pub(crate) auth_failures: Counter,
    /// Connections to the TLS port that ended before their handshake did.
    pub(crate) handshakes_failed: Counter,
    draws: Counter,
}

impl Counters {
    /// A number that is hard to predict, for `RANDOMKEY`; not for secrets.
    pub(crate) fn random(&self) -> u64 {
        self.draws.add(1);
        xxhash_rust::xxh3::xxh3_64_with_seed(&self.draws.get().to_le_bytes(), self.bytes_in.get())
    }

    pub(crate) fn reset(&self) {
        let Counters {
            connections,
            connections_refused,
            clients_evicted,
            clients_timed_out,
            unauthenticated_timed_out,
            output_limit_closed,
            request_limit_closed,
            protocol_errors,
            commands,
            commands_failed,
            waits,
            yields,
            aside,
            bytes_in,
            bytes_out,
            hits,
            misses,
            expired,
            auth_failures,
            handshakes_failed,
            draws: _,
        } = self;
        for counter in [
            connections,
            connections_refused,
            clients_evicted,
            clients_timed_out,
            unauthenticated_timed_out,
            output_limit_closed,
            request_limit_closed,
            protocol_errors,
            commands,
            commands_failed,
            waits,
            yields,
            aside,
            bytes_in,
            bytes_out,
            hits,
            misses,
            expired,
            auth_failures,
            handshakes_failed,
        ] {
            counter.reset();
        }
    }
}
