//! One bucket of a memtable: a two-level sorted array over an arena, for one thread at a time.
//!
//! Entries (header, key, value) are appended to chunks and do not move while the bucket lives. What
//! is sorted is a list of leaves; a leaf has up to [`LEAF`] pairs of a key's eight distinguishing
//! bytes and the address of its entry, so a search reads two small arrays and, only where the eight
//! bytes tie, the entries themselves. The bytes that all keys of the bucket have in common are
//! skipped before the eight are taken.
//!
//! The order is by key, and versions of one key from the newest to the oldest.

mod scan;
mod split;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::sync::Arc;

use collie_log::Lsn;
use lsm_tree::Slice;

use crate::memtable::chunks::{CHUNK, Chunks};
use crate::memtable::leaf::{Address, LEAF, Leaf};
use crate::memtable::{At, Entry, Found, Write};
use crate::{Key, Value};

/// Entries of a leaf that was built from sorted ones, so that the next inserts do not split it at
/// once.
const SORTED_LEAF: usize = LEAF * 3 / 4;
/// Size of the first chunk; each further one is twice as large, up to those that [`Chunks`] keeps.
const FIRST_CHUNK: usize = 4 << 10;
/// Longer values are kept outside the arena, so that reads return them without a copy.
const INLINE_VALUE: usize = 4 << 10;
/// After so many shrinkings the common prefix is given up: each one recomputes every leaf.
const SHRINKINGS: u32 = 16;
/// start (8), end - start (4), value length or index (4), key length (2), kind (1), unused (1).
const HEADER: usize = 20;

/// A bucket is split where it has so many entries, or so many bytes in its arena.
pub(super) const MOST_ENTRIES: usize = 4096;
const MOST_BYTES: usize = 1 << 20;
/// How many times as large it may become by loads, which are sorted when it is split.
const LOADED: usize = 2;
/// Versions of one key that a scan passes one by one before it searches for what follows them.
const PASSED: u32 = 4;

const KIND_DELETE: u8 = 0;
const KIND_INLINE: u8 = 1;
const KIND_OUTSIDE: u8 = 2;

/// An entry, read in address.
struct Stored<'a> {
    start: Lsn,
    key: &'a [u8],
    bytes: &'a [u8],
}

impl Stored<'_> {
    fn is_put(&self) -> bool {
        self.bytes[18] != KIND_DELETE
    }

    /// Bytes in the arena.
    fn size(&self) -> usize {
        let inline = match self.bytes[18] {
            KIND_INLINE => word(self.bytes, 12) as usize,
            _ => 0,
        };
        HEADER + self.key.len() + inline
    }
}

/// What an insert did.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inserted {
    /// By how many bytes the bucket grew.
    pub(super) bytes: usize,
    /// The entry is new, and the last one.
    pub(super) last: bool,
}

/// A position between entries: leaf and index; the index may be the leaf's length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor {
    leaf: usize,
    index: usize,
}

/// The entries of a range of keys, sorted or to be sorted.
#[derive(Debug)]
pub(super) struct Bucket {
    spare: Arc<Chunks>,
    chunks: Vec<Vec<u8>>,
    /// Size of the next chunk.
    next_chunk: usize,
    outside: Vec<Slice>,
    /// Entries, sorted or not.
    entries: usize,
    /// Removals among them, and such as another one replaced.
    removals: usize,
    /// The smallest start of an entry, or of one that was here before a split; the largest number
    /// where there was none.
    oldest: Lsn,
    /// Bytes of the entries in the chunks.
    arena: usize,
    /// Entries and bytes when the entries were last indexed as a whole.
    indexed: (usize, usize),
    /// `firsts[i]` is the digest of the first entry of `leaves[i]`; no leaf is empty.
    firsts: Vec<u64>,
    #[expect(
        clippy::vec_box,
        reason = "inserting a leaf between others must not move those"
    )]
    leaves: Vec<Box<Leaf>>,
    /// Entries that were loaded and not sorted yet. While there are any, the fields above are not
    /// read.
    unsorted: Vec<Address>,
    /// What all keys here start with.
    common: Vec<u8>,
    shrinkings: u32,
}

impl Drop for Bucket {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..) {
            self.spare.give(chunk);
        }
    }
}

