//! Accounts in memory that are durable by a log: many threads commit, a checkpoint keeps the log
//! short, and a kill at any moment loses nothing that was acknowledged.
//!
//! ```text
//! cargo run --example accounts            # in a temporary directory
//! cargo run --example accounts -- DIR     # in DIR, which keeps the accounts for the next run
//! ```
//!
//! * **Commit** ([`Bank::transfer`]): append and change memory under one lock, so that the log has
//!   the changes in the order in which memory took them. Then let go of the lock and wait. While
//!   one thread waits, others append; the next sync is for all of them.
//! * **Checkpoint** ([`Bank::checkpoint`]): write memory to a file, with the position in the log up
//!   to which it has everything. Once the file is durable, the log may drop what lies before.
//! * **Recovery** ([`Bank::open`]): read the file, and apply what the log has behind that position.
//!
//! What the program does about errors: it ends. `StorageFull` and `Unprepared` would allow it to go
//! on, as then neither the log nor memory was changed. After `Poisoned` it must not: memory has
//! changes that the log may have lost, so only opening everything again says what is true.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]
#![expect(
    clippy::disallowed_methods,
    reason = "a program with files of its own, which it opens as others do"
)]

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use collie_log::{Level, Log, LogOptions, Lsn, Worker};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const ACCOUNTS: usize = 16;
const THREADS: usize = 8;
/// Transfers of each thread in a run.
const TRANSFERS: u64 = 600;
/// How long a checkpoint is waited with, after the one before.
const BETWEEN_CHECKPOINTS: Duration = Duration::from_millis(20);

/// The log gives these back with each frame; a program with more than one sort of frame tells them
/// apart by `KIND`, and several users of one log by `STREAM`.
const STREAM: u32 = 0;
const KIND: u8 = 1;

/// One commit, and so one frame: recovery finds all of it or nothing.
struct Transfer {
    thread: usize,
    /// Counts the transfers of its thread, from 1.
    number: u64,
    from: usize,
    to: usize,
    amount: u64,
}

impl Transfer {
    fn encode(&self) -> Vec<u8> {
        let fields = [
            self.thread as u64,
            self.number,
            self.from as u64,
            self.to as u64,
            self.amount,
        ];
        fields.iter().flat_map(|field| field.to_le_bytes()).collect()
    }

    /// The log has compared a checksum of the bytes already.
    fn decode(bytes: &[u8]) -> Result<Self> {
        let [thread, number, from, to, amount] = words(bytes)?;
        Ok(Self {
            thread: thread as usize,
            number,
            from: from as usize,
            to: to as usize,
            amount,
        })
    }
}

/// What is in memory.
#[derive(Debug, Clone, PartialEq)]
struct Accounts {
    balances: [u64; ACCOUNTS],
    /// The number of each thread's last transfer.
    last: [u64; THREADS],
    /// Everything that the log has below is in here, and nothing else.
    end: Lsn,
}

impl Accounts {
    fn apply(&mut self, transfer: &Transfer, end: Lsn) {
        self.balances[transfer.from] -= transfer.amount;
        self.balances[transfer.to] += transfer.amount;
        self.last[transfer.thread] = transfer.number;
        self.end = end;
    }

    /// Reads the last checkpoint; `None` before there is one.
    fn load(path: &Path) -> Result<Option<Self>> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let all: [u64; ACCOUNTS + THREADS + 1] = words(&bytes)?;
        let (balances, rest) = all.split_at(ACCOUNTS);
        Ok(Some(Self {
            balances: balances.try_into()?,
            last: rest[..THREADS].try_into()?,
            end: rest[THREADS],
        }))
    }

    /// Replaces the checkpoint. On return it is durable; a crash before leaves the one before it.
    fn save(&self, dir: &Path) -> io::Result<()> {
        let all = self.balances.iter().chain(&self.last).chain([&self.end]);
        let bytes: Vec<u8> = all.flat_map(|word| word.to_le_bytes()).collect();
        let new = dir.join("checkpoint.new");
        let file = File::create(&new)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        fs::rename(&new, dir.join("checkpoint"))?;
        File::open(dir)?.sync_all()
    }
}

