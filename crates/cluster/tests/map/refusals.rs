//! Who is not let in, and what is said of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

use collie_cluster::testing::map::LEVEL;
use collie_cluster::{Begin, MARK};
use collie_io::RealClock;

use super::sites::{Off, Site, ask, bootstrap, cluster, request, settled, sites};

fn says(said: &str, all: &[&str]) {
    for part in all {
        assert!(said.contains(part), "expected {part:?} in: {said}");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => _ = std::fs::copy(entry.path(), target).unwrap(),
        }
    }
}

#[test]
fn a_directory_begins_once_and_a_node_is_not_anything() {
    let sites = sites(1);
    let site = &sites[0];
    let said = site.refusal(site.options(), Begin::Start);
    says(
        &said,
        &["is not the directory of a node yet", "--bootstrap", "--join"],
    );
    site.start(bootstrap(1, 1));
    let said = site.refusal(site.options(), bootstrap(1, 1));
    says(
        &said,
        &[
            "is in use by another process",
            "stop one",
            "a directory of its own",
        ],
    );
    settled(&sites, 1, 1);
    site.kill();
    let said = site.refusal(site.options(), bootstrap(1, 1));
    says(
        &said,
        &[
            "is the directory of node 1 of cluster",
            "start it without --bootstrap",
        ],
    );
    for wrong in [
        bootstrap(0, 1),
        bootstrap(1, 0),
        bootstrap(8, 1),
        bootstrap(1, 4097),
    ] {
        says(
            &site.refusal(site.options(), wrong),
            &["option", "a", "from 1 to"],
        );
    }
    let said = site.refusal(site.options(), Begin::Join(Vec::new()));
    says(&said, &["option join", "at least one node"]);
    // It was bootstrapped, and nothing of the refusals was kept.
    site.start(Begin::Start);
    assert_eq!(settled(&sites, 1, 1).nodes.len(), 1);
}

#[test]
fn an_address_to_listen_on_alone_gets_into_no_map() {
    let sites = sites(1);
    let everywhere: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    for address in everywhere {
        let (mut peer, mut client) = (sites[0].options(), sites[0].options());
        peer.peer.set_ip(address);
        client.client.set_ip(address);
        for (options, option) in [(peer, "--advertise-peer"), (client, "--advertise-client")] {
            let said = sites[0].refusal(options, bootstrap(1, 1));
            says(&said, &["one to listen on alone", &address.to_string(), option]);
        }
    }
    // The directory is still free for addresses of this machine.
    sites[0].start(bootstrap(1, 1));
    settled(&sites, 1, 1);
}

