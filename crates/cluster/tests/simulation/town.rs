//! One simulation from its start to its verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collie_cluster::EntryDurability;
use collie_cluster::testing::seed_draws;
use collie_server::cluster::Reads;
use collie_sim::Rng;
use turmoil::{Builder, Sim};

use crate::expiry;
use crate::faults;
use crate::host::{Place, name};
use crate::judge;
use crate::world::World;

/// The simulated time of one step.
const TICK: Duration = Duration::from_millis(1);
/// Within this simulated time, what is to happen without faults has happened.
pub(crate) const CAP: Duration = Duration::from_secs(60);
/// Lines of the trace that a failure shows.
const SHOWN: usize = 60;

/// Panics so far, also those of tasks, which end silently.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// What a simulation is to do.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: u64,
    pub(crate) groups: Vec<u64>,
    pub(crate) faults: u64,
    pub(crate) reads: Reads,
    pub(crate) entries: EntryDurability,
    /// Whether keys expire, by clocks that differ.
    pub(crate) expires: bool,
}

impl Plan {
    pub(crate) fn calm(seed: u64) -> Self {
        Self {
            seed,
            nodes: 3,
            groups: vec![7],
            faults: 0,
            reads: Reads::Index,
            entries: EntryDurability::Disk,
            expires: false,
        }
    }

    /// Keys that expire under leaders whose clocks differ.
    pub(crate) fn expiring(seed: u64) -> Self {
        Self {
            expires: true,
            ..Self::calm(seed)
        }
    }

    /// Three nodes or five, one group or more, and reads by leases or not, by the seed.
    pub(crate) fn faulty(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            seed,
            nodes: if rng.one_in(5) { 5 } else { 3 },
            groups: (7..8 + rng.below(2)).collect(),
            faults: 8 + rng.below(10),
            reads: reads(seed),
            entries: entries(seed),
            expires: false,
        }
    }
}

/// Of each third seed by leases, or as `COLLIE_READS` says for all.
fn reads(seed: u64) -> Reads {
    let all = [Reads::Index, Reads::Lease];
    match std::env::var("COLLIE_READS") {
        Ok(asked) => all
            .into_iter()
            .find(|reads| reads.name() == asked)
            .unwrap_or_else(|| panic!("COLLIE_READS={asked}")),
        Err(_) => all[usize::from(seed.is_multiple_of(3))],
    }
}

/// Of each fourth seed they do not wait for the disk, or as `COLLIE_DURABILITY` says for all.
fn entries(seed: u64) -> EntryDurability {
    match std::env::var("COLLIE_DURABILITY").as_deref() {
        Ok("disk") => EntryDurability::Disk,
        Ok("process") => EntryDurability::Process,
        Ok(other) => panic!("COLLIE_DURABILITY={other}"),
        Err(_) if seed % 4 == 2 => EntryDurability::Process,
        Err(_) => EntryDurability::Disk,
    }
}

/// What became of a simulation, or of several.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Of everything that happened, in its order.
    pub(crate) trace: u64,
    pub(crate) answered: usize,
    pub(crate) unknown: usize,
    /// Objects for which the search for an order was given up.
    pub(crate) undecided: usize,
    pub(crate) simulated: Duration,
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

impl Ended {
    pub(crate) fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.unknown += other.unknown;
        self.undecided += other.undecided;
        self.simulated += other.simulated;
        for (fault, times) in &other.faults {
            *self.faults.entry(fault).or_default() += times;
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} s, {} operations answered, {} unknown, {} objects undecided; faults:",
            self.simulated.as_secs(),
            self.answered,
            self.unknown,
            self.undecided
        )?;
        for (fault, times) in &self.faults {
            write!(f, " {fault} {times}")?;
        }
        Ok(())
    }
}

/// The nodes, and the network between them.
pub(crate) struct Town<'a> {
    pub(crate) sim: Sim<'a>,
    pub(crate) world: Arc<World>,
    pub(crate) places: Vec<Arc<Place>>,
    pub(crate) rng: Rng,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// When nodes that are down start again.
    down: BTreeMap<usize, Duration>,
    /// Nodes that lost power, and may lack entries that count: one at a time.
    in_doubt: BTreeSet<usize>,
    entries: EntryDurability,
}

