//! What a seed says: how the store is opened, and what its lives do, step by step.

use std::path::Path;

use collie_db::{Compression, Durability, FamilyOptions, Options, RingMode, WalRecoveryMode};

use crate::rng::{Print, Rng, print};

/// A family: its name, and which family of that name.
pub type Family = (String, u32);

/// The family whose writes are kept out of the log.
pub const BARE: &str = "bare";

pub struct Op {
    pub family: Family,
    pub key: u64,
    /// Its length; `None` deletes.
    pub value: Option<u64>,
    pub id: u64,
}

pub enum Step {
    Commit(Vec<Op>, Durability),
    /// Writes to [`BARE`] without the log.
    Bare(Vec<Op>),
    Create(Family),
    Drop(Family),
    Flush(String),
    FlushAll,
    Compact,
    FlushWal,
    /// The parent copies the store's files: the older copies of later damage.
    Copy,
    Close,
    Kill,
}

pub struct Plan {
    pub lives: Vec<Vec<Step>>,
}

pub fn key_bytes(key: u64) -> Vec<u8> {
    match key % 29 {
        0 if key < 256 => vec![key as u8],
        3 => [
            format!("k{key:05}").into_bytes(),
            vec![0xff; (key as usize * 7) % 3000],
        ]
        .concat(),
        5 if key % 4 == 1 => [format!("k{key:05}").into_bytes(), vec![0; 65_535 - 6]].concat(),
        _ => format!("k{key:05}").into_bytes(),
    }
}

/// The bytes of the value with that id: no two are equal, but for those too short to differ.
pub fn value_bytes(seed: u64, id: u64, len: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed, 1_000 + id);
    if id.is_multiple_of(3) {
        let piece = rng.bytes(16);
        piece.into_iter().cycle().take(len as usize).collect()
    } else {
        rng.bytes(len as usize)
    }
}

impl Op {
    pub fn key_print(&self) -> Print {
        print(&key_bytes(self.key))
    }

    pub fn value_print(&self, seed: u64) -> Option<Print> {
        self.value.map(|len| print(&value_bytes(seed, self.id, len)))
    }
}

fn family_options(rng: &mut Rng) -> FamilyOptions {
    FamilyOptions {
        write_buffer_bytes: *rng.pick(&[16 << 10, 64 << 10, 256 << 10, 8 << 20]),
        table_bytes: *rng.pick(&[16 << 10, 128 << 10, 1 << 20]),
        block_bytes: *rng.pick(&[512, 4096, 65_536]),
        bloom_bits: *rng.pick(&[0, 10]),
        compression: *rng.pick(&[Compression::None, Compression::Lz4]),
        level0_compaction: *rng.pick(&[2, 4]),
        ..FamilyOptions::default()
    }
}

/// The options of family `name` when it is created.
pub fn options_of(seed: u64, name: &str) -> FamilyOptions {
    family_options(&mut Rng::new(seed, print(name.as_bytes()).1))
}

pub fn options(seed: u64, base: &Path, mode: WalRecoveryMode) -> Options {
    let mut rng = Rng::new(seed, 1);
    let ring = base.join("ring");
    Options {
        ring: if shared_ring(seed) {
            RingMode::Shared { dir: ring }
        } else {
            RingMode::Private
        },
        ring_bytes: *rng.pick(&[16 << 10, 64 << 10, 1 << 20]),
        segment_bytes: *rng.pick(&[64 << 10, 256 << 10, 1 << 20, 4 << 20]),
        wal_compression: *rng.pick(&[Compression::None, Compression::None, Compression::Lz4]),
        pad_to_block: rng.chance(25),
        wal_size_limit: if rng.chance(25) { 2 << 20 } else { 0 },
        close_flush_bytes: *rng.pick(&[0, 0, 64 << 10, 256 << 20]),
        reserve_bytes: Some(*rng.pick(&[0, 64 << 10])),
        cache_bytes: 1 << 20,
        max_open_files: *rng.pick(&[2, 256]),
        default_family: family_options(&mut rng),
        wal_recovery_mode: mode,
        create_if_missing: rng.chance(50),
        ..Options::default()
    }
}

pub fn shared_ring(seed: u64) -> bool {
    Rng::new(seed, 2).chance(60)
}

