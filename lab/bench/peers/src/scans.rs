//! Reads of one thread, of 16-byte keys with 100-byte values in random order: from one memtable,
//! from merged tables, and from these with a memtable of newer values over them. How many tables a
//! fill leaves unmerged is chance, so both stores merge them first.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::{key, mix};

const VALUE: [u8; 100] = [7; 100];
const CACHE: u64 = 512 << 20;
/// Keys of a scan.
const SCAN: usize = 10;
/// Keys in one memtable, of 64 MiB.
const IN_MEMORY: u64 = 200_000;
/// Seconds of one measurement.
const SECONDS: f64 = 1.0;

trait Store {
    fn put(&self, key: [u8; 16]) -> Result<()>;
    /// Everything to tables, and these merged.
    fn settle(&self) -> Result<()>;
    /// The value's length.
    fn get(&self, key: [u8; 16]) -> Result<usize>;
    /// Up to [`SCAN`] keys from `key` on, or before it; returns how many.
    fn scan(&self, key: [u8; 16], backward: bool) -> Result<usize>;
    /// The first or the last key of all: how many.
    fn end(&self, last: bool) -> Result<usize>;
}

type Open = fn(&Path) -> Result<Box<dyn Store>>;
type Call = fn(&dyn Store, [u8; 16]) -> Result<usize>;

const STORES: [(&str, Open); 2] = [("collie", Collie::open), ("fjall", Fjall::open)];
const READS: [(&str, Call); 5] = [
    ("get", |store, key| store.get(key)),
    ("scan of 10", |store, key| store.scan(key, false)),
    ("backwards", |store, key| store.scan(key, true)),
    ("first key", |store, _| store.end(false)),
    ("last key", |store, _| store.end(true)),
];

/// Microseconds of each read in each state, medians of `repeat` rounds in which the stores take
/// turns.
pub fn run(repeat: usize, num: u64, dir: &Path) -> Result<()> {
    println!(
        "{:<12} {:<14} {:>10} {:>10} {:>8}",
        "state", "read", "collie us", "fjall us", "ratio"
    );
    for (state, keys, settle, newer) in [
        ("memtable", IN_MEMORY, false, 0),
        ("tables", num, true, 0),
        ("both", num, true, IN_MEMORY.min(num)),
    ] {
        let mut stores = Vec::new();
        for (name, open) in STORES {
            eprint!("\r{state}: filling {name:<12}");
            let dir = dir.join(name);
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(&dir)?;
            let store = open(&dir)?;
            for n in 0..keys {
                store.put(key(mix(n)))?;
            }
            if settle {
                store.settle()?;
            }
            for n in 0..newer {
                store.put(key(mix(n)))?;
            }
            stores.push(store);
        }
        // What a fill leaves to be done is done in the background.
        std::thread::sleep(std::time::Duration::from_secs(3));
        for (read, call) in READS {
            eprint!("\r{state}: {read:<20}");
            let mut times = vec![Vec::new(); stores.len()];
            for round in 0..repeat as u64 {
                for (store, times) in stores.iter().zip(&mut times) {
                    times.push(measure(&**store, call, keys, round)?);
                }
            }
            let [collie, fjall] = [0, 1].map(|of| {
                times[of].sort_by(f64::total_cmp);
                times[of][repeat / 2]
            });
            eprint!("\r{:40}\r", "");
            println!(
                "{state:<12} {read:<14} {collie:>10.2} {fjall:>10.2} {:>6.2} x",
                fjall / collie
            );
        }
    }
    Ok(())
}

/// Microseconds of a read, of keys that exist.
fn measure(store: &dyn Store, call: Call, keys: u64, round: u64) -> Result<f64> {
    let start = Instant::now();
    let (mut reads, mut found) = (0_u64, 0);
    while start.elapsed().as_secs_f64() < SECONDS {
        for _ in 0..16 {
            let n = mix(reads ^ round << 40) % keys;
            found += u64::from(call(store, key(mix(n)))? > 0);
            reads += 1;
        }
    }
    // The one key before which there is none may be among them.
    ensure!(
        found + found / 1000 + 16 >= reads,
        "{found} of {reads} reads found something"
    );
    Ok(start.elapsed().as_secs_f64() * 1e6 / reads as f64)
}

struct Collie(collie_db::Family, collie_db::WriteOptions);

impl Collie {
    fn open(dir: &Path) -> Result<Box<dyn Store>> {
        let options = collie_db::Options {
            cache_bytes: CACHE,
            ..Default::default()
        };
        let db = collie_db::Db::open(dir.join("store"), options)?;
        Ok(Box::new(Self(
            db.default_family(),
            collie_db::WriteOptions::process(),
        )))
    }
}

impl Store for Collie {
    fn put(&self, key: [u8; 16]) -> Result<()> {
        self.0.put_with(key, VALUE, &self.1)?;
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(self.0.compact()?)
    }

    fn get(&self, key: [u8; 16]) -> Result<usize> {
        Ok(self.0.get(key)?.map_or(0, |value| value.len()))
    }

    fn scan(&self, key: [u8; 16], backward: bool) -> Result<usize> {
        let mut found = 0;
        if backward {
            for item in self.0.range(..=key)?.rev().take(SCAN) {
                found += usize::from(!item?.1.is_empty());
            }
        } else {
            for item in self.0.range(key..)?.take(SCAN) {
                found += usize::from(!item?.1.is_empty());
            }
        }
        Ok(found)
    }

    fn end(&self, last: bool) -> Result<usize> {
        let mut all = self.0.iter()?;
        let item = if last { all.next_back() } else { all.next() };
        Ok(item.transpose()?.map_or(0, |(key, _)| key.len()))
    }
}

struct Fjall(
    fjall::Keyspace,
    #[expect(dead_code, reason = "keeps it open")] fjall::Database,
);

impl Fjall {
    fn open(dir: &Path) -> Result<Box<dyn Store>> {
        let db = fjall::Database::builder(dir).cache_size(CACHE).open()?;
        let keyspace = db.keyspace("data", || {
            fjall::KeyspaceCreateOptions::default()
                .max_memtable_size(64 << 20)
                .data_block_compression_policy(fjall::config::CompressionPolicy::disabled())
        })?;
        Ok(Box::new(Self(keyspace, db)))
    }
}

impl Store for Fjall {
    fn put(&self, key: [u8; 16]) -> Result<()> {
        Ok(self.0.insert(key, VALUE)?)
    }

    fn settle(&self) -> Result<()> {
        self.0.rotate_memtable_and_wait()?;
        Ok(self.0.major_compact()?)
    }

    fn get(&self, key: [u8; 16]) -> Result<usize> {
        Ok(self.0.get(key)?.map_or(0, |value| value.len()))
    }

    fn scan(&self, key: [u8; 16], backward: bool) -> Result<usize> {
        let mut found = 0;
        if backward {
            for item in self.0.range(..=key).rev().take(SCAN) {
                found += usize::from(!item.into_inner()?.1.is_empty());
            }
        } else {
            for item in self.0.range(key..).take(SCAN) {
                found += usize::from(!item.into_inner()?.1.is_empty());
            }
        }
        Ok(found)
    }

    fn end(&self, last: bool) -> Result<usize> {
        let mut all = self.0.iter();
        let item = if last { all.next_back() } else { all.next() };
        Ok(match item {
            Some(item) => item.into_inner()?.0.len(),
            None => 0,
        })
    }
}
