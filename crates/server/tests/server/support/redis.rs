//! A real Redis 7.0 to compare with.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use super::{Client, wait_for};

/// A real Redis on a port of its own.
pub(crate) struct Redis {
    child: Child,
    pub(crate) addr: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Redis {
    /// Starts one with these arguments, if it is installed.
    pub(crate) fn start(args: &[&str]) -> Option<Redis> {
        if !has_redis() {
            return None;
        }
        // Another process may have the port; then another one is tried.
        let started = (0..20).find_map(|_| Redis::start_once(args));
        assert!(started.is_some(), "redis-server does not start");
        started
    }

    /// `None` if it ended, or another one listens on its port.
    fn start_once(args: &[&str]) -> Option<Redis> {
        let dir = tempfile::tempdir().unwrap();
        let port = next_port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(args)
            .arg("--dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let mut redis = Redis {
            child,
            addr,
            _dir: dir,
        };
        let own = format!("process_id:{}\r\n", redis.child.id());
        let mut has_ended = false;
        wait_for("Redis listens", || {
            has_ended = redis.child.try_wait().unwrap().is_some();
            has_ended || Client::try_connect(addr).is_ok()
        });
        let is_it = !has_ended && Client::connect(addr).line("INFO server").contains(&own);
        is_it.then_some(redis)
    }
}

/// A port below those that the system assigns, so that no other process gets it by chance between
/// two attempts to connect to the server there; and so is the port for other nodes, 10,000 above.
fn next_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
    10_000 + (std::process::id() as u16).wrapping_mul(31).wrapping_add(taken) % 12_000
}

/// Whether a real Redis 7.0 is installed. Where it is missing, a test prints so and passes, unless
/// `COLLIE_REQUIRE_TOOLS` is set.
fn has_redis() -> bool {
    let version = Command::new("redis-server").arg("--version").output();
    let found = version
        .as_ref()
        .is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains("v=7.0."));
    if !found {
        assert!(
            std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(),
            "redis-server 7.0 is missing: {version:?}"
        );
        println!("skipped: redis-server 7.0 is missing (Debian: redis-server)");
    }
    found
}