#[test]
fn a_node_joins_no_other_cluster() {
    let one = cluster(2, 1, 1);
    let other = cluster(1, 1, 1);
    one[1].kill();
    let said = one[1].refusal(one[1].options(), Begin::Join(vec![other[0].peer]));
    let hex = |site: &Site| -> String {
        let id = site.with(|node, _| node.identity().cluster);
        id.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    says(
        &said,
        &[
            "cannot join the cluster",
            &hex(&one[0]),
            &hex(&other[0]),
            "the peers of its own cluster",
        ],
    );
    one[1].start(Begin::Join(vec![one[0].peer]));
    settled(&one, 2, 1);
}

#[test]
fn a_stranger_that_differs_is_refused_with_what_to_do() {
    let sites = cluster(1, 1, 1);
    let peer = sites[0].peer;
    let refused = |join: &_| ask(peer, join, &RealClock).unwrap_err().to_string();
    let mut join = request(1);
    (join.least, join.most) = (0, 0);
    let said = refused(&join);
    says(
        &said,
        &[
            &format!("has feature level {LEVEL}"),
            "speaks levels 0 to 0",
            &format!("run a version on it that speaks level {LEVEL}"),
        ],
    );
    let mut join = request(2);
    join.version = 2;
    says(&refused(&join), &["version 2 of the protocol", "run versions on"]);
    for (off, direction) in [(60_000, "behind"), (-60_000, "ahead")] {
        let said = ask(peer, &request(3), &Off(off)).unwrap_err().to_string();
        let ms = said.split(" ms ").next().unwrap().rsplit(' ').next().unwrap();
        assert!((59_000..61_000).contains(&ms.parse::<u64>().unwrap()), "{said}");
        says(&said, &[direction, "of at most 500 ms", "set the clocks"]);
    }
    let mut join = request(4);
    join.peer = sites[0].client;
    let said = refused(&join);
    says(
        &said,
        &[
            &sites[0].client.to_string(),
            "is an address of node 1",
            "give this node another one",
        ],
    );
    // The token of a node at another address: its directory was copied.
    let mut join = request(5);
    join.token = sites[0].with(|node, _| node.identity().asked.token);
    says(
        &refused(&join),
        &["the token is that of node 1", "copied", "an empty one"],
    );
    join = request(6);
    join.disks = sites[0].with(|node, _| node.identity().asked.disks.clone());
    says(&refused(&join), &["disk 0 of node 1", "an empty directory"]);
    assert_eq!(
        settled(&sites, 1, 1).cluster.next_node,
        2,
        "none of them got a number"
    );

    // A whole node says the same of itself.
    let new = super::sites::sites(1);
    let mut options = new[0].options();
    options.clock = Arc::new(Off(60_000));
    says(
        &new[0].refusal(options, Begin::Join(vec![peer])),
        &["cannot join", "of at most 500 ms"],
    );
    let mut options = new[0].options();
    options.spoken = 0..=0;
    says(
        &new[0].refusal(options, Begin::Join(vec![peer])),
        &["speaks levels 0 to 0"],
    );
    new[0].start(Begin::Join(vec![peer]));
    new[0].kill();
    let mut options = new[0].options();
    options.spoken = LEVEL + 1..=LEVEL + 2;
    let said = new[0].refusal(options, Begin::Start);
    says(
        &said,
        &[
            &format!("has feature level {LEVEL}"),
            &format!("speaks levels {} to {}", LEVEL + 1, LEVEL + 2),
            "run a version",
        ],
    );
}

#[test]
fn a_copy_of_a_node_that_runs_is_refused() {
    let sites = cluster(1, 1, 1);
    let site = &sites[0];
    site.kill();
    let elsewhere = super::sites::sites(1);
    let copied = &elsewhere[0];
    copy(site.dir.path(), copied.dir.path());
    site.start(Begin::Start);
    settled(&sites, 1, 1);
    let said = copied.refusal(copied.options(), Begin::Start);
    let was = site.peer.to_string();
    says(&said, &["node 1 runs at", &was, "copied", "an empty directory"]);
    // The copy at the right address, while the node is alive there.
    let mut options = copied.options();
    (options.peer, options.listen, options.client) = (site.peer, site.peer, site.client);
    let said = copied.refusal(options, Begin::Start);
    says(&said, &[&was, "is another node running there?"]);
}

#[test]
fn a_disk_that_was_emptied_swapped_or_left_out_is_found() {
    let sites = cluster(1, 1, 1);
    let site = &sites[0];
    site.kill();
    let disk = site.disk();
    let aside = site.dir.path().join("aside");
    std::fs::rename(&disk, &aside).unwrap();
    let said = site.refusal(site.options(), Begin::Start);
    says(
        &said,
        &[
            "disk 0 of node 1",
            "has no mark",
            "Mount the right one",
            "without it",
        ],
    );
    std::fs::create_dir(&disk).unwrap();
    says(&site.refusal(site.options(), Begin::Start), &["has no mark"]);
    let mark = std::fs::read_to_string(aside.join(MARK)).unwrap();
    let another = mark.replace("node 1", "node 2");
    std::fs::write(disk.join(MARK), another).unwrap();
    let said = site.refusal(site.options(), Begin::Start);
    says(
        &said,
        &[
            "expected disk 0 of node 1",
            "found disk 0 of node 2",
            "mount each disk",
        ],
    );
    std::fs::write(disk.join(MARK), "collie disk 2\n").unwrap();
    says(
        &site.refusal(site.options(), Begin::Start),
        &["expected the mark of a disk", "run the version"],
    );
    let mut options = site.options();
    options.store.disks = vec![aside.clone(), site.dir.path().join("second")];
    let said = site.refusal(options, Begin::Start);
    says(&said, &["has 1 disks", "started with 2", "same disks"]);

    // The disk of one node is no disk for another.
    let new = super::sites::sites(1);
    let mut options = new[0].options();
    options.store.disks = vec![aside.clone()];
    let said = new[0].refusal(options, Begin::Join(vec![site.peer]));
    says(
        &said,
        &[
            "expected an unmarked disk",
            "found disk 0 of node 1",
            "an empty directory",
        ],
    );

    std::fs::remove_dir_all(&disk).unwrap();
    std::fs::rename(&aside, &disk).unwrap();
    site.start(Begin::Start);
    settled(&sites, 1, 1);
}
