//! What runs on the file system and dies with it: opens the store, reads all that is there, does what an application
//! might, and reports each
//! intent, acknowledgement and answer through its standard output, line by line.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, Read as _, Write as _};
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use collie_db::{
    Batch, CommitMode, Compression, Db, Durability, Error, Family, FamilyOptions, Lsn, Options, RingMode,
    TransactionOptions, WriteOptions,
};
use collie_io::{Device, RealDevice};

use crate::machine::Machine;
use crate::rng::Rng;

/// Keys of a thread in a family.
pub const KEYS: u64 = 10;

/// What a life is to be.
#[derive(Clone, Debug)]
pub struct Life {
    pub store: PathBuf,
    pub ring: PathBuf,
    pub boot: u64,
    pub seed: u64,
    pub number: u64,
    pub threads: u64,
    /// Steps of each thread; the fixed program where there are none.
    pub steps: u64,
    /// Close in the middle and open again.
    pub reopen: bool,
    /// Close at the end.
    pub close: bool,
    /// Look at the log as a program without a store does, before the open and after the close.
    pub inspect: bool,
    /// Start a second process that opens the same store.
    pub second: bool,
}

impl Life {
    pub fn to_args(&self) -> Vec<String> {
        let words = [self.store.display().to_string(), self.ring.display().to_string()];
        let flags = [self.reopen, self.close, self.inspect, self.second].map(u64::from);
        let numbers = [self.boot, self.seed, self.number, self.threads, self.steps];
        words
            .into_iter()
            .chain(numbers.into_iter().chain(flags).map(|n| n.to_string()))
            .collect()
    }

    pub fn from_args(args: &[String]) -> Option<Self> {
        let number = |at: usize| args.get(at)?.parse::<u64>().ok();
        Some(Self {
            store: args.first()?.into(),
            ring: args.get(1)?.into(),
            boot: number(2)?,
            seed: number(3)?,
            number: number(4)?,
            threads: number(5)?,
            steps: number(6)?,
            reopen: number(7)? == 1,
            close: number(8)? == 1,
            inspect: number(9)? == 1,
            second: number(10)? == 1,
        })
    }

    fn device(&self) -> Arc<dyn Device> {
        let mut boot = [7; 16];
        boot[..8].copy_from_slice(&self.boot.to_le_bytes());
        Arc::new(Machine {
            real: RealDevice::new(),
            boot,
        })
    }

    fn options(&self, again: u64) -> Options {
        let mut store = Rng::new(self.seed);
        let mut rng = Rng::new(self.seed ^ (self.number * 7 + again + 1) << 20);
        let archive = store.below(4);
        Options {
            device: self.device(),
            ring: match rng.chance(50) {
                true => RingMode::Private,
                false => RingMode::Shared {
                    dir: self.ring.clone(),
                },
            },
            ring_bytes: rng.pick(&[32 << 10, 64 << 10, 256 << 10]),
            segment_bytes: store.pick(&[32 << 10, 64 << 10, 256 << 10]),
            pad_to_block: store.chance(30),
            wal_ttl: if archive == 1 {
                Duration::from_secs(3600)
            } else {
                Duration::ZERO
            },
            wal_size_limit: if archive == 2 { 128 << 10 } else { 0 },
            wal_compression: rng.pick(&[Compression::None, Compression::Lz4]),
            cache_bytes: 1 << 20,
            max_open_files: rng.pick(&[4, 256]),
            default_family: family_options(&mut store),
            ..Options::default()
        }
    }
}

fn family_options(rng: &mut Rng) -> FamilyOptions {
    FamilyOptions {
        write_buffer_bytes: rng.pick(&[4 << 10, 16 << 10, 64 << 10]),
        level0_compaction: rng.pick(&[2, 4]),
        table_bytes: rng.pick(&[8 << 10, 64 << 20]),
        ..FamilyOptions::default()
    }
}

/// A value names the write that it is of.
fn value(thread: u64, seq: u64, item: usize, len: usize) -> Vec<u8> {
    let mut value = format!("{thread}.{seq}.{item}.{len}|").into_bytes();
    value.extend((0..len).map(|at| b'a' + ((at as u64 * 7 + seq) % 26) as u8));
    value
}

