//! Clocks that are wrong from the start, and clocks that jump while nodes run.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use collie_cluster::Begin;
use collie_io::{Clock, Nanos, RealClock};
use collie_server::cluster::Settled;

use super::sites::{Site, bootstrap, settled, sites, until};

/// Jumps by that much are seen in the time of a command.
const HOUR_MS: i64 = 3_600_000;

/// A machine's clock, which can be set.
#[derive(Debug, Default)]
struct Settable(AtomicI64);

impl Clock for Settable {
    fn monotonic(&self) -> Nanos {
        RealClock.monotonic()
    }

    fn wall_ms(&self) -> u64 {
        RealClock
            .wall_ms()
            .saturating_add_signed(self.0.load(Ordering::SeqCst))
    }
}

fn leads_keys(site: &Site) -> usize {
    site.with(|node, _| node.cluster().led().len())
}

fn leads(site: &Site) -> usize {
    let map = site.status().map.is_some_and(|map| map.leads);
    leads_keys(site) + usize::from(map)
}

/// Whether each partition is led by one of these nodes, by the word of a site.
fn all_led_by(site: &Site, nodes: &[u64]) -> bool {
    let partitions = site.status().partitions;
    let mut leaders = partitions.iter().map(|partition| partition.leader);
    leaders.all(|leader| leader.is_some_and(|leader| nodes.contains(&leader)))
}

/// Nodes with a replica of each partition, each with a clock of its own, and a leader on each.
fn clocked(nodes: usize) -> (Vec<Site>, Vec<Arc<Settable>>) {
    let sites = sites(nodes);
    let clocks: Vec<Arc<Settable>> = (0..nodes).map(|_| Arc::default()).collect();
    for (number, (site, clock)) in sites.iter().zip(&clocks).enumerate() {
        let begin = match number {
            0 => bootstrap(nodes as u8, nodes as u16),
            _ => Begin::Join(vec![sites[0].peer]),
        };
        start(site, clock, begin);
    }
    settled(&sites, nodes, nodes as u16);
    until(&sites, "a leader on each node", || {
        sites.iter().all(|site| leads(site) > 0).then_some(())
    });
    (sites, clocks)
}

fn start(site: &Site, clock: &Arc<Settable>, begin: Begin) {
    let mut options = site.options();
    options.clock = Arc::clone(clock) as _;
    site.try_start(options, begin).unwrap();
}

fn problems(site: &Site) -> Vec<String> {
    site.with(|node, _| node.cluster().problems())
}

/// Whether the only problem of the clock of a site is this one.
fn has_problem(site: &Site, problem: &str) -> bool {
    // Nodes may be silent for a moment, too.
    let mut problems = problems(site);
    problems.retain(|problem| problem.starts_with("the clock: "));
    matches!(&problems[..], [clock] if clock.contains(problem))
}

const IS_OFF: &str = "those of most other nodes";
const HAS_JUMPED: &str = "the node goes on with the time before";

/// Asks the leader of a partition to hand over to a node.
fn hand_to(sites: &[Site], number: u64) {
    let asked = || {
        let to = &sites[number as usize - 1];
        let map = to.map()?;
        let partition = map.partitions.values().next()?;
        let leader = to.status().partitions.first()?.leader?;
        let from = partition.member_on(leader)?.replica;
        let own = partition.member_on(number)?.replica;
        let led_at = &sites[leader as usize - 1];
        led_at.is_alive().then_some(())?;
        led_at.with(|node, runtime| {
            let replica = node.node().replica(from)?;
            runtime.block_on(replica.transfer_to(own)).ok()
        })
    };
    // Where that fails, the caller asks again.
    let _asked = asked();
}

/// Executes a command on what a site leads: by how much its time is ahead of the real one. None
/// without an outcome.
fn command_ahead_ms(site: &Site) -> Option<i64> {
    site.with(|node, runtime| {
        let partition = node.cluster().led().pop()?;
        let _inside = runtime.enter();
        let row = b"row".to_vec();
        let slot = *partition.slots().start();
        let command = partition.begin(slot, &[&row], Duration::ZERO).ok()?;
        let ahead_ms = command.now_ms() as i64 - RealClock.wall_ms() as i64;
        let settling = command.finish(vec![(row, Some(b"value"[..].into()))], 0);
        (runtime.block_on(settling.ok()?) == Settled::Holds).then_some(ahead_ms)
    })
}

