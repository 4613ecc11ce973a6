//! Owners that ask for, wait for and release any rows and ranges, on one thread; after each step
//! everything is computed anew and compared.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::Key;
use crate::key::{Bounds, contains};
use crate::locks::cover::overlap;
use crate::locks::entry::LockCapacity;
use crate::locks::entry::RangeState;
use crate::locks::entry::{Mode, Place};
use crate::locks::family::{Answer, FamilyLocks, Granted, Lock, Request, Target};
use crate::locks::owner::Owner;

const KEYS: u64 = 6;
const OWNERS: u64 = 6;
const LIMIT: usize = 9;

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn key(&mut self) -> Key {
        Key::from(&[u8::try_from(self.below(KEYS)).unwrap()][..])
    }

    fn bounds(&mut self) -> Bounds {
        let mut ends = [self.key(), self.key()];
        ends.sort();
        let [low, high] = ends;
        match self.below(4) {
            0 => (Bound::Unbounded, Bound::Unbounded),
            1 => (Bound::Included(low), Bound::Excluded(high)),
            2 => (Bound::Excluded(low), Bound::Unbounded),
            _ => (Bound::Included(low), Bound::Included(high)),
        }
    }

    fn mode(&mut self) -> Mode {
        [Mode::Shared, Mode::Exclusive][usize::try_from(self.below(2)).unwrap()]
    }
}

/// An owner: what it has to release, and what it waits for.
struct Member {
    owner: Arc<Owner>,
    held: Vec<Lock>,
    waits: Option<(Lock, bool)>,
}

/// A lock or a request, as a range.
struct Part {
    owner: u64,
    mode: Mode,
    bounds: Bounds,
    is_row: bool,
    /// `None`: it is held.
    place: Option<Place>,
}

impl Part {
    fn excludes(&self, other: &Self) -> bool {
        self.owner != other.owner && self.mode.excludes(other.mode) && overlap(&self.bounds, &other.bounds)
    }
}

fn parts(locks: &FamilyLocks) -> Vec<Part> {
    let mut parts = Vec::new();
    for (key, row) in &locks.rows {
        let bounds = (Bound::Included(key.clone()), Bound::Included(key.clone()));
        let mut add = |owner: &Owner, mode, place| {
            parts.push(Part {
                owner: owner.id,
                mode,
                bounds: bounds.clone(),
                is_row: true,
                place,
            });
        };
        row.holders.iter().for_each(|h| add(&h.owner, h.mode, None));
        row.queue
            .iter()
            .for_each(|w| add(&w.owner, w.mode, Some(w.place)));
    }
    for range in locks.ranges.values() {
        let place = match &range.state {
            RangeState::Held => None,
            RangeState::Waiting(waiting) => Some(waiting.place),
        };
        parts.push(Part {
            owner: range.owner.id,
            mode: range.mode,
            bounds: (*range.bounds).clone(),
            is_row: false,
            place,
        });
    }
    parts
}

/// Whether an owner holds a key, or a range over it.
fn holds(parts: &[Part], owner: u64, key: &Key) -> bool {
    let of_owner = |part: &&Part| part.owner == owner && part.place.is_none();
    parts
        .iter()
        .filter(of_owner)
        .any(|part| contains(&part.bounds, key))
}