fn parse_value(found: &[u8]) -> Option<(u64, u64, usize)> {
    let end = found.iter().position(|&c| c == b'|')?;
    let head = std::str::from_utf8(&found[..end]).ok()?;
    let mut parts = head.split('.').map(|part| part.parse::<u64>().ok());
    let mut next = || parts.next().flatten();
    let (thread, seq, item, len) = (next()?, next()?, next()? as usize, next()? as usize);
    (found == value(thread, seq, item, len)).then_some((thread, seq, item))
}

pub fn key(thread: u64, number: u64) -> String {
    format!("k{thread}-{number}")
}

/// A line to the judge; one write, so that lines of threads do not mix.
fn report(line: impl Display) {
    let mut out = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(1) });
    let line = line.to_string().replace('\n', " ");
    let line: String = line.chars().take(3500).collect();
    let _ = out.write_all(format!("{line}\n").as_bytes());
}

/// Whether the call says that nothing was done.
fn refused(error: &Error) -> bool {
    matches!(
        error,
        Error::BatchTooLarge { .. }
            | Error::StorageFull { .. }
            | Error::FamilyDropped { .. }
            | Error::FamilyExists { .. }
            | Error::Conflict { .. }
            | Error::LockTimeout { .. }
    )
}

fn level_name(level: Durability) -> &'static str {
    match level {
        Durability::Buffered => "buffered",
        Durability::Process => "process",
        Durability::Disk => "disk",
    }
}

struct Worker<'a> {
    life: &'a Life,
    db: Db,
    thread: u64,
    rng: Rng,
    next: &'a AtomicU64,
    trouble: &'a AtomicBool,
}

