//! Whole nodes in turmoil's simulation: cuts, one-way cuts, delays, restarts. All nodes call each
//! other all the time; each answer is compared with its request, and each node looks at the order
//! of what comes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::testing::EntryId;
use collie_cluster::testing::transport::{Dispatch, Incoming, Liveness, Peers, PeersOptions, Reply};
use collie_cluster::testing::wire::{Appended, NodeId, Response};
use turmoil::{Builder, Sim};

use super::sockets::Simulated;
use super::support::{append, call, index_of, options, vote};

const PORT: u16 = 4000;

/// What a node says of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    alive: bool,
    connected: bool,
    boot: Option<u8>,
}

/// What all nodes have seen.
#[derive(Debug, Default)]
struct World {
    /// By the node that sees and the one that is seen.
    seen: BTreeMap<(NodeId, NodeId), Seen>,
    /// The same, each change with its time.
    trace: Vec<(Duration, NodeId, NodeId, Seen)>,
    /// Answered calls, by caller and called.
    answered: BTreeMap<(NodeId, NodeId), u64>,
    /// The last index that came, by the node, its peer and the start of the peer.
    last: BTreeMap<(NodeId, NodeId, u64), u64>,
}

type Shared = Arc<Mutex<World>>;

/// Answers an append with its own index, after a look at the order.
struct InOrder(NodeId, Shared);

impl Dispatch for InOrder {
    fn dispatch(&self, incoming: Incoming, reply: Reply) {
        let index = index_of(&incoming.request);
        // Each start of the caller has a group of its own.
        let key = (self.0, incoming.node, incoming.group);
        let before = self.1.lock().unwrap().last.insert(key, index);
        assert!(
            before.is_none_or(|before| before < index),
            "{key:?}: {index} after {before:?}"
        );
        let last = EntryId {
            leader: vote().leader,
            index,
        };
        let answer = async move {
            // Later ones are answered earlier.
            tokio::time::sleep(Duration::from_millis(index * 7 % 5)).await;
            reply.send(Response::Appended(Appended::Partial(Some(last))));
        };
        tokio::spawn(answer);
    }
}

