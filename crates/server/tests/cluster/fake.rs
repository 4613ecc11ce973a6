//! A cluster in memory. Entries are applied when they are submitted, or when the gate is opened; reads and
//! writes settle then. Tests choose what is refused, what becomes of a reply, and who leads.

mod evaluation;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

use collie_db::Value;
use collie_io::{Clock, RealClock};
use collie_server::cluster::{
    Applied, Cluster, DrainedDisk, DuplicationInfo, Durability, Endpoint, Evaluation, Figure, Leadership,
    LeftOnDisk, LogLayout, LogsInfo, NodeInfo, NodeRequest, NodeRole, Partition, PartitionInfo, Reads,
    Refused, Route, Rows, SLOTS, Settled, Settling, StoredRow, Topology, Walked, slot_of,
};
use evaluation::{FakeApplied, FakeEvaluation};
use tokio::sync::watch;

type Row = (u16, Vec<u8>);
pub(crate) type Changes = Vec<(Vec<u8>, Option<Value>)>;

#[derive(Debug)]
pub(crate) struct Fake {
    pub(crate) partitions: Vec<Arc<FakePartition>>,
    changes: watch::Sender<u64>,
    /// What it says is wrong.
    pub(crate) problems: Mutex<Vec<String>>,
    /// What was asked of its nodes.
    pub(crate) node_requests: Mutex<Vec<NodeRequest>>,
    /// Whether it does not hand over what it leads.
    pub(crate) keeps: watch::Sender<bool>,
    /// Whether nodes have names of hosts.
    pub(crate) are_named: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct FakePartition {
    me: Weak<FakePartition>,
    group: u64,
    slots: RangeInclusive<u16>,
    state: Mutex<State>,
    unlocked: Condvar,
    /// Whether replies settle.
    gate: watch::Sender<bool>,
    /// Evaluations, and reads without one, that were finished; and how many were when each read was first
    /// polled.
    pub(crate) finished: AtomicUsize,
    pub(crate) polled_at: Mutex<Vec<usize>>,
    /// How far the clock of evaluations is ahead, in milliseconds.
    pub(crate) ahead_ms: AtomicU64,
    /// The expiries of keys that were found expired, each with its reply's confirmation.
    pub(crate) expired: Mutex<Vec<u64>>,
    /// The origin of its stamps, if it stamps its rows.
    pub(crate) stamps: Mutex<Option<u64>>,
    pub(crate) forgets_before_ms: AtomicU64,
    /// How often its rows were read from the first on.
    pub(crate) reads: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Leads,
    Led(SocketAddr),
    Leaderless,
}

#[derive(Debug)]
struct State {
    applied: BTreeMap<Row, Value>,
    counts: BTreeMap<u16, i64>,
    submitted: VecDeque<Entry>,
    locked: BTreeSet<Row>,
    role: Role,
    leadership: Leadership,
    begin: VecDeque<Refused>,
    get: VecDeque<Refused>,
    finish: VecDeque<Refused>,
    /// What becomes of the next reply that depends on a row.
    fates: HashMap<Vec<u8>, Settled>,
    confirm: Settled,
    log: Vec<Changes>,
    /// The number of attempts to begin.
    begun: usize,
    /// Leadership is lost and won again while it is read.
    is_unstable: bool,
    /// Entries that are applied while reads of a replica are under way, one behind the beginning of each.
    next_applied: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    slot: u16,
    changes: Changes,
    keys: i64,
}

impl Fake {
    /// Evaluations, and reads without one, that were finished in all partitions.
    pub(crate) fn finished(&self) -> usize {
        let finished = |partition: &Arc<FakePartition>| partition.finished.load(Ordering::SeqCst);
        self.partitions.iter().map(finished).sum()
    }

    pub(crate) fn new(partitions: u16) -> Arc<Fake> {
        let width = SLOTS / partitions;
        let range = |i: u16| {
            let last = if i + 1 == partitions {
                SLOTS - 1
            } else {
                (i + 1) * width - 1
            };
            i * width..=last
        };
        let partitions = (0..partitions).map(|i| FakePartition::new(u64::from(i) + 1, range(i)));
        Arc::new(Fake {
            partitions: partitions.collect(),
            changes: watch::Sender::new(0),
            problems: Mutex::default(),
            node_requests: Mutex::default(),
            keeps: watch::Sender::new(false),
            are_named: AtomicBool::new(false),
        })
    }

