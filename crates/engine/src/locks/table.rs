//! All locks of a store: the right to write a key, or to read it while no other owner writes it,
//! until the transaction ends.
//!
//! Each family has its locks in the order of keys, under one mutex (`family.rs` has the rules,
//! docs/design/decisions/0016 the reasons). A row is there only while it has a holder or a waiter.
//!
//! *Waiting.* A request that does not get its lock is repeated a few times and then queued, and a
//! later one does not overtake it there. Locks are handed over: a release grants them to those
//! that wait, under the same mutex.
//!
//! *Deadlocks* are detected when an owner begins to wait. An owner may be queued
//! behind one that waits for it: the queue is fair, and does not know what else its members hold.
//! So an owner that closes a cycle first gives up fairness: it waits for holders only. Where that
//! closes a cycle too, it is the victim.
//!
//! Order of the mutexes: the graph of waits, then a family's, then an owner's.
//!
//! # Deadlocks
//!
//! A deadlock is a cycle of owners that wait for each other. An owner that begins to wait joins its
//! queue, adds itself to the graph and follows the waits from its blockers on, all under the
//! graph's mutex. The lock table computes the blockers of each waiting owner anew: those that hold
//! what it asks for, or what those before it in the queue ask for, and the ranges that it is queued
//! behind. A cycle is closed by the last of its members that begins to wait. That one sees all
//! others, which are in the graph already, so it finds the cycle. Where it waits behind others only
//! for fairness it goes first then, which may end the cycle; else it is the victim.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use collie_io::{Clock, Opener, RealClock};
use parking_lot::{Mutex, MutexGuard};

use crate::Key;
use crate::locks::entry::LockCapacity;
use crate::locks::family::{Answer, FamilyLocks, Granted, Lock, Queued, Request, Target};
use crate::locks::owner::Owner;

/// Families that have a mutex in common are few.
const SHARDS: usize = 64;
/// So many families without a lock each shard keeps, which will soon have some again.
const KEPT_EMPTY: usize = 4;

/// How often a lock is asked for before its queue is joined: first with pauses that double from
/// [`SHORTEST_SPIN`] on, then with a yield of the processor. Most locks are held for a few
/// microseconds, and waking a thread takes many times as long. An owner that was queued at once
/// would be granted the row asleep, and all behind it would wait until it runs
/// (docs/design/decisions/0006).
const ASKED_SPINNING: u32 = 4;
const ASKED_YIELDING: u32 = 14;
const SHORTEST_SPIN: u32 = 8;
/// A row in a range is asked for no longer than this. Ranges are held for long, and beside threads
/// that read them a yield takes as long as their slices.
const ASKED_IN_RANGE: Duration = Duration::from_millis(1);
/// Of the table so large a part is taken by the rows of one family and one owner, at most: more are
/// locked as a range, or else a large commit would fail, and the writes of others beside it.
const AS_ROWS: usize = 8;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(Mutex<BTreeMap<u32, Box<FamilyLocks>>>);

/// Waits before a lock is asked for again.
fn pause(round: u32) {
    if round < ASKED_SPINNING {
        (0..SHORTEST_SPIN << round).for_each(|_| std::hint::spin_loop());
    } else {
        std::thread::yield_now();
    }
}

/// How long a request for a lock waits.
struct Deadline {
    timeout: Duration,
    began: u64,
}

impl Deadline {
    fn new(timeout: Duration) -> Self {
        let began = RealClock.monotonic();
        Self { timeout, began }
    }

    fn waited_ns(&self) -> u64 {
        RealClock.monotonic().saturating_sub(self.began)
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns())
    }

    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.waited())
    }
}

/// Why a lock was denied.
#[derive(Debug)]
pub(crate) enum Denied {
    /// The wait timed out.
    Timeout { waited: Duration },
    /// The wait would never end: each of these waits for the next, and the last for the first.
    Deadlock(Vec<WaitEdge>),
    /// The table is full.
    TooMany { limit: usize },
}

