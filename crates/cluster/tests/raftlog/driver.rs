//! A program of random operations on a node's logs, beside a plain map of what they should hold.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use collie_cluster::testing::{Entry, EntryId, LeaderId, NodeStore, ReplicaId, ReplicaLog, StoreError, Vote};
use collie_cluster::{Layout, NodeLogOptions, NodeStoreOptions};
use collie_log::{Level, LogError, LogOptions, RingMode, WritePath};
use collie_sim::{Rng, SimDevice, VOLATILE_DIR};

use crate::plain::{Here, Known, Plain, found};

pub(crate) const GROUPS: u64 = 8;
/// With what a live replica's log is kept short enough to compare it often.
const ENTRIES_MAX: usize = 40;

/// How a node keeps its logs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) layout: Layout,
    pub(crate) shared_ring: bool,
    pub(crate) direct: bool,
    pub(crate) cache_bytes: u64,
    pub(crate) log_limit: u64,
    pub(crate) free_min: u64,
    /// Whether replicas move to other logs meanwhile.
    pub(crate) moves: bool,
}

impl Setup {
    /// With a log that does not fill.
    pub(crate) const fn plain(layout: Layout) -> Self {
        Self {
            layout,
            shared_ring: false,
            direct: false,
            cache_bytes: 1 << 20,
            log_limit: 1 << 30,
            free_min: 0,
            moves: false,
        }
    }

    pub(crate) fn random(layout: Layout, rng: &mut Rng) -> Self {
        Self {
            layout,
            shared_ring: rng.coin(),
            direct: rng.coin(),
            cache_bytes: if rng.coin() { 2_000 } else { 1 << 20 },
            log_limit: if rng.coin() { 200 << 10 } else { 1 << 30 },
            free_min: 0,
            moves: false,
        }
    }

    pub(crate) fn open(&self, device: &SimDevice) -> Result<NodeStore, StoreError> {
        let log = LogOptions {
            device: Arc::new(device.clone()),
            ring: match self.shared_ring {
                true => RingMode::Shared {
                    dir: VOLATILE_DIR.into(),
                },
                false => RingMode::Private,
            },
            ring_bytes: 64 << 10,
            segment_bytes: 32 << 10,
            max_workers: 8,
            reserve_bytes: Some(0),
            write_path: match self.direct {
                true => WritePath::Direct,
                false => WritePath::FdataSync,
            },
            threads: false,
            ..LogOptions::default()
        };
        let shared = NodeLogOptions {
            log,
            log_limit: Some(self.log_limit),
            free_min: self.free_min,
            cache_bytes: self.cache_bytes,
            ..NodeLogOptions::default()
        };
        let options = NodeStoreOptions {
            disks: self.disks(),
            layout: self.layout.into(),
            private: shared.clone(),
            shared,
            ..NodeStoreOptions::default()
        };
        NodeStore::open(options, Box::new(|_| {}))
    }

    fn disks(&self) -> Vec<PathBuf> {
        let disks = if self.moves || self.layout == Layout::PerDisk {
            2
        } else {
            1
        };
        (0..disks).map(|disk| format!("/disk{disk}").into()).collect()
    }
}

/// What was known at one moment of the program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moment {
    /// Per replica, the state from which on it is acknowledged.
    acknowledged: BTreeMap<ReplicaId, usize>,
    /// The last state that may be there.
    begun: usize,
}

/// What became of the program so far; a crash image is judged by it.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The states that the node went through, one for each frame.
    states: Vec<Plain>,
    acknowledged: BTreeMap<ReplicaId, usize>,
    moments: Vec<Moment>,
}

impl History {
    /// The number of this moment.
    pub(crate) fn now(&mut self) -> u64 {
        self.moments.push(Moment {
            acknowledged: self.acknowledged.clone(),
            begun: self.states.len() - 1,
        });
        self.moments.len() as u64 - 1
    }

