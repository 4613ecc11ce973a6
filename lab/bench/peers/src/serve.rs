//! fjall behind as much of the Redis protocol as `collie-lab torture power` speaks, so that its power
//! can be cut as the other servers' is: two databases, and transactions that are one batch, synced
//! before it is acknowledged.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

/// As small as fjall has it, so that flushes, compactions and new journals come about.
const MEMTABLE: u64 = 96 << 10;
const JOURNALS: u64 = 64 << 20;
/// The longest word and the most words of a request.
const LONGEST: usize = 64 << 20;

struct Store {
    db: Database,
    databases: [Keyspace; 2],
}

/// What a transaction is to do.
enum Change {
    Set(usize, Vec<u8>, Vec<u8>),
    Remove(usize, Vec<u8>),
}

/// A client: its database, and its transaction, if it has begun one.
#[derive(Default)]
struct Session {
    database: usize,
    queued: Option<Vec<Change>>,
}

pub fn run(port: u16, dir: &Path) -> Result<()> {
    let db = Database::builder(dir).max_journaling_size(JOURNALS).open()?;
    let keyspace = |name: &str| {
        db.keyspace(name, || {
            KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE)
        })
    };
    let databases = [keyspace("0")?, keyspace("1")?];
    let store = Arc::new(Store { db, databases });
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    for stream in listener.incoming() {
        let (stream, store) = (stream?, Arc::clone(&store));
        std::thread::spawn(move || {
            // A connected client learns of an error by the end of the connection.
            if let Err(error) = converse(&stream, &store) {
                eprintln!("a connection ended: {error:#}");
            }
        });
    }
    Ok(())
}

fn converse(stream: &TcpStream, store: &Store) -> Result<()> {
    stream.set_nodelay(true)?;
    let (mut input, mut session) = (BufReader::new(stream), Session::default());
    while let Some(words) = request(&mut input)? {
        let reply = session.answer(store, &words)?;
        (&*stream).write_all(&reply)?;
    }
    Ok(())
}

/// The next request; `None` where the client is gone.
fn request(input: &mut impl BufRead) -> Result<Option<Vec<Vec<u8>>>> {
    let Some(count) = header(input, b'*')? else {
        return Ok(None);
    };
    let mut words = Vec::new();
    for _ in 0..count {
        let len = header(input, b'$')?.context("a request ends in the middle")?;
        let mut word = vec![0; len + 2];
        input.read_exact(&mut word)?;
        word.truncate(len);
        words.push(word);
    }
    Ok(Some(words))
}

fn header(input: &mut impl BufRead, kind: u8) -> Result<Option<usize>> {
    let mut line = Vec::new();
    if input.read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    ensure!(line.first() == Some(&kind), "not the request that was expected");
    let number: usize = std::str::from_utf8(&line[1..])?.trim_end().parse()?;
    ensure!(number <= LONGEST, "a request is too long");
    Ok(Some(number))
}

fn bulk(value: Option<&[u8]>) -> Vec<u8> {
    let Some(value) = value else {
        return b"$-1\r\n".to_vec();
    };
    let mut reply = format!("${}\r\n", value.len()).into_bytes();
    reply.extend_from_slice(value);
    reply.extend_from_slice(b"\r\n");
    reply
}

impl Session {
    fn answer(&mut self, store: &Store, words: &[Vec<u8>]) -> Result<Vec<u8>> {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let database = &store.databases[self.database];
        Ok(match words.as_slice() {
            [b"PING"] => b"+PONG\r\n".to_vec(),
            [b"MULTI"] => {
                self.queued = Some(Vec::new());
                b"+OK\r\n".to_vec()
            }
            [b"EXEC"] => self.commit(store)?,
            [b"SELECT", number] => {
                self.database = usize::from(*number == b"1");
                if self.queued.is_some() {
                    b"+QUEUED\r\n".to_vec()
                } else {
                    b"+OK\r\n".to_vec()
                }
            }
            [b"SET", key, value] => self.queue(Change::Set(self.database, key.to_vec(), value.to_vec()))?,
            [b"DEL", key] => self.queue(Change::Remove(self.database, key.to_vec()))?,
            [b"GET", key] => bulk(database.get(key)?.as_deref()),
            [b"MGET", keys @ ..] => {
                // As one moment has them.
                let snapshot = store.db.snapshot();
                let mut reply = format!("*{}\r\n", keys.len()).into_bytes();
                for key in keys {
                    use fjall::Readable;
                    reply.extend(bulk(snapshot.get(database, key)?.as_deref()));
                }
                reply
            }
            [b"DBSIZE"] => {
                use fjall::Readable;
                format!(":{}\r\n", store.db.snapshot().iter(database).count()).into_bytes()
            }
            _ => bail!("a command that this server does not have"),
        })
    }

    fn queue(&mut self, change: Change) -> Result<Vec<u8>> {
        let queued = self.queued.as_mut().context("writes come in transactions here")?;
        queued.push(change);
        Ok(b"+QUEUED\r\n".to_vec())
    }

    fn commit(&mut self, store: &Store) -> Result<Vec<u8>> {
        let changes = self.queued.take().context("EXEC without MULTI")?;
        let count = changes.len();
        let mut batch = store.db.batch().durability(Some(PersistMode::SyncData));
        for change in changes {
            match change {
                Change::Set(database, key, value) => batch.insert(&store.databases[database], key, value),
                Change::Remove(database, key) => batch.remove(&store.databases[database], key),
            }
        }
        batch.commit()?;
        let mut reply = format!("*{count}\r\n").into_bytes();
        (0..count).for_each(|_| reply.extend_from_slice(b"+OK\r\n"));
        Ok(reply)
    }
}
