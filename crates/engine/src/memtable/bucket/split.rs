//! When a bucket is split, and how.

use std::sync::Arc;

use crate::memtable::bucket::{
    Address, Bucket, CHUNK, KIND_OUTSIDE, LOADED, MOST_BYTES, MOST_ENTRIES, digest, read, word,
};

impl Bucket {
    /// Whether to split the bucket after an insert.
    pub(in crate::memtable) fn is_full(&self) -> bool {
        (self.entries >= MOST_ENTRIES || self.arena >= MOST_BYTES) && self.first_key() != self.last_key()
    }

    /// Whether to split the bucket after a load. Splitting sorts it, so one that was split and is
    /// large all the same, as it has one key, is first to grow to twice its size.
    pub(in crate::memtable) fn is_full_of_loads(&self) -> bool {
        let (entries, bytes) = self.indexed;
        self.entries >= (LOADED * MOST_ENTRIES).max(2 * entries)
            || self.arena >= (LOADED * MOST_BYTES).max(2 * bytes)
    }

    /// Splits the bucket into about as many parts as asked, all versions of a key in the same one;
    /// a single one where it has one key only. Where `appended`, the last key was inserted last: it
    /// goes to a part of its own, so that keys that arrive in order fill buckets and are not copied.
    pub(in crate::memtable) fn split(mut self, parts: usize, appended: bool) -> Vec<Self> {
        self.sort();
        let addresses: Vec<Address> = self
            .leaves
            .iter()
            .flat_map(|leaf| leaf.addresses())
            .copied()
            .collect();
        let cuts = self.cuts(&addresses, parts, appended);
        let mut from = 0;
        let mut slices = Vec::with_capacity(cuts.len() + 1);
        for to in cuts.into_iter().chain([addresses.len()]) {
            slices.push(&addresses[from..to]);
            from = to;
        }
        // A part with most of the entries keeps the arena: it may be one key with very many
        // versions. What the others leave behind in it is less than a third of what it needs.
        let kept = slices
            .iter()
            .position(|slice| slice.len() * 4 > addresses.len() * 3);
        let others = slices.iter().enumerate().filter(|(n, _)| Some(*n) != kept);
        let mut split: Vec<Self> = others.map(|(_, slice)| self.copy_of(slice)).collect();
        if let Some(kept) = kept {
            let skip = self.common.len();
            let digest_of = |address: &Address| digest(read(&self.chunks, *address).key, skip);
            let entries: Vec<_> = slices[kept].iter().map(|a| (digest_of(a), *a)).collect();
            self.index(&entries);
            let moved: usize = split.iter().map(|part| part.removals).sum();
            self.removals = self.removals.saturating_sub(moved);
            split.insert(kept, self);
        }
        split
    }

    /// Where to split: indexes at which a key begins that is not the first one.
    fn cuts(&self, addresses: &[Address], parts: usize, appended: bool) -> Vec<usize> {
        let key = |index: usize| read(&self.chunks, addresses[index]).key;
        let Some(last) = addresses.len().checked_sub(1) else {
            return Vec::new();
        };
        // The first index from `index` on whose key is not the one before it.
        let boundary = |index: usize| {
            let before = key(index - 1);
            index + addresses[index..].partition_point(|a| read(&self.chunks, *a).key == before)
        };
        let mut cuts = Vec::new();
        if !appended {
            let step = addresses.len().div_ceil(parts).max(1);
            cuts.extend((step..=last).step_by(step).map(boundary));
            cuts.dedup();
            cuts.retain(|cut| *cut <= last);
        }
        if cuts.is_empty() && key(0) != key(last) {
            let last_key = key(last);
            cuts.push(addresses.partition_point(|a| read(&self.chunks, *a).key < last_key));
        }
        cuts
    }

    /// A bucket with copies of these entries, which are in order.
    fn copy_of(&self, addresses: &[Address]) -> Self {
        let mut copy = Self::new(Arc::clone(&self.spare));
        copy.next_chunk = CHUNK;
        if let (Some(first), Some(last)) = (addresses.first(), addresses.last()) {
            let (first, last) = (read(&self.chunks, *first).key, read(&self.chunks, *last).key);
            let shared = first.iter().zip(last).take_while(|(a, b)| a == b).count();
            copy.common = first[..shared].to_vec();
        }
        let mut entries = Vec::with_capacity(addresses.len());
        for address in addresses {
            let stored = read(&self.chunks, *address);
            copy.oldest = copy.oldest.min(stored.start);
            copy.removals += usize::from(!stored.is_put());
            let size = stored.size();
            let to = copy.make_room(size);
            let chunk = &mut copy.chunks[to.chunk()];
            chunk.extend_from_slice(&stored.bytes[..size]);
            if stored.bytes[18] == KIND_OUTSIDE
                && let Some(value) = self.outside.get(word(stored.bytes, 12) as usize)
            {
                let index = copy.outside.len() as u32;
                copy.outside.push(value.clone());
                chunk[to.offset()..][12..16].copy_from_slice(&index.to_le_bytes());
            }
            entries.push((copy.digest(stored.key), to));
        }
        copy.index(&entries);
        copy
    }
}