impl Worker<'_> {
    fn seq(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn acknowledge(&self, seq: u64, result: Result<Lsn, Error>) {
        let thread = self.thread;
        match result {
            Ok(end) => report(format!("a {thread} {seq} ok {end}")),
            Err(error) if refused(&error) => {
                self.failed(&error);
                report(format!("a {thread} {seq} no {error}"));
            }
            Err(error) => {
                self.failed(&error);
                report(format!("a {thread} {seq} doubt {error}"));
            }
        }
    }

    fn failed(&self, error: &Error) {
        if !matches!(error, Error::FamilyDropped { .. } | Error::FamilyExists { .. }) {
            self.trouble.store(true, Ordering::Relaxed);
        }
    }

    fn names(&self) -> Vec<String> {
        vec![
            "default".into(),
            "shared".into(),
            format!("t{}a", self.thread),
            format!("t{}b", self.thread),
        ]
    }

    fn any_family(&mut self) -> Family {
        let name = self.rng.pick(&self.names());
        self.db.family(&name).unwrap_or_else(|| self.db.default_family())
    }

    fn items(&mut self, count: u64) -> Vec<(Family, String, Option<usize>)> {
        let mut items = Vec::new();
        let mut used = BTreeSet::new();
        for _ in 0..count {
            let family = self.any_family();
            let key = key(self.thread, self.rng.below(KEYS));
            if used.insert((family.name().to_owned(), key.clone())) {
                let len = (!self.rng.chance(20)).then(|| self.rng.small(1400) as usize);
                items.push((family, key, len));
            }
        }
        items
    }

    fn announce(&self, seq: u64, level: Durability, items: &[(Family, String, Option<usize>)]) {
        let list: Vec<String> = items
            .iter()
            .map(|(family, key, len)| {
                format!(
                    "{}/{key}={}",
                    family.name(),
                    if len.is_some() { 'P' } else { 'D' }
                )
            })
            .collect();
        report(format!(
            "w {} {seq} {} {}",
            self.thread,
            level_name(level),
            list.join(",")
        ));
    }

    fn write(&mut self, level: Durability, items: &[(Family, String, Option<usize>)], way: u64) {
        let seq = self.seq();
        self.announce(seq, level, items);
        let value = |at: usize, len: usize| value(self.thread, seq, at, len);
        let options = match level {
            Durability::Buffered => WriteOptions::buffered(),
            Durability::Process => WriteOptions::process(),
            Durability::Disk => WriteOptions::disk(),
        };
        let result = match (items, way) {
            ([(family, key, Some(len))], 0) => family.put_with(key, value(0, *len), &options),
            ([(family, key, None)], 0) => family.delete_with(key, &options),
            (items, 0 | 1) => {
                let mut batch = Batch::new();
                let filled = items
                    .iter()
                    .enumerate()
                    .try_for_each(|(at, (family, key, len))| match len {
                        Some(len) => batch.put(family, key, value(at, *len)),
                        None => batch.delete(family, key),
                    });
                filled.and_then(|()| self.db.write(batch, &options))
            }
            (items, _) => self.transact(level, items, &value, way),
        };
        self.acknowledge(seq, result);
    }

    fn transact(
        &self,
        level: Durability,
        items: &[(Family, String, Option<usize>)],
        value: &dyn Fn(usize, usize) -> Vec<u8>,
        way: u64,
    ) -> Result<Lsn, Error> {
        let mut options = match way {
            2 => TransactionOptions::default(),
            3 => TransactionOptions::optimistic(),
            _ => TransactionOptions::serializable(),
        };
        options.durability = Some(level);
        if way == 4 {
            options.commit_mode = CommitMode::default();
        }
        let transaction = self.db.transaction(options)?;
        for (at, (family, key, len)) in items.iter().enumerate() {
            if way != 3 {
                transaction.get_for_update(family, key)?;
            }
            match len {
                Some(len) => transaction.put(family, key, value(at, *len))?,
                None => transaction.delete(family, key)?,
            }
        }
        transaction.commit()
    }

    fn read(&self, family: &Family, key: &str) {
        let thread = self.thread;
        read(&self.db, family, thread, key, self.trouble);
    }

    fn create(&mut self, name: &str) {
        let seq = self.seq();
        report(format!("c {} {seq} {name}", self.thread));
        let options = family_options(&mut self.rng);
        let result = match self.rng.chance(50) {
            true => self.db.create_family(name, options),
            false => self.db.open_family(name, options),
        };
        self.acknowledge(seq, result.map(|_| 0));
    }

    fn drop_family(&mut self, name: &str) {
        let Some(family) = self.db.family(name) else {
            return;
        };
        let seq = self.seq();
        report(format!("d {} {seq} {name}", self.thread));
        let result = self.db.drop_family(&family);
        self.acknowledge(seq, result.map(|()| 0));
    }

    fn flush(&self, family: &Family, compact: bool) {
        let done = if compact { family.compact() } else { family.flush() };
        match done {
            Ok(()) => report(format!("f {} {}", self.thread, family.name())),
            Err(error) => {
                self.failed(&error);
                report(format!("note flush of {}: {error}", family.name()));
            }
        }
    }

    fn own(&mut self) -> String {
        format!("t{}{}", self.thread, self.rng.pick(&['a', 'b']))
    }

    fn step(&mut self) {
        let level = self.rng.pick(&[
            Durability::Disk,
            Durability::Disk,
            Durability::Process,
            Durability::Buffered,
        ]);
        match self.rng.below(100) {
            0..45 => {
                let items = self.items(1);
                self.write(level, &items, 0);
            }
            45..57 => {
                let count = 2 + self.rng.below(3);
                let items = self.items(count);
                self.write(level, &items, 1);
            }
            57..64 => {
                let count = 1 + self.rng.below(3);
                let (items, way) = (self.items(count), 2 + self.rng.below(3));
                self.write(level, &items, way);
            }
            64..82 => {
                let family = self.any_family();
                let key = key(self.thread, self.rng.below(KEYS));
                self.read(&family, &key);
            }
            82..86 => {
                let family = self.any_family();
                self.flush(&family, false);
            }
            86..88 => {
                let family = self.any_family();
                self.flush(&family, true);
            }
            88..93 => {
                let name = self.own();
                self.create(&name);
            }
            93..96 => {
                let name = self.own();
                self.drop_family(&name);
            }
            96..98 => match self.db.flush_wal(Durability::Disk) {
                Ok(end) => report(format!("s {end}")),
                Err(error) => {
                    self.failed(&error);
                    report(format!("note flush_wal: {error}"));
                }
            },
            _ => std::thread::sleep(Duration::from_millis(self.rng.below(60))),
        }
    }

    /// The short fixed program.
    fn program(&mut self) {
        let default = self.db.default_family();
        let put = |number: u64| (default.clone(), key(0, number), Some(300));
        for number in 0..3 {
            self.write(Durability::Disk, &[put(number)], 0);
        }
        self.create("t0a");
        if let Some(family) = self.db.family("t0a") {
            self.write(
                Durability::Disk,
                &[(family.clone(), key(0, 0), Some(300)), put(1)],
                1,
            );
            self.read(&family, &key(0, 0));
        }
        self.read(&default, &key(0, 1));
        self.read(&default, &key(0, 5));
        self.flush(&default, false);
        self.write(Durability::Disk, &[put(2)], 0);
        self.write(Durability::Disk, &[(default.clone(), key(0, 0), None)], 0);
        self.flush(&default, true);
        self.create("t0b");
        self.drop_family("t0a");
        self.create("t0a");
        self.write(Durability::Process, &[put(4)], 0);
        self.read(&default, &key(0, 2));
        self.read(&default, &key(0, 4));
    }

    /// After trouble either writes work again, or the store says that it must be reopened.
    fn probe(&mut self) {
        let mut last = String::new();
        for _ in 0..10 {
            let seq = self.seq();
            let items = [(self.db.default_family(), key(self.thread, 0), Some(9))];
            self.announce(seq, Durability::Disk, &items);
            let result =
                items[0]
                    .0
                    .put_with(&items[0].1, value(self.thread, seq, 0, 9), &WriteOptions::disk());
            let end = match &result {
                Ok(_) => Some("probe works".to_owned()),
                Err(error @ (Error::Poisoned { .. } | Error::Background { .. })) => {
                    Some(format!("probe reopen {error}"))
                }
                Err(error) => {
                    last = error.to_string();
                    None
                }
            };
            self.acknowledge(seq, result);
            if let Some(end) = end {
                return report(end);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        report(format!("probe stuck {last}"));
    }
}

fn read(db: &Db, family: &Family, thread: u64, key: &str, trouble: &AtomicBool) {
    let name = family.name();
    match family.get_with(key, &collie_db::ReadOptions::default()) {
        Ok(read) => {
            let disk = u8::from(read.seen <= db.durable());
            match read.value.as_deref().map(parse_value) {
                None => report(format!("r {thread} {name} {key} {disk} -")),
                Some(Some((by, seq, item))) if by == thread => {
                    report(format!("r {thread} {name} {key} {disk} {seq} {item}"))
                }
                Some(other) => report(format!(
                    "bad {name}/{key} holds what was never written there: {other:?}"
                )),
            }
        }
        Err(error) => {
            if !matches!(error, Error::FamilyDropped { .. }) {
                trouble.store(true, Ordering::Relaxed);
            }
            report(format!("re {thread} {name} {key} {error}"));
        }
    }
}

/// Reads all that is there, in both ways.
fn verify(life: &Life, db: &Db, trouble: &AtomicBool) {
    let names = db.families();
    report(format!("fams {}", names.join(",")));
    for name in names {
        let Some(family) = db.family(&name) else {
            report(format!("bad the family {name} is listed and not there"));
            continue;
        };
        let mut listed = BTreeSet::new();
        let mut whole = true;
        match family.iter() {
            Ok(iter) => {
                for entry in iter {
                    match entry {
                        Ok((key, value)) => {
                            listed.insert((String::from_utf8_lossy(&key).into_owned(), value.to_vec()));
                        }
                        Err(error) => {
                            whole = false;
                            report(format!("re - {name} - {error}"));
                            break;
                        }
                    }
                }
            }
            Err(error) => {
                whole = false;
                report(format!("re - {name} - {error}"));
            }
        }
        for thread in 0..life.threads {
            for number in 0..KEYS {
                let key = key(thread, number);
                read(db, &family, thread, &key, trouble);
                if let (Ok(found), true) = (family.get(&key), whole) {
                    let listed_value = listed
                        .iter()
                        .find(|(listed, _)| *listed == key)
                        .map(|(_, value)| value.as_slice());
                    if listed_value != found.as_deref() {
                        report(format!("bad {name}/{key}: get and iteration differ"));
                    }
                }
            }
        }
    }
    report("verified");
}

fn inspect(life: &Life, when: &str) {
    let device = life.device();
    let log = life.store.join("log");
    for dir in [log.clone(), log.join("archive")] {
        if !dir.is_dir() || !has_segments(&dir) {
            continue;
        }
        match collie_log::inspect::inspect(&device, &dir, |_| {}) {
            Ok(_) => report("inspected"),
            // Its oldest segments went, and of what is left none says where its first frame begins.
            Err(collie_log::LogError::BeginningUnknown { .. }) if dir != log => {
                report("note inspect: an archive without a beginning")
            }
            // A segment is there before its header; a log without any is none yet.
            Err(collie_log::LogError::Missing { .. }) => report("note inspect: missing"),
            Err(error) => report(format!("inspect {when} {}: {error}", dir.display())),
        }
    }
}

fn has_segments(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return false;
    };
    entries
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().ends_with(".seg"))
}

