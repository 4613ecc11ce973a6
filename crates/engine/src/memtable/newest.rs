//! The newest version of each key, in order, for a flush.
//!
//! Each shard has its keys in order; a tournament among the shards' next keys merges them. A
//! shard's entries are fetched a leaf's worth at a time under its lock, so that readers of the
//! memtable wait for a short time only.

use std::cmp::Ordering;

use super::Entry;
use super::leaf::LEAF;
use super::shard::Cursor;
use super::sharded::{SHARDS, Sharded};

/// Merges the shards of a memtable that is no longer written.
pub(super) struct Newest<'a> {
    table: &'a Sharded,
    streams: Vec<Stream>,
    /// A tournament tree with its root at 1; the leaves are the streams, as if at `SHARDS` and
    /// beyond. Each node has the loser of its match.
    losers: [usize; SHARDS],
    winner: usize,
}

/// The rest of one shard.
struct Stream {
    /// Where to fetch on; `None` where nothing is left to fetch.
    at: Option<Cursor>,
    fetched: std::vec::IntoIter<Entry>,
    next: Option<Entry>,
    /// Of the next key.
    digest: u128,
}

const _: () = assert!(SHARDS.is_power_of_two());

impl<'a> Newest<'a> {
    pub(super) fn of(table: &'a Sharded) -> Self {
        let mut newest = Self {
            table,
            streams: Vec::with_capacity(SHARDS),
            losers: [0; SHARDS],
            winner: 0,
        };
        for shard in 0..SHARDS {
            newest.streams.push(Stream {
                at: Some(Cursor::default()),
                fetched: Vec::new().into_iter(),
                next: None,
                digest: 0,
            });
            newest.step(shard);
        }
        newest.winner = newest.play(1);
        newest
    }

    /// Plays all matches below a node and returns the winner.
    fn play(&mut self, node: usize) -> usize {
        if node >= SHARDS {
            return node - SHARDS;
        }
        let (a, b) = (self.play(2 * node), self.play(2 * node + 1));
        let (winner, loser) = if self.beats(a, b) { (a, b) } else { (b, a) };
        self.losers[node] = loser;
        winner
    }

    /// Whether one stream's next key comes before the other's. No key is in two of them.
    fn beats(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.streams[one], &self.streams[other]);
        match (&one.next, &other.next) {
            (Some(a), Some(b)) => {
                one.digest.cmp(&other.digest).then_with(|| a.key.cmp(&b.key)) == Ordering::Less
            }
            (a, _) => a.is_some(),
        }
    }

    /// Advances a stream, and returns the entry that it was at.
    fn step(&mut self, shard: usize) -> Option<Entry> {
        let stream = &mut self.streams[shard];
        if stream.fetched.as_slice().is_empty()
            && let Some(at) = stream.at
        {
            let mut fetched = Vec::with_capacity(LEAF);
            stream.at = self.table.fetch(shard, at, LEAF, &mut fetched);
            stream.fetched = fetched.into_iter();
        }
        let next = stream.fetched.next();
        stream.digest = next.as_ref().map_or(0, |entry| digest(&entry.key));
        std::mem::replace(&mut stream.next, next)
    }
}

impl Iterator for Newest<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let entry = self.step(self.winner)?;
        let mut node = (self.winner + SHARDS) / 2;
        while node > 0 {
            if self.beats(self.losers[node], self.winner) {
                std::mem::swap(&mut self.losers[node], &mut self.winner);
            }
            node /= 2;
        }
        Some(entry)
    }
}

/// The first 16 bytes of a key, such that digests order as keys do, or tie.
fn digest(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk() {
        return u128::from_be_bytes(*first);
    }
    let mut first = [0; 16];
    first[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(first)
}