async fn run(own: NodeId, nodes: NodeId, start: u8, world: Shared) -> turmoil::Result {
    let mut options = PeersOptions {
        listen: SocketAddr::from(([0, 0, 0, 0], PORT)),
        ..options(own)
    };
    options.identity.boot = [start; 16];
    let peers = Arc::new(Peers::start(Simulated, options, Arc::new(InOrder(own, Arc::clone(&world)))).await?);
    for node in (1..=nodes).filter(|&node| node != own) {
        peers.set_peer(node, (turmoil::lookup(format!("n{node}")), PORT).into())?;
        let (peers, world) = (Arc::clone(&peers), Arc::clone(&world));
        tokio::spawn(async move {
            for index in 0.. {
                let mut call = call(node, u64::from(start), append(index, 2000));
                call.within = Duration::from_millis(500);
                match peers.call(call).await {
                    Ok(Response::Appended(Appended::Partial(Some(last)))) => {
                        assert_eq!(
                            last.index, index,
                            "node {own} got the answer to another request from {node}"
                        );
                        *world.lock().unwrap().answered.entry((own, node)).or_default() += 1;
                    }
                    Ok(other) => panic!("{other:?}"),
                    Err(_) => {}
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    let mut states = peers.states();
    loop {
        for (&node, state) in &*states.borrow_and_update() {
            let seen = Seen {
                alive: state.liveness == Liveness::Alive,
                connected: state.problem.is_none(),
                boot: state.boot.map(|boot| boot[0]),
            };
            let mut world = world.lock().unwrap();
            if world.seen.insert((own, node), seen) != Some(seen) {
                world
                    .trace
                    .push((turmoil::sim_elapsed().unwrap_or_default(), own, node, seen));
            }
        }
        states.changed().await?;
    }
}

/// Nodes from 1 on, on one thread.
struct Town<'a> {
    sim: Sim<'a>,
    world: Shared,
}

impl Town<'_> {
    fn new(nodes: NodeId, seed: u64) -> Self {
        let mut sim = Builder::new()
            .rng_seed(seed)
            .simulation_duration(Duration::from_secs(600))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(10))
            // More than is on the way when a link is held.
            .tcp_capacity(4096)
            .build();
        let world = Shared::default();
        for node in 1..=nodes {
            let (world, starts) = (Arc::clone(&world), Arc::new(AtomicU8::new(0)));
            sim.host(format!("n{node}"), move || {
                let start = starts.fetch_add(1, Ordering::SeqCst) + 1;
                run(node, nodes, start, Arc::clone(&world))
            });
        }
        Self { sim, world }
    }

    /// Goes on until the world is as it should be, for a minute at most; how long it took.
    fn until(&mut self, what: &str, is: impl Fn(&World) -> bool) -> Duration {
        let from = self.sim.elapsed();
        while !is(&self.world.lock().unwrap()) {
            let passed = self.sim.elapsed() - from;
            assert!(
                passed < Duration::from_secs(60),
                "not within a minute: {what}; {:?}",
                self.world.lock().unwrap()
            );
            self.sim.step().unwrap();
        }
        self.sim.elapsed() - from
    }

    fn go_on(&mut self, time: Duration) {
        let end = self.sim.elapsed() + time;
        while self.sim.elapsed() < end {
            self.sim.step().unwrap();
        }
    }

    fn all_alive(&mut self, nodes: usize) -> Duration {
        let pairs = nodes * (nodes - 1);
        self.until("all nodes are alive and connected", |world| {
            world.seen.len() == pairs && world.seen.values().all(|seen| seen.alive && seen.connected)
        })
    }

    /// Each pair has answered calls from now on.
    fn all_answer(&mut self, nodes: usize) {
        let before = self.world.lock().unwrap().answered.clone();
        self.until("all nodes answer", |world| {
            world.answered.len() == nodes * (nodes - 1)
                && world
                    .answered
                    .iter()
                    .all(|(pair, &count)| count > before.get(pair).copied().unwrap_or(0) + 3)
        });
    }

    fn sees(&self, own: NodeId, node: NodeId) -> Seen {
        self.world.lock().unwrap().seen[&(own, node)]
    }
}

#[test]
fn both_sides_see_a_cut_within_one_and_a_half_seconds() {
    for seed in 0..3 {
        let mut town = Town::new(3, seed);
        town.all_alive(3);
        town.all_answer(3);
        town.sim.partition("n1", "n2");
        let seen = town.until("both sides of the cut suspect the other", |world| {
            !world.seen[&(1, 2)].alive && !world.seen[&(2, 1)].alive
        });
        assert!(
            seen >= Duration::from_millis(900) && seen <= Duration::from_millis(1500),
            "seed {seed}: {seen:?}"
        );
        town.go_on(Duration::from_secs(10));
        for pair in [(1, 3), (3, 1), (2, 3), (3, 2)] {
            assert!(
                town.sees(pair.0, pair.1).alive,
                "seed {seed}: the cut harms {pair:?}"
            );
        }
        town.sim.repair("n1", "n2");
        let healed = town.all_alive(3);
        // A pause, and a connection that was begun in the cut.
        assert!(healed <= Duration::from_secs(5), "seed {seed}: {healed:?}");
        town.all_answer(3);
    }
}

#[test]
fn a_one_way_cut_is_seen_by_both_sides() {
    for (from, to) in [("n1", "n2"), ("n2", "n1")] {
        let mut town = Town::new(2, 7);
        town.all_alive(2);
        town.all_answer(2);
        town.sim.partition_oneway(from, to);
        let seen = town.until("both sides suspect the other", |world| {
            !world.seen[&(1, 2)].alive && !world.seen[&(2, 1)].alive
        });
        assert!(seen <= Duration::from_millis(1500), "{seen:?}");
        town.sim.repair_oneway(from, to);
        town.all_alive(2);
        town.all_answer(2);
    }
}

#[test]
fn delays_below_a_second_are_no_reason_for_suspicion() {
    let mut town = Town::new(2, 1);
    town.all_alive(2);
    town.sim.set_link_latency("n1", "n2", Duration::from_millis(200));
    town.go_on(Duration::from_secs(20));
    town.all_answer(2);
    let world = town.world.lock().unwrap();
    let connected = |seen: &Seen| seen.boot.is_some();
    assert!(
        world
            .trace
            .iter()
            .all(|(.., seen)| seen.alive || !connected(seen)),
        "{:?}",
        world.trace
    );
}

#[test]
fn a_node_that_restarts_is_found_under_its_new_boot() {
    for seed in 0..3 {
        let mut town = Town::new(3, seed);
        town.all_alive(3);
        town.all_answer(3);
        for boot in 2..5 {
            town.sim.crash("n2");
            if boot == 3 {
                // For so long that it is missed.
                town.until("the node is missed", |world| {
                    !world.seen[&(1, 2)].alive && !world.seen[&(3, 2)].alive
                });
                assert!(town.sees(1, 3).alive && town.sees(3, 1).alive);
            }
            town.world.lock().unwrap().seen.retain(|&(own, _), _| own != 2);
            town.sim.bounce("n2");
            town.until("all see the new process", |world| {
                [1, 3]
                    .iter()
                    .all(|&own| world.seen[&(own, 2)].boot == Some(boot) && world.seen[&(own, 2)].alive)
            });
            town.all_alive(3);
            town.all_answer(3);
        }
    }
}

/// A schedule of faults drawn from a seed.
fn chaos(seed: u64, restarts: bool) -> Vec<(Duration, NodeId, NodeId, Seen)> {
    let mut town = Town::new(3, seed);
    town.all_alive(3);
    let mut random = seed;
    let mut draw = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for _ in 0..12 {
        let a = draw(3) + 1;
        let b = (a + draw(2)) % 3 + 1;
        let (from, to) = (format!("n{a}"), format!("n{b}"));
        match draw(5) {
            0 => town.sim.partition(from, to),
            1 => town.sim.partition_oneway(from, to),
            2 => town.sim.repair(from, to),
            3 if restarts => {
                town.sim.crash(from.as_str());
                town.world.lock().unwrap().seen.retain(|&(own, _), _| own != a);
                town.sim.bounce(from);
            }
            _ => town
                .sim
                .set_link_latency(from, to, Duration::from_millis(draw(200) + 1)),
        }
        town.go_on(Duration::from_millis(draw(4000)));
    }
    for (from, to) in [("n1", "n2"), ("n2", "n3"), ("n1", "n3")] {
        town.sim.repair(from, to);
    }
    town.all_alive(3);
    town.all_answer(3);
    std::mem::take(&mut town.world.lock().unwrap().trace)
}

#[test]
fn after_any_faults_all_nodes_find_each_other_again() {
    let first = std::env::var("COLLIE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let runs = std::env::var("COLLIE_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(10);
    for seed in first..first + runs {
        println!(
            "COLLIE_SEED={seed} COLLIE_RUNS=1 cargo test -p collie-cluster --test transport simulated::after -- --nocapture"
        );
        chaos(seed, true);
    }
}

/// Without restarts: how turmoil ends the connections of a process that crashes is not the same in
/// each run.
#[test]
fn a_seed_replays_exactly() {
    for seed in 42..45 {
        assert_eq!(chaos(seed, false), chaos(seed, false), "seed {seed}");
    }
}