/// Executes so many commands on what a site leads, to which others may have to hand over, all of them by a time that is ahead by this much,
/// give or take a tenth of an hour: a thread may be stopped between two clocks.
fn executes_ahead(sites: &[Site], at: usize, commands: usize, expected_ms: i64) {
    for command in 0..commands {
        let ahead_ms = until(sites, "the node leads and executes commands", || {
            if leads_keys(&sites[at]) == 0 {
                hand_to(sites, at as u64 + 1);
            }
            command_ahead_ms(&sites[at])
        });
        assert!(
            (ahead_ms - expected_ms).abs() < HOUR_MS / 10,
            "command {command}: {ahead_ms} ms ahead, not {expected_ms}"
        );
    }
    // It may have seen the others' times before they followed, until they answer its next pings.
    until(sites, "the node leads by its own time", || {
        (!has_problem(&sites[at], IS_OFF)).then_some(())
    });
}

#[test]
fn a_node_that_starts_with_a_wrong_clock_leads_nothing() {
    let (sites, clocks) = clocked(5);
    let odd = &sites[1];
    odd.kill();
    clocks[1].0.store(3_000, Ordering::SeqCst);
    start(odd, &clocks[1], Begin::Start);
    until(&sites, "the odd one follows, and leads nothing", || {
        let follows = odd.map().is_some() && has_problem(odd, IS_OFF);
        (follows && leads(odd) == 0 && all_led_by(&sites[0], &[1, 3, 4, 5])).then_some(())
    });
    let problems_of_odd = problems(odd);
    assert!(
        matches!(&problems_of_odd[..], [clock] if clock.contains(" ahead of ")),
        "{problems_of_odd:?}"
    );
    // It stands next behind this one in each group, and would be the first to be elected.
    let dead = &sites[0];
    assert!(leads(dead) > 0);
    dead.kill();
    until(&sites, "other leaders of what the dead node led", || {
        assert_eq!(leads_keys(odd), 0, "of five replicas three others answer");
        all_led_by(&sites[2], &[3, 4, 5]).then_some(())
    });
    // Of the map's three voters it may be the only one with all entries: it may lead, and hands over.
    until(&sites, "it does not lead the map, either", || {
        let led = sites[2..]
            .iter()
            .any(|site| site.status().map.is_some_and(|map| map.leads));
        (led && leads(odd) == 0).then_some(())
    });
    assert_eq!(problems(&sites[2]), [""; 0], "the clocks of the others are right");

    // A jump, to the time that most have.
    clocks[1].0.store(-20, Ordering::SeqCst);
    until(&sites, "the clock is right", || {
        problems(odd).is_empty().then_some(())
    });
    // Others may hand over to it now.
    executes_ahead(&sites, 1, 1, 0);
}

#[test]
fn a_leader_whose_clock_jumps_leads_on_by_the_time_before() {
    let (sites, clocks) = clocked(3);
    for jump_ms in [HOUR_MS, -HOUR_MS] {
        clocks[1].0.store(jump_ms, Ordering::SeqCst);
        executes_ahead(&sites, 1, 1, 0);
        until(&sites, "the jump is shown", || {
            has_problem(&sites[1], HAS_JUMPED).then_some(())
        });
        let pings = |site: &Site| site.with(|node, _| node.node().peers().stats().frames);
        let before = pings(&sites[1]);
        // More than enough for the others to see it, if it showed in the answers to pings.
        until(&sites, "pings, and commands between them", || {
            executes_ahead(&sites, 1, 20, 0);
            (pings(&sites[1]) > before + 400).then_some(())
        });
        assert!(has_problem(&sites[1], HAS_JUMPED));
        for other in [0, 2] {
            assert_eq!(
                problems(&sites[other]),
                [""; 0],
                "nothing is wrong with the others"
            );
        }
        clocks[1].0.store(-20, Ordering::SeqCst);
        until(&sites, "the clock is back", || {
            problems(&sites[1]).is_empty().then_some(())
        });
        executes_ahead(&sites, 1, 1, 0);
    }
}

