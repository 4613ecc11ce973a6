//! Faults by a schedule that is drawn from the seed, and their end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use collie_cluster::Layout;

use collie_cluster::testing::NewGroup;

use crate::clients::OBJECTS;
use crate::host::{name, replica_on};
use crate::town::Town;
use crate::world::Split;

/// From one fault to the next, at most.
const PAUSE_MS: u64 = 2500;

/// What goes wrong between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Whole,
    Cut,
    CutOneWay,
    Held,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// So many faults, one after the other; several hold at a time. Afterwards everything is whole.
pub(crate) fn run(town: &mut Town<'_>, faults: u64) {
    let nodes = town.places.len();
    let mut links = vec![Link::Whole; nodes * nodes];
    for _ in 0..faults {
        let pause = ms(town.rng.below(PAUSE_MS));
        town.go_on(pause);
        let fault = fault(town, &mut links);
        *town.faults.entry(fault).or_default() += 1;
    }
    let rest = ms(town.rng.below(PAUSE_MS));
    town.go_on(rest);
    heal(town, &mut links);
}

/// One fault; its name.
fn fault(town: &mut Town<'_>, links: &mut [Link]) -> &'static str {
    let nodes = town.places.len();
    let at = town.rng.index(nodes);
    let other = (at + 1 + town.rng.index(nodes - 1)) % nodes;
    let id = town.places[at].id;
    let happened = |town: &Town<'_>, what: String| town.world.happened(what);
    match town.rng.below(25) {
        0..4 if !town.is_down(at) => {
            let (power, down) = (!town.rng.one_in(4), ms(town.rng.below(4000)));
            town.crash(at, power, down);
            "crash"
        }
        4 => {
            let power = !town.rng.one_in(4);
            for at in 0..nodes {
                let down = ms(town.rng.below(2000));
                if !town.is_down(at) {
                    town.crash(at, power, down);
                }
            }
            "crash-of-all"
        }
        5 | 6 if !town.is_down(at) => {
            let operations = town.rng.below(40);
            happened(town, format!("node {id} dies after {operations} more operations"));
            town.places[at].disk.stop_after(operations);
            let (while_dying, down) = (ms(town.rng.below(400)), ms(town.rng.below(3000)));
            town.go_on(while_dying);
            if !town.is_down(at) {
                town.crash(at, true, down);
            }
            "stop-in-the-middle"
        }
        7 | 8 => {
            set(town, links, (at, other), Link::Cut);
            "cut"
        }
        9 | 10 => {
            set(town, links, (at, other), Link::CutOneWay);
            "cut-one-way"
        }
        11 => {
            set(town, links, (at, other), Link::Held);
            "held-link"
        }
        12 => {
            // A node behind a cut, with all its links.
            for other in (0..nodes).filter(|&other| other != at) {
                set(town, links, (at, other), Link::Cut);
            }
            "isolation"
        }
        13 => {
            for link in 0..links.len() {
                set(town, links, (link / nodes, link % nodes), Link::Whole);
            }
            "all-links-whole"
        }
        14 => {
            let latency = ms(1 + town.rng.below(150));
            happened(
                town,
                format!("node {id} to {}: {latency:?}", town.places[other].id),
            );
            town.sim
                .set_link_latency(name(id), name(town.places[other].id), latency);
            "slow-link"
        }
        15 => {
            let jump = town.rng.below(120_000) as i64 - 60_000;
            happened(town, format!("the clock of node {id} jumps by {jump} ms"));
            town.places[at].clock_offset_ms.fetch_add(jump, Ordering::SeqCst);
            "clock-jump"
        }
        16 => {
            let sync = (!town.rng.one_in(3)).then(|| ms(50 + town.rng.below(900)));
            happened(town, format!("syncs of node {id} take {sync:?}"));
            town.places[at].disk.slow(sync);
            "slow-disk"
        }
        17 if !town.is_down(at) => {
            let room = town.rng.below(200_000);
            happened(town, format!("the disk of node {id} has {room} bytes left"));
            town.places[at].disk.fill(Some(room));
            "full-disk"
        }
        18 if !town.is_down(at) => {
            happened(town, format!("a sync of node {id} fails"));
            town.places[at].disk.fail_sync();
            "failed-sync"
        }
        19 | 20 => {
            let layouts = [Layout::Shared, Layout::PerDisk, Layout::Private];
            let layout = layouts[town.rng.index(layouts.len())];
            happened(town, format!("the logs of node {id} are to be {layout:?}"));
            if let Some(node) = town.places[at].node() {
                node.set_layouts(layout.into());
            }
            "layout"
        }
        21..=23 => {
            split(town);
            "split"
        }
        _ => {
            transfer(town, at, other);
            "transfer"
        }
    }
}

/// A group is split between two objects, if it is led, and none has split it there.
fn split(town: &mut Town<'_>) {
    let groups = town.places[0].groups.clone();
    let which = town.rng.index(groups.len());
    // The object of the lowest slot stays in it.
    let first = (which + 1 + town.rng.index(OBJECTS - groups.len())) as u16;
    let group = groups[which];
    let new = {
        let mut state = town.world.lock();
        let new = 100 + state.splits.len() as u64;
        state.splits.push(Split { group, first, new });
        new
    };
    let led = town.places.iter().find_map(|place| {
        let replica = place.replica(group)?;
        (replica.leader() == Some(replica.id())).then(|| (std::sync::Arc::clone(place), replica))
    });
    let Some((place, replica)) = led else { return };
    let world = std::sync::Arc::clone(&town.world);
    let of = std::sync::Arc::clone(&place);
    place.spawn(async move {
        let pair = |node| (replica_on(group, node), replica_on(new, node));
        let split = NewGroup {
            group: new,
            first,
            members: of.members(new),
            pairs: (1..=of.nodes).map(pair).collect(),
        };
        let done = replica.split(&split).await;
        world.happened(format_args!(
            "group {group} is split at slot {first}, into {new}: {done:?}"
        ));
    });
}

/// A node hands over what it leads.
fn transfer(town: &Town<'_>, at: usize, other: usize) {
    let (place, to) = (&town.places[at], town.places[other].id);
    let all = place.all_groups().into_iter();
    let replicas = all.filter_map(|group| place.replica(group));
    for replica in replicas.collect::<Vec<_>>() {
        let to = replica_on(replica.group(), to);
        let place_id = place.id;
        let world = std::sync::Arc::clone(&town.world);
        place.spawn(async move {
            let done = replica.transfer_to(to).await;
            let is_done = done.is_ok();
            world.happened(format_args!(
                "node {place_id} hands over to replica {to}: {is_done}"
            ));
        });
    }
}

fn set(town: &mut Town<'_>, links: &mut [Link], (from, to): (usize, usize), link: Link) {
    let nodes = town.places.len();
    let (a, b) = (name(town.places[from].id), name(town.places[to].id));
    if from == to || links[from * nodes + to] == link {
        return;
    }
    town.world.happened(format_args!("{a} to {b}: {link:?}"));
    // What held between the two is over.
    town.sim.repair(a.as_str(), b.as_str());
    town.sim.release(a.as_str(), b.as_str());
    (links[from * nodes + to], links[to * nodes + from]) = (Link::Whole, Link::Whole);
    match link {
        Link::Whole => return,
        Link::Cut => town.sim.partition(a, b),
        Link::CutOneWay => town.sim.partition_oneway(a, b),
        Link::Held => town.sim.hold(a, b),
    }
    links[from * nodes + to] = link;
}

/// Everything is whole, and all nodes run.
fn heal(town: &mut Town<'_>, links: &mut [Link]) {
    town.world.happened("everything heals");
    let nodes = town.places.len();
    for from in 0..nodes {
        for to in (0..nodes).filter(|&to| to != from) {
            set(town, links, (from, to), Link::Whole);
            town.sim
                .set_link_latency(name(town.places[from].id), name(town.places[to].id), ms(4));
        }
    }
    for at in 0..nodes {
        town.places[at].disk.slow(None);
        town.places[at].disk.fill(None);
        // A process whose disk was full, or that is about to die, is started again.
        if town.places[at].disk.is_failing() && !town.is_down(at) {
            town.crash(at, false, Duration::ZERO);
        }
    }
    town.start_all();
}
