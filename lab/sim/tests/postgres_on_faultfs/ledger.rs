//! What a server acknowledged, noted by its clients, and compared with what it has later.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::thread::JoinHandle;

use crate::cluster::Cluster;

const CLIENTS: usize = 3;
/// Of each client, how many rows there are from the start.
const FIRST: u64 = 500;

/// The numbers that were acknowledged to each client, and the next that it has not tried.
#[derive(Debug)]
pub(crate) struct Ledger {
    acknowledged: [BTreeSet<u64>; CLIENTS],
    next: [u64; CLIENTS],
}

/// Clients at work.
pub(crate) struct Writers(Vec<JoinHandle<(BTreeSet<u64>, u64)>>);

impl Ledger {
    /// Makes the table, with rows in pages that nothing touches later, and that a checkpoint has
    /// settled: no log has them any more.
    pub(crate) fn make(cluster: &Cluster) -> Self {
        let statements = format!(
            "CREATE TABLE ledger (client int, number int, filler text, PRIMARY KEY (client, number));
             INSERT INTO ledger SELECT client, number, repeat('x', 50)
                 FROM generate_series(0, {}) client, generate_series(0, {}) number;
             CHECKPOINT",
            CLIENTS - 1,
            FIRST - 1
        );
        cluster.sql("postgres", &statements).unwrap();
        Self {
            acknowledged: std::array::from_fn(|_| (0..FIRST).collect()),
            next: [FIRST; CLIENTS],
        }
    }

    /// Starts clients that insert one number after the other, each in a transaction of its own.
    pub(crate) fn write(&self, cluster: &Cluster) -> Writers {
        let clients = self.next.iter().enumerate().map(|(client, &from)| {
            let mut psql = cluster.program("psql");
            psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
            let pipes = psql
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let psql = pipes.spawn().unwrap();
            std::thread::spawn(move || insert(psql, client, from))
        });
        Writers(clients.collect())
    }

    /// Waits for the end of clients whose server is gone, and notes what was acknowledged to them.
    pub(crate) fn note(&mut self, writers: Writers) {
        for (client, writer) in writers.0.into_iter().enumerate() {
            let (acknowledged, next) = writer.join().unwrap();
            self.acknowledged[client].extend(acknowledged);
            self.next[client] = next;
        }
    }

    /// How many commits were acknowledged.
    pub(crate) fn len(&self) -> usize {
        self.acknowledged.iter().map(BTreeSet::len).sum()
    }

    /// How many of them the server does not have.
    pub(crate) fn missing(&self, cluster: &Cluster) -> Result<usize, String> {
        let rows = cluster.sql("postgres", "SELECT client, number FROM ledger")?;
        let there: BTreeSet<&str> = rows.lines().collect();
        let is_missing = |client: usize, number: &u64| !there.contains(&*format!("{client}|{number}"));
        let each = self.acknowledged.iter().enumerate();
        let missing = each.map(|(client, all)| all.iter().filter(|n| is_missing(client, n)).count());
        Ok(missing.sum())
    }
}

/// Inserts until the server is gone; what it acknowledged, and the next number.
fn insert(mut psql: Child, client: usize, from: u64) -> (BTreeSet<u64>, u64) {
    let mut input = psql.stdin.take().unwrap();
    let mut output = BufReader::new(psql.stdout.take().unwrap()).lines();
    let (mut acknowledged, mut number) = (BTreeSet::new(), from);
    loop {
        let insert =
            format!("INSERT INTO ledger VALUES ({client}, {number}, repeat('x', 50)) RETURNING number;\n");
        number += 1;
        if input.write_all(insert.as_bytes()).is_err() {
            break;
        }
        // The row is sent before the commit, and shown after it.
        match output.next() {
            Some(Ok(line)) => assert!(acknowledged.insert(line.parse().unwrap()), "{line} twice"),
            _ => break,
        }
    }
    drop(input);
    psql.wait().unwrap();
    (acknowledged, number)
}
