//! A store whose every right answer is known, and the judgement of one that was damaged.

use std::collections::BTreeMap;
use std::path::Path;

use collie_db::{
    Batch, Db, Durability, Family, FamilyOptions, Options, RingMode, WalRecoveryMode, WriteOptions,
};

use crate::cases::{Case, EARLIER, OLDER, TREES};

/// Commits.
const ALL: u32 = 240;
/// Up to here everything was waited for; behind it only the ring may have it.
const ON_DISK: u32 = 220;
/// The last flush of one family: no prefix below it is whole. Fewer commits follow than there are keys,
/// so that what it wrote is not all written again.
const FLUSHED: u32 = 200;
/// The third family is created here, after the older copies were made.
const THIRD: u32 = 110;
const FAMILIES: [&str; 3] = ["default", "second", "third"];

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(dir: &Path, mode: WalRecoveryMode) -> Options {
    let ring = dir.join("ring");
    std::fs::create_dir_all(&ring).unwrap();
    Options {
        ring: RingMode::Shared { dir: ring },
        ring_bytes: 64 << 10,
        segment_bytes: 32 << 10,
        max_workers: 4,
        cache_bytes: 1 << 20,
        flush_threads: 1,
        compaction_threads: 1,
        reserve_bytes: Some(4096),
        wal_recovery_mode: mode,
        default_family: family_options(),
        ..Options::default()
    }
}

fn family_options() -> FamilyOptions {
    FamilyOptions {
        // Merged only where the test asks for it.
        level0_compaction: 16,
        table_bytes: 16 << 10,
        ..FamilyOptions::default()
    }
}

/// What commit `n` writes in each family: some keys, none of them alike for long.
fn writes(n: u32) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let key = |n: u32| format!("key {:03}", n % 60).into_bytes();
    let value = |n: u32| format!("{n:08} ").into_bytes().repeat(20);
    let mut writes = vec![(key(n), Some(value(n))), (b"last".to_vec(), Some(value(n)))];
    if n.is_multiple_of(5) {
        writes.push((key(n + 7), None));
    }
    writes
}

/// Each family's content after the first `n` commits.
fn content(n: u32) -> Vec<Map> {
    let mut maps = vec![Map::new(); FAMILIES.len()];
    for commit in 1..=n {
        for (number, map) in maps.iter_mut().enumerate() {
            if FAMILIES[number] == "third" && commit <= THIRD {
                continue;
            }
            for (key, value) in writes(commit) {
                match value {
                    Some(value) => drop(map.insert(key, value)),
                    None => drop(map.remove(&key)),
                }
            }
        }
    }
    maps
}

fn commit(db: &Db, families: &[Family], n: u32, level: Durability) {
    let mut batch = Batch::new();
    for family in families {
        for (key, value) in writes(n) {
            match value {
                Some(value) => batch.put(family, key, value).unwrap(),
                None => batch.delete(family, key).unwrap(),
            }
        }
    }
    let end = db.write(batch, &WriteOptions::buffered()).unwrap();
    db.wait(end, level).unwrap();
}

/// Makes the store in `dir`, with older copies of its files on the way.
pub(crate) fn fill(dir: &Path) {
    let store = dir.join("store");
    let db = Db::open(&store, options(dir, WalRecoveryMode::default())).unwrap();
    let mut families = vec![
        db.default_family(),
        db.create_family("second", family_options()).unwrap(),
    ];
    for n in 1..=ALL {
        if n == THIRD + 1 {
            families.push(db.create_family("third", family_options()).unwrap());
        }
        let level = match n <= ON_DISK {
            true => Durability::Disk,
            false => Durability::Process,
        };
        commit(&db, &families, n, level);
        match n {
            40 => db.compact().unwrap(),
            80 => db.flush().unwrap(),
            100 => crate::common::copy_dir(&store, &dir.join(OLDER)),
            FLUSHED => {
                crate::common::copy_dir(&store.join(TREES), &dir.join(EARLIER));
                families[0].flush().unwrap();
            }
            _ => {}
        }
    }
    std::mem::forget((db, families));
}

/// Opens the store and reads all of it: `Ok` with what became of it, or what is wrong with that.
pub(crate) fn judge(dir: &Path, case: &Case, number: usize) -> Result<&'static str, String> {
    let modes = [
        WalRecoveryMode::TolerateCorruptedTailRecords,
        WalRecoveryMode::PointInTimeRecovery,
        WalRecoveryMode::AbsoluteConsistency,
    ];
    let named = |what: &str, error: &collie_db::Error| {
        let text = error.to_string();
        match case.is_named_in(dir, &text) {
            true => Ok(()),
            false => Err(format!("the error of {what} does not name the file: {text}")),
        }
    };
    let db = match Db::open(dir.join("store"), options(dir, modes[number % modes.len()])) {
        Ok(db) => db,
        Err(error) => return named("opening", &error).map(|()| "refused"),
    };
    let mut found = vec![Map::new(); FAMILIES.len()];
    for (name, map) in FAMILIES.iter().zip(&mut found) {
        let Some(family) = db.family(name) else { continue };
        for entry in family.iter().map_err(|error| error.to_string())? {
            match entry {
                Ok((key, value)) => drop(map.insert(key.to_vec(), value.to_vec())),
                Err(error) => return named("an iterator", &error).map(|()| "unreadable"),
            }
        }
        for n in 0..60 {
            let key = format!("key {n:03}");
            match family.get(&key) {
                Ok(value) => {
                    let scanned = map.get(key.as_bytes()).map(Vec::as_slice);
                    if value.as_deref() != scanned {
                        return Err(format!("{key} of {name} is read and scanned differently"));
                    }
                }
                Err(error) => return named("a read", &error).map(|()| "unreadable"),
            }
        }
    }
    let last = |map: &Map| {
        map.get(&b"last"[..])
            .and_then(|value| std::str::from_utf8(&value[..8]).ok()?.parse().ok())
    };
    let n: u32 = last(&found[0]).unwrap_or(0);
    // What a bit turned in the ring took cannot be told from what a process had not copied yet when it
    // died: a commit in between may be gone, from all families.
    let is_right = match case.is_of_ring() {
        true => found[0] == found[1],
        false => found == content(n),
    };
    if !is_right {
        let lasts: Vec<Option<u32>> = found.iter().map(last).collect();
        return Err(format!(
            "no prefix of the commits: the last ones of the families are {lasts:?}"
        ));
    }
    let least = match case.is_of_log() {
        true => FLUSHED,
        false if case.is_of_ring() => ON_DISK,
        false => ALL,
    };
    if n < least {
        return Err(format!("commits above {n} are lost, of {least}"));
    }
    if let Err(error) = db.compact() {
        return named("a merge", &error).map(|()| "unreadable");
    }
    drop(db);
    Ok("right")
}
