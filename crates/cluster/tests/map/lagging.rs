//! A node that was away, and returns without what was written meanwhile: until it has that, its neighbours say that
//! no other node may be stopped.

use collie_cluster::Begin;

use super::duplication::set_row;
use super::sites::{Site, bootstrap, settled, sites, until};

const VALUE: usize = 200_000;

fn start(site: &Site, begin: Begin) {
    let mut options = site.options();
    // It lacks more than the log keeps, and tables of 4 MB take seconds.
    options.store.shared.log_limit = Some(8 << 20);
    options.transfer_rate = 1_000_000;
    site.try_start(options, begin).unwrap();
}

fn write(sites: &[Site], number: usize) {
    let value = [&[1, 0][..], &vec![number as u8; VALUE]].concat();
    until(sites, "a write", || {
        let mut alive = sites.iter().filter(|site| site.is_alive());
        alive.find_map(|site| set_row(site, format!("key:{}", number % 20).as_bytes(), Some(&value)))
    });
}

/// What the others say of node 3.
fn said(sites: &[Site]) -> Vec<String> {
    let all = sites[..2].iter().flat_map(|site| site.status().problems);
    let of_it = all.filter(|(about, _)| about == "node 3");
    of_it.map(|(_, problem)| problem).collect()
}

#[test]
fn a_node_that_returns_is_a_problem_until_it_has_all() {
    let sites = sites(3);
    for (at, site) in sites.iter().enumerate() {
        let begin = match at {
            0 => bootstrap(3, 1),
            _ => Begin::Join(vec![sites[0].peer]),
        };
        start(site, begin);
    }
    settled(&sites, 3, 1);
    for number in 0..20 {
        write(&sites, number);
    }
    until(&sites, "that nothing is said of it", || {
        said(&sites).is_empty().then_some(())
    });
    sites[2].kill();
    for number in 20..120 {
        write(&sites, number);
    }
    let away = || {
        sites[..2].iter().all(|site| {
            site.status()
                .nodes
                .iter()
                .any(|node| node.number == 3 && !node.is_alive)
        })
    };
    until(&sites, "that it is missed", || away().then_some(()));
    // Of one that is silent it is said that it is.
    assert_eq!(said(&sites), [""; 0]);
    let last = |site: &Site| {
        let partitions = site.status().partitions;
        partitions[0].here.as_ref().map_or(0, |here| here.applied)
    };
    let target = last(&sites[0]).max(last(&sites[1]));
    start(&sites[2], Begin::Start);
    let heard = |site: &Site| {
        site.status()
            .nodes
            .iter()
            .any(|node| node.number == 3 && node.is_alive)
    };
    until(&sites, "that it is heard", || {
        sites[..2].iter().all(heard).then_some(())
    });
    let (mut looks, mut named) = (0, 0);
    loop {
        // In this order: it may get the last of it in between.
        let (problems, has) = (said(&sites), last(&sites[2]));
        if has >= target {
            break;
        }
        assert!(
            !problems.is_empty(),
            "after {looks} looks it has {has} of {target}"
        );
        named += usize::from(problems[0].contains("lacks what others have had for seconds in partition 1"));
        looks += 1;
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(looks > 20, "it had all after {looks} looks");
    // In the second before the first look after its return it is said that it has returned.
    assert!(named > looks / 4, "{named} of {looks}");
    let figure = |site: &Site| {
        let figures = site.with(|node, _| node.cluster().figures());
        let lagging = figures
            .iter()
            .find(|figure| figure.name == "collie_cluster_replicas_lagging");
        lagging.unwrap().samples[0].1
    };
    until(&sites, "that nothing is said of it", || {
        (said(&sites).is_empty() && sites[..2].iter().all(|site| figure(site) == 0)).then_some(())
    });
}
