//! Which ranges lie over which keys.
//!
//! The edges of all ranges cut the order of keys into segments, each with the list of the ranges
//! that lie over it. To find those over a key takes one search. A range costs as many steps as there
//! are edges of others within it.

use std::collections::BTreeMap;
use std::ops::Bound;

use smallvec::SmallVec;

use crate::Key;
use crate::key::Bounds;

/// A place in the order of keys, between two of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum CutPoint {
    /// Before a key, or (`true`) right after it.
    At(Key, bool),
    /// After all keys.
    End,
}

impl CutPoint {
    fn before(key: &[u8]) -> Self {
        Self::At(Key::from(key), false)
    }

    fn low(bounds: &Bounds) -> Self {
        match &bounds.0 {
            Bound::Included(key) => Self::At(key.clone(), false),
            Bound::Excluded(key) => Self::At(key.clone(), true),
            Bound::Unbounded => Self::before(&[]),
        }
    }

    fn high(bounds: &Bounds) -> Self {
        match &bounds.1 {
            Bound::Included(key) => Self::At(key.clone(), true),
            Bound::Excluded(key) => Self::At(key.clone(), false),
            Bound::Unbounded => Self::End,
        }
    }
}

/// Whether two ranges have a place in common.
pub(super) fn overlap(one: &Bounds, other: &Bounds) -> bool {
    CutPoint::low(one).max(CutPoint::low(other)) < CutPoint::high(one).min(CutPoint::high(other))
}

/// Numbers of ranges, from the oldest to the newest.
pub(super) type Over = SmallVec<[u64; 4]>;

/// The segments into which ranges cut the order of keys.
#[derive(Debug, Default)]
pub(super) struct Cover {
    /// The segments by where they begin. What is before the first has no range over it.
    segments: BTreeMap<CutPoint, Over>,
}

impl Cover {
    /// The ranges over a key.
    pub(super) fn at(&self, key: &[u8]) -> &[u64] {
        if self.segments.is_empty() {
            return &[];
        }
        let mut before = self.segments.range(..=CutPoint::before(key));
        before.next_back().map_or(&[], |(_, over)| over)
    }

    /// The ranges over any part of the bounds, each once.
    pub(super) fn within(&self, bounds: &Bounds) -> Over {
        let (low, high) = (CutPoint::low(bounds), CutPoint::high(bounds));
        if low >= high {
            return Over::new();
        }
        let first = self.segments.range(..=&low).next_back();
        let others = self
            .segments
            .range((Bound::Excluded(&low), Bound::Excluded(&high)));
        let all = first.into_iter().chain(others);
        let mut found: Over = all.flat_map(|(_, over)| over.iter().copied()).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Adds a range whose number is above those of all others.
    pub(super) fn add(&mut self, number: u64, bounds: &Bounds) {
        let (low, high) = (CutPoint::low(bounds), CutPoint::high(bounds));
        if low >= high {
            return;
        }
        self.cut(&low);
        self.cut(&high);
        for (_, over) in self.segments.range_mut(low..high) {
            over.push(number);
        }
    }

    pub(super) fn remove(&mut self, number: u64, bounds: &Bounds) {
        let (low, high) = (CutPoint::low(bounds), CutPoint::high(bounds));
        if low >= high {
            return;
        }
        for (_, over) in self.segments.range_mut(&low..&high) {
            over.retain(|other| *other != number);
        }
        self.join(&low);
        self.join(&high);
    }

    /// Makes a segment begin at an edge.
    fn cut(&mut self, at: &CutPoint) {
        let before = self.segments.range(..=at).next_back();
        match before {
            Some((edge, _)) if edge == at => {}
            before => {
                let over = before.map_or_else(Over::new, |(_, over)| over.clone());
                self.segments.insert(at.clone(), over);
            }
        }
    }

    /// Removes an edge where nothing begins or ends any more.
    fn join(&mut self, at: &CutPoint) {
        let before = self.segments.range(..at).next_back();
        let before = before.map_or(&[][..], |(_, over)| over);
        if self.segments.get(at).is_some_and(|over| **over == *before) {
            self.segments.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::key::contains;

    fn bound(from: u8) -> Bound<Key> {
        let key = Key::from(&[from / 3][..]);
        match from % 3 {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ if from > 24 => Bound::Unbounded,
            _ => Bound::Included(key),
        }
    }

    /// Any ranges come and go: each key is under those that contain it, and nothing is left.
    #[test]
    fn a_key_is_under_the_ranges_that_contain_it() {
        let mut state = 1_u64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        let (mut cover, mut model) = (Cover::default(), BTreeMap::new());
        let mut most = 0;
        for number in 0..20_000 {
            if random(2) == 0 && !model.is_empty() {
                let (&gone, _) = model.iter().nth(random(model.len())).unwrap();
                let bounds = model.remove(&gone).unwrap();
                cover.remove(gone, &bounds);
            } else {
                let edge = |at: usize| bound(u8::try_from(at).unwrap());
                let bounds = (edge(random(30)), edge(random(30)));
                cover.add(number, &bounds);
                model.insert(number, bounds);
            }
            let key = [u8::try_from(random(12)).unwrap()];
            let over: Vec<u64> = model
                .iter()
                .filter(|(_, bounds)| contains(bounds, &key))
                .map(|(number, _)| *number)
                .collect();
            assert_eq!(cover.at(&key), over, "{key:?} under {model:?}");
            let here = (
                Bound::Included(Key::from(&key[..])),
                Bound::Included(Key::from(&key[..])),
            );
            assert_eq!(cover.within(&here).to_vec(), over);
            most = most.max(over.len());
        }
        assert!(most > 3);
        for (number, bounds) in model {
            cover.remove(number, &bounds);
        }
        assert!(cover.segments.is_empty(), "{cover:?}");
    }

    #[test]
    fn ranges_within_bounds_are_found_wherever_they_begin() {
        let range = |low: &str, high: &str| -> Bounds {
            let key = |text: &str| Key::from(text.as_bytes());
            (Bound::Included(key(low)), Bound::Excluded(key(high)))
        };
        let mut cover = Cover::default();
        for (number, (low, high)) in (0..).zip([("a", "c"), ("b", "z"), ("d", "e"), ("x", "y")]) {
            cover.add(number, &range(low, high));
        }
        let within = |low, high| cover.within(&range(low, high)).to_vec();
        assert_eq!(within("bb", "d"), [0, 1]);
        assert_eq!(within("c", "dd"), [1, 2]);
        assert_eq!(within("0", "a"), [0; 0]);
        assert_eq!(within("a", "zz"), [0, 1, 2, 3]);
    }
}