impl Bucket {
    /// An empty bucket, which takes its memory from `spare` and returns it there.
    pub(super) fn new(spare: Arc<Chunks>) -> Self {
        Self {
            spare,
            chunks: Vec::new(),
            next_chunk: FIRST_CHUNK,
            outside: Vec::new(),
            entries: 0,
            removals: 0,
            oldest: Lsn::MAX,
            arena: 0,
            indexed: (0, 0),
            firsts: Vec::new(),
            leaves: Vec::new(),
            unsorted: Vec::new(),
            common: Vec::new(),
            shrinkings: 0,
        }
    }

    /// Adds a version out of order and returns by how many bytes the bucket grew; [`Bucket::sort`] is
    /// to be called before the next call of another kind.
    pub(super) fn load(&mut self, key: &[u8], at: At, write: Write<'_>) -> usize {
        self.shorten_common(key);
        let (address, grown) = self.store(key, at, write);
        self.unsorted.push(address);
        self.entries += 1;
        grown
    }

    /// Sorts all that was loaded.
    pub(super) fn sort(&mut self) {
        if !self.unsorted.is_empty() {
            self.rebuild();
        }
    }

    #[cold]
    fn rebuild(&mut self) {
        let mut addresses = std::mem::take(&mut self.unsorted);
        for leaf in self.leaves.drain(..) {
            addresses.extend_from_slice(leaf.addresses());
        }
        let chunks = &self.chunks;
        let key = |address: Address| read(chunks, address).key;
        let skip = self.common.len();
        let mut entries: Vec<(u64, Address)> = addresses
            .into_iter()
            .map(|address| (digest(key(address), skip), address))
            .collect();
        // Of two writes at the same LSN the later one counts. Its address is larger, and it is
        // sorted first.
        entries.sort_unstable_by(|(a, one), (b, other)| {
            a.cmp(b).then_with(|| {
                let (x, y) = (read(chunks, *one), read(chunks, *other));
                x.key.cmp(y.key).then(y.start.cmp(&x.start)).then(other.cmp(one))
            })
        });
        entries.dedup_by(|(b, other), (a, one)| {
            a == b && {
                let (x, y) = (read(chunks, *one), read(chunks, *other));
                x.start == y.start && x.key == y.key
            }
        });
        self.index(&entries);
    }

    /// Makes these the bucket's entries; they are in order.
    fn index(&mut self, entries: &[(u64, Address)]) {
        let firsts = entries.iter().step_by(SORTED_LEAF);
        self.firsts = firsts.map(|(digest, _)| *digest).collect();
        self.leaves = entries.chunks(SORTED_LEAF).map(Leaf::of).collect();
        self.entries = entries.len();
        self.indexed = (self.entries, self.arena);
    }

    /// The first key; the bucket is sorted.
    pub(super) fn first_key(&self) -> Option<&[u8]> {
        Some(self.stored(Cursor::default())?.key)
    }

    fn last_key(&self) -> Option<&[u8]> {
        Some(self.previous(self.end())?.1.key)
    }

    /// Adds a version. The bucket is sorted.
    pub(super) fn insert(&mut self, key: &[u8], at: At, write: Write<'_>) -> Inserted {
        self.keep_common(key);
        let (address, bytes) = self.store(key, at, write);
        let digest = self.digest(key);
        if self.leaves.is_empty() {
            self.index(&[(digest, address)]);
            return Inserted { bytes, last: true };
        }
        let Cursor { leaf: number, index } = self.lower_bound(key, at.start, digest);
        if self.leaves[number].digest(index) == Some(digest)
            && let Some(there) = self.leaves[number].address(index)
        {
            let stored = read(&self.chunks, there);
            if stored.start == at.start && stored.key == key {
                self.leaves[number].replace(index, address);
                return Inserted { bytes, last: false };
            }
        }
        // An entry that belongs between two leaves is appended to the first of them.
        let (number, index) = if index == 0 && number > 0 {
            (number - 1, self.leaves[number - 1].addresses().len())
        } else {
            (number, index)
        };
        let (number, index) = if self.leaves[number].is_full() {
            self.split_leaf(number, index)
        } else {
            (number, index)
        };
        self.leaves[number].insert(index, digest, address);
        self.entries += 1;
        if index == 0 {
            self.firsts[number] = digest;
        }
        let last = number + 1 == self.leaves.len() && self.leaves[number].address(index + 1).is_none();
        Inserted { bytes, last }
    }

    /// The newest version of `key` with `start < below`.
    pub(super) fn get(&self, key: &[u8], below: Lsn) -> Option<Found> {
        let newest = below.checked_sub(1)?;
        let cursor = self.seek(key, newest);
        let leaf = self.leaves.get(cursor.leaf)?;
        let address = leaf.address(cursor.index)?;
        let stored = read(&self.chunks, address);
        (stored.key == key).then(|| self.found(&stored))
    }

    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    pub(super) fn removals(&self) -> usize {
        self.removals.min(self.entries)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leaves.is_empty() && self.unsorted.is_empty()
    }

