//! Random operations against a BTreeMap model, under option sets that must all agree.
//!
//! `COLLIE_RUNS=200 COLLIE_OPS=5000 cargo test -p collie-db --test model` is the long form;
//! `COLLIE_SEED=N` replays one run.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod common;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

use collie_db::{
    Batch, Compression, Db, Durability, Family, FamilyOptions, Options, RingMode, Snapshot, WalRecoveryMode,
    WriteOptions,
};
use common::Rng;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The option sets. Their stores see the same operations and must show the same.
fn option_sets() -> Vec<(&'static str, Options)> {
    // Most of them wait for no sync: those take nearly all of the time and change nothing that is seen.
    let base = Options {
        durability: Durability::Process,
        ..common::small()
    };
    let family = |change: fn(&mut FamilyOptions)| {
        let mut options = Options {
            durability: Durability::Process,
            ..common::small()
        };
        change(&mut options.default_family);
        options
    };
    vec![
        ("small buffers, durable", common::small()),
        ("one big buffer", family(|f| f.write_buffer_bytes = 64 << 20)),
        (
            "tiny buffers, two of them",
            family(|f| {
                f.write_buffer_bytes = 4096;
                f.max_write_buffers = 2;
            }),
        ),
        (
            "lz4, small blocks, no blooms",
            family(|f| {
                f.compression = Compression::Lz4;
                f.block_bytes = 512;
                f.bloom_bits = 0;
            }),
        ),
        (
            "compressed log",
            Options {
                wal_compression: Compression::Lz4,
                ..base.clone()
            },
        ),
        (
            "eager compaction, tiny tables",
            family(|f| {
                f.level0_compaction = 2;
                f.table_bytes = 8192;
            }),
        ),
        (
            "no log",
            Options {
                disable_wal: true,
                ..base.clone()
            },
        ),
        (
            "shared ring",
            Options {
                ring: RingMode::default(),
                ..base.clone()
            },
        ),
        (
            "short log",
            Options {
                segment_bytes: 32 << 10,
                max_total_wal_size: Some(64 << 10),
                wal_recovery_mode: WalRecoveryMode::PointInTimeRecovery,
                flush_threads: 2,
                compaction_threads: 2,
                ..base.clone()
            },
        ),
        (
            "log flushed by hand",
            Options {
                manual_wal_flush: true,
                pad_to_block: true,
                wal_recovery_mode: WalRecoveryMode::AbsoluteConsistency,
                ..base.clone()
            },
        ),
        (
            "two workers, buffered",
            Options {
                max_workers: 2,
                durability: Durability::Buffered,
                ..base
            },
        ),
    ]
}

/// One operation, the same for every store.
#[derive(Debug, Clone)]
enum Step {
    Put(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    Batch(Vec<(usize, Vec<u8>, Option<Vec<u8>>)>),
    Unlogged(usize, Vec<u8>, Vec<u8>),
    Snapshot,
    DropSnapshot,
    Flush,
    Compact,
    FlushWal,
    Reopen,
    DropFamily,
    Get(usize, Vec<u8>),
    Scan(usize, Bound<Vec<u8>>, Bound<Vec<u8>>, Vec<bool>),
}

fn key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(3) {
        0 => format!("k{}", rng.below(60)).into_bytes(),
        1 => format!("user/{:06}", rng.below(300)).into_bytes(),
        _ => (0..1 + rng.below(6)).map(|_| (rng.below(4) * 85) as u8).collect(),
    }
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let len = if rng.one_in(100) { 6000 } else { rng.below(120) };
    vec![rng.next() as u8; len as usize]
}

fn bound(rng: &mut Rng) -> Bound<Vec<u8>> {
    match rng.below(3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(rng)),
        _ => Bound::Excluded(key(rng)),
    }
}

fn step(rng: &mut Rng) -> Step {
    let family = rng.below(2) as usize;
    match rng.below(1000) {
        0..=449 => Step::Put(family, key(rng), value(rng)),
        450..=549 => Step::Delete(family, key(rng)),
        550..=649 => Step::Batch(
            (0..1 + rng.below(8))
                .map(|_| {
                    (
                        rng.below(2) as usize,
                        key(rng),
                        (!rng.one_in(4)).then(|| value(rng)),
                    )
                })
                .collect(),
        ),
        650..=669 => Step::Unlogged(family, key(rng), value(rng)),
        670..=679 => Step::Snapshot,
        680..=689 => Step::DropSnapshot,
        690..=696 => Step::Flush,
        697..=698 => Step::Compact,
        699 => Step::FlushWal,
        700..=704 => Step::Reopen,
        705 => Step::DropFamily,
        706..=899 => Step::Get(family, key(rng)),
        _ => {
            let ends = (0..rng.below(600)).map(|_| rng.one_in(3)).collect();
            Step::Scan(family, bound(rng), bound(rng), ends)
        }
    }
}

