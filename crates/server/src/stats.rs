//! Counters for `INFO`. Statistics alone: nothing is ordered by them, so all accesses are Relaxed.

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter on a cache line of its own, since the threads that serve connections all count.
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

/// What a server counts. `CONFIG RESETSTAT` sets all to zero.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: Counter,
    pub(crate) connections_refused: Counter,
    pub(crate) clients_evicted: Counter,
    pub(crate) clients_timed_out: Counter,
    pub(crate) output_limit_closed: Counter,
    pub(crate) request_limit_closed: Counter,
    pub(crate) protocol_errors: Counter,
    pub(crate) commands: Counter,
    pub(crate) commands_failed: Counter,
    /// Times that a connection waited for its replies to become tellable; against `commands` it shows how many
    /// commands share one wait.
    pub(crate) waits: Counter,
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) expired: Counter,
    pub(crate) auth_failures: Counter,
    draws: Counter,
}

impl Counters {
    /// A number that is hard to foresee but no secret, for `RANDOMKEY`.
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
            output_limit_closed,
            request_limit_closed,
            protocol_errors,
            commands,
            commands_failed,
            waits,
            bytes_in,
            bytes_out,
            hits,
            misses,
            expired,
            auth_failures,
            draws: _,
        } = self;
        for counter in [
            connections,
            connections_refused,
            clients_evicted,
            clients_timed_out,
            output_limit_closed,
            request_limit_closed,
            protocol_errors,
            commands,
            commands_failed,
            waits,
            bytes_in,
            bytes_out,
            hits,
            misses,
            expired,
            auth_failures,
        ] {
            counter.reset();
        }
    }
}