    /// No entry is older than this.
    pub(super) fn oldest(&self) -> Lsn {
        self.oldest
    }

    /// The entry at a position.
    fn stored(&self, at: Cursor) -> Option<Stored<'_>> {
        let address = self.leaves.get(at.leaf)?.address(at.index)?;
        Some(read(&self.chunks, address))
    }

    fn entry(&self, stored: &Stored<'_>) -> Entry {
        Entry {
            key: Key(Slice::from(stored.key)),
            found: self.found(stored),
        }
    }

    fn found(&self, stored: &Stored<'_>) -> Found {
        let length = word(stored.bytes, 12) as usize;
        let value = match stored.bytes[18] {
            KIND_DELETE => None,
            KIND_INLINE => {
                let from = HEADER + stored.key.len();
                Some(Slice::from(&stored.bytes[from..from + length]))
            }
            _ => self.outside.get(length).cloned(),
        };
        let end = stored.start + Lsn::from(word(stored.bytes, 8));
        Found {
            value: value.map(Value),
            at: At {
                start: stored.start,
                end,
            },
        }
    }

    /// Appends an entry to the arena.
    fn store(&mut self, key: &[u8], at: At, write: Write<'_>) -> (Address, usize) {
        let (kind, length, inline): (u8, usize, &[u8]) = match write {
            Write::Delete => (KIND_DELETE, 0, &[]),
            Write::Put(value) if value.len() <= INLINE_VALUE => (KIND_INLINE, value.len(), value),
            Write::Put(value) => {
                self.outside.push(Slice::from(value));
                (KIND_OUTSIDE, self.outside.len() - 1, &[])
            }
        };
        self.removals += usize::from(kind == KIND_DELETE);
        let size = HEADER + key.len() + inline.len();
        let address = self.make_room(size);
        self.oldest = self.oldest.min(at.start);
        let chunk = &mut self.chunks[address.chunk()];
        let mut header = [0; HEADER];
        header[0..8].copy_from_slice(&at.start.to_le_bytes());
        // A frame is at most half a ring and a ring at most 1 GiB; keys end at 65,535 bytes.
        header[8..12].copy_from_slice(&((at.end - at.start) as u32).to_le_bytes());
        header[12..16].copy_from_slice(&(length as u32).to_le_bytes());
        header[16..18].copy_from_slice(&(key.len() as u16).to_le_bytes());
        header[18] = kind;
        chunk.extend_from_slice(&header);
        chunk.extend_from_slice(key);
        chunk.extend_from_slice(inline);
        let outside = if kind == KIND_OUTSIDE {
            self.outside
                .last()
                .map_or(0, |value| value.len() + size_of::<Slice>())
        } else {
            0
        };
        (address, size + outside + size_of::<(u64, Address)>())
    }

    /// Where an entry of `size` bytes is to be appended.
    fn make_room(&mut self, size: usize) -> Address {
        let fits = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() >= size;
        if !self.chunks.last().is_some_and(fits) {
            self.chunks.push(if self.next_chunk == CHUNK && size <= CHUNK {
                self.spare.take()
            } else {
                Vec::with_capacity(self.next_chunk.max(size))
            });
            self.next_chunk = (2 * self.next_chunk).min(CHUNK);
        }
        self.arena += size;
        let number = self.chunks.len() - 1;
        Address::new(number, self.chunks[number].len())
    }

    /// Splits a full leaf, into which an entry is to be inserted at `index`; returns where to
    /// insert it now. Where that is behind all others, keys arrive in order, and the full leaf is
    /// left full.
    fn split_leaf(&mut self, number: usize, index: usize) -> (usize, usize) {
        let ascending = index == LEAF && number + 1 == self.leaves.len();
        let at = if ascending { LEAF } else { LEAF / 2 };
        let right = self.leaves[number].split_off(at);
        self.firsts.insert(number + 1, right.first());
        self.leaves.insert(number + 1, right);
        if index > at || ascending {
            (number + 1, index - at)
        } else {
            (number, index)
        }
    }

    /// Makes sure that `key` starts with the common prefix, shortening that where it does not.
    /// Returns whether it was shortened: then all digests are to be computed anew.
    fn shorten_common(&mut self, key: &[u8]) -> bool {
        if key.starts_with(&self.common) {
            if self.chunks.is_empty() {
                self.common = key.to_vec();
            }
            return false;
        }
        let shared = self.common.iter().zip(key).take_while(|(a, b)| a == b).count();
        self.common.truncate(shared);
        true
    }

    /// As `shorten_common`, and computes the digests.
    fn keep_common(&mut self, key: &[u8]) {
        if !self.shorten_common(key) {
            return;
        }
        self.shrinkings += 1;
        if self.shrinkings > SHRINKINGS {
            self.common.clear();
        }
        let (chunks, skip) = (&self.chunks, self.common.len());
        for (leaf, first) in self.leaves.iter_mut().zip(&mut self.firsts) {
            leaf.digest_anew(|address| digest(read(chunks, address).key, skip));
            *first = leaf.first();
        }
    }

    fn digest(&self, key: &[u8]) -> u64 {
        digest(key, self.common.len())
    }

    /// The first entry at or after (`key`, `start`) in the order; any key.
    fn seek(&self, key: &[u8], start: Lsn) -> Cursor {
        let shared = self.common.len().min(key.len());
        match key[..shared].cmp(&self.common[..shared]) {
            Ordering::Less => Cursor { leaf: 0, index: 0 },
            Ordering::Greater => Cursor {
                leaf: self.leaves.len(),
                index: 0,
            },
            // A proper prefix of what all keys start with sorts before them.
            Ordering::Equal if shared < self.common.len() => Cursor { leaf: 0, index: 0 },
            Ordering::Equal => self.lower_bound(key, start, self.digest(key)),
        }
    }

    /// The first entry after all versions of `key`.
    fn seek_past(&self, key: &[u8]) -> Cursor {
        let mut at = self.seek(key, 0);
        // Version 0 does not exist, so what the search found is past the key unless it is that
        // version.
        if let Some(leaf) = self.leaves.get(at.leaf)
            && let Some(address) = leaf.address(at.index)
            && read(&self.chunks, address).key == key
        {
            at.index += 1;
        }
        at
    }

    /// As `seek`, for a key with the common prefix.
    fn lower_bound(&self, key: &[u8], start: Lsn, digest: u64) -> Cursor {
        let before = |address: Address| {
            let stored = read(&self.chunks, address);
            stored.key.cmp(key).then(start.cmp(&stored.start)) == Ordering::Less
        };
        // The leaf before the first one that starts at or after the target.
        let leaf = lower_bound(&self.firsts, digest, |i| {
            self.leaves[i].address(0).is_some_and(before)
        });
        let Some(number) = leaf.checked_sub(1) else {
            return Cursor { leaf: 0, index: 0 };
        };
        let leaf = &self.leaves[number];
        let index = leaf.lower_bound(digest, before);
        if leaf.address(index).is_none() && number + 1 < self.leaves.len() {
            return Cursor {
                leaf: number + 1,
                index: 0,
            };
        }
        Cursor { leaf: number, index }
    }
}

