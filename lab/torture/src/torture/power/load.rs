//! The clients: many that write and many that read, until the server is gone.

use std::io;
use std::thread::{Scope, ScopedJoinHandle};

use anyhow::Context;
use collie_sim::Rng;

use super::ledger::{Counts, Ledger, WRITERS};
use crate::client;

/// Clients that only read.
const READERS: usize = 6;

/// The clients of one life of a server.
pub(crate) struct Load<'scope>(Vec<ScopedJoinHandle<'scope, anyhow::Result<()>>>);

impl<'scope> Load<'scope> {
    /// Starts them. `counts`: how many commits of each client there are.
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        ledger: &'env Ledger,
        port: u16,
        counts: &Counts,
        rng: &mut Rng,
    ) -> Self {
        let mut clients = Vec::with_capacity(WRITERS + READERS);
        for (thread, &count) in counts.iter().enumerate() {
            clients.push(scope.spawn(move || write(ledger, port, thread, count)));
        }
        for _ in 0..READERS {
            let rng = rng.fork();
            clients.push(scope.spawn(move || read(ledger, port, rng)));
        }
        Self(clients)
    }

    /// Waits for their end, which comes when the server is killed.
    pub(crate) fn join(self) -> anyhow::Result<()> {
        self.0.into_iter().try_for_each(|client| match client.join() {
            Ok(ended) => ended,
            Err(_) => anyhow::bail!("a client's thread panicked"),
        })
    }
}

/// Whether an error is that the server is gone.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | UnexpectedEof
    )
}

/// How a client ends: well, if because the server is gone.
fn until_gone(ended: io::Result<()>) -> anyhow::Result<()> {
    match ended {
        Err(error) if !is_gone(&error) => Err(error).context("a client of a server whose disk works"),
        _ => Ok(()),
    }
}

fn write(ledger: &Ledger, port: u16, thread: usize, first: u64) -> anyhow::Result<()> {
    let all = || {
        let mut client = client::connect(port)?;
        for n in first.. {
            let seen = ledger.read_counts(&mut client)?;
            ledger.commit(&mut client, thread, n, &seen)?;
        }
        Ok(())
    };
    until_gone(all())
}

fn read(ledger: &Ledger, port: u16, mut rng: Rng) -> anyhow::Result<()> {
    let mut all = || {
        let mut client = client::connect(port)?;
        loop {
            ledger.read_counts(&mut client)?;
            if !ledger.read_one(&mut client, &mut rng)? {
                return Err(io::Error::other("a value was read that is not its own"));
            }
        }
    };
    until_gone(all())
}
