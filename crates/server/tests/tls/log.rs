//! What the servers of this process log.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, Once};

use crate::support::wait_for;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lines().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lines() -> MutexGuard<'static, Vec<u8>> {
    LINES.lock().unwrap()
}

/// Keeps the warnings from now on.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_ansi(false)
            .with_writer(|| Lines)
            .init();
    });
}

/// The warnings about a client.
pub(crate) fn of(client: SocketAddr) -> Vec<String> {
    let text = String::from_utf8(lines().clone()).unwrap();
    let name = format!("addr={client}");
    let is_of = |line: &&str| line.split_whitespace().any(|word| word == name);
    text.lines().filter(is_of).map(str::to_owned).collect()
}

/// Waits for the only warning about a client.
pub(crate) fn about(client: SocketAddr) -> String {
    wait_for("a warning", || !of(client).is_empty());
    let mut lines = of(client);
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}