struct Maker {
    rng: Rng,
    families: Vec<Family>,
    made: u32,
    id: u64,
    large: u32,
}

impl Maker {
    fn op(&mut self, family: Family) -> Op {
        self.id += 1;
        let len = match self.rng.below(100) {
            0..10 => self.rng.below(3),
            10..60 => 8 + self.rng.below(200),
            60..80 => 4080 + self.rng.below(40),
            80..95 => 10_000 + self.rng.below(60_000),
            95..98 => 300_000,
            _ if self.large > 0 => {
                self.large -= 1;
                1_000_000 + self.rng.below(2_000_000)
            }
            _ => 40,
        };
        let value = (!self.rng.chance(15)).then_some(len);
        Op {
            family,
            key: self.rng.below(150),
            value,
            id: self.id,
        }
    }

    fn commit(&mut self) -> Step {
        let mut families: Vec<Family> = self
            .families
            .iter()
            .filter(|(name, _)| name != "idle" && name != BARE)
            .cloned()
            .collect();
        let most = *self.rng.pick(&[1, 2, 4, 9]);
        let mut ops = Vec::new();
        for _ in 0..=self.rng.below(most) {
            let at = self.rng.below(families.len() as u64) as usize;
            let family = families[at].clone();
            ops.push(self.op(family));
        }
        families.rotate_left(1);
        // Each commit leaves a trace that no other has: states of different prefixes differ.
        self.id += 1;
        let mark = Op {
            family: families[0].clone(),
            key: 200 + self.id % 3,
            value: Some(9),
            id: self.id,
        };
        ops.push(mark);
        let level = match self.rng.below(10) {
            0..4 => Durability::Disk,
            4..7 => Durability::Process,
            _ => Durability::Buffered,
        };
        Step::Commit(ops, level)
    }

    fn step(&mut self) -> Step {
        match self.rng.below(100) {
            0..60 => self.commit(),
            60..68 => {
                let family = self.families.iter().find(|(name, _)| name == BARE).cloned();
                let ops = (0..=self.rng.below(2)).map(|_| self.op(family.clone().unwrap_or_default()));
                Step::Bare(ops.collect())
            }
            68..72 if self.families.len() < 8 => {
                // Names are used again once their family was dropped.
                let name = format!("f{}", self.rng.below(3));
                if self.families.iter().any(|(there, _)| *there == name) {
                    return self.commit();
                }
                self.made += 1;
                self.families.push((name.clone(), self.made));
                Step::Create((name, self.made))
            }
            72..75 => match self.families.iter().position(|(name, _)| name.starts_with('f')) {
                Some(at) => Step::Drop(self.families.remove(at)),
                None => self.commit(),
            },
            75..87 => Step::Flush(self.rng.pick(&self.families).0.clone()),
            87..89 => Step::FlushAll,
            89..91 => Step::Compact,
            91..95 => Step::FlushWal,
            95..98 => Step::Copy,
            _ => self.commit(),
        }
    }
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 3);
        let (lives, most) = (1 + rng.below(4), *rng.pick(&[10, 40, 120]));
        let mut maker = Maker {
            rng,
            families: vec![("default".into(), 0)],
            made: 0,
            id: 0,
            large: 3,
        };
        let mut plan = Vec::new();
        for life in 0..lives {
            let mut steps = Vec::new();
            if life == 0 {
                for name in ["idle", BARE, "a"] {
                    maker.families.push((name.into(), 0));
                    steps.push(Step::Create((name.into(), 0)));
                }
                let idle: Vec<Op> = (0..5).map(|_| maker.op(("idle".into(), 0))).collect();
                steps.push(Step::Commit(idle, Durability::Disk));
                steps.push(Step::Flush("idle".into()));
            }
            for _ in 0..maker.rng.below(most) {
                steps.push(maker.step());
            }
            if maker.rng.chance(30) {
                steps.push(Step::FlushAll);
            }
            for _ in 0..maker.rng.below(3) {
                steps.push(maker.commit());
            }
            steps.push(if maker.rng.chance(50) {
                Step::Close
            } else {
                Step::Kill
            });
            plan.push(steps);
        }
        Self { lives: plan }
    }
}
