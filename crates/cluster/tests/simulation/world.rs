//! What all parts of a simulation share: the time, what happened, and what clients saw.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use collie_check::objects::{Answer, Operation, Step};
use collie_cluster::testing::Node;
use collie_io::{Clock, Nanos};
use collie_sim::mix;

/// Wall time at the start, in milliseconds since the Unix epoch.
const START_MS: i64 = 1_700_000_000_000;

pub(crate) struct World {
    pub(crate) seed: u64,
    nanos: AtomicU64,
    /// Everything that happens is printed.
    shows: bool,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) trace: Trace,
    /// Moments of the history count calls and returns.
    moment: u64,
    pub(crate) operations: Vec<Noted>,
    /// Writes that were acknowledged, by group.
    pub(crate) written: BTreeMap<u64, u64>,
    /// Clients do not begin anything any more.
    pub(crate) stopped: bool,
    /// The nodes that run.
    pub(crate) nodes: BTreeMap<u64, Weak<Node>>,
    /// Those whose process has to end.
    pub(crate) failed: BTreeMap<u64, String>,
    /// What groups were asked to be split into, whether they have been or not.
    pub(crate) splits: Vec<Split>,
}

/// Slots of a group from one on, and the group that is to have them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    pub(crate) group: u64,
    pub(crate) first: u16,
    pub(crate) new: u64,
}

/// An operation of a client.
pub(crate) struct Noted {
    pub(crate) object: usize,
    pub(crate) operation: Operation,
    /// It was not executed, and never will be.
    pub(crate) void: bool,
}

/// What happened, in a number and in words.
#[derive(Default)]
pub(crate) struct Trace {
    pub(crate) hash: u64,
    pub(crate) lines: Vec<String>,
}

impl Trace {
    /// Something that has no words.
    pub(crate) fn number(&mut self, number: u64) {
        self.hash = mix(self.hash.rotate_left(5) ^ number);
    }

    fn line(&mut self, line: String) {
        for bytes in line.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.number(u64::from_le_bytes(word));
        }
        self.lines.push(line);
    }
}

impl World {
    pub(crate) fn new(seed: u64, shows: bool) -> Arc<Self> {
        Arc::new(Self {
            seed,
            nanos: AtomicU64::new(0),
            shows,
            state: Mutex::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere shows what happened before it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.nanos.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::SeqCst))
    }

    pub(crate) fn happened(&self, what: impl std::fmt::Display) {
        let line = format!("{:>10.3} {what}", self.now().as_secs_f64());
        // At once, as warnings of the nodes go there, too.
        if self.shows {
            println!("{line}");
        }
        self.lock().trace.line(line);
    }

    /// A client calls: the number of its operation, which has no outcome yet.
    pub(crate) fn called(&self, client: u32, object: usize, steps: Vec<Step>) -> usize {
        let mut state = self.lock();
        state.moment += 1;
        let operation = Operation {
            client,
            call: state.moment,
            returned: None,
            steps,
            answers: Vec::new(),
        };
        state.operations.push(Noted {
            object,
            operation,
            void: false,
        });
        state.operations.len() - 1
    }

    /// Its answers are known.
    pub(crate) fn returned(&self, number: usize, answers: Vec<Answer>) {
        let text = {
            let mut state = self.lock();
            state.moment += 1;
            let moment = state.moment;
            let noted = &mut state.operations[number];
            noted.operation.returned = Some(moment);
            noted.operation.answers = answers;
            format!("object {}: {}", noted.object, noted.operation)
        };
        self.happened(text);
    }

    /// It was not executed.
    pub(crate) fn refused(&self, number: usize) {
        self.lock().operations[number].void = true;
    }

    /// Whether it was executed is not known.
    pub(crate) fn unknown(&self, number: usize) {
        let text = {
            let state = self.lock();
            let noted = &state.operations[number];
            format!("object {}: {}", noted.object, noted.operation)
        };
        self.happened(text);
    }
}

/// The clock of a node, which may be set.
#[derive(Clone)]
pub(crate) struct NodeClock {
    pub(crate) world: Arc<World>,
    pub(crate) offset_ms: Arc<AtomicI64>,
    /// By so many hundredths the time since its start is slower than it should be: less than a tenth.
    pub(crate) slower: u64,
}

impl std::fmt::Debug for NodeClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeClock")
    }
}

impl Clock for NodeClock {
    fn monotonic(&self) -> Nanos {
        self.world.now().as_nanos() as Nanos
    }

    fn boot(&self) -> Nanos {
        let now = self.monotonic();
        now - now / 100 * self.slower
    }

    fn wall_ms(&self) -> u64 {
        let offset = self.offset_ms.load(Ordering::SeqCst);
        (START_MS + self.world.now().as_millis() as i64 + offset) as u64
    }
}