impl Town<'_> {
    fn new(plan: &Plan, shows: bool) -> Self {
        let mut sim = Builder::new()
            .rng_seed(plan.seed)
            .tick_duration(TICK)
            .simulation_duration(Duration::from_secs(3600))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(8))
            // More than is on the way when a link is held.
            .tcp_capacity(1 << 16)
            .enable_random_order()
            .build();
        let world = World::new(plan.seed, shows);
        let place = |id| Arc::new(Place::new(id, plan, &world));
        let places: Vec<_> = (1..=plan.nodes).map(place).collect();
        for place in &places {
            let place = Arc::clone(place);
            sim.host(name(place.id), move || Arc::clone(&place).run());
        }
        Self {
            sim,
            places,
            rng: Rng::new(plan.seed ^ 0xFA17),
            world,
            faults: BTreeMap::new(),
            down: BTreeMap::new(),
            in_doubt: BTreeSet::new(),
            entries: plan.entries,
        }
    }

    /// A millisecond.
    fn step(&mut self) {
        self.world.advance(TICK);
        let now = self.world.now();
        for (at, place) in self.places.iter().enumerate() {
            place.disk.advance(TICK);
            let has_failed = self.world.lock().failed.contains_key(&place.id);
            if has_failed && !self.down.contains_key(&at) {
                // The process has ended by itself.
                self.crash(at, false, Duration::from_millis(200));
                break;
            }
        }
        let due = self.down.iter().find(|(_, up)| **up <= now).map(|(&at, _)| at);
        if let Some(at) = due {
            self.start(at);
        }
        self.sim.step().unwrap();
        for place in &self.places {
            place.work();
            self.world.lock().trace.number(place.disk.operations());
        }
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a task panicked");
    }

    pub(crate) fn go_on(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            self.step();
        }
    }

    /// Goes on until something is so.
    pub(crate) fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        let from = self.world.now();
        while !is(self) {
            assert!(
                self.world.now() - from < CAP,
                "{what}: not within {CAP:?} without faults; {}",
                self.states()
            );
            self.step();
        }
    }

    pub(crate) fn is_down(&self, at: usize) -> bool {
        self.down.contains_key(&at)
    }

    /// A process ends wherever it is, with or without the power; another begins later.
    pub(crate) fn crash(&mut self, at: usize, power: bool, down: Duration) {
        let places = &self.places;
        self.in_doubt
            .retain(|at| places[*at].node().is_none() || places[*at].is_in_doubt());
        let others_are = self.in_doubt.iter().any(|other| *other != at);
        // What a majority may lose at once is not promised.
        let power = power && !(self.entries == EntryDurability::Process && others_are);
        if power {
            self.in_doubt.insert(at);
        }
        let place = &self.places[at];
        let way = place.disk.die(power);
        self.world
            .happened(format_args!("node {} dies: {way}, for {down:?}", place.id));
        place.forget();
        self.sim.crash(name(place.id));
        self.down.insert(at, self.world.now() + down);
    }

    fn start(&mut self, at: usize) {
        self.down.remove(&at);
        self.sim.bounce(name(self.places[at].id));
    }

    /// All that are down start at once.
    pub(crate) fn start_all(&mut self) {
        for at in self.down.keys().copied().collect::<Vec<_>>() {
            self.start(at);
        }
    }

    /// What each replica is doing.
    pub(crate) fn states(&self) -> String {
        let mut text = String::new();
        for place in &self.places {
            for group in place.all_groups() {
                let state = place.replica(group).map(|replica| replica.state());
                text.push_str(&format!("\nnode {} group {group}: {state:?}", place.id));
            }
        }
        text
    }
}

/// Tokio ends the tasks of a runtime that is dropped in an order that depends on their numbers modulo a
/// small power of two. The numbers are counted in the process: they begin here as in each other run.
fn align_task_numbers() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        loop {
            let number: u64 = tokio::spawn(async {}).id().to_string().parse().unwrap();
            if number % 64 == 63 {
                return;
            }
        }
    });
}

/// Runs a simulation; panics with what happened last if anything is wrong.
pub(crate) fn run(plan: &Plan) -> Ended {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(panic);
        }));
    });
    PANICS.store(0, Ordering::SeqCst);
    let shows_all = std::env::var_os("COLLIE_TRACE").is_some();
    let warnings = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .without_time();
    let _shown = shows_all.then(|| tracing::subscriber::set_default(warnings.finish()));
    align_task_numbers();
    seed_draws(plan.seed);
    let mut town = Town::new(plan, shows_all);
    let world = Arc::clone(&town.world);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let begun = |town: &Town<'_>| {
            let state = town.world.lock();
            plan.groups.iter().all(|group| state.written.contains_key(group))
        };
        town.until("all groups begin", begun);
        faults::run(&mut town, plan.faults);
        if plan.expires {
            expiry::run(&mut town, plan.groups[0]);
        } else if plan.faults == 0 {
            town.go_on(Duration::from_secs(20));
        }
        judge::judge(&mut town, plan)
    }));
    match ended {
        Ok(ended) => {
            println!("seed {}: {ended}", plan.seed);
            ended
        }
        Err(panic) => {
            if !shows_all {
                let lines = &world.lock().trace.lines;
                let from = lines.len().saturating_sub(SHOWN);
                println!("{plan:?}: what happened last:\n{}", lines[from..].join("\n"));
            }
            // Its parts may not end well after a panic.
            std::mem::forget(town);
            resume_unwind(panic)
        }
    }
}