/// Counters of requests. On cache lines of their own: every request reads the rest of the table.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LockCounters {
    pub(crate) waits: AtomicU64,
    pub(crate) wait_ns: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) deadlocks: AtomicU64,
    /// How long owners held locks, from their first one on, and how many owners.
    pub(crate) held_ns: AtomicU64,
    pub(crate) held: AtomicU64,
}

/// All locks of a store.
#[derive(Debug)]
pub(crate) struct LockTable {
    shards: Box<[Padded]>,
    room: LockCapacity,
    graph: Graph,
    /// Set when the first transaction begins, or the first rows are locked without one, and never
    /// reset. Plain writes check it while they have an appender (see `Store::appender`) and take
    /// row locks too from then on.
    in_use: AtomicBool,
    first_use: Once,
    next_owner: AtomicU64,
    opener: Opener,
    pub(crate) counters: LockCounters,
}

/// The answer to an owner that does not wait.
enum Taken {
    Granted(Granted),
    NotFree { is_range: bool },
}

/// The answer to an owner that is ready to wait.
enum Asked {
    Granted(Granted),
    Queued(Queued),
}

impl LockTable {
    /// A table for `limit` locks.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Padded::default()).collect(),
            room: LockCapacity::new(limit),
            graph: Graph::default(),
            in_use: AtomicBool::new(false),
            first_use: Once::new(),
            next_owner: AtomicU64::new(1),
            opener: Opener::here(),
            counters: LockCounters::default(),
        }
    }

    /// Whether this is the process that made it, and not a child of it.
    pub(crate) fn is_here(&self) -> bool {
        self.opener.is_here()
    }

    /// Whether plain writes take locks. The caller has an appender.
    pub(crate) fn in_use(&self) -> bool {
        // Relaxed: the thread that sets it takes every appender once after that, and the appenders'
        // mutexes make it visible to those who take them later.
        self.in_use.load(Ordering::Relaxed)
    }

    /// Makes plain writes take locks. `wait_until_applied` waits until the writes that did not see
    /// this are applied; this returns, for every caller, after that.
    pub(crate) fn enable(&self, wait_until_applied: impl FnOnce()) {
        self.first_use.call_once(|| {
            self.in_use.store(true, Ordering::Relaxed);
            wait_until_applied();
        });
    }

    pub(crate) fn owner(&self, name: &str) -> Arc<Owner> {
        // Relaxed: only uniqueness counts.
        let id = self.next_owner.fetch_add(1, Ordering::Relaxed);
        Arc::new(Owner::new(id, name))
    }

    /// The row that an owner waits for; the key is empty where that is a range.
    pub(crate) fn waits_for(&self, owner: u64) -> Option<(u32, Key)> {
        self.graph.waits_for(owner)
    }

    /// Rows that are held or waited for, and ranges.
    pub(crate) fn entries(&self) -> usize {
        self.room.used()
    }

    /// Does `work` with a family's locks, under their mutex.
    pub(super) fn with<T>(&self, family: u32, work: impl FnOnce(&mut FamilyLocks, &LockCapacity) -> T) -> T {
        let mut families = self.shards[family as usize % SHARDS].0.lock();
        let locks = families.entry(family).or_default();
        let done = work(locks, &self.room);
        if locks.is_empty() && families.len() > KEPT_EMPTY {
            families.remove(&family);
        }
        done
    }

    /// More rows of a family than these an owner is to lock as a range.
    pub(crate) fn most_rows(&self) -> usize {
        (self.room.limit() / AS_ROWS).max(1)
    }

    fn too_many(&self) -> Denied {
        Denied::TooMany {
            limit: self.room.limit(),
        }
    }

    /// Asks without waiting.
    fn take(&self, request: Request<'_>, family: u32, target: Target<'_>) -> Result<Taken, Denied> {
        match self.with(family, |locks, room| locks.take(request, target, room)) {
            Answer::Granted(granted) => Ok(Taken::Granted(granted)),
            Answer::NotFree { is_range } => Ok(Taken::NotFree { is_range }),
            Answer::Full => Err(self.too_many()),
        }
    }

    /// Takes a lock if it is free and there is room for it.
    pub(super) fn lock_if_free(
        &self,
        request: Request<'_>,
        family: u32,
        target: Target<'_>,
    ) -> Option<Granted> {
        match self.take(request, family, target) {
            Ok(Taken::Granted(granted)) => Some(granted),
            Ok(Taken::NotFree { .. }) | Err(_) => None,
        }
    }

    /// Takes a lock, or waits for it until `timeout` has passed.
    pub(super) fn lock(
        &self,
        request: Request<'_>,
        family: u32,
        target: Target<'_>,
        timeout: Duration,
    ) -> Result<Granted, Denied> {
        if let Taken::Granted(granted) = self.take(request, family, target)? {
            return Ok(granted);
        }
        self.counters.waits.fetch_add(1, Ordering::Relaxed);
        let deadline = Deadline::new(timeout);
        let locked = self.wait_for(request, family, target, &deadline);
        self.counters
            .wait_ns
            .fetch_add(deadline.waited_ns(), Ordering::Relaxed);
        locked
    }

    /// Asks again for a lock that was not free, and in the end waits in its queue.
    fn wait_for(
        &self,
        request: Request<'_>,
        family: u32,
        target: Target<'_>,
        deadline: &Deadline,
    ) -> Result<Granted, Denied> {
        // A range looks at all rows in it each time.
        let rounds = match target {
            Target::Row(_) => ASKED_SPINNING + ASKED_YIELDING,
            Target::Range(_) => 0,
        };
        for round in 0..rounds {
            pause(round);
            let is_range = match self.take(request, family, target)? {
                Taken::Granted(granted) => return Ok(granted),
                Taken::NotFree { is_range } => is_range,
            };
            let longest = if is_range {
                ASKED_IN_RANGE
            } else {
                deadline.timeout
            };
            // Other threads may have had the processor for long.
            if round >= ASKED_SPINNING && deadline.waited() >= deadline.timeout.min(longest) {
                break;
            }
        }
        let mut waits = self.graph.lock();
        let asked = self.with(family, |locks, room| match locks.take(request, target, room) {
            Answer::Granted(granted) => Some(Asked::Granted(granted)),
            Answer::NotFree { .. } => locks.join(request, target, room).map(Asked::Queued),
            Answer::Full => None,
        });
        let queued = match asked.ok_or_else(|| self.too_many())? {
            Asked::Granted(granted) => return Ok(granted),
            Asked::Queued(queued) => queued,
        };
        let cycle = self.enter(&mut waits, request.owner, family, &queued.lock);
        drop(waits);
        self.wait(request.owner, family, queued, cycle, deadline)
    }

    /// Enters an owner that has joined a queue in the graph. Returns the cycle that its wait closes,
    /// also where it waits for holders only.
    fn enter(
        &self,
        waits: &mut Waits<'_>,
        owner: &Arc<Owner>,
        family: u32,
        lock: &Lock,
    ) -> Option<Vec<WaitEdge>> {
        let blockers =
            |link: &WaitEdge| self.with(link.family, |locks, _| locks.blockers(&link.owner, &link.lock));
        waits.add(WaitEdge {
            owner: Arc::clone(owner),
            family,
            lock: lock.clone(),
        });
        waits.cycle(owner, blockers)?;
        self.with(family, |locks, room| locks.go_first(owner, lock, room));
        let cycle = waits.cycle(owner, blockers)?;
        waits.remove(owner);
        Some(cycle)
    }

    /// Waits in the queue, unless that closes a cycle.
    fn wait(
        &self,
        owner: &Arc<Owner>,
        family: u32,
        queued: Queued,
        cycle: Option<Vec<WaitEdge>>,
        deadline: &Deadline,
    ) -> Result<Granted, Denied> {
        let Queued { lock, is_new } = queued;
        let denied = match cycle {
            Some(cycle) => Some(Denied::Deadlock(cycle)),
            None if owner.wait(deadline.left()) => None,
            None => Some(Denied::Timeout {
                waited: deadline.timeout,
            }),
        };
        self.graph.lock().remove(owner);
        let granted = match is_new {
            true => Granted::New(lock.clone()),
            false => Granted::Before,
        };
        let denied = self.with(family, |locks, room| {
            // Granted under this mutex, perhaps after the wait ended: then it is held.
            let is_granted = owner.take_grant();
            let denied = denied.filter(|_| !is_granted)?;
            locks.cancel(owner, &lock, room);
            Some(denied)
        });
        let Some(denied) = denied else {
            return Ok(granted);
        };
        let counter = match denied {
            Denied::Deadlock(_) => &self.counters.deadlocks,
            _ => &self.counters.timeouts,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Err(denied)
    }
}

