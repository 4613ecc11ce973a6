//! A leaf of a shard: digests in order, and where their entries lie, in one piece of memory.
//!
//! Unused digests are the largest there is, and unused places none. So a search needs no length, and compares
//! with the last digest of each cache line before it looks into one of them: loads that do not wait for each
//! other, where a binary search would miss the cache three times in turn.

use super::shard::Place;

/// Entries of a leaf.
pub(super) const LEAF: usize = 64;
/// Digests in a cache line.
const LINE: usize = 8;

/// See the module's page.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Leaf {
    digests: [u64; LEAF],
    places: [Place; LEAF],
}

impl Leaf {
    /// A leaf of up to [`LEAF`] entries, in order.
    pub(super) fn of(entries: &[(u64, Place)]) -> Box<Self> {
        let mut leaf = Box::new(Self {
            digests: [u64::MAX; LEAF],
            places: [Place::NONE; LEAF],
        });
        for (slot, (digest, place)) in entries.iter().enumerate() {
            leaf.digests[slot] = *digest;
            leaf.places[slot] = *place;
        }
        leaf
    }

    /// The digest of the first entry.
    pub(super) fn first(&self) -> u64 {
        self.digests[0]
    }

    /// The entries' places, in order.
    pub(super) fn places(&self) -> &[Place] {
        &self.places[..self.places.partition_point(|place| *place != Place::NONE)]
    }

    pub(super) fn place(&self, index: usize) -> Option<Place> {
        self.places
            .get(index)
            .copied()
            .filter(|place| *place != Place::NONE)
    }

    pub(super) fn digest(&self, index: usize) -> Option<u64> {
        self.digests.get(index).copied()
    }

    pub(super) fn is_full(&self) -> bool {
        self.places[LEAF - 1] != Place::NONE
    }

    /// How many entries lie before a target with this digest; `before` tells of one that has the same digest.
    pub(super) fn lower_bound(&self, digest: u64, before: impl Fn(Place) -> bool) -> usize {
        let (lines, _) = self.digests.as_chunks::<LINE>();
        let line = lines.iter().filter(|line| line[LINE - 1] < digest).count();
        let Some(within) = lines.get(line) else {
            return LEAF;
        };
        let low = LINE * line + within.iter().filter(|there| **there < digest).count();
        if self.digests[low] != digest {
            return low;
        }
        let ties = self.digests[low..].partition_point(|there| *there == digest);
        low + self.places[low..low + ties].partition_point(|place| *place != Place::NONE && before(*place))
    }

    /// Puts an entry before the one at `index`; the leaf is not full.
    pub(super) fn insert(&mut self, index: usize, digest: u64, place: Place) {
        if self.places[index] != Place::NONE {
            self.digests.copy_within(index..LEAF - 1, index + 1);
            self.places.copy_within(index..LEAF - 1, index + 1);
        }
        self.digests[index] = digest;
        self.places[index] = place;
    }

    /// Lets an entry lie elsewhere.
    pub(super) fn replace(&mut self, index: usize, place: Place) {
        self.places[index] = place;
    }

    /// Takes the entries from `at` on into a leaf of their own.
    pub(super) fn split_off(&mut self, at: usize) -> Box<Self> {
        let mut right = Self::of(&[]);
        right.digests[..LEAF - at].copy_from_slice(&self.digests[at..]);
        right.places[..LEAF - at].copy_from_slice(&self.places[at..]);
        self.digests[at..].fill(u64::MAX);
        self.places[at..].fill(Place::NONE);
        right
    }

    /// Computes all digests anew.
    pub(super) fn digest_anew(&mut self, digest: impl Fn(Place) -> u64) {
        for (slot, place) in self.digests.iter_mut().zip(&self.places) {
            if *place != Place::NONE {
                *slot = digest(*place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest digest is also what unused ones are.
    #[test]
    fn the_largest_digest_is_found_and_told_from_what_is_unused() {
        let entries: Vec<_> = [1, 5, u64::MAX, u64::MAX]
            .iter()
            .zip(0..)
            .map(|(digest, n)| (*digest, Place::new(0, n)))
            .collect();
        let mut leaf = Leaf::of(&entries);
        let bound = |leaf: &Leaf, digest| leaf.lower_bound(digest, |place| place.offset() < 3);
        assert_eq!(bound(&leaf, 0), 0);
        assert_eq!(bound(&leaf, 2), 1);
        assert_eq!(bound(&leaf, 6), 2);
        assert_eq!(bound(&leaf, u64::MAX), 3);
        assert_eq!(leaf.lower_bound(u64::MAX, |_| true), 4);
        assert_eq!((leaf.places().len(), leaf.place(4)), (4, None));
        leaf.insert(1, 3, Place::new(0, 9));
        assert_eq!(leaf.digests[..6], [1, 3, 5, u64::MAX, u64::MAX, u64::MAX]);
        assert_eq!(leaf.place(1), Some(Place::new(0, 9)));
    }

    #[test]
    fn every_digest_of_a_full_leaf_is_found_at_its_place() {
        let entries: Vec<_> = (0..LEAF).map(|n| (10 * n as u64, Place::new(0, n))).collect();
        let mut leaf = Leaf::of(&entries);
        assert!(leaf.is_full());
        for n in 0..LEAF {
            assert_eq!(leaf.lower_bound(10 * n as u64, |_| false), n);
            assert_eq!(leaf.lower_bound(10 * n as u64 + 1, |_| false), n + 1);
        }
        let right = leaf.split_off(40);
        assert_eq!((leaf.places().len(), right.places().len()), (40, LEAF - 40));
        assert_eq!((leaf.first(), right.first()), (0, 400));
        assert_eq!(leaf.lower_bound(u64::MAX, |_| true), 40);
    }
}