    fn endpoint(&self, address: SocketAddr) -> Endpoint {
        let host = || format!("node-{}", address.port());
        let host = self.are_named.load(Ordering::SeqCst).then(host);
        Endpoint { address, host }
    }

    pub(crate) fn of(&self, key: &str) -> &Arc<FakePartition> {
        let has = |partition: &&Arc<FakePartition>| partition.slots.contains(&slot_of(key.as_bytes()));
        self.partitions.iter().find(has).unwrap()
    }

    /// All partitions stamp their rows from now on.
    pub(crate) fn stamp(&self, origin: u64) {
        for partition in &self.partitions {
            *partition.stamps.lock().unwrap() = Some(origin);
        }
    }

    /// Says that something has changed.
    pub(crate) fn wake(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    pub(crate) fn set_role(&self, key: &str, role: Role) {
        self.of(key).state().role = role;
        self.wake();
    }

    /// Closes the gates: nothing is applied, and no reply settles.
    pub(crate) fn hold(&self) {
        for partition in &self.partitions {
            partition.gate.send_replace(false);
        }
    }

    pub(crate) fn release(&self) {
        for partition in &self.partitions {
            let mut state = partition.state();
            while let Some(entry) = state.submitted.pop_front() {
                state.apply(entry);
            }
            partition.gate.send_replace(true);
        }
    }

    /// Whether this node leads the partition of a key.
    pub(crate) fn leads(&self, key: &str) -> bool {
        self.of(key).state().role == Role::Leads
    }

    /// How many connections wait for a change.
    pub(crate) fn waiting(&self) -> usize {
        self.changes.receiver_count()
    }

    /// Whether no row is locked.
    pub(crate) fn is_unlocked(&self) -> bool {
        self.partitions
            .iter()
            .all(|partition| partition.state().locked.is_empty())
    }

    /// Checks that the counts are those of the rows, and returns the number of keys and of index
    /// entries.
    pub(crate) fn checked_counts(&self) -> (usize, usize) {
        let (mut keys, mut entries) = (0, 0);
        for partition in &self.partitions {
            let state = partition.state();
            let mut counted = BTreeMap::new();
            for (slot, row) in state.applied.keys() {
                match row[0] {
                    b'k' => *counted.entry(*slot).or_insert(0) += 1,
                    b'd' => {
                        let key = (*slot, [b"k", &row[1..]].concat());
                        assert!(
                            !state.applied.contains_key(&key),
                            "a value and a tombstone: {row:?}"
                        );
                    }
                    _ => entries += 1,
                }
            }
            let nonzero = state.counts.iter().filter(|(_, count)| **count != 0);
            assert_eq!(
                nonzero
                    .map(|(slot, count)| (*slot, *count))
                    .collect::<BTreeMap<_, _>>(),
                counted
            );
            keys += counted.values().sum::<i64>() as usize;
        }
        (keys, entries)
    }
}

impl State {
    fn apply(&mut self, entry: Entry) {
        for (row, value) in entry.changes {
            let row = (entry.slot, row);
            match value {
                Some(value) => drop(self.applied.insert(row, value)),
                None => drop(self.applied.remove(&row)),
            }
        }
        *self.counts.entry(entry.slot).or_insert(0) += entry.keys;
    }

    /// Rows are read without a lock.
    fn read(&mut self) {
        if self.is_unstable {
            self.leadership.term += 2;
        }
    }