#[test]
fn where_the_clocks_of_most_machines_were_set_the_nodes_follow() {
    let (sites, clocks) = clocked(3);
    clocks[0].0.store(HOUR_MS, Ordering::SeqCst);
    until(&sites, "the first is not followed", || {
        has_problem(&sites[0], HAS_JUMPED).then_some(())
    });
    executes_ahead(&sites, 0, 20, 0);
    clocks[1].0.store(HOUR_MS + 100, Ordering::SeqCst);
    until(&sites, "two of three are followed, and the third is off", || {
        let follow = sites[..2].iter().all(|site| problems(site).is_empty());
        (follow && has_problem(&sites[2], IS_OFF) && leads(&sites[2]) == 0).then_some(())
    });
    executes_ahead(&sites, 0, 20, HOUR_MS);
    clocks[2].0.store(HOUR_MS - 100, Ordering::SeqCst);
    until(&sites, "the third follows", || {
        let right = sites.iter().all(|site| problems(site).is_empty());
        right.then_some(())
    });
    executes_ahead(&sites, 2, 20, HOUR_MS);
}

#[test]
fn a_wrong_clock_is_remembered_when_other_nodes_are_gone() {
    let (sites, clocks) = clocked(3);
    let odd = &sites[1];
    odd.kill();
    clocks[1].0.store(3_000, Ordering::SeqCst);
    start(odd, &clocks[1], Begin::Start);
    until(&sites, "the odd one follows, and leads nothing", || {
        let follows = odd.map().is_some() && has_problem(odd, IS_OFF);
        (follows && leads(odd) == 0 && all_led_by(&sites[0], &[1, 3])).then_some(())
    });
    // Of the two that are left none can say which clock is right. The odd one stands next behind the
    // node that dies, and would be the first to be elected.
    assert!(leads_keys(&sites[0]) > 0);
    sites[0].kill();
    let others_lead = || {
        until(&sites, "all is led by the other one", || {
            assert_eq!(leads_keys(odd), 0, "its clock is wrong all the same");
            assert!(has_problem(odd, IS_OFF) || has_problem(odd, "when it was last compared"));
            let map = sites[2].status().map.is_some_and(|map| map.leads);
            (map && all_led_by(&sites[2], &[3])).then_some(())
        });
    };
    others_lead();
    // Nor does it forget that when it is started anew.
    odd.kill();
    start(odd, &clocks[1], Begin::Start);
    others_lead();
    until(&sites, "it is compared with the one that is left", || {
        has_problem(odd, IS_OFF).then_some(())
    });
    clocks[1].0.store(0, Ordering::SeqCst);
    until(&sites, "the clock is right", || {
        problems(odd).is_empty().then_some(())
    });
    executes_ahead(&sites, 1, 1, 0);
    odd.kill();
    start(odd, &clocks[1], Begin::Start);
    until(&sites, "it remembers that, too", || {
        (odd.map().is_some() && problems(odd).is_empty()).then_some(())
    });
}

#[test]
fn a_node_that_is_off_and_has_to_lead_leads_by_the_time_of_most() {
    let sites = sites(3);
    let clocks: Vec<Arc<Settable>> = (0..3).map(|_| Arc::default()).collect();
    // One replica of each partition, all on the first node: nobody else can lead it.
    start(&sites[0], &clocks[0], bootstrap(1, 3));
    for at in 1..3 {
        start(&sites[at], &clocks[at], Begin::Join(vec![sites[0].peer]));
    }
    settled(&sites, 3, 3);
    until(&sites, "a leader", || (leads_keys(&sites[0]) == 3).then_some(()));
    sites[0].kill();
    clocks[0].0.store(HOUR_MS, Ordering::SeqCst);
    start(&sites[0], &clocks[0], Begin::Start);
    until(&sites, "its clock is off", || {
        has_problem(&sites[0], IS_OFF).then_some(())
    });
    let ahead_ms = until(&sites, "it leads, and executes a command", || {
        command_ahead_ms(&sites[0])
    });
    assert!(ahead_ms.abs() < HOUR_MS / 10, "{ahead_ms} ms ahead");
    assert!(has_problem(&sites[0], IS_OFF));
    // That the others are gone changes nothing.
    sites[1].kill();
    sites[2].kill();
    let ahead_ms = until(&sites, "it executes another command", || {
        command_ahead_ms(&sites[0])
    });
    assert!(ahead_ms.abs() < HOUR_MS / 10, "{ahead_ms} ms ahead");
}