/// Opens, again where the failure may have hit the first try.
fn open(life: &Life, again: u64) -> Option<Db> {
    for attempt in 0..3 {
        report("opening");
        match Db::open(&life.store, life.options(again)) {
            Ok(db) => {
                report("open ok");
                return Some(db);
            }
            Err(error) => report(format!("open err {attempt} {error}")),
        }
    }
    None
}

pub fn run(life: &Life) -> i32 {
    let next = AtomicU64::new(life.number * 1_000_000 + 1);
    let trouble = AtomicBool::new(false);
    if life.inspect && life.number > 0 {
        inspect(life, "before the open");
    }
    let sessions = 1 + u64::from(life.reopen);
    for session in 0..sessions {
        let Some(db) = open(life, session) else { return 3 };
        trouble.store(false, Ordering::Relaxed);
        verify(life, &db, &trouble);
        if life.second {
            second(life);
        }
        let worker = |thread: u64| Worker {
            life,
            db: db.clone(),
            thread,
            rng: Rng::new(life.seed ^ (life.number << 32) ^ (session << 40) ^ (thread << 48) ^ 0xabc),
            next: &next,
            trouble: &trouble,
        };
        let mut first = worker(0);
        if life.steps == 0 {
            first.program();
        } else {
            if db.family("shared").is_none() {
                first.create("shared");
            }
            std::thread::scope(|scope| {
                for thread in 0..life.threads {
                    let mut worker = worker(thread);
                    scope.spawn(move || (0..worker.life.steps).for_each(|_| worker.step()));
                }
            });
        }
        if trouble.load(Ordering::Relaxed) {
            first.probe();
        }
        drop(first);
        if session + 1 < sessions || life.close {
            report("closing");
            match db.close() {
                Ok(()) => report("close ok"),
                Err(error) => report(format!("close err {error}")),
            }
        } else {
            // The power goes, or the process is killed, while it is open.
            report("idle");
            let _ = io::stdin().read(&mut [0]);
            std::mem::forget(db);
        }
    }
    if life.close {
        if life.inspect {
            inspect(life, "after the close");
        }
        report("idle");
        let _ = io::stdin().read(&mut [0]);
    }
    0
}

fn second(life: &Life) {
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let output = std::process::Command::new(program)
        .arg("second")
        .args(life.to_args())
        .output();
    match output {
        Ok(output) if output.status.code() == Some(7) => report("second refused"),
        Ok(output) => report(format!(
            "bad a second process was not refused: {} {}",
            output.status,
            String::from_utf8_lossy(&output.stdout)
        )),
        Err(error) => report(format!("note second: {error}")),
    }
}

/// A second process: 7 where it is refused because the store is in use.
pub fn run_second(life: &Life) -> i32 {
    match Db::open(&life.store, life.options(9)) {
        Err(Error::Locked { .. }) => 7,
        Ok(_) => 8,
        Err(error) => {
            println!("{error}");
            9
        }
    }
}
