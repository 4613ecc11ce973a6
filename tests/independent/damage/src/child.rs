//! The processes that have the store open. They report in lines; the parent judges.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_db::{
    Batch, Db, Durability, Error, Family, RecoveryReport, Result, RingMode, WalRecoveryMode, WriteOptions,
};
use collie_io::{Device, RealDevice};
use collie_log::{RingOutcome, inspect};

use crate::plan::{Op, Plan, Step, key_bytes, options, options_of, value_bytes};
use crate::rng::print;

/// What a probe adds to every family that it finds.
pub const EXTRA: [(&[u8], &[u8]); 3] = [
    (b"~extra1", b"first"),
    (b"~extra2", b"second"),
    (b"~extra1", b"third"),
];

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", line.replace('\n', " "));
    let _ = out.flush();
}

fn fail(word: &str, error: &Error) {
    let kind = format!("{error:?}");
    let kind = kind.split([' ', '(', '{']).next().unwrap_or_default();
    say(&format!("{word} {kind} {error}"));
}

/// All that can be read: `row` for each, `unread` for a family that refuses.
fn dump(db: &Db, which: u32) {
    for name in db.families() {
        let Some(family) = db.family(&name) else { continue };
        say(&format!("family {name}"));
        if let Err(error) = rows(&family) {
            fail(&format!("unread {name}"), &error);
        }
    }
    say(&format!("dumped {which}"));
}

fn rows(family: &Family) -> Result<()> {
    let mut forward = 0;
    for entry in family.iter()? {
        let (key, value) = entry?;
        let ((key_len, key_hash), (len, hash)) = (print(&key), print(&value));
        say(&format!("row {key_len} {key_hash} {len} {hash}"));
        forward += 1;
        match family.get(&key)? {
            Some(got) if got[..] == value[..] => {}
            got => say(&format!(
                "differs {} get {:?} of {key_len} B",
                family.name(),
                got.map(|v| v.len())
            )),
        }
    }
    let mut backward = 0;
    for entry in family.iter()?.rev() {
        entry?;
        backward += 1;
    }
    if backward != forward {
        say(&format!(
            "differs {} {forward} rows forward, {backward} backward",
            family.name()
        ));
    }
    // Those that may not be there, too: no value may come back that iterators hide.
    let there = (0..210)
        .filter_map(|key| family.get(key_bytes(key)).transpose())
        .collect::<Result<Vec<_>>>()?;
    let extra = EXTRA[..2]
        .iter()
        .filter_map(|(key, _)| family.get(key).transpose());
    let extra = extra.collect::<Result<Vec<_>>>()?.len();
    if there.len() + extra != forward {
        say(&format!(
            "differs {} {forward} rows, {} by get",
            family.name(),
            there.len() + extra
        ));
    }
    Ok(())
}

fn report(found: Option<&RecoveryReport>) {
    let Some(found) = found else { return };
    let mut words = Vec::new();
    let lossy = matches!(found.ring, RingOutcome::Gone { .. } | RingOutcome::Refused { .. });
    words.extend(
        found
            .torn
            .as_ref()
            .map(|torn| format!("torn at {}: {}", torn.lsn, torn.found)),
    );
    words.extend(
        found
            .truncated
            .as_ref()
            .map(|cut| format!("truncated at {}: {}", cut.lsn, cut.damage)),
    );
    words.extend(lossy.then(|| format!("ring {:?}", found.ring)));
    if let RingOutcome::Recovered { holes: 1.., .. } = found.ring {
        words.push("holes in the ring".into());
    }
    words.extend(found.warnings.iter().cloned());
    say(&format!("report {}", words.join("; ")));
}

fn batch(db: &Db, seed: u64, ops: &[Op]) -> Result<Batch> {
    let mut batch = Batch::new();
    for op in ops {
        let Some(family) = db.family(&op.family.0) else {
            continue;
        };
        match op.value {
            Some(len) => batch.put(&family, key_bytes(op.key), value_bytes(seed, op.id, len))?,
            None => batch.delete(&family, key_bytes(op.key))?,
        }
    }
    Ok(batch)
}