/// What the stores should show.
#[derive(Default)]
struct Model {
    families: [Map; 2],
    snapshots: Vec<[Map; 2]>,
}

/// A store under one option set.
struct Store<'a> {
    name: &'static str,
    path: &'a Path,
    options: Options,
    db: Option<Db>,
    families: Vec<Family>,
    snapshots: Vec<Snapshot>,
}

impl<'a> Store<'a> {
    fn open(name: &'static str, path: &'a Path, options: Options) -> Self {
        let mut store = Self {
            name,
            path,
            options,
            db: None,
            families: Vec::new(),
            snapshots: Vec::new(),
        };
        store.reopen();
        store
    }

    fn reopen(&mut self) {
        self.snapshots.clear();
        self.families.clear();
        if let Some(db) = self.db.take() {
            db.close().unwrap_or_else(|e| panic!("{}: {e}", self.name));
        }
        let db = Db::open(self.path, self.options.clone()).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        let second = db.family("second").unwrap_or_else(|| {
            db.create_family("second", self.options.default_family.clone())
                .unwrap()
        });
        self.families = vec![db.default_family(), second];
        self.db = Some(db);
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Put(family, key, value) => {
                self.families[*family].put(key, value).unwrap();
            }
            Step::Delete(family, key) => {
                self.families[*family].delete(key).unwrap();
            }
            Step::Unlogged(family, key, value) => {
                self.families[*family]
                    .put_with(key, value, &WriteOptions::without_wal())
                    .unwrap();
            }
            Step::Batch(writes) => {
                let mut batch = Batch::new();
                for (family, key, value) in writes {
                    match value {
                        Some(value) => batch.put(&self.families[*family], key, value).unwrap(),
                        None => batch.delete(&self.families[*family], key).unwrap(),
                    }
                }
                self.db().write(batch, &WriteOptions::process()).unwrap();
            }
            Step::Snapshot => self.snapshots.push(self.db().snapshot()),
            Step::DropSnapshot => {
                if !self.snapshots.is_empty() {
                    self.snapshots.remove(0);
                }
            }
            Step::Flush => self.db().flush().unwrap(),
            Step::Compact => self.db().compact().unwrap(),
            Step::FlushWal => {
                self.db().flush_wal(Durability::Disk).unwrap();
            }
            Step::Reopen => self.reopen(),
            Step::DropFamily => {
                self.snapshots.clear();
                self.db().drop_family(&self.families[1]).unwrap();
                self.families[1] = self
                    .db()
                    .create_family("second", self.options.default_family.clone())
                    .unwrap();
            }
            Step::Get(..) | Step::Scan(..) => {}
        }
    }

    fn check(&self, step: &Step, model: &Model, context: &str) {
        match step {
            Step::Get(family, key) => {
                let handle = &self.families[*family];
                let seen = handle.get(key).unwrap().map(Vec::from);
                assert_eq!(
                    seen.as_ref(),
                    model.families[*family].get(key),
                    "{context}: {key:?}"
                );
                for (snapshot, maps) in self.snapshots.iter().zip(&model.snapshots) {
                    let seen = snapshot.get(handle, key).unwrap().map(Vec::from);
                    assert_eq!(
                        seen.as_ref(),
                        maps[*family].get(key),
                        "{context}: snapshot, {key:?}"
                    );
                }
            }
            Step::Scan(family, low, high, ends) => {
                let handle = &self.families[*family];
                let range = (low.clone(), high.clone());
                let scan = handle.range(range.clone()).unwrap();
                check_scan(scan, &model.families[*family], &range, ends, context);
                for (snapshot, maps) in self.snapshots.iter().zip(&model.snapshots) {
                    let scan = snapshot.range(handle, range.clone()).unwrap();
                    check_scan(scan, &maps[*family], &range, ends, context);
                }
            }
            _ => {}
        }
    }
}