struct Bank {
    dir: PathBuf,
    log: Log,
    accounts: Mutex<Accounts>,
    /// Transfers that the opening found behind the checkpoint.
    replayed: u64,
}

impl Bank {
    fn open(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let checkpoint = Accounts::load(&dir.join("checkpoint"))?;
        let from = checkpoint.as_ref().map(|accounts| accounts.end);
        let options = LogOptions {
            // Where to begin, and that the log must reach this far: a log that does not is refused.
            resume_at: from,
            min_lsn: from.unwrap_or(collie_log::FIRST_LSN),
            // Small, so that the example gets through many segments.
            ring_bytes: 64 << 10,
            segment_bytes: 64 << 10,
            ..LogOptions::default()
        };
        let mut accounts = checkpoint.unwrap_or(Accounts {
            balances: [1_000; ACCOUNTS],
            last: [0; THREADS],
            end: 0,
        });
        let mut replayed = 0;
        let log = Log::open_with(dir.join("log"), options, |frame| {
            replayed += 1;
            accounts.apply(&Transfer::decode(frame.payload)?, frame.end);
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        })?;
        accounts.end = log.recovery().end;
        // An opened log drops nothing until it is told from where on it is needed.
        if let Some(from) = from {
            log.retain("checkpoint", from);
        }
        Ok(Self {
            dir: dir.to_owned(),
            log,
            accounts: Mutex::new(accounts),
            replayed,
        })
    }

    /// Moves an amount, if it is there, from one account to another; durable on return.
    fn transfer(&self, worker: &mut Worker, mut transfer: Transfer) -> Result<()> {
        let span = {
            let mut accounts = lock(&self.accounts);
            transfer.amount = transfer.amount.min(accounts.balances[transfer.from]);
            // A copy into memory. First the log, then memory: an append that fails changes neither.
            let span = worker.append(STREAM, KIND, &transfer.encode())?;
            accounts.apply(&transfer, span.end);
            span
        };
        // Blocks, and holds no lock. From here on other threads see the transfer; what they answer to
        // their clients should wait for its `end` as well.
        self.log.wait(span.end, Level::Disk)?;
        Ok(())
    }

    fn checkpoint(&self) -> Result<()> {
        let accounts = lock(&self.accounts).clone();
        // First the log, then the file: after a power cut between the two the file would say more than
        // the log has, and the log would refuse to open.
        self.log.wait(accounts.end, Level::Disk)?;
        accounts.save(&self.dir)?;
        // Files that are not needed any more are used again, or removed, in the background.
        self.log.retain("checkpoint", accounts.end);
        Ok(())
    }

    /// Flushes what is left, and returns what was in memory.
    fn close(self) -> Result<Accounts> {
        let accounts = lock(&self.accounts).clone();
        // Dropping the log closes it, too, but only `close` returns an error.
        self.log.close()?;
        Ok(accounts)
    }
}

