//! A leaf of a bucket: digests in order, and the addresses of their entries, in one piece of memory.
//!
//! Unused digests are the largest value, and unused addresses `NONE`. So a search needs no length.
//! It compares with the last digest of each cache line before it searches one of them: these loads
//! do not wait for each other, while a binary search would miss the cache three times in a row.

/// Entries of a leaf.
pub(super) const LEAF: usize = 64;
/// Digests in a cache line.
const LINE: usize = 8;

/// The address of an entry: the chunk in the upper half, the offset in the lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address(u64);

impl Address {
    /// No entry's address.
    pub(super) const NONE: Self = Self(u64::MAX);

    pub(super) fn new(chunk: usize, offset: usize) -> Self {
        Self((chunk as u64) << 32 | offset as u64)
    }

    pub(super) fn chunk(self) -> usize {
        (self.0 >> 32) as usize
    }

    pub(super) fn offset(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

/// Up to [`LEAF`] digests in order, with the addresses of their entries.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Leaf {
    digests: [u64; LEAF],
    addresses: [Address; LEAF],
}

impl Leaf {
    /// A leaf of up to [`LEAF`] entries, in order.
    pub(super) fn of(entries: &[(u64, Address)]) -> Box<Self> {
        let mut leaf = Box::new(Self {
            digests: [u64::MAX; LEAF],
            addresses: [Address::NONE; LEAF],
        });
        for (slot, (digest, address)) in entries.iter().enumerate() {
            leaf.digests[slot] = *digest;
            leaf.addresses[slot] = *address;
        }
        leaf
    }

    /// The digest of the first entry.
    pub(super) fn first(&self) -> u64 {
        self.digests[0]
    }

    /// The entries' addresses, in order.
    pub(super) fn addresses(&self) -> &[Address] {
        &self.addresses[..self
            .addresses
            .partition_point(|address| *address != Address::NONE)]
    }

    pub(super) fn address(&self, index: usize) -> Option<Address> {
        self.addresses
            .get(index)
            .copied()
            .filter(|address| *address != Address::NONE)
    }

    pub(super) fn digest(&self, index: usize) -> Option<u64> {
        self.digests.get(index).copied()
    }

    pub(super) fn is_full(&self) -> bool {
        self.addresses[LEAF - 1] != Address::NONE
    }

    /// How many entries lie before a target with this digest; `before` decides for an entry with
    /// the same digest. The first of those is looked at first, as in the list of leaves.
    pub(super) fn lower_bound(&self, digest: u64, before: impl Fn(Address) -> bool) -> usize {
        let (lines, _) = self.digests.as_chunks::<LINE>();
        let line = lines.iter().filter(|line| line[LINE - 1] < digest).count();
        let Some(within) = lines.get(line) else {
            return LEAF;
        };
        let low = LINE * line + within.iter().filter(|there| **there < digest).count();
        let is_behind = |address: &Address| *address != Address::NONE && before(*address);
        if self.digests[low] != digest || !is_behind(&self.addresses[low]) {
            return low;
        }
        let ties = self.digests[low..].partition_point(|there| *there == digest);
        low + self.addresses[low..low + ties].partition_point(is_behind)
    }

    /// Inserts an entry before the one at `index`; the leaf is not full.
    pub(super) fn insert(&mut self, index: usize, digest: u64, address: Address) {
        if self.addresses[index] != Address::NONE {
            self.digests.copy_within(index..LEAF - 1, index + 1);
            self.addresses.copy_within(index..LEAF - 1, index + 1);
        }
        self.digests[index] = digest;
        self.addresses[index] = address;
    }

    /// Replaces the address of an entry.
    pub(super) fn replace(&mut self, index: usize, address: Address) {
        self.addresses[index] = address;
    }

    /// Moves the entries from `at` on to a new leaf.
    pub(super) fn split_off(&mut self, at: usize) -> Box<Self> {
        let mut right = Self::of(&[]);
        right.digests[..LEAF - at].copy_from_slice(&self.digests[at..]);
        right.addresses[..LEAF - at].copy_from_slice(&self.addresses[at..]);
        self.digests[at..].fill(u64::MAX);
        self.addresses[at..].fill(Address::NONE);
        right
    }

    /// Recomputes all digests.
    pub(super) fn digest_anew(&mut self, digest: impl Fn(Address) -> u64) {
        for (slot, address) in self.digests.iter_mut().zip(&self.addresses) {
            if *address != Address::NONE {
                *slot = digest(*address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest digest is also that of unused slots.
    #[test]
    fn the_largest_digest_is_distinguished_from_unused_slots() {
        let entries: Vec<_> = [1, 5, u64::MAX, u64::MAX]
            .iter()
            .zip(0..)
            .map(|(digest, n)| (*digest, Address::new(0, n)))
            .collect();
        let mut leaf = Leaf::of(&entries);
        let bound = |leaf: &Leaf, digest| leaf.lower_bound(digest, |address| address.offset() < 3);
        assert_eq!(bound(&leaf, 0), 0);
        assert_eq!(bound(&leaf, 2), 1);
        assert_eq!(bound(&leaf, 6), 2);
        assert_eq!(bound(&leaf, u64::MAX), 3);
        assert_eq!(leaf.lower_bound(u64::MAX, |_| true), 4);
        assert_eq!((leaf.addresses().len(), leaf.address(4)), (4, None));
        leaf.insert(1, 3, Address::new(0, 9));
        assert_eq!(leaf.digests[..6], [1, 3, 5, u64::MAX, u64::MAX, u64::MAX]);
        assert_eq!(leaf.address(1), Some(Address::new(0, 9)));
    }

    #[test]
    fn every_digest_of_a_full_leaf_is_found_at_its_place() {
        let entries: Vec<_> = (0..LEAF).map(|n| (10 * n as u64, Address::new(0, n))).collect();
        let mut leaf = Leaf::of(&entries);
        assert!(leaf.is_full());
        for n in 0..LEAF {
            assert_eq!(leaf.lower_bound(10 * n as u64, |_| false), n);
            assert_eq!(leaf.lower_bound(10 * n as u64 + 1, |_| false), n + 1);
        }
        let right = leaf.split_off(40);
        assert_eq!((leaf.addresses().len(), right.addresses().len()), (40, LEAF - 40));
        assert_eq!((leaf.first(), right.first()), (0, 400));
        assert_eq!(leaf.lower_bound(u64::MAX, |_| true), 40);
    }
}
