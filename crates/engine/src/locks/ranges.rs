//! The ranges of a family: asking for them, waiting and releasing.

use std::sync::Arc;

use crate::Key;
use crate::key::{Bounds, is_empty};
use crate::locks::cover::overlap;
use crate::locks::entry::{InTheWay, LockCapacity, Mode, Place, Range, RangeState, Waiting};
use crate::locks::family::{Answer, FamilyLocks, Granted, Lock, Queued, Request};
use crate::locks::owner::Owner;

/// A request for a range, at its place in the queue.
#[derive(Clone, Copy)]
struct RangeRequest<'a> {
    owner: &'a Owner,
    bounds: &'a Bounds,
    mode: Mode,
    place: Place,
}

impl FamilyLocks {
    pub(super) fn take_range(
        &mut self,
        request: Request<'_>,
        bounds: &Arc<Bounds>,
        room: &LockCapacity,
    ) -> Answer {
        let Request { owner, mode } = request;
        let within = self.cover.within(bounds);
        let mut ranges = within.iter().filter_map(|number| self.ranges.get(number));
        if ranges.any(|range| {
            range.is_of(owner) && range.is_held() && range.mode >= mode && range.bounds == *bounds
        }) {
            return Answer::Granted(Granted::Before);
        }
        let asked = RangeRequest {
            owner,
            bounds,
            mode,
            place: Place::last(false),
        };
        let mut is_free = true;
        self.each_in_the_way(asked, |_| {
            is_free = false;
            false
        });
        if !is_free {
            return Answer::NotFree { is_range: true };
        }
        if !room.take() {
            return Answer::Full;
        }
        let number = self.add_range(request, bounds, RangeState::Held);
        Answer::Granted(Granted::New(Lock::Range(number)))
    }

    pub(super) fn join_range(
        &mut self,
        request: Request<'_>,
        bounds: &Arc<Bounds>,
        arrival: u64,
        room: &LockCapacity,
    ) -> Option<Queued> {
        if !room.take() {
            return None;
        }
        let place = Place {
            arrival,
            is_first: false,
        };
        let in_the_way = self.in_the_way(RangeRequest {
            owner: request.owner,
            bounds,
            mode: request.mode,
            place,
        });
        let number = self.add_range(
            request,
            bounds,
            RangeState::Waiting(Waiting { place, in_the_way }),
        );
        self.waiting.push(number);
        Some(Queued {
            lock: Lock::Range(number),
            is_new: true,
        })
    }

    fn add_range(&mut self, request: Request<'_>, bounds: &Arc<Bounds>, state: RangeState) -> u64 {
        let number = self.next_range;
        self.next_range += 1;
        self.cover.add(number, bounds);
        self.exclusive += usize::from(request.mode == Mode::Exclusive);
        let range = Range {
            owner: Arc::clone(request.owner),
            mode: request.mode,
            bounds: Arc::clone(bounds),
            state,
        };
        self.ranges.insert(number, range);
        number
    }

    /// Removes a range that is held or waited for, and serves those that it was in the way of.
    pub(super) fn remove_range(&mut self, number: u64, room: &LockCapacity) {
        let Some(gone) = self.ranges.remove(&number) else {
            return;
        };
        self.cover.remove(number, &gone.bounds);
        self.waiting.retain(|waiting| *waiting != number);
        self.exclusive -= usize::from(gone.mode == Mode::Exclusive);
        room.give();
        for other in &self.waiting {
            if let Some(range) = self.ranges.get_mut(other)
                && let RangeState::Waiting(waiting) = &mut range.state
                && gone.is_in_the_way(&range.owner, range.mode, waiting.place)
                && overlap(&gone.bounds, &range.bounds)
            {
                waiting.in_the_way.remove(&gone.owner);
                self.is_ready |= waiting.in_the_way.is_empty();
            }
        }
        if !is_empty(&gone.bounds) {
            let bounds = (gone.bounds.0.as_ref(), gone.bounds.1.as_ref());
            let waited_for: Vec<Key> = self.waited_for.range::<Key, _>(bounds).cloned().collect();
            for key in waited_for {
                self.serve_row(&key, room);
            }
        }
        self.serve_ranges();
    }

    /// Grants the ranges that nothing is in the way of any more.
    pub(super) fn serve_ranges(&mut self) {
        if !std::mem::take(&mut self.is_ready) {
            return;
        }
        let is_ready = |locks: &Self, number: &u64| match locks.ranges.get(number).map(|range| &range.state) {
            Some(RangeState::Waiting(waiting)) => waiting.in_the_way.is_empty(),
            _ => false,
        };
        while let Some(at) = self.waiting.iter().position(|number| is_ready(self, number)) {
            let number = self.waiting.remove(at);
            let Some(mut range) = self.ranges.remove(&number) else {
                continue;
            };
            let RangeState::Waiting(Waiting { place, .. }) =
                std::mem::replace(&mut range.state, RangeState::Held)
            else {
                continue;
            };
            range.owner.grant();
            // It may have passed others, which wait for it now.
            for other in &self.waiting {
                if let Some(other) = self.ranges.get_mut(other)
                    && let RangeState::Waiting(waiting) = &mut other.state
                    && !waiting.place.is_behind(place)
                    && range.is_in_the_way(&other.owner, other.mode, waiting.place)
                    && overlap(&range.bounds, &other.bounds)
                {
                    waiting.in_the_way.add(&range.owner);
                }
            }
            self.ranges.insert(number, range);
        }
    }

    pub(super) fn range_goes_first(&mut self, number: u64) {
        let Some(range) = self.ranges.get(&number) else {
            return;
        };
        let RangeState::Waiting(waiting) = &range.state else {
            return;
        };
        let place = Place {
            is_first: true,
            ..waiting.place
        };
        let in_the_way = self.in_the_way(RangeRequest {
            owner: &range.owner,
            bounds: &range.bounds,
            mode: range.mode,
            place,
        });
        self.is_ready |= in_the_way.is_empty();
        if let Some(range) = self.ranges.get_mut(&number) {
            range.state = RangeState::Waiting(Waiting { place, in_the_way });
        }
    }

    fn in_the_way(&self, asked: RangeRequest<'_>) -> InTheWay {
        let mut found = InTheWay::default();
        self.each_in_the_way(asked, |owner| {
            found.add(owner);
            true
        });
        found
    }

    /// Calls `each` with the owners that a request for a range waits for, once for each of their
    /// locks and requests, until it returns `false`.
    fn each_in_the_way(&self, asked: RangeRequest<'_>, mut each: impl FnMut(&Arc<Owner>) -> bool) {
        let RangeRequest {
            owner,
            bounds,
            mode,
            place,
        } = asked;
        if is_empty(bounds) {
            return;
        }
        for (key, row) in self.rows.range::<Key, _>((bounds.0.as_ref(), bounds.1.as_ref())) {
            let place = match row.queue.is_empty() {
                true => place,
                false => self.place_over(owner, place, key, self.cover.at(key)),
            };
            if !row.in_the_way(owner, mode, place).iter().all(&mut each) {
                return;
            }
        }
        if mode == Mode::Exclusive || self.exclusive > 0 {
            let within = self.cover.within(bounds);
            let ranges = within.iter().filter_map(|number| self.ranges.get(number));
            let mut in_the_way = ranges.filter(|range| range.is_in_the_way(owner, mode, place));
            in_the_way.all(|range| each(&range.owner));
        }
    }
}
