//! What a server acknowledged, noted by its clients, and compared with what it has later.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::thread::JoinHandle;

use super::cluster::Cluster;

const CLIENTS: usize = 3;
/// Of each client, how many rows there are from the start.
const FIRST: u64 = 500;

/// The numbers that were acknowledged to each client, and the next that it has not tried.
#[derive(Debug)]
pub struct Ledger {
    acknowledged: [BTreeSet<u64>; CLIENTS],
    next: [u64; CLIENTS],
}

/// What was acknowledged to a client, and its next number.
type Inserted = io::Result<(BTreeSet<u64>, u64)>;

/// Clients at work.
#[derive(Debug)]
pub struct Writers(Vec<JoinHandle<Inserted>>);

impl Ledger {
    /// Makes the table, with rows in pages that nothing touches later, and that a checkpoint has
    /// settled: no log has them any more.
    ///
    /// # Errors
    /// What the server says.
    pub fn make(cluster: &Cluster) -> Result<Self, String> {
        let statements = format!(
            "CREATE TABLE ledger (client int, number int, filler text, PRIMARY KEY (client, number));
             INSERT INTO ledger SELECT client, number, repeat('x', 50)
                 FROM generate_series(0, {}) client, generate_series(0, {}) number;
             CHECKPOINT",
            CLIENTS - 1,
            FIRST - 1
        );
        cluster.sql("postgres", &statements)?;
        Ok(Self {
            acknowledged: std::array::from_fn(|_| (0..FIRST).collect()),
            next: [FIRST; CLIENTS],
        })
    }

    /// Starts clients that insert one number after the other, each in a transaction of its own.
    ///
    /// # Errors
    /// A client cannot be started.
    pub fn write(&self, cluster: &Cluster) -> io::Result<Writers> {
        let clients = self.next.iter().enumerate().map(|(client, &from)| {
            let mut psql = cluster.program("psql");
            psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
            let pipes = psql
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let psql = pipes.spawn()?;
            Ok(std::thread::spawn(move || insert(psql, client, from)))
        });
        Ok(Writers(clients.collect::<io::Result<_>>()?))
    }

    /// Waits for the end of clients whose server is gone, and notes what was acknowledged to them.
    ///
    /// # Errors
    /// A client got what is not an answer to what it asked.
    pub fn note(&mut self, writers: Writers) -> io::Result<()> {
        for (client, writer) in writers.0.into_iter().enumerate() {
            let joined = writer.join();
            let (acknowledged, next) = joined.map_err(|_| io::Error::other("a client panicked"))??;
            if let Some(all) = self.acknowledged.get_mut(client) {
                all.extend(acknowledged);
            }
            if let Some(number) = self.next.get_mut(client) {
                *number = next;
            }
        }
        Ok(())
    }

    /// How many commits were acknowledged.
    #[must_use]
    pub fn len(&self) -> usize {
        self.acknowledged.iter().map(BTreeSet::len).sum()
    }

    /// Whether there are none, which never is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of them the server does not have.
    ///
    /// # Errors
    /// The server cannot read the table.
    pub fn missing(&self, cluster: &Cluster) -> Result<usize, String> {
        let rows = cluster.sql("postgres", "SELECT client, number FROM ledger")?;
        let there: BTreeSet<&str> = rows.lines().collect();
        let is_missing = |client: usize, number: &u64| !there.contains(&*format!("{client}|{number}"));
        let each = self.acknowledged.iter().enumerate();
        let missing = each.map(|(client, all)| all.iter().filter(|n| is_missing(client, n)).count());
        Ok(missing.sum())
    }
}

/// Inserts until the server is gone.
fn insert(mut psql: Child, client: usize, from: u64) -> Inserted {
    let no_pipe = || io::Error::other("a client without a pipe");
    let mut input = psql.stdin.take().ok_or_else(no_pipe)?;
    let mut output = BufReader::new(psql.stdout.take().ok_or_else(no_pipe)?).lines();
    let (mut acknowledged, mut number) = (BTreeSet::new(), from);
    loop {
        let insert =
            format!("INSERT INTO ledger VALUES ({client}, {number}, repeat('x', 50)) RETURNING number;\n");
        let tried = number;
        number += 1;
        if input.write_all(insert.as_bytes()).is_err() {
            break;
        }
        // The row is sent before the commit, and shown after it.
        match output.next() {
            Some(Ok(line)) if line.parse() == Ok(tried) => acknowledged.insert(tried),
            Some(Ok(line)) => {
                return Err(io::Error::other(format!(
                    "{tried} was inserted, and the answer is {line}"
                )));
            }
            _ => break,
        };
    }
    drop(input);
    psql.wait()?;
    Ok((acknowledged, number))
}
