//! Group commit: every waiter is served, and none is too early.

use std::ops::Range;
use std::sync::{Arc, Weak};

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use super::{Bytes, FRAME, Model, THREE, TWO, explore};
use crate::Lsn;
use crate::lockfree::group::{Announcement, GroupCommit, GroupWriter};

/// How a log goes about its writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// To the page cache; a second stage syncs.
    Cached,
    /// Durably.
    Direct,
    /// Durably, and fails.
    Failing,
    /// As `Failing`, and the group completes after all that sleep behind it have been woken.
    Hanging,
}

/// A log whose frames are complete once they are reserved, its page cache and its device.
struct Store {
    way: Way,
    writes: GroupCommit<Lsn>,
    syncs: GroupCommit<()>,
    appended: AtomicU64,
    written: AtomicU64,
    durable: AtomicU64,
    poisoned: AtomicBool,
    /// Write groups in flight.
    writing: AtomicU64,
    cache: Bytes,
    device: Bytes,
    /// The most that one write takes.
    piece: Lsn,
    me: Weak<Store>,
}

/// The first stage. Its state is the position: everything below is written.
struct WriteGroup<'a>(&'a Store);

impl GroupWriter for WriteGroup<'_> {
    type LeaderState = Lsn;

    fn write_group(&self, position: &mut Lsn, group: &mut Announcement<'_>) {
        let store = self.0;
        if store.poisoned.load(Ordering::Acquire) {
            return;
        }
        let appended = store.appended.load(Ordering::Acquire);
        let target = appended.min(*position + store.piece);
        if target == *position {
            return;
        }
        group.announce(target);
        let range = std::mem::replace(position, target)..target;
        store.writing.fetch_add(1, Ordering::AcqRel);
        match store.way {
            Way::Cached | Way::Direct => store.write(range),
            Way::Failing => store.poison(),
            Way::Hanging => store.hang(target),
        }
        store.writing.fetch_sub(1, Ordering::AcqRel);
    }

    fn completed(&self) {}

    fn give_way(&self) -> bool {
        crate::lockfree::sync::yield_now();
        true
    }
}

/// The second stage.
struct SyncGroup<'a>(&'a Store);

impl GroupWriter for SyncGroup<'_> {
    type LeaderState = ();

    fn write_group(&self, (): &mut (), group: &mut Announcement<'_>) {
        let store = self.0;
        let complete = store.appended.load(Ordering::Acquire);
        let over = || store.poisoned.load(Ordering::Acquire);
        while store.written.load(Ordering::Acquire) < complete
            && store.writes.lead_next(&WriteGroup(store), over)
        {}
        let (from, to) = (
            store.durable.load(Ordering::Acquire),
            store.written.load(Ordering::Acquire),
        );
        if from == to || store.poisoned.load(Ordering::Acquire) {
            return;
        }
        group.announce(to);
        store.cache.check_all(from, to);
        (from..to)
            .step_by(FRAME as usize)
            .for_each(|lsn| store.device.write(lsn));
        store.durable.store(to, Ordering::Release);
    }

    fn completed(&self) {}

    fn give_way(&self) -> bool {
        crate::lockfree::sync::yield_now();
        true
    }
}

impl Store {
    fn new(way: Way, frames: usize, piece: Lsn) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            way,
            writes: GroupCommit::new(0),
            syncs: GroupCommit::new(()),
            appended: AtomicU64::new(0),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            writing: AtomicU64::new(0),
            cache: Bytes::new(frames),
            device: Bytes::new(frames),
            piece,
            me: me.clone(),
        })
    }

    fn append(&self) -> Lsn {
        self.appended.fetch_add(FRAME, Ordering::AcqRel) + FRAME
    }

    fn write(&self, range: Range<Lsn>) {
        let end = range.end;
        for lsn in range.step_by(FRAME as usize) {
            self.cache.write(lsn);
            if self.way == Way::Direct {
                self.device.write(lsn);
            }
        }
        self.written.store(end, Ordering::Release);
        if self.way == Way::Direct {
            self.durable.store(end, Ordering::Release);
        }
    }

    /// Fails once a waiter for durability and one for room sleep, or are about to.
    fn hang(&self, end: Lsn) {
        let me = self.me.upgrade().unwrap();
        let asleep = [
            run(&me, move |store| !store.wait(end)),
            run(&me, move |store| !store.wait_for_room(end)),
        ];
        self.poison();
        join(asleep);
    }

    /// Waits until everything below `end` is durable; `false` where the log was poisoned before.
    fn wait(&self, end: Lsn) -> bool {
        let done = || self.reached(&self.durable, end);
        let answer = match self.way {
            Way::Cached => self.syncs.wait(&SyncGroup(self), end, done),
            _ => self.writes.wait(&WriteGroup(self), end, done),
        };
        if answer {
            self.device.check_all(0, end);
        }
        answer
    }

    /// Waits until everything below `end` is written, as a commit at `Process` does over a private
    /// ring.
    fn wait_for_written(&self, end: Lsn) -> bool {
        let done = || self.reached(&self.written, end);
        let answer = self.writes.wait(&WriteGroup(self), end, done);
        if answer {
            self.cache.check_all(0, end);
        }
        answer
    }

    /// The same for an append to a full ring.
    fn wait_for_room(&self, end: Lsn) -> bool {
        let done = || self.reached(&self.written, end);
        let answer = self.writes.wait_for_room(&WriteGroup(self), done);
        if answer {
            self.cache.check_all(0, end);
        }
        answer
    }

    fn reached(&self, mark: &AtomicU64, end: Lsn) -> Option<bool> {
        match (
            mark.load(Ordering::Acquire) >= end,
            self.poisoned.load(Ordering::Acquire),
        ) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }

    fn commit(&self) -> bool {
        self.wait(self.append())
    }

    fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
        self.writes.wake_all();
        self.syncs.wake_all();
    }
}