fn step(db: &Db, seed: u64, step: &Step) -> Result<()> {
    match step {
        Step::Commit(ops, level) => {
            let write = match level {
                Durability::Disk => WriteOptions::disk(),
                Durability::Process => WriteOptions::process(),
                Durability::Buffered => WriteOptions::buffered(),
            };
            db.write(batch(db, seed, ops)?, &write).map(drop)
        }
        Step::Bare(ops) => db
            .write(batch(db, seed, ops)?, &WriteOptions::without_wal())
            .map(drop),
        Step::Create((name, _)) => db.create_family(name, options_of(seed, name)).map(drop),
        Step::Drop((name, _)) => db.family(name).map_or(Ok(()), |family| db.drop_family(&family)),
        Step::Flush(name) => db.family(name).map_or(Ok(()), |family| family.flush()),
        Step::FlushAll => db.flush(),
        Step::Compact => db.compact(),
        Step::FlushWal => db.flush_wal(Durability::Disk).map(drop),
        Step::Copy => {
            say("copy");
            let _ = std::io::stdin().read(&mut [0]);
            Ok(())
        }
        Step::Close | Step::Kill => Ok(()),
    }
}

/// One life of the plan: `did N` when step N was acknowledged.
pub fn life(base: &Path, seed: u64, which: usize) -> i32 {
    let plan = Plan::new(seed);
    let mut options = options(seed, base, WalRecoveryMode::default());
    options.create_if_missing = true;
    let db = match Db::open(base.join("store"), options) {
        Ok(db) => db,
        Err(error) => {
            fail("refused", &error);
            return 0;
        }
    };
    dump(&db, 1);
    for (at, what) in plan.lives[which].iter().enumerate() {
        if matches!(what, Step::Kill) {
            // SAFETY: a signal to this process itself.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        if let Err(error) = step(&db, seed, what) {
            fail(&format!("failed {at}"), &error);
            return 0;
        }
        say(&format!("did {at}"));
    }
    match db.close() {
        Ok(()) => say("closed"),
        Err(error) => fail("unclosed", &error),
    }
    0
}

pub fn mode_named(name: &str) -> WalRecoveryMode {
    match name {
        "absolute" => WalRecoveryMode::AbsoluteConsistency,
        "point" => WalRecoveryMode::PointInTimeRecovery,
        _ => WalRecoveryMode::TolerateCorruptedTailRecords,
    }
}

fn limit_memory(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: `limit` lives as long as the call.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
}

fn peak_kib() -> i64 {
    // SAFETY: zeros are a value of this type, and it lives as long as the call.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage.ru_maxrss
    }
}

/// Verifies, repairs if told to, opens, reads, writes, closes, opens again and merges.
pub fn probe(base: &Path, seed: u64, mode: &str, repair: bool) -> i32 {
    limit_memory(4 << 30);
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    let log = base.join("store/log");
    match inspect::inspect(&device, &log, |_| {}) {
        Ok(found) => {
            let last = found
                .segments
                .iter()
                .rfind(|segment| segment.first_lsn < found.end);
            let name = last.and_then(|last| last.path.file_name()).unwrap_or_default();
            let end = last.map_or(0, |last| 8192 + found.end - last.first_lsn);
            say(&format!("verified {} {end}", name.to_string_lossy()));
        }
        Err(error) => say(&format!("verify-says {error}")),
    }
    if repair {
        match inspect::repair(&device, &log) {
            Ok(done) => say(&format!("repaired {:?}", done.damage)),
            Err(error) => say(&format!("unrepaired {error}")),
        }
    }
    if let Err((word, error)) = open_twice(base, seed, mode) {
        fail(word, &error);
    }
    say(&format!("peak {}", peak_kib()));
    say("done");
    0
}

fn open_twice(base: &Path, seed: u64, mode: &str) -> Result<(), (&'static str, Error)> {
    let store: PathBuf = base.join("store");
    let opened = Db::open(&store, options(seed, base, mode_named(mode)));
    let db = opened.map_err(|error| ("refused", error))?;
    report(db.recovery());
    dump(&db, 1);
    extras(&db).map_err(|error| ("unwritten", error))?;
    db.close().map_err(|error| ("unclosed", error))?;
    // After a close the strictest mode has nothing to refuse; without this store's ring either.
    let mut strict = options(seed, base, WalRecoveryMode::AbsoluteConsistency);
    strict.ring = RingMode::Private;
    let db = Db::open(&store, strict).map_err(|error| ("refused-again", error))?;
    dump(&db, 2);
    db.compact().map_err(|error| ("unmerged", error))?;
    dump(&db, 3);
    db.close().map_err(|error| ("unclosed", error))
}

fn extras(db: &Db) -> Result<()> {
    let names = db.families();
    for (key, value) in EXTRA {
        let mut batch = Batch::new();
        for family in names.iter().filter_map(|name| db.family(name)) {
            batch.put(&family, key, value)?;
        }
        db.write(batch, &WriteOptions::disk())?;
    }
    names
        .iter()
        .filter_map(|name| db.family(name))
        .take(1)
        .try_for_each(|family| family.flush())
}
