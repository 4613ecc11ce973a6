//! Clocks that are set wrong, and right again, while nodes run.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use collie_cluster::Begin;
use collie_io::{Clock, Nanos, RealClock};

use super::sites::{Site, bootstrap, settled, sites, until};

const NODES: usize = 5;

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

fn leads(site: &Site) -> usize {
    let map = site.status().map.is_some_and(|map| map.leads);
    site.with(|node, _| node.cluster().led().len()) + usize::from(map)
}

/// Whether each partition is led by one of these nodes, by the word of a site.
fn all_led_by(site: &Site, nodes: &[u64]) -> bool {
    let partitions = site.status().partitions;
    let mut leaders = partitions.iter().map(|partition| partition.leader);
    leaders.all(|leader| leader.is_some_and(|leader| nodes.contains(&leader)))
}

#[test]
fn a_node_whose_clock_is_off_leads_nothing_until_it_is_right() {
    let sites = sites(NODES);
    let clocks: Vec<Arc<Settable>> = (0..NODES).map(|_| Arc::default()).collect();
    for (number, (site, clock)) in sites.iter().zip(&clocks).enumerate() {
        let mut options = site.options();
        options.clock = clock.clone();
        let begin = match number {
            0 => bootstrap(5, 5),
            _ => Begin::Join(vec![sites[0].peer]),
        };
        site.try_start(options, begin).unwrap();
    }
    settled(&sites, NODES, 5);
    until(&sites, "a leader on each node", || {
        sites.iter().all(|site| leads(site) > 0).then_some(())
    });

    let odd = &sites[1];
    clocks[1].0.store(3_000, Ordering::SeqCst);
    until(&sites, "the odd one leads nothing", || {
        (leads(odd) == 0 && all_led_by(&sites[0], &[1, 3, 4, 5])).then_some(())
    });
    let problems = odd.with(|node, _| node.cluster().problems());
    assert!(
        matches!(&problems[..], [clock] if clock.starts_with("the clock: ") && clock.contains(" ahead of ")),
        "{problems:?}"
    );
    // It stands next behind this one in each group, and would be the first to be elected.
    let dead = &sites[0];
    assert!(leads(dead) > 0);
    dead.kill();
    until(&sites, "other leaders of what the dead node led", || {
        let led = odd.with(|node, _| node.cluster().led().len());
        assert_eq!(led, 0, "of five replicas three others answer");
        all_led_by(&sites[2], &[3, 4, 5]).then_some(())
    });
    // Of the map's three voters it may be the only one with all entries: it may lead, and hands over.
    until(&sites, "it does not lead the map, either", || {
        let led = sites[2..]
            .iter()
            .any(|site| site.status().map.is_some_and(|map| map.leads));
        (led && leads(odd) == 0).then_some(())
    });
    assert_eq!(
        sites[2].with(|node, _| node.cluster().problems()),
        [""; 0],
        "the clocks of the others are right"
    );

    clocks[1].0.store(-20, Ordering::SeqCst);
    until(&sites, "the clock is right", || {
        let problems = odd.with(|node, _| node.cluster().problems());
        problems.is_empty().then_some(())
    });
    // Others may hand over to it now.
    let map = odd.map().unwrap();
    let partition = map.partitions.values().next().unwrap();
    let own = partition.member_on(2).unwrap().replica;
    until(&sites, "it leads", || {
        let leader = sites[2].status().partitions.first()?.leader?;
        if leader == 2 {
            return Some(());
        }
        let at = partition.member_on(leader)?.replica;
        sites[leader as usize - 1].with(|node, runtime| {
            let replica = node.node().replica(at)?;
            runtime.block_on(replica.transfer_to(own)).ok()
        })?;
        None
    });
}