fn main() -> Result<()> {
    // Declared before the bank, and so removed after it.
    let temporary;
    let dir = match std::env::args_os().nth(1) {
        Some(dir) => PathBuf::from(dir),
        None => {
            temporary = tempfile::tempdir()?;
            temporary.path().join("bank")
        }
    };
    let bank = Bank::open(&dir)?;
    let before = lock(&bank.accounts).clone();
    println!(
        "{}: {} transfers found, {} of them behind the checkpoint",
        dir.display(),
        before.last.iter().sum::<u64>(),
        bank.replayed
    );
    let acknowledged = Acknowledged::open(&dir)?;
    acknowledged.check(&before)?;
    check_sum(&before)?;

    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let (bank, acknowledged, ended) = (&bank, &acknowledged, &ended);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let last = before.last[thread];
                scope.spawn(move || run_thread(bank, acknowledged, thread, last))
            })
            .collect();
        let checkpoints = scope.spawn(move || -> Result<u64> {
            let mut count = 0;
            while !ended.load(Ordering::Relaxed) {
                bank.checkpoint()?;
                count += 1;
                std::thread::sleep(BETWEEN_CHECKPOINTS);
            }
            Ok(count)
        });
        let outcomes: Vec<Result<()>> = threads.into_iter().map(join).collect();
        ended.store(true, Ordering::Relaxed);
        println!("{} checkpoints", join(checkpoints)?);
        outcomes.into_iter().collect()
    })?;

    let stats = bank.log.stats();
    println!(
        "{} transfers, written in {} groups; the log has {} KiB in {} files",
        THREADS as u64 * TRANSFERS,
        stats.group_frames.count,
        stats.segment_bytes >> 10,
        stats.segments,
    );

    // What comes back is what was there.
    let closed = bank.close()?;
    let bank = Bank::open(&dir)?;
    let opened = bank.close()?;
    if (opened.balances, opened.last) != (closed.balances, closed.last) {
        return Err(format!("WRONG: {closed:?} was closed, and {opened:?} opened").into());
    }
    if opened.last != before.last.map(|last| last + TRANSFERS) {
        return Err(format!("WRONG: {opened:?} after {TRANSFERS} more than {before:?}").into());
    }
    acknowledged.check(&opened)?;
    check_sum(&opened)?;
    println!("Nothing that was acknowledged is lost, and no money came or went.");
    Ok(())
}

fn run_thread(bank: &Bank, acknowledged: &Acknowledged, thread: usize, last: u64) -> Result<()> {
    let mut worker = bank.log.worker()?;
    for number in last + 1..=last + TRANSFERS {
        // Any choice will do.
        let (from, to) = (number as usize * 7 + thread, number as usize * 3);
        let transfer = Transfer {
            thread,
            number,
            from: from % ACCOUNTS,
            to: to % ACCOUNTS,
            amount: number % 100,
        };
        bank.transfer(&mut worker, transfer)?;
        acknowledged.note(thread, number)?;
    }
    Ok(())
}

/// What a client would remember: the number of each thread's last transfer whose `wait` returned. It
/// is a file of its own, which outlives a kill.
struct Acknowledged(File);

impl Acknowledged {
    fn open(dir: &Path) -> Result<Self> {
        let mut options = fs::OpenOptions::new();
        let file = options.create(true).truncate(false).read(true).write(true);
        let file = file.open(dir.join("acknowledged"))?;
        file.set_len(8 * THREADS as u64)?;
        Ok(Self(file))
    }

    fn note(&self, thread: usize, number: u64) -> io::Result<()> {
        self.0.write_all_at(&number.to_le_bytes(), 8 * thread as u64)
    }

    /// Transfers may be there whose thread was killed before it noted them, but none is missing.
    fn check(&self, accounts: &Accounts) -> Result<()> {
        let mut bytes = [0; 8 * THREADS];
        self.0.read_exact_at(&mut bytes, 0)?;
        let noted: [u64; THREADS] = words(&bytes)?;
        match noted
            .iter()
            .zip(&accounts.last)
            .all(|(noted, found)| noted <= found)
        {
            true => Ok(()),
            false => Err(format!("WRONG: {noted:?} were acknowledged, and {accounts:?} found").into()),
        }
    }
}

fn check_sum(accounts: &Accounts) -> Result<()> {
    let sum: u64 = accounts.balances.iter().sum();
    match sum == 1_000 * ACCOUNTS as u64 {
        true => Ok(()),
        false => Err(format!("WRONG: the accounts hold {sum}: {accounts:?}").into()),
    }
}

fn words<const N: usize>(bytes: &[u8]) -> Result<[u64; N]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    match (words.try_into(), rest.is_empty()) {
        (Ok(words), true) => Ok(words),
        _ => Err(format!("{} bytes instead of {}", bytes.len(), 8 * N).into()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| "a thread panicked")?
}