/// Takes keys from either end as `ends` says, then the rest forward, from scan and model alike.
fn check_scan(
    mut scan: collie_db::Iter,
    map: &Map,
    (low, high): &(Bound<Vec<u8>>, Bound<Vec<u8>>),
    ends: &[bool],
    context: &str,
) {
    let inside = |key: &Vec<u8>| {
        (match low {
            Bound::Included(low) => key >= low,
            Bound::Excluded(low) => key > low,
            Bound::Unbounded => true,
        }) && match high {
            Bound::Included(high) => key <= high,
            Bound::Excluded(high) => key < high,
            Bound::Unbounded => true,
        }
    };
    let mut expected = map.iter().filter(|(key, _)| inside(key));
    for (n, from_back) in ends.iter().copied().chain(std::iter::repeat(false)).enumerate() {
        let (seen, expected) = if from_back {
            (scan.next_back(), expected.next_back())
        } else {
            (scan.next(), expected.next())
        };
        let seen = seen.map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
        let expected = expected.map(|(k, v)| (k.clone(), v.clone()));
        assert_eq!(
            seen, expected,
            "{context}: entry {n} of {low:?}..{high:?} (back: {from_back})"
        );
        if seen.is_none() {
            return;
        }
    }
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Put(family, key, value) | Step::Unlogged(family, key, value) => {
                self.families[*family].insert(key.clone(), value.clone());
            }
            Step::Delete(family, key) => {
                self.families[*family].remove(key);
            }
            Step::Batch(writes) => {
                for (family, key, value) in writes {
                    match value {
                        Some(value) => self.families[*family].insert(key.clone(), value.clone()),
                        None => self.families[*family].remove(key),
                    };
                }
            }
            Step::Snapshot => self.snapshots.push(self.families.clone()),
            Step::DropSnapshot => {
                if !self.snapshots.is_empty() {
                    self.snapshots.remove(0);
                }
            }
            Step::Reopen => self.snapshots.clear(),
            Step::DropFamily => {
                self.snapshots.clear();
                self.families[1].clear();
            }
            Step::Flush | Step::Compact | Step::FlushWal | Step::Get(..) | Step::Scan(..) => {}
        }
    }
}

#[test]
fn all_option_sets_show_what_the_model_shows() {
    let sets = option_sets();
    let ops = common::number("COLLIE_OPS").unwrap_or(200);
    for seed in common::seeds(20) {
        let dirs: Vec<_> = sets.iter().map(|_| common::fast_dir()).collect();
        let mut stores: Vec<_> = sets
            .iter()
            .zip(&dirs)
            .map(|((name, options), dir)| Store::open(name, dir.path(), options.clone()))
            .collect();
        let mut model = Model::default();
        let mut rng = Rng::new(seed);
        for n in 0..ops {
            let step = step(&mut rng);
            model.apply(&step);
            for store in &mut stores {
                store.apply(&step);
                let context = format!(
                    "{} at step {n} (replay: COLLIE_SEED={seed} COLLIE_OPS={ops} cargo test -p \
                     collie-db --test model)",
                    store.name
                );
                store.check(&step, &model, &context);
            }
        }
        // Most of the time goes here, so by default not for every seed.
        if seed % 4 != 1 && common::number("COLLIE_RUNS").is_none() {
            continue;
        }
        // Recovered under the next set's options, flushed, and compacted: nothing may change any more.
        let all = (Bound::Unbounded, Bound::Unbounded);
        for (number, store) in stores.iter_mut().enumerate() {
            let next = sets.get(number + 1).unwrap_or(&sets[0]);
            store.options = next.1.clone();
            store.reopen();
            for settled in ["recovered", "flushed", "compacted"] {
                match settled {
                    "flushed" => store.db().flush().unwrap(),
                    "compacted" => store.db().compact().unwrap(),
                    _ => {}
                }
                for (family, map) in store.families.iter().zip(&model.families) {
                    let context = format!("{} as {}, {settled}, seed {seed}", store.name, next.0);
                    check_scan(family.iter().unwrap(), map, &all, &[true, false], &context);
                    for (key, value) in map {
                        assert_eq!(family.get(key).unwrap().as_deref(), Some(&value[..]), "{context}");
                    }
                }
            }
        }
    }
}