/// An owner, and what it waits for.
#[derive(Debug, Clone)]
pub(crate) struct WaitEdge {
    pub(crate) owner: Arc<Owner>,
    pub(crate) family: u32,
    pub(super) lock: Lock,
}

impl WaitEdge {
    /// The row that it waits for; empty where that is a range.
    pub(crate) fn key(&self) -> Key {
        match &self.lock {
            Lock::Row(key) => key.clone(),
            Lock::Range(_) => Key::from(&[][..]),
        }
    }
}

/// The owners that wait, by id.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    waits: Mutex<HashMap<u64, WaitEdge>>,
}

/// The graph, whose mutex is held.
pub(super) struct Waits<'a>(MutexGuard<'a, HashMap<u64, WaitEdge>>);

impl Graph {
    pub(super) fn lock(&self) -> Waits<'_> {
        Waits(self.waits.lock())
    }

    /// The family and the row that an owner waits for; the key is empty where that is a range.
    pub(super) fn waits_for(&self, owner: u64) -> Option<(u32, Key)> {
        let waits = self.waits.lock();
        waits.get(&owner).map(|link| (link.family, link.key()))
    }
}

impl Waits<'_> {
    /// Notes what an owner waits for, in whose queue it is already.
    pub(super) fn add(&mut self, link: WaitEdge) {
        self.0.insert(link.owner.id, link);
    }

    /// Removes an owner that does not wait any more.
    pub(super) fn remove(&mut self, owner: &Owner) {
        self.0.remove(&owner.id);
    }

    /// The cycle that an owner's wait closes, if it does, beginning with the owner. `blockers`
    /// returns the owners that block a waiting owner.
    pub(super) fn cycle(
        &self,
        owner: &Owner,
        blockers: impl Fn(&WaitEdge) -> Vec<Arc<Owner>>,
    ) -> Option<Vec<WaitEdge>> {
        let (waits, first) = (&self.0, owner.id);
        // The owner from which each was reached.
        let mut reached: HashMap<u64, u64> = HashMap::new();
        let mut left = vec![first];
        while let Some(id) = left.pop() {
            // An owner that does not wait will release its locks.
            let Some(waiting) = waits.get(&id) else { continue };
            for blocker in blockers(waiting) {
                if blocker.id == first {
                    return Some(ring(waits, &reached, id, first));
                }
                if let std::collections::hash_map::Entry::Vacant(entry) = reached.entry(blocker.id) {
                    entry.insert(id);
                    left.push(blocker.id);
                }
            }
        }
        None
    }
}

/// The path from `first` to `last`.
fn ring(waits: &HashMap<u64, WaitEdge>, reached: &HashMap<u64, u64>, last: u64, first: u64) -> Vec<WaitEdge> {
    let mut ids = vec![last];
    while let Some(&id) = ids.last()
        && id != first
        && let Some(&before) = reached.get(&id)
    {
        ids.push(before);
    }
    ids.iter().rev().filter_map(|id| waits.get(id).cloned()).collect()
}