    /// Whether a node may hold this after a crash at a moment: of each replica a state that was
    /// acknowledged, or one after it; in one log, of all replicas of one moment.
    pub(crate) fn judge(&self, setup: &Setup, moment: u64, found: &Plain) -> Result<(), String> {
        let is_one_log = setup.layout == Layout::Shared && !setup.moves;
        let moment = &self.moments[usize::try_from(moment).unwrap()];
        let acknowledged = |id: &ReplicaId| moment.acknowledged.get(id).copied().unwrap_or(0);
        if is_one_log {
            let from = moment.acknowledged.values().copied().max().unwrap_or(0);
            let states = &self.states[from..=moment.begun];
            if states.iter().any(|state| state == found) {
                return Ok(());
            }
        }
        let all = self.states.last().into_iter().flat_map(Plain::keys);
        for id in all.chain(found.keys()) {
            let states = &self.states[acknowledged(id)..=moment.begun];
            if !states.iter().any(|state| state.get(id) == found.get(id)) {
                return Err(format!(
                    "replica {id} is {:?}\n  acknowledged {:?}\n  begun {:?}",
                    found.get(id),
                    states.first().and_then(|state| state.get(id)),
                    states.last().and_then(|state| state.get(id))
                ));
            }
        }
        match is_one_log {
            true => Err("each replica is as it was at some moment, but not all at the same".to_owned()),
            false => Ok(()),
        }
    }
}

type Moving = Pin<Box<dyn Future<Output = Result<bool, StoreError>>>>;

/// A node under way.
pub(crate) struct Node {
    pub(crate) setup: Setup,
    pub(crate) device: SimDevice,
    pub(crate) store: Arc<NodeStore>,
    /// The replica that moves to another log, and how.
    moving: RefCell<Option<(ReplicaId, Moving)>>,
    pub(crate) moved: RefCell<u64>,
    pub(crate) history: Arc<Mutex<History>>,
    /// By group, its replica on this node.
    replicas: Vec<ReplicaId>,
    pub(crate) highest: ReplicaId,
    term: u64,
}

impl Node {
    /// A node with one replica of each group.
    pub(crate) fn start(setup: Setup, device: SimDevice) -> Self {
        Self::start_at(setup, device, 0)
    }

    /// The same, with replicas whose ids are above `highest`.
    pub(crate) fn start_at(setup: Setup, device: SimDevice, highest: ReplicaId) -> Self {
        let mut node = Self::open(setup, device, Plain::new());
        node.highest = highest;
        for group in 0..GROUPS {
            node.create(group);
        }
        node
    }

    /// What is on the device, which holds `plain`.
    fn open(setup: Setup, device: SimDevice, plain: Plain) -> Self {
        let store = setup.open(&device).unwrap();
        Self {
            setup,
            store: Arc::new(store),
            moving: RefCell::default(),
            moved: RefCell::default(),
            device,
            history: Arc::new(Mutex::new(History {
                states: vec![plain],
                ..History::default()
            })),
            replicas: vec![0; GROUPS as usize],
            highest: 0,
            term: 1,
        }
    }

    /// The same node, after its process ended and left this device.
    fn again(self, device: SimDevice, plain: Plain) -> Self {
        self.device.kill();
        let mut node = Self::open(self.setup, device, plain);
        (node.highest, node.term) = (self.highest, self.term);
        for group in 0..GROUPS {
            let id = self.replicas[group as usize];
            node.replicas[group as usize] = id;
            // A replica may be gone whose creation, or removal, was under way.
            if !matches!(node.plain().get(&id), Some(Known::Here(_))) {
                node.create(group);
            }
        }
        node
    }

    pub(crate) fn plain(&self) -> Plain {
        self.history.lock().unwrap().states.last().cloned().unwrap()
    }

    pub(crate) fn replica(&self, id: ReplicaId) -> ReplicaLog {
        self.store.replica(id).unwrap()
    }