/// No two hold what excludes each other, and what waits has a reason to.
fn check(locks: &FamilyLocks, room: &LockCapacity) {
    let parts = parts(locks);
    let held = || parts.iter().filter(|part| part.place.is_none());
    for one in held() {
        assert!(!held().any(|other| one.excludes(other)), "{locks:#?}");
    }
    for (key, row) in &locks.rows {
        assert!(!row.is_free());
        assert_eq!(locks.waited_for.contains(key), !row.queue.is_empty());
        let Some(first) = row.queue.front() else { continue };
        let asked = Part {
            owner: first.owner.id,
            mode: first.mode,
            bounds: (Bound::Included(key.clone()), Bound::Included(key.clone())),
            is_row: true,
            place: Some(first.place),
        };
        let is_range_before = locks.ranges.values().any(|range| match &range.state {
            RangeState::Waiting(waiting) => {
                first.place.is_behind(waiting.place)
                    && !waiting.in_the_way.has(&first.owner)
                    && contains(&range.bounds, key)
                    && range.owner.id != asked.owner
                    && range.mode.excludes(asked.mode)
            }
            RangeState::Held => false,
        });
        let is_held = held().any(|other| asked.excludes(other));
        assert!(
            is_held || is_range_before,
            "the first of {key:?} waits for nothing: {locks:#?}"
        );
    }
    for (number, range) in &locks.ranges {
        let RangeState::Waiting(waiting) = &range.state else {
            continue;
        };
        assert!(locks.waiting.contains(number));
        let asked = Part {
            owner: range.owner.id,
            mode: range.mode,
            bounds: (*range.bounds).clone(),
            is_row: false,
            place: Some(waiting.place),
        };
        let mut owners: Vec<u64> = parts
            .iter()
            .filter(|other| asked.excludes(other))
            .filter(|other| match (other.place, &other.bounds.0) {
                (None, _) => true,
                (Some(place), Bound::Included(key)) if other.is_row => {
                    waiting.place.is_behind(place) && !holds(&parts, asked.owner, key)
                }
                (Some(place), _) => waiting.place.is_behind(place),
            })
            .map(|other| other.owner)
            .collect();
        owners.sort_unstable();
        owners.dedup();
        let mut known: Vec<u64> = waiting.in_the_way.owners().map(|owner| owner.id).collect();
        known.sort_unstable();
        assert_eq!(known, owners, "range {number}: {locks:#?}");
        assert!(!known.is_empty(), "range {number} waits for nothing: {locks:#?}");
    }
    assert_eq!(room.used(), locks.rows.len() + locks.ranges.len());
}

#[test]
fn whatever_is_asked_and_released_the_rule_holds() {
    let (mut granted_later, mut cancelled, mut refused, mut first) = (0, 0, 0, 0);
    for seed in 1..=300 {
        let mut random = Random(seed);
        let room = LockCapacity::new(LIMIT);
        let mut locks = FamilyLocks::default();
        let mut members: HashMap<u64, Member> = (1..=OWNERS)
            .map(|id| {
                let owner = Arc::new(Owner::new(id, ""));
                let member = Member {
                    owner,
                    held: Vec::new(),
                    waits: None,
                };
                (id, member)
            })
            .collect();
        for step in 0..400 {
            let is_end = step > 300;
            let member = members.get_mut(&(1 + random.below(OWNERS))).unwrap();
            let owner = Arc::clone(&member.owner);
            if let Some((lock, is_new)) = member.waits.take() {
                if owner.take_grant() {
                    granted_later += 1;
                    member.held.extend(is_new.then_some(lock));
                } else if random.below(4) == 0 {
                    cancelled += 1;
                    locks.cancel(&owner, &lock, &room);
                } else {
                    if random.below(3) == 0 {
                        first += 1;
                        locks.go_first(&owner, &lock, &room);
                    }
                    member.waits = Some((lock, is_new));
                }
            } else if is_end || random.below(4) == 0 {
                for lock in member.held.drain(..) {
                    match lock {
                        Lock::Row(key) => locks.release_row(&owner, &key, &room),
                        Lock::Range(number) => locks.remove_range(number, &room),
                    }
                    check(&locks, &room);
                }
            } else {
                let request = Request {
                    owner: &owner,
                    mode: random.mode(),
                };
                let (key, bounds) = (random.key(), Arc::new(random.bounds()));
                let target = match random.below(2) {
                    0 => Target::Row(&key),
                    _ => Target::Range(&bounds),
                };
                match locks.take(request, target, &room) {
                    Answer::Granted(Granted::New(lock)) => member.held.push(lock),
                    Answer::Granted(Granted::Before) => {}
                    Answer::Full => refused += 1,
                    Answer::NotFree { .. } => match locks.join(request, target, &room) {
                        Some(queued) => {
                            assert!(!locks.blockers(&owner, &queued.lock).is_empty());
                            member.waits = Some((queued.lock, queued.is_new));
                        }
                        None => refused += 1,
                    },
                }
            }
            check(&locks, &room);
        }
        for member in members.values_mut() {
            if let Some((lock, is_new)) = member.waits.take() {
                match member.owner.take_grant() {
                    true => member.held.extend(is_new.then_some(lock)),
                    false => locks.cancel(&member.owner, &lock, &room),
                }
            }
            for lock in member.held.drain(..) {
                match lock {
                    Lock::Row(key) => locks.release_row(&member.owner, &key, &room),
                    Lock::Range(number) => locks.remove_range(number, &room),
                }
            }
        }
        // Some were granted to owners that had been asked already.
        for member in members.values_mut() {
            assert!(!member.owner.take_grant());
        }
        assert!(locks.is_empty(), "{locks:#?}");
        check(&locks, &room);
    }
    let counts = [granted_later, cancelled, refused, first];
    assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
}
