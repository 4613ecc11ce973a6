//! Nodes that speak TLS: their files, their handshakes, and what strangers can do.

mod files;
mod handshakes;
mod nodes;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use collie_cluster::TlsTcp;
use collie_io::RealDevice;
use tempfile::TempDir;

use crate::certificates::{Authority, Signed, write};
use crate::support::TestClock;

/// 2026-06-01 00:00:00 UTC, in seconds since 1970.
pub(crate) const NOW: u64 = 1_780_272_000;
/// 2027-06-01 00:00:00 UTC: a certificate of the year 2026 has ended.
pub(crate) const LATER: u64 = NOW + 365 * 86_400;
/// 2025-06-01 00:00:00 UTC: one does not hold yet.
pub(crate) const EARLIER: u64 = NOW - 365 * 86_400;

/// Shows a second since 1970 to a node.
pub(crate) fn clock(now: u64) -> Arc<TestClock> {
    Arc::new(TestClock(AtomicU64::new(now * 1000)))
}

impl Authority {
    /// A node's certificate, which holds for the year 2026.
    pub(crate) fn node(&self) -> Signed {
        self.sign(|_| {})
    }
}

/// A node's network, and the directory of its files.
pub(crate) struct Held {
    pub(crate) network: TlsTcp,
    pub(crate) dir: TempDir,
}

impl Held {
    pub(crate) fn new(ca: &str, signed: &Signed, now: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let network = open(dir.path(), ca, signed, now);
        Self { network, dir }
    }

    pub(crate) fn of(ca: &Authority) -> Self {
        Self::new(&ca.pem, &ca.node(), NOW)
    }
}

fn open(dir: &Path, ca: &str, signed: &Signed, now: u64) -> TlsTcp {
    let files = write(dir, ca, signed);
    TlsTcp::new(files, Arc::new(RealDevice::new()), clock(now)).unwrap()
}

pub(crate) fn says(problem: &str, parts: &[&str]) {
    for part in parts {
        assert!(problem.contains(part), "expected {part:?} in {problem:?}");
    }
}