/// Runs `work` on a thread of its own; it must come out true.
fn run(store: &Arc<Store>, work: impl FnOnce(&Store) -> bool + 'static) -> thread::JoinHandle<()> {
    let store = Arc::clone(store);
    thread::spawn(move || assert!(work(&store)))
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// No bound on what one write takes.
const ALL: Lsn = Lsn::MAX / 2;

/// `waiters` threads, the caller among them, commit a frame each.
fn commit_all(way: Way, waiters: usize, piece: Lsn) {
    let store = Store::new(way, waiters, piece);
    let others: Vec<_> = (1..waiters).map(|_| run(&store, Store::commit)).collect();
    assert!(store.commit());
    join(others);
}

#[test]
fn two_waiters_are_both_served_and_never_early() {
    explore("group commit, 2 waiters", THREE, || {
        commit_all(Way::Direct, 2, ALL)
    });
}

#[test]
fn three_waiters_are_all_served_and_never_early() {
    explore("group commit, 3 waiters", TWO, || commit_all(Way::Direct, 3, ALL));
}

#[test]
fn waiters_of_the_next_group_are_served_by_the_next_write() {
    explore("group commit, 2 waiters, one frame per write", THREE, || {
        commit_all(Way::Direct, 2, FRAME);
    });
    explore("group commit, 3 waiters, one frame per write", Some(1), || {
        commit_all(Way::Direct, 3, FRAME);
    });
}

#[test]
fn two_waiters_for_a_sync_are_both_served_and_never_early() {
    explore("write and sync, 2 waiters", THREE, || {
        commit_all(Way::Cached, 2, ALL)
    });
}

#[test]
fn three_waiters_for_a_sync_are_all_served_and_never_early() {
    explore("write and sync, 3 waiters", TWO, || {
        commit_all(Way::Cached, 3, ALL)
    });
}

#[test]
fn waiters_for_a_sync_are_served_by_writes_of_one_frame() {
    explore("write and sync, 2 waiters, one frame per write", THREE, || {
        commit_all(Way::Cached, 2, FRAME);
    });
}

#[test]
fn one_that_waits_for_the_second_of_two_writes_is_served() {
    explore("group commit, a waiter for two writes", THREE, || {
        let store = Store::new(Way::Direct, 2, FRAME);
        let ends = [store.append(), store.append()];
        let first = run(&store, move |store| store.wait(ends[0]));
        assert!(store.wait(ends[1]));
        join([first]);
    });
}

/// Two waiters for one group, and a third thread.
fn two_of_a_group_and(third: impl FnOnce(&Store, Lsn) -> bool + 'static) {
    let store = Store::new(Way::Direct, 2, ALL);
    let end = store.append();
    let others = [
        run(&store, move |store| store.wait(end)),
        run(&store, move |store| third(store, end)),
    ];
    assert!(store.wait(end));
    join(others);
}

#[test]
fn three_waiters_of_one_group_are_all_served() {
    explore("group commit, 3 waiters of one group", TWO, || {
        two_of_a_group_and(Store::wait);
    });
}

#[test]
fn a_waiter_that_is_served_wakes_the_next_group_all_the_same() {
    explore(
        "group commit, 2 waiters of one group and a committer",
        TWO,
        || {
            two_of_a_group_and(|store, _| store.commit());
        },
    );
}

#[test]
fn what_is_done_alone_meets_no_group() {
    explore("group commit, a group and one alone", THREE, || {
        let store = Store::new(Way::Direct, 1, FRAME);
        let waiter = run(&store, Store::commit);
        store
            .writes
            .alone(|| assert_eq!(store.writing.load(Ordering::Acquire), 0));
        join([waiter]);
    });
}

/// A waiter for `Process` and two for `Disk` commit a frame each, over a private ring.
fn commit_at_two_levels(piece: Lsn) {
    let store = Store::new(Way::Cached, 3, piece);
    let others = [
        run(&store, |store| store.wait_for_written(store.append())),
        run(&store, Store::commit),
    ];
    assert!(store.commit());
    join(others);
}

#[test]
fn waiters_of_two_levels_are_all_served() {
    explore("write and sync, waiters of two levels", TWO, || {
        commit_at_two_levels(ALL);
    });
}

#[test]
fn waiters_of_two_levels_are_all_served_by_writes_of_one_frame() {
    explore(
        "write and sync, waiters of two levels, one frame per write",
        Some(1),
        || {
            commit_at_two_levels(FRAME);
        },
    );
}

#[test]
fn a_writer_and_a_sync_and_poison_leave_no_sleeper() {
    explore("write and sync, waiters of two levels and poison", TWO, || {
        let store = Store::new(Way::Cached, 2, ALL);
        let ends = [store.append(), store.append()];
        // Each gets an answer either way.
        let waiter = run(&store, move |store| {
            store.wait(ends[0]);
            true
        });
        let writer = run(&store, move |store| {
            store.wait_for_written(ends[1]);
            true
        });
        store.poison();
        join([waiter, writer]);
    });
}

#[test]
fn a_group_that_fails_is_reported_to_all_waiters() {
    explore("group commit, a group that fails and 2 waiters", THREE, || {
        let store = Store::new(Way::Failing, 2, FRAME);
        let ends = [store.append(), store.append()];
        let waiter = run(&store, move |store| !store.wait(ends[0]));
        assert!(!store.wait(ends[1]));
        join([waiter]);
    });
}

#[test]
fn poison_wakes_the_sleepers_behind_a_group_that_hangs() {
    explore(
        "group commit, poison under a group that hangs, 2 waiters",
        THREE,
        || {
            let store = Store::new(Way::Hanging, 1, ALL);
            assert!(!store.wait(store.append()));
        },
    );
}

#[test]
fn a_waiter_for_room_is_woken_by_the_group_of_another() {
    for (name, way) in [
        ("group commit, a room waiter and a waiter", Way::Direct),
        ("write and sync, a room waiter and a waiter", Way::Cached),
    ] {
        explore(name, TWO, move || {
            let store = Store::new(way, 1, ALL);
            let end = store.append();
            let room = run(&store, move |store| store.wait_for_room(end));
            assert!(store.wait(end));
            join([room]);
        });
    }
}

#[test]
fn two_that_wait_for_room_and_a_waiter_are_all_served() {
    explore("group commit, 2 room waiters and a waiter", TWO, || {
        let store = Store::new(Way::Direct, 2, FRAME);
        let ends = [store.append(), store.append()];
        let rooms = ends.map(|end| run(&store, move |store| store.wait_for_room(end)));
        assert!(store.wait(ends[0]));
        join(rooms);
    });
}

/// A log whose completion boundary decides how far a group goes, and its device.
struct Bounded {
    writes: GroupCommit<Lsn>,
    log: Arc<Model>,
    durable: AtomicU64,
    device: Bytes,
}

impl GroupWriter for Bounded {
    type LeaderState = Lsn;

    fn write_group(&self, position: &mut Lsn, group: &mut Announcement<'_>) {
        let target = self.log.boundary();
        if target > *position {
            self.log.bytes.check_all(*position, target);
            group.announce(target);
            (std::mem::replace(position, target)..target)
                .step_by(FRAME as usize)
                .for_each(|lsn| self.device.write(lsn));
            self.durable.store(target, Ordering::Release);
        }
    }

    fn completed(&self) {}

    fn give_way(&self) -> bool {
        crate::lockfree::sync::yield_now();
        true
    }
}

impl Bounded {
    fn commit(&self) {
        let end = self.log.append(&self.log.register());
        self.writes.wait(self, end, || {
            (self.durable.load(Ordering::Acquire) >= end).then_some(())
        });
        self.device.check_all(0, end);
    }
}

#[test]
fn group_commit_acknowledges_only_frames_below_the_boundary() {
    explore("group commit over the boundary, 2 committers", THREE, || {
        let bounded = Arc::new(Bounded {
            writes: GroupCommit::new(0),
            log: Model::new(2, 2),
            durable: AtomicU64::new(0),
            device: Bytes::new(2),
        });
        let other = {
            let bounded = Arc::clone(&bounded);
            thread::spawn(move || bounded.commit())
        };
        bounded.commit();
        join([other]);
    });
}