    fn get(&self, slot: u16, row: &[u8]) -> Option<Value> {
        let mut entries = self.submitted.iter().rev().filter(|entry| entry.slot == slot);
        let changed = entries.find_map(|entry| entry.changes.iter().find(|(changed, _)| changed == row));
        match changed {
            Some((_, value)) => value.clone(),
            None => self.applied.get(&(slot, row.to_vec())).cloned(),
        }
    }
}

impl FakePartition {
    fn new(group: u64, slots: RangeInclusive<u16>) -> Arc<FakePartition> {
        Arc::new_cyclic(|me| FakePartition {
            me: Weak::clone(me),
            group,
            slots,
            state: Mutex::new(State {
                applied: BTreeMap::new(),
                counts: BTreeMap::new(),
                submitted: VecDeque::new(),
                locked: BTreeSet::new(),
                role: Role::Leads,
                leadership: Leadership {
                    term: 1,
                    replica: group,
                },
                begin: VecDeque::new(),
                get: VecDeque::new(),
                finish: VecDeque::new(),
                fates: HashMap::new(),
                confirm: Settled::Holds,
                log: Vec::new(),
                begun: 0,
                is_unstable: false,
                next_applied: VecDeque::new(),
            }),
            unlocked: Condvar::new(),
            gate: watch::Sender::new(true),
            finished: AtomicUsize::new(0),
            polled_at: Mutex::default(),
            ahead_ms: AtomicU64::new(0),
            expired: Mutex::default(),
            stamps: Mutex::default(),
            forgets_before_ms: AtomicU64::new(0),
            reads: AtomicUsize::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn refuse_begin(&self, refused: Refused, times: usize) {
        self.state().begin.extend(std::iter::repeat_n(refused, times));
    }

    pub(crate) fn refuse_get(&self, refused: Refused, times: usize) {
        self.state().get.extend(std::iter::repeat_n(refused, times));
    }

    pub(crate) fn refuse_finish(&self, refused: Refused, times: usize) {
        self.state().finish.extend(std::iter::repeat_n(refused, times));
    }

    pub(crate) fn accept(&self) {
        self.state().begin.clear();
    }

    pub(crate) fn begun(&self) -> usize {
        self.state().begun
    }

    /// What becomes of the next reply that depends on a key.
    pub(crate) fn set_fate(&self, key: &str, fate: Settled) {
        self.state().fates.insert([b"k", key.as_bytes()].concat(), fate);
    }

    pub(crate) fn set_confirm(&self, fate: Settled) {
        self.state().confirm = fate;
    }

    pub(crate) fn set_role(&self, role: Role) {
        self.state().role = role;
    }

    pub(crate) fn set_term(&self, term: u64) {
        self.state().leadership.term = term;
    }

    /// Changes keys, without the server, during the next read of a replica: behind its beginning.
    pub(crate) fn change_during_read(&self, keys: &[&str], stored: &Value) {
        let slot = slot_of(keys[0].as_bytes());
        let change = |key: &&str| ([b"k", key.as_bytes()].concat(), Some(stored.clone()));
        let changes = keys.iter().map(change).collect();
        let entry = Entry {
            slot,
            changes,
            keys: 0,
        };
        self.state().next_applied.push_back(entry);
    }

    /// Each read of all its rows finds it lose leadership and win it again.
    pub(crate) fn set_unstable(&self, is_unstable: bool) {
        self.state().is_unstable = is_unstable;
    }

    /// Locks a key, as another command does.
    pub(crate) fn lock(&self, key: &str) {
        let row = (slot_of(key.as_bytes()), [b"k", key.as_bytes()].concat());
        assert!(self.state().locked.insert(row));
    }

    pub(crate) fn unlock(&self, key: &str) {
        let row = (slot_of(key.as_bytes()), [b"k", key.as_bytes()].concat());
        assert!(self.state().locked.remove(&row));
        self.unlocked.notify_all();
    }

    /// What was submitted, one element for each `finish` with changes.
    pub(crate) fn log(&self) -> Vec<Changes> {
        self.state().log.clone()
    }

    /// Writes a row without the server.
    pub(crate) fn plant(&self, slot: u16, row: &[u8], value: &[u8], keys: i64) {
        let changes = vec![(row.to_vec(), Some(Value::from(value)))];
        self.state().apply(Entry { slot, changes, keys });
    }

    /// Removes a row without the server.
    pub(crate) fn unplant(&self, slot: u16, row: &[u8]) {
        let changes = vec![(row.to_vec(), None)];
        self.state().apply(Entry {
            slot,
            changes,
            keys: 0,
        });
    }

    /// The rows of a slot that begin so, with what they hold.
    pub(crate) fn rows(&self, slot: u16, tag: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let state = self.state();
        let rows = state.applied.iter();
        let rows = rows.filter(|((of, row), _)| *of == slot && row.starts_with(tag));
        rows.map(|((_, row), value)| (row.clone(), value.to_vec()))
            .collect()
    }

    fn settling(&self, fate: Settled, is_read: Option<Arc<FakePartition>>) -> Settling {
        let mut gate = self.gate.subscribe();
        Box::pin(async move {
            if let Some(partition) = is_read {
                let finished = partition.finished.load(Ordering::SeqCst);
                partition.polled_at.lock().unwrap().push(finished);
            }
            // A gate that is gone is open.
            let _ = gate.wait_for(|is_open| *is_open).await;
            fate
        })
    }
}

impl Cluster for Fake {
    fn topology(&self) -> Arc<Topology> {
        let node = |number: u64| NodeInfo {
            number,
            name: format!("{number:040x}"),
            client: self.endpoint(SocketAddr::from(([127, 0, 0, 1], 7000 + number as u16))),
            peer: SocketAddr::from(([127, 0, 0, 1], 17_000 + number as u16)),
            is_alive: true,
            role: NodeRole::Serves,
            drained: if number == 1 { vec![(1, 4)] } else { vec![] },
        };
        let partition = |partition: &Arc<FakePartition>| {
            let role = partition.state().role;
            PartitionInfo {
                group: partition.group,
                slots: partition.slots.clone(),
                leader: match role {
                    Role::Leads => Some(1),
                    Role::Led(_) => Some(2),
                    Role::Leaderless => None,
                },
                is_served: role != Role::Leaderless,
                replicas: vec![1, 2, 3],
                joining: vec![],
                leaving: vec![],
                split_at: Some(12_000),
            }
        };
        let layout = LogLayout::Private;
        Arc::new(Topology {
            cluster: Some([0xab; 16]),
            epoch: *self.changes.borrow() + 1,
            level: 1,
            newest_level: 2,
            own: 1,
            logs: LogsInfo { layout, to_move: 3 },
            drained_here: [
                (0, LeftOnDisk::Map),
                (1, LeftOnDisk::Replicas(4)),
                (2, LeftOnDisk::Absent),
            ]
            .map(|(disk, left)| DrainedDisk { disk, left })
            .into(),
            reads: Reads::Lease,
            durability: Durability::Process,
            nodes: (1..=3).map(node).collect(),
            partitions: self.partitions.iter().map(partition).collect(),
        })
    }

    fn route(&self, slot: u16) -> Route {
        let mut partitions = self.partitions.iter();
        let Some(partition) = partitions.find(|partition| partition.slots.contains(&slot)) else {
            return Route::Nowhere;
        };
        match partition.state().role {
            Role::Leads => Route::Here(partition.clone()),
            Role::Led(addr) => Route::At(self.endpoint(addr)),
            Role::Leaderless => Route::Nowhere,
        }
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn led(&self) -> Vec<Arc<dyn Partition>> {
        let all = self.partitions.iter().rev();
        let led = all.filter(|partition| partition.state().role == Role::Leads);
        led.map(|partition| partition.clone() as _).collect()
    }

    fn take_over(&self) -> Result<(), String> {
        let leads = |partition: &Arc<FakePartition>| partition.state().role == Role::Leads;
        if self.partitions.iter().all(leads) {
            return Err("this node leads all".to_owned());
        }
        self.partitions
            .iter()
            .for_each(|partition| partition.set_role(Role::Leads));
        self.wake();
        Ok(())
    }

    fn change_node(&self, request: NodeRequest) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> {
        let answer = match request {
            NodeRequest::Remove(9) => Err("the cluster has no node 9".to_owned()),
            _ => Ok(()),
        };
        self.node_requests.lock().unwrap().push(request);
        Box::pin(std::future::ready(answer))
    }

    fn duplications(&self) -> Vec<DuplicationInfo> {
        vec![DuplicationInfo {
            name: "second".to_owned(),
            cluster: "00".repeat(16),
            addresses: vec!["a.host:7001".to_owned(), "192.0.2.1:7002".to_owned()],
            is_paused: true,
            partitions: 9,
            waiting: 1,
            copying: 2,
            following: 3,
            lag: 4,
            rows: 5,
            problem: Some((Duration::from_millis(6500), "partition 7: it is away".to_owned())),
        }]
    }

    fn retire(&self) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        let mut keeps = self.keeps.subscribe();
        Box::pin(async move {
            // A sender that is gone keeps nothing.
            let _ = keeps.wait_for(|keeps| !keeps).await;
            false
        })
    }

    fn problems(&self) -> Vec<String> {
        self.problems.lock().unwrap().clone()
    }

    fn replica(&self, slot: u16) -> Option<Arc<dyn Partition>> {
        let partition = self
            .partitions
            .iter()
            .find(|partition| partition.slots.contains(&slot));
        partition.map(|partition| partition.clone() as Arc<dyn Partition>)
    }

    fn figures(&self) -> Vec<Figure> {
        let labels = vec![("group", "7".to_owned())];
        vec![Figure {
            name: "collie_cluster_partition_lag_entries",
            help: "A lag.",
            is_counter: false,
            samples: vec![(labels, 9)],
        }]
    }
}

impl Partition for FakePartition {
    fn group(&self) -> u64 {
        self.group
    }

    fn slots(&self) -> RangeInclusive<u16> {
        self.slots.clone()
    }

    fn begin(&self, slot: u16, rows: &[&[u8]], patience: Duration) -> Result<Box<dyn Evaluation>, Refused> {
        assert!(self.slots.contains(&slot));
        let thread = std::thread::current();
        let serves = thread.name().is_some_and(|name| name.starts_with("collie-serve"));
        assert!(
            !serves || patience.is_zero(),
            "a thread that serves connections would block"
        );
        let rows: Vec<Row> = rows.iter().map(|row| (slot, row.to_vec())).collect();
        let mut state = self.state();
        state.begun += 1;
        if let Some(refused) = state.begin.pop_front() {
            return Err(refused);
        }
        if state.role != Role::Leads {
            return Err(Refused::NotHere);
        }
        let is_free = |state: &mut State| rows.iter().any(|row| state.locked.contains(row));
        let (mut state, waited) = self
            .unlocked
            .wait_timeout_while(state, patience, is_free)
            .unwrap();
        if waited.timed_out() && is_free(&mut state) {
            return Err(Refused::Locked);
        }
        state.locked.extend(rows.iter().cloned());
        let leadership = state.leadership;
        drop(state);
        Ok(Box::new(FakeEvaluation {
            partition: self.me.upgrade().unwrap(),
            slot,
            rows,
            leadership,
            expired: Vec::new(),
        }))
    }

    fn rows_after(&self, after: Option<(u16, &[u8])>) -> Result<Rows, Refused> {
        self.reads
            .fetch_add(usize::from(after.is_none()), Ordering::SeqCst);
        let mut state = self.state();
        state.read();
        let after = after.map(|(slot, row)| (slot, row.to_vec()));
        let rows = state
            .applied
            .iter()
            .filter(|(row, _)| after.as_ref().is_none_or(|after| *row > after));
        let rows: Vec<_> = rows
            .map(|((slot, row), value)| {
                Ok(Walked::Row(StoredRow {
                    slot: *slot,
                    row: row.clone(),
                    value: value.clone(),
                }))
            })
            .collect();
        Ok(Box::new(rows.into_iter()))
    }

    fn applied(&self) -> Result<Box<dyn Applied>, Refused> {
        let mut state = self.state();
        let applied = Box::new(FakeApplied(state.applied.clone()));
        // The next entry is applied right behind it.
        if let Some(entry) = state.next_applied.pop_front() {
            state.apply(entry);
        }
        Ok(applied)
    }

    fn key_count(&self, slots: RangeInclusive<u16>) -> Result<u64, Refused> {
        let mut state = self.state();
        state.read();
        let counts = state.counts.iter().filter(|(slot, _)| slots.contains(slot));
        Ok(counts.map(|(_, count)| *count).sum::<i64>() as u64)
    }

    fn forgets_before_ms(&self) -> u64 {
        self.forgets_before_ms.load(Ordering::SeqCst)
    }

    fn leadership(&self) -> Option<Leadership> {
        let state = self.state();
        (state.role == Role::Leads).then_some(state.leadership)
    }

    fn now_ms(&self) -> u64 {
        RealClock.wall_ms() + self.ahead_ms.load(Ordering::SeqCst)
    }

    fn confirm(&self, since: Leadership, _slots: RangeInclusive<u16>, expired_ms: Option<u64>) -> Settling {
        self.expired.lock().unwrap().extend(expired_ms);
        let state = self.state();
        let fate = match state.leadership == since {
            true => state.confirm,
            false => Settled::TryAgain,
        };
        drop(state);
        self.finished.fetch_add(1, Ordering::SeqCst);
        self.settling(fate, self.me.upgrade())
    }
}
