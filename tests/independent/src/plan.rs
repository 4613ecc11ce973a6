//! What a store looks like and how a round goes: everything here follows from the seed.

use std::path::PathBuf;
use std::time::Duration;

use collie_db::{Compression, Durability, FamilyOptions, Options};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::events::{Element, ListId};

/// How a list lies in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One value.
    Value,
    /// One value under one of two keys.
    Moving,
    /// A row for each append, and sometimes several in one row.
    Rows,
}

/// Who appends to a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Any transaction.
    Shared,
    /// Any transaction that writes this guard.
    Guarded(usize),
    /// A thread, by writes outside of transactions.
    Owned(u32),
    /// A thread, by writes that no log holds.
    Unlogged(u32),
}

/// How large values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    None,
    Small,
    Block,
    Large,
}

#[derive(Debug, Clone)]
pub struct List {
    pub id: ListId,
    pub form: Form,
    pub rule: Rule,
    pub padding: Padding,
    /// Index into the plan's families; unused for lists of passing families.
    pub family: usize,
    /// The key, of which the forms make theirs.
    pub key: Vec<u8>,
}

impl List {
    /// Bytes that follow the elements, by the last of them.
    pub fn padding(&self, last: Element, limit: usize) -> usize {
        let mix = last.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let mix = usize::try_from(mix).unwrap_or(0);
        let len = match self.padding {
            Padding::None => 0,
            Padding::Small => mix % 200,
            Padding::Block => mix % 9000,
            Padding::Large if mix % 8 == 0 => mix % (1 << 20),
            Padding::Large => mix % 70_000,
        };
        len.min(limit)
    }
}

/// A key that those write who want to keep each other out.
#[derive(Debug, Clone)]
pub struct Guard {
    pub family: usize,
    pub key: Vec<u8>,
    /// Its value, which never changes; or it is never there.
    pub value: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub families: Vec<String>,
    pub lists: Vec<List>,
    pub guards: Vec<Guard>,
    pub threads: u32,
    pub ring_bytes: usize,
    pub segment_bytes: u64,
    pub family_options: FamilyOptions,
    /// Values are no longer than this.
    pub value_limit: usize,
}

/// The first list of a passing family.
pub fn passing_list(family: u32, nth: u32) -> ListId {
    1_000_000 + family * 4 + nth
}

pub fn is_passing(list: ListId) -> bool {
    list >= 1_000_000
}

/// Lists of a passing family.
pub fn passing_lists(family: u32) -> Vec<List> {
    [Form::Value, Form::Rows]
        .into_iter()
        .zip(0..)
        .map(|(form, nth)| List {
            id: passing_list(family, nth),
            form,
            rule: Rule::Shared,
            padding: Padding::Small,
            family: 0,
            key: format!("{}{nth:04}/", tag(form)).into_bytes(),
        })
        .collect()
}

fn tag(form: Form) -> char {
    match form {
        Form::Value => 'V',
        Form::Moving => 'M',
        Form::Rows => 'R',
    }
}