/// How many of the sorted digests lie before the target, whose digest is `digest`; `before` decides
/// for an index with the same digest. Digests seldom tie, so they are searched first and alone:
/// that search has no branch to mispredict. Many that tie are versions of one key, of which mostly the
/// newest is wanted, or a newer one is to come: it is the first.
fn lower_bound(digests: &[u64], digest: u64, before: impl Fn(usize) -> bool) -> usize {
    let mut low = digests.partition_point(|there| *there < digest);
    if digests.get(low) != Some(&digest) || !before(low) {
        return low;
    }
    let mut high = low + digests[low..].partition_point(|there| *there == digest);
    while low < high {
        let middle = low.midpoint(high);
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Eight bytes of the key after those that are skipped, such that digests order as keys do, or tie.
pub(super) fn digest(key: &[u8], skip: usize) -> u64 {
    let rest = key.get(skip..).unwrap_or_default();
    if let Some(eight) = rest.first_chunk::<8>() {
        return u64::from_be_bytes(*eight);
    }
    let mut eight = [0; 8];
    eight[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(eight)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn read(chunks: &[Vec<u8>], address: Address) -> Stored<'_> {
    let bytes = &chunks[address.chunk()][address.offset()..];
    let mut start = [0; 8];
    start.copy_from_slice(&bytes[..8]);
    let key_len = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
    Stored {
        start: Lsn::from_le_bytes(start),
        key: &bytes[HEADER..HEADER + key_len],
        bytes,
    }
}
