//! What the crates below log.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Writes warnings and errors that the crates below log to standard error.
pub(crate) fn show() {
    // openraft logs each of its steps; its errors are returned, and logged by who calls it.
    let shown = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("openraft", LevelFilter::ERROR);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| Diagnostics)
        .with_target(false)
        .with_ansi(false);
    // No other subscriber is set, so this cannot fail.
    let _ = tracing_subscriber::registry()
        .with(lines.with_filter(shown))
        .try_init();
}

/// Whether diagnostics are expected and suppressed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Runs `work`, whose logs fail on purpose, without diagnostics.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    // Relaxed, here and below: it orders nothing.
    QUIET.store(true, Ordering::Relaxed);
    let done = work();
    QUIET.store(false, Ordering::Relaxed);
    done
}

/// Where diagnostics go.
struct Diagnostics;

impl Write for Diagnostics {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if QUIET.load(Ordering::Relaxed) {
            return Ok(bytes.len());
        }
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
