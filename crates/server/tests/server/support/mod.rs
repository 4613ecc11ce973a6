//! A server in the test's process, on a temporary directory.

mod client;
pub(crate) mod redis;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use collie_db::{Db, Options, RingMode};
use collie_io::{Clock, RealClock};
use collie_server::{Server, ServerConfig, ServerError};
use collie_sim::SimDevice;
use tokio::sync::oneshot;

pub(crate) use client::*;

/// A configuration for tests: any port, two threads.
pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        threads: 2,
        ..ServerConfig::default()
    }
}

/// Engine options for tests. As the binary has it, a request is one frame of the log.
pub(crate) fn options() -> Options {
    Options {
        max_commit_bytes: 0,
        ..Options::default()
    }
}

/// Opens a store on a simulated device, with a small log. Writes that are durable when they return are
/// off: they would need none of the syncs that a test blocks or makes fail.
pub(crate) fn open_on(device: &SimDevice, dir: &Path) -> Db {
    device.support_direct(false);
    let options = Options {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 1 << 20,
        segment_bytes: 1 << 20,
        ..options()
    };
    Db::open(dir, options).unwrap()
}

/// Sends so many `INCR n` in one piece, and checks that their replies come in order.
pub(crate) fn check_long_pipeline(client: &mut Client, commands: usize) {
    let request: Vec<u8> = (0..commands).flat_map(|_| command(&["INCR", "n"])).collect();
    let mut writer = client.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || std::io::Write::write_all(&mut writer, &request).unwrap());
        for n in 1..=commands {
            assert_eq!(client.reply(), format!(":{n}\r\n").into_bytes());
        }
    });
}

/// A running server.
pub(crate) struct Running {
    pub addr: SocketAddr,
    pub metrics: Option<SocketAddr>,
    pub db: Db,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

/// Starts a server on the store in `dir`.
pub(crate) fn start(dir: &Path, config: ServerConfig) -> Running {
    start_on(Db::open(dir, options()).unwrap(), config)
}

/// Starts a server on an open store.
pub(crate) fn start_on(db: Db, config: ServerConfig) -> Running {
    run(Server::bind(config, db.clone()).unwrap(), db)
}

/// Runs a server of this store.
pub(crate) fn run(server: Server, db: Db) -> Running {
    let (addr, metrics) = (server.local_addr(), server.metrics_addr());
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        server.run(async {
            // A sender that is dropped stops the server as well.
            let _ = stopped.await;
        })
    });
    Running {
        addr,
        metrics,
        db,
        stop: Some(stop),
        thread: Some(thread),
    }
}

impl Running {
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// Shuts the server down, as a signal does, and waits for it.
    pub(crate) fn stop(mut self) -> Result<(), ServerError> {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits for a server that ends for another reason.
    pub(crate) fn join(mut self) -> Result<(), ServerError> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// The elements of an array, sorted.
pub(crate) fn sorted_names(reply: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(reply[0], b'*', "{:?}", String::from_utf8_lossy(reply));
    let mut names: Vec<_> = elements(reply).into_iter().map(<[u8]>::to_vec).collect();
    names.sort();
    names
}

/// A reproducible random number generator.
pub(crate) struct Random(u64);

impl Random {
    /// Seeded from `COLLIE_SEED`, or from the time; prints how to repeat the run.
    pub(crate) fn new(test: &str) -> Random {
        let seed = std::env::var("COLLIE_SEED")
            .map_or_else(|_| RealClock.monotonic(), |value| value.parse().unwrap());
        println!("to run it again: COLLIE_SEED={seed} cargo test -p collie-server {test}");
        Random(seed | 1)
    }

    /// A generator with a given seed.
    pub(crate) fn seeded(seed: usize) -> Random {
        Random(seed as u64 | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // xorshift64*, good enough to choose commands.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}
