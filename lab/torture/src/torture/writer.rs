//! The process that is killed: it writes as fast as it can and reports to its parent what was
//! acknowledged.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use collie_db::{Batch, Db, WriteOptions};
use collie_log::Level;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::history::{self, LEVELS, Tables};
use super::messages::Message;

/// Opens the store in `dir`, its ring in `rings`, and writes until it is killed, or until the
/// pipe to its parent has no reader.
pub(crate) fn run(dir: &Path, rings: Option<&Path>) -> anyhow::Result<()> {
    // Not to write for ever where the parent dies first.
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot tie the writer to its parent")?;
    say(Message::Opening)?;
    let db = Db::open(dir, history::options_with(rings))?;
    let tables = Tables::open(&db)?;
    let counts = tables.counts()?;
    for (thread, &count) in counts.iter().enumerate() {
        say(Message::Found { thread, count })?;
    }
    say(Message::Open)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = LEVELS
            .iter()
            .zip(counts)
            .enumerate()
            .map(|(thread, (&level, first))| {
                let (db, tables, stop) = (&db, &tables, &stop);
                scope.spawn(move || {
                    let ended = write(db, tables, thread, level, first, stop);
                    // Relaxed: the others may learn of it a commit later.
                    stop.store(true, Ordering::Relaxed);
                    ended
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| match writer.join() {
            Ok(ended) => ended,
            Err(_) => anyhow::bail!("a writing thread panicked"),
        })
    })
}

fn write(
    db: &Db,
    tables: &Tables,
    thread: usize,
    level: Level,
    first: u64,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let options = WriteOptions {
        durability: level,
        ..WriteOptions::default()
    };
    let mut batch = Batch::new();
    for n in first.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let seen = tables.counts()?;
        tables.commit(&mut batch, thread, n, &seen)?;
        db.write_ref(&batch, &options)?;
        if level != Level::Buffered {
            let count = n + 1;
            say(Message::Acknowledged { thread, count })?;
        }
    }
    Ok(())
}

/// Writes to the pipe, past all buffers, in one call.
fn say(message: Message) -> anyhow::Result<()> {
    let bytes = message.encode();
    let written = rustix::io::write(rustix::stdio::stdout(), &bytes).context("the parent does not read")?;
    anyhow::ensure!(written == bytes.len(), "a record was cut");
    Ok(())
}