    /// Runs a future to its end; what it waits for is brought to the device by hand.
    pub(crate) fn drive<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        for _ in 0..1_000 {
            if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return done;
            }
            self.flush();
            self.go_on_moving();
        }
        panic!("it never ends");
    }

    /// Goes on with the move that is under way, if one is.
    fn go_on_moving(&self) {
        let mut moving = self.moving.borrow_mut();
        let Some((id, future)) = moving.as_mut() else {
            return;
        };
        let id = *id;
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            *moving = None;
            match done {
                Ok(is_elsewhere) => *self.moved.borrow_mut() += u64::from(is_elsewhere),
                Err(error) => {
                    let is_removed = self.plain().get(&id) == Some(&Known::Removed);
                    let is_given_up = matches!(error, StoreError::Log(LogError::Closed));
                    let is_full = matches!(error, StoreError::Full { .. });
                    assert!(
                        is_removed || is_full || is_given_up,
                        "replica {id} does not move: {error}"
                    );
                }
            }
        }
    }

    /// Begins to move a replica to where a layout has it, or goes on with the move under way.
    fn move_replica(&self, group: u64, rng: &mut Rng) {
        if self.moving.borrow().is_none() {
            let id = self.replicas[group as usize];
            let layouts = [Layout::Shared, Layout::PerDisk, Layout::Private];
            let (store, disk) = (Arc::clone(&self.store), (group % 2) as usize);
            store.set_layouts(layouts[rng.index(3)].into());
            // Now and then it is given up, which is seen before the last entries are copied.
            let goes_on = !rng.one_in(4);
            let moving = async move { store.move_replica(id, disk, &|| goes_on).await };
            *self.moving.borrow_mut() = Some((id, Box::pin(moving)));
        }
        self.go_on_moving();
    }

    /// Ends the move that is under way, and closes the logs.
    pub(crate) fn close(self) {
        for _ in 0..10_000 {
            if self.moving.borrow().is_none() {
                break;
            }
            self.flush();
            self.go_on_moving();
        }
        assert!(self.moving.borrow().is_none(), "it never ends");
        let store = Arc::into_inner(self.store);
        store.unwrap().close().unwrap();
    }

    pub(crate) fn flush(&self) {
        for log in self.store.logs() {
            // It may be closed that a replica has left.
            match log.log().flush(Level::Disk) {
                Err(LogError::Closed) if self.setup.moves => continue,
                flushed => flushed.unwrap(),
            };
            log.complete();
        }
    }

    /// Notes a state that is about to be.
    fn note(&self, plain: Plain) -> usize {
        let mut history = self.history.lock().unwrap();
        history.states.push(plain);
        history.states.len() - 1
    }

    fn acknowledge(&self, id: ReplicaId, state: usize) {
        acknowledge(&self.history, id, state);
    }

    /// Changes what should be of a replica, and returns the number of that state.
    fn change(&self, id: ReplicaId, change: impl FnOnce(&mut Here)) -> usize {
        let mut plain = self.plain();
        match plain.get_mut(&id) {
            Some(Known::Here(here)) => change(here),
            other => panic!("replica {id} is {other:?}"),
        }
        self.note(plain)
    }

    fn here(&self, id: ReplicaId) -> Here {
        match self.plain().get(&id) {
            Some(Known::Here(here)) => here.clone(),
            other => panic!("replica {id} is {other:?}"),
        }
    }

    fn create(&mut self, group: u64) {
        self.highest += 1;
        let id = self.highest;
        let mut plain = self.plain();
        plain.insert(id, Known::Here(Here::default()));
        let state = self.note(plain);
        let disk = match self.setup.layout {
            _ if self.setup.moves => (group % 2) as usize,
            Layout::PerDisk => (group % 2) as usize,
            _ => 0,
        };
        self.drive(self.store.create(group, id, disk)).unwrap();
        self.acknowledge(id, state);
        self.replicas[group as usize] = id;
    }

    fn remove(&mut self, group: u64) {
        let id = self.replicas[group as usize];
        let mut plain = self.plain();
        plain.insert(id, Known::Removed);
        let state = self.note(plain);
        let old = self.replica(id);
        self.drive(self.store.remove(group, id)).unwrap();
        self.acknowledge(id, state);
        let vote = Vote {
            leader: LeaderId { term: 1, replica: 1 },
            committed: false,
        };
        self.drive(old.save_vote(vote)).unwrap_err();
        let again = self.drive(self.store.create(group, id, 0)).unwrap_err();
        assert!(matches!(again, StoreError::Removed { .. }), "{again}");
        self.create(group);
    }

    /// One random operation; what became of it is checked now and then.
    pub(crate) fn step(&mut self, rng: &mut Rng) {
        let group = rng.below(GROUPS);
        let id = self.replicas[group as usize];
        let here = self.here(id);
        if here.entries.len() > ENTRIES_MAX {
            return self.purge(id, &here, rng);
        }
        if self.setup.moves && rng.one_in(3) {
            self.move_replica(group, rng);
        }
        match rng.below(100) {
            0..40 => self.append(id, &here, rng),
            40..50 => self.vote(id, rng),
            50..58 => self.truncate(id, &here, rng),
            58..66 => self.purge(id, &here, rng),
            66..70 => self.commit(id, &here, rng),
            70..76 => {
                self.drive(self.replica(id).rewrite(rng.coin())).unwrap();
            }
            76..78 => self.remove(group),
            78..83 => self.maintain(rng),
            83..93 => self.flush(),
            _ => self.read(id, &here, rng),
        }
    }

    fn append(&mut self, id: ReplicaId, here: &Here, rng: &mut Rng) {
        let mut index = here.last.map_or(0, |last| last.index + 1);
        let (mut entries, mut state) = (Vec::new(), 0);
        // Each leader's entries are a frame.
        for _ in 0..=rng.below(2) {
            self.term += rng.below(2);
            let leader = LeaderId {
                term: self.term,
                replica: id,
            };
            let before = here
                .last
                .into_iter()
                .chain(entries.last().map(|entry: &Entry| entry.id));
            if entries.is_empty() || before.last().is_none_or(|id| id.leader != leader) {
                let mut frame = Vec::new();
                for _ in 0..=rng.below(4) {
                    let len = if rng.one_in(20) { 3_000 } else { rng.index(200) };
                    let mut payload = vec![0; len];
                    rng.fill(&mut payload);
                    let id = EntryId { leader, index };
                    frame.push(Entry {
                        id,
                        payload: payload.into(),
                    });
                    index += 1;
                }
                state = self.change(id, |here| {
                    frame
                        .iter()
                        .for_each(|entry| here.append(entry.id, entry.payload.to_vec()));
                });
                entries.extend(frame);
            }
        }
        let history = Arc::clone(&self.history);
        let done = move |answer: Result<(), StoreError>| {
            if answer.is_ok() {
                acknowledge(&history, id, state);
            }
        };
        self.drive(self.replica(id).append(entries, done)).unwrap();
    }

    fn vote(&mut self, id: ReplicaId, rng: &mut Rng) {
        self.term += rng.below(2);
        let vote = Vote {
            leader: LeaderId {
                term: self.term,
                replica: rng.below(3),
            },
            committed: rng.coin(),
        };
        let state = self.change(id, |here| here.vote = Some(vote));
        self.drive(self.replica(id).save_vote(vote)).unwrap();
        self.acknowledge(id, state);
    }

    fn truncate(&mut self, id: ReplicaId, here: &Here, rng: &mut Rng) {
        // No leader has two entries of one index.
        self.term += 1;
        let first = here.purged.map_or(0, |purged| purged.index + 1);
        let Some(last) = here.last.filter(|last| last.index >= first) else {
            return;
        };
        let end = first + rng.below(last.index - first + 1);
        let kept = end.checked_sub(1).and_then(|index| here.id(index));
        self.change(id, |here| here.truncate(kept));
        self.drive(self.replica(id).truncate(kept)).unwrap();
    }

    fn purge(&self, id: ReplicaId, here: &Here, rng: &mut Rng) {
        let first = here.purged.map_or(0, |purged| purged.index + 1);
        let end = here.last.map_or(0, |last| last.index + 1);
        let index = first + rng.below(end - first + 1);
        let beyond = EntryId {
            leader: LeaderId {
                term: self.term,
                replica: id,
            },
            index,
        };
        // Now and then behind the last entry, as after the installation of a snapshot.
        let through = here.id(index).unwrap_or(beyond);
        self.change(id, |here| here.purge(through));
        self.drive(self.replica(id).purge(through)).unwrap();
    }

    fn commit(&self, id: ReplicaId, here: &Here, rng: &mut Rng) {
        let indexes: Vec<u64> = here.entries.keys().copied().collect();
        if let Some(committed) = indexes
            .get(rng.index(indexes.len()))
            .and_then(|index| here.id(*index))
        {
            self.replica(id).save_committed(committed);
        }
    }

    fn maintain(&self, rng: &mut Rng) {
        for log in self.store.logs() {
            let full = Mutex::new(Vec::new());
            match self.drive(log.maintain(&|id| full.lock().unwrap().push(id))) {
                // The last replica has left it.
                Err(StoreError::Log(LogError::Closed)) if self.setup.moves => {}
                done => done.unwrap(),
            }
            for id in full.into_inner().unwrap() {
                self.purge(id, &self.here(id), rng);
            }
        }
    }

    fn read(&self, id: ReplicaId, here: &Here, rng: &mut Rng) {
        let first = here.purged.map_or(0, |purged| purged.index + 1);
        let start = first + rng.below(20);
        let range = start..start + rng.below(20);
        let expected: Vec<_> = here.entries.range(range.clone()).collect();
        let read = self.replica(id).read(range.clone()).unwrap();
        let read: Vec<_> = read
            .iter()
            .map(|entry| (entry.id.index, (entry.id.leader, entry.payload.to_vec())))
            .collect();
        assert_eq!(
            read.iter()
                .map(|(index, entry)| (index, entry))
                .collect::<Vec<_>>(),
            expected
        );
        let few = self.replica(id).read_up_to(range, 400).unwrap();
        assert!(few.len() <= expected.len() && few.is_empty() == expected.is_empty());
        assert!(
            few.iter()
                .zip(&expected)
                .all(|(few, (index, _))| few.id.index == **index)
        );
        let bounds = self.replica(id).bounds();
        assert_eq!((bounds.purged, bounds.last), (here.purged, here.last));
    }

    /// Whether the open store holds what it should.
    pub(crate) fn assert_as_it_should_be(&self) {
        let (found, plain) = (found(&self.store, 1..=self.highest), self.plain());
        for id in 1..=self.highest {
            let (found, plain) = (found.get(&id), plain.get(&id));
            let both = || (found.map(Known::outline), plain.map(Known::outline));
            assert!(found == plain, "replica {id}, found and expected: {:?}", both());
        }
    }

    /// Closes the node and opens it again.
    pub(crate) fn reopen(self) -> Self {
        let (device, plain, setup) = (self.device.clone(), self.plain(), self.setup);
        let (replicas, highest, term) = (self.replicas.clone(), self.highest, self.term);
        self.close();
        let image = device.snapshot().process_death();
        let mut node = Self::open(setup, image.device(), plain);
        (node.replicas, node.highest, node.term) = (replicas, highest, term);
        node.assert_as_it_should_be();
        node
    }

    /// The node's process ends, and what is left on `device` is what it may be.
    pub(crate) fn crash(self, device: SimDevice, context: &str) -> Self {
        let moment = self.history.lock().unwrap().now();
        let left = self
            .setup
            .open(&device)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(
            left.quarantined().is_empty(),
            "{context}: {:?}",
            left.quarantined()
        );
        let plain = found(&left, 1..=self.highest);
        let verdict = self.history.lock().unwrap().judge(&self.setup, moment, &plain);
        verdict.unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
        // Now and then what recovery did is all that the next process finds.
        if self.highest.is_multiple_of(2) {
            left.close().unwrap();
        }
        let device = device.snapshot().process_death().device();
        self.again(device, plain)
    }
}

fn acknowledge(history: &Mutex<History>, id: ReplicaId, state: usize) {
    let mut history = history.lock().unwrap();
    let known = history.acknowledged.entry(id).or_default();
    *known = state.max(*known);
}