pub fn pick<'a, T>(rng: &mut SmallRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let threads = rng.random_range(2..=6);
        let many = rng.random_ratio(1, 4);
        let count = if many { 200 } else { rng.random_range(2..=5) };
        let mut families = vec!["default".to_owned()];
        families.extend((1..count).map(|n| format!("family {n}")));
        let ring_bytes = 1 << rng.random_range(16..=22);
        let hostile = rng.random_ratio(1, 3);
        let hot = count.min(6);
        let mut lists = Vec::new();
        let shared = rng.random_range(6..=16);
        let mut rules = vec![Rule::Shared; shared];
        for guard in 0..2 {
            rules.extend([Rule::Guarded(guard); 3]);
        }
        for thread in 0..threads {
            rules.extend([Rule::Owned(thread), Rule::Owned(thread), Rule::Unlogged(thread)]);
        }
        if many {
            rules.extend(vec![Rule::Shared; 60]);
        }
        for (id, rule) in (0..).zip(rules) {
            let form = match rule {
                Rule::Owned(_) | Rule::Unlogged(_) => Form::Value,
                _ => *pick(
                    rng,
                    &[Form::Value, Form::Value, Form::Moving, Form::Rows, Form::Rows],
                ),
            };
            let padding = match rng.random_range(0..10) {
                0..=3 => Padding::None,
                4..=7 => Padding::Small,
                8 => Padding::Block,
                _ if hostile => Padding::Large,
                _ => Padding::Block,
            };
            let family = if rng.random_ratio(1, 5) {
                rng.random_range(0..count)
            } else {
                rng.random_range(0..hot)
            };
            let mut key = format!("{}{id:04}/", tag(form)).into_bytes();
            if hostile && rng.random_ratio(1, 8) {
                // The other forms add up to four bytes.
                key.resize(if form == Form::Value { 65_535 } else { 65_531 }, b'k');
            } else if form == Form::Value && id < 0x20 && rng.random_ratio(1, 4) {
                key = vec![u8::try_from(id).unwrap_or(0)];
            }
            lists.push(List {
                id,
                form,
                rule,
                padding,
                family,
                key,
            });
        }
        let guards = (0..2)
            .map(|n| Guard {
                family: rng.random_range(0..hot),
                key: format!("G{n}").into_bytes(),
                value: (n == 0).then(|| b"guard".to_vec()),
            })
            .collect();
        let family_options = FamilyOptions {
            write_buffer_bytes: *pick(rng, &[4096, 8192, 32 << 10, 256 << 10]),
            max_write_buffers: rng.random_range(2..=4),
            block_bytes: *pick(rng, &[512, 4096]),
            bloom_bits: *pick(rng, &[0, 10]),
            compression: *pick(rng, &[Compression::None, Compression::Lz4]),
            table_bytes: *pick(rng, &[4096, 64 << 10, 1 << 20]),
            level0_compaction: rng.random_range(2..=4),
            ..FamilyOptions::default()
        };
        Self {
            seed,
            families,
            lists,
            guards,
            threads,
            ring_bytes,
            segment_bytes: (4 * ring_bytes as u64).max(256 << 10),
            family_options,
            value_limit: (ring_bytes / 8).min(1 << 20),
        }
    }

    /// How the store is opened, which may differ from one open to the next.
    pub fn options(&self, rng: &mut SmallRng, shm: PathBuf) -> Options {
        let mut options = Options {
            ring: if rng.random_ratio(2, 3) {
                collie_db::RingMode::Shared { dir: shm }
            } else {
                collie_db::RingMode::Private
            },
            ring_bytes: self.ring_bytes,
            // Three rings: some of the largest commits go to the log in parts.
            max_commit_bytes: 3 * self.ring_bytes as u64,
            segment_bytes: self.segment_bytes,
            max_workers: *pick(rng, &[2, 4, 64]),
            wal_compression: *pick(rng, &[Compression::None, Compression::Lz4]),
            manual_wal_flush: rng.random_ratio(1, 4),
            pad_to_block: rng.random_ratio(1, 4),
            durability: *pick(rng, &[Durability::Disk, Durability::Process]),
            max_total_wal_size: *pick(
                rng,
                &[None, Some(self.segment_bytes * 2), Some(self.segment_bytes * 4)],
            ),
            cache_bytes: *pick(rng, &[64 << 10, 8 << 20]),
            max_open_files: *pick(rng, &[4, 256]),
            flush_threads: rng.random_range(1..=2),
            compaction_threads: rng.random_range(1..=2),
            lock_timeout: Duration::from_millis(*pick(rng, &[5, 200, 1000])),
            default_family: self.family_options.clone(),
            ..Options::default()
        };
        if rng.random_ratio(1, 10) {
            options.max_row_locks = 4096;
        }
        options
    }
}
