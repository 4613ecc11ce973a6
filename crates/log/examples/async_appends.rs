//! A thousand tokio tasks append to one log; no thread of the runtime ever sleeps for the device.
//!
//! ```text
//! cargo run --example async_appends       # in a temporary directory
//! ```
//!
//! * **Append** ([`Journal::append`]): `try_append` copies into memory. Where the log has no room at
//!   this moment it appends nothing, and `Log::room` says when to try again. A `Worker` is used by
//!   one thread at a time: here all tasks share one, under a lock that is never held over an
//!   `await`. (A task that has a `Worker` of its own calls `Worker::append_async`, which does the
//!   same; a log has 256 of them, [`LogOptions::max_workers`].)
//! * **Wait**: `wait_async` leaves the flush to a thread of the log. It works with any executor.
//! * **Open and close** do I/O, so they run where a task may block.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use collie_log::{Level, Log, LogError, LogOptions, Span, Worker};
use tokio::task::{JoinSet, spawn_blocking};

const TASKS: u32 = 1_000;
/// Events of each task in a run.
const EVENTS: u32 = 20;
/// What the frames are: the log gives these back, and knows nothing else of them.
const STREAM: u32 = 0;
const EVENT: u8 = 1;

struct Journal {
    log: Log,
    worker: Mutex<Worker>,
}

impl Journal {
    /// Opens the journal, and returns how many events each task has in it. Blocks.
    fn open(dir: &Path) -> Result<(Self, Vec<u32>), Box<dyn Error + Send + Sync>> {
        let mut found = vec![0; TASKS as usize];
        let options = LogOptions {
            // So small that tasks meet a full ring, and await room.
            ring_bytes: 8 << 10,
            segment_bytes: 1 << 20,
            ..LogOptions::default()
        };
        let log = Log::open_with(dir, options, |frame| {
            let (task, number) = decode(frame.payload)?;
            let last: &mut u32 = found.get_mut(task as usize).ok_or("a task that never was")?;
            // In the order in which the task appended them, and without a gap.
            if number != *last + 1 {
                return Err(format!("WRONG: task {task} has event {number} after event {last}").into());
            }
            *last = number;
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        })?;
        let worker = Mutex::new(log.worker()?);
        Ok((Self { log, worker }, found))
    }

    /// Appends when there is room. What is dropped before it ends has appended nothing.
    async fn append(&self, payload: &[u8]) -> Result<Span, LogError> {
        loop {
            let appended = {
                let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
                worker.try_append(STREAM, EVENT, payload)
            };
            match appended {
                // A full device ends this with `StorageFull`: nothing was appended, try again later.
                Err(LogError::WouldBlock) => self.log.room(payload.len()).await?,
                appended => return appended,
            }
        }
    }

    /// Appends, and is done when the event survives a power cut.
    async fn record(&self, payload: &[u8]) -> Result<(), LogError> {
        let span = self.append(payload).await?;
        self.log.wait_async(span.end, Level::Disk).await
    }
}

/// A task's events, one after the other; returns how many are acknowledged.
async fn run_task(journal: Arc<Journal>, task: u32) -> Result<(u32, u32), LogError> {
    for number in 1..=EVENTS {
        journal.record(&encode(task, number)).await?;
    }
    Ok((task, EVENTS))
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    runtime.block_on(run())
}

async fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("journal");
    let open = {
        let path = path.clone();
        move || Journal::open(&path)
    };
    let (journal, _) = spawn_blocking(open.clone()).await??;
    let journal = Arc::new(journal);

    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(run_task(Arc::clone(&journal), task));
    }
    let mut acknowledged = vec![0; TASKS as usize];
    while let Some(ended) = tasks.join_next().await {
        let (task, events) = ended??;
        acknowledged[task as usize] = events;
    }
    let groups = journal.log.stats().group_frames;
    println!(
        "{} events of {TASKS} tasks, written in {} groups of {:.0} on average",
        TASKS * EVENTS,
        groups.count,
        groups.mean()
    );
    let log = journal.log.clone();
    drop(journal);
    // Dropping the log closes it, too, but only `close` returns an error.
    spawn_blocking(|| log.close()).await??;

    let (journal, found) = spawn_blocking(open).await??;
    if found != acknowledged {
        return Err("WRONG: the journal lacks what was acknowledged".into());
    }
    println!("All of them are there, in the order of their tasks.");
    spawn_blocking(|| journal.log.close()).await??;
    Ok(())
}

fn encode(task: u32, number: u32) -> [u8; 8] {
    (u64::from(task) << 32 | u64::from(number)).to_le_bytes()
}

fn decode(payload: &[u8]) -> Result<(u32, u32), Box<dyn Error + Send + Sync>> {
    let both = u64::from_le_bytes(payload.try_into()?);
    Ok(((both >> 32) as u32, both as u32))
}
