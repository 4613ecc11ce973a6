//! Time, behind the seam so that tests can stop it.

use std::fmt;

/// A point or a span in nanoseconds.
pub type Nanos = u64;

/// Reads the time. Cheap enough for a commit path (tens of nanoseconds).
pub trait Clock: fmt::Debug + Send + Sync {
    /// Nanoseconds since an arbitrary start; never goes back.
    fn monotonic(&self) -> Nanos;
    /// The same, counting on while the machine is suspended, which [`monotonic`](Self::monotonic) does not on Linux. A
    /// clock of a test, whose machine never is, needs no other.
    fn boot(&self) -> Nanos {
        self.monotonic()
    }
    /// Milliseconds since the Unix epoch; may be stepped by an administrator.
    fn wall_ms(&self) -> u64;
    /// Microseconds since the Unix epoch. A clock that counts no finer than milliseconds returns
    /// the start of one.
    fn wall_us(&self) -> u64 {
        self.wall_ms().saturating_mul(1_000)
    }
}

/// The machine's clocks.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealClock;

fn nanos(clock: rustix::time::ClockId) -> Nanos {
    let t = rustix::time::clock_gettime(clock);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

impl Clock for RealClock {
    fn monotonic(&self) -> Nanos {
        nanos(rustix::time::ClockId::Monotonic)
    }

    fn boot(&self) -> Nanos {
        nanos(rustix::time::ClockId::Boottime)
    }

    fn wall_ms(&self) -> u64 {
        self.wall_us() / 1_000
    }

    fn wall_us(&self) -> u64 {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000 + t.tv_nsec.unsigned_abs() / 1_000
    }
}
