//! The replies of `CLUSTER` have the shapes of those of a real Redis 7.0, if one is installed.

use std::sync::atomic::Ordering;

use collie_server::cluster::{LogLayout, LogsOf, NodeRequest};

use crate::fake::Role;
use crate::node;
use crate::support::redis::Redis;
use crate::support::{Client, wait_for};

/// A reply with its values taken out: texts, numbers, and the addresses and names in them.
fn shape(reply: &str) -> String {
    let mut shape = String::new();
    let mut lines = reply.split("\r\n").peekable();
    while let Some(line) = lines.next() {
        match line.chars().next() {
            Some(':') => shape.push_str(":n\n"),
            Some('$' | '=') => {
                let text = lines.next().unwrap_or_default();
                let is_word = !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '-');
                shape.push_str(if is_word { text } else { "$" });
                shape.push('\n');
            }
            _ => {
                shape.push_str(line);
                shape.push('\n');
            }
        }
    }
    shape
}

/// A real Redis, alone in its cluster, with all slots.
fn redis(args: &[&str]) -> Option<Redis> {
    let redis = Redis::start(&[&["--cluster-enabled", "yes"], args].concat())?;
    let mut client = Client::connect(redis.addr);
    assert_eq!(client.line("CLUSTER ADDSLOTSRANGE 0 16383"), "+OK\r\n");
    wait_for("its cluster is up", || {
        client.line("CLUSTER INFO").contains("cluster_state:ok")
    });
    Some(redis)
}

#[test]
fn replies_about_the_cluster_have_the_shapes_of_those_of_redis() {
    let Some(redis) = redis(&[]) else { return };
    let node = node(4);
    let (mut ours, mut theirs) = (node.client(), Client::connect(redis.addr));
    for hello in ["HELLO 2", "HELLO 3"] {
        ours.line(hello);
        theirs.line(hello);
        for line in [
            "CLUSTER MYID",
            "CLUSTER LINKS",
            "CLUSTER KEYSLOT key",
            "CLUSTER KEYSLOT",
            "CLUSTER COUNTKEYSINSLOT 7",
            "CLUSTER COUNTKEYSINSLOT 16384",
            "CLUSTER COUNTKEYSINSLOT x",
            "CLUSTER GETKEYSINSLOT 7 1",
            "CLUSTER GETKEYSINSLOT 7 -1",
            "CLUSTER GETKEYSINSLOT 16384 1",
            "CLUSTER REPLICAS nothing",
            "CLUSTER SLAVES nothing",
            "CLUSTER COUNT-FAILURE-REPORTS nothing",
            "CLUSTER NOTHING",
            "CLUSTER INFO x",
            "READONLY",
            "READWRITE",
            "ASKING",
            "INFO cluster",
            "SELECT 1",
            "SWAPDB 0 1",
            "MOVE a 1",
            "MSET a 1 b 2",
            "COPY {t}a {t}b DB 1",
        ] {
            let (our, their) = (ours.line(line), theirs.line(line));
            assert_eq!(shape(&our), shape(&their), "{line}: {our} {their}");
            if line.contains("KEYSLOT") || our.starts_with('-') {
                assert_eq!(our, their, "{line}");
            }
        }
        // One master with all slots; ours has replicas too, which come behind it.
        for line in ["CLUSTER SLOTS", "CLUSTER SHARDS"] {
            let (our, their) = (shape(&ours.line(line)), shape(&theirs.line(line)));
            let head = |shape: &str| {
                let lines = shape.lines().filter(|line| !line.starts_with('*'));
                lines
                    .take(if line == "CLUSTER SLOTS" { 5 } else { 18 })
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            assert_eq!(head(&our), head(&their), "{line}: {our} {their}");
        }
        let (our, their) = (ours.line("CLUSTER INFO"), theirs.line("CLUSTER INFO"));
        let names = |info: &str| -> Vec<String> {
            let fields = info.lines().skip(1).map(|line| line.trim_start_matches("txt:"));
            // What Redis has not says so by its name.
            fields
                .filter(|line| !line.starts_with("collie_"))
                .filter_map(|line| Some(line.split_once(':')?.0.to_owned()))
                .collect()
        };
        assert_eq!(names(&our), names(&their));
        assert!(
            our.contains("cluster_state:ok\r\ncluster_slots_assigned:16384\r\n"),
            "{our}"
        );
        let words = |nodes: &str| {
            let line = nodes
                .lines()
                .find(|line| line.contains("myself"))
                .unwrap()
                .to_owned();
            line.split(' ').count()
        };
        assert_eq!(
            words(&ours.line("CLUSTER NODES")),
            words(&theirs.line("CLUSTER NODES"))
        );
    }
}

#[test]
fn nodes_with_the_name_of_a_host_are_shown_as_redis_does() {
    let node = node(1);
    node.fake.are_named.store(true, Ordering::SeqCst);
    let mut ours = node.client();
    let nodes = ours.text(&["CLUSTER", "NODES"]);
    assert!(
        nodes.contains(" 127.0.0.1:7001@17001,node-7001 myself,master "),
        "{nodes}"
    );
    let led_elsewhere = Role::Led("10.0.0.7:6379".parse().unwrap());
    node.fake.partitions[0].set_role(led_elsewhere);
    assert_eq!(ours.line("GET a"), "-MOVED 15495 node-6379:6379\r\n");
    node.fake.partitions[0].set_role(Role::Leads);
    let named = [
        "--cluster-announce-hostname",
        "node-7001",
        "--cluster-preferred-endpoint-type",
        "hostname",
    ];
    let Some(redis) = redis(&named) else { return };
    let mut theirs = Client::connect(redis.addr);
    for hello in ["HELLO 2", "HELLO 3"] {
        ours.line(hello);
        theirs.line(hello);
        for (line, most) in [("CLUSTER SLOTS", 7), ("CLUSTER SHARDS", 20)] {
            let head = |reply: &str| {
                let shape = shape(reply);
                let lines = shape.lines().filter(|line| !line.starts_with('*'));
                lines.take(most).collect::<Vec<_>>().join(" ")
            };
            let (our, their) = (ours.line(line), theirs.line(line));
            assert_eq!(head(&our), head(&their), "{line}: {our} {their}");
            assert!(our.contains("node-7001"), "{our}");
        }
    }
}

#[test]
fn a_node_is_master_of_what_it_leads_and_replica_otherwise() {
    let node = node(4);
    let mut client = node.client();
    let name = |number: u64| format!("{number:040x}");
    assert_eq!(client.text(&["CLUSTER", "MYID"]), name(1));
    // Adjacent ranges are one.
    let nodes = client.text(&["CLUSTER", "NODES"]);
    let (one, two) = (name(1), name(2));
    let own = format!("{one} 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-16383\n");
    assert!(nodes.starts_with(&own), "{nodes}");
    assert!(
        nodes.contains(&format!(
            "{two} 127.0.0.1:7002@17002 slave {one} 0 0 1 connected\n"
        )),
        "{nodes}"
    );
    let replicas = client.call(&["CLUSTER", "REPLICAS", &one]);
    assert!(replicas.starts_with("*2\r\n"), "{replicas}");
    assert_eq!(
        client.call(&["CLUSTER", "REPLICAS", &two]),
        "-ERR The specified node is not a master\r\n"
    );
    assert_eq!(client.call(&["CLUSTER", "COUNT-FAILURE-REPORTS", &two]), ":0\r\n");
    node.fake.partitions[1].set_role(Role::Led("127.0.0.1:7002".parse().unwrap()));
    node.fake.partitions[2].set_role(Role::Leaderless);
    let nodes = client.text(&["CLUSTER", "NODES"]);
    // It stands in the place of the leader, which is not known: clients expect all slots.
    assert!(
        nodes.contains(" myself,master - 0 0 1 connected 0-4095 8192-16383\n"),
        "{nodes}"
    );
    assert!(nodes.contains(" master - 0 0 1 connected 4096-8191\n"), "{nodes}");
    let slots = client.line("CLUSTER SLOTS");
    assert!(
        slots.starts_with("*3\r\n*5\r\n:0\r\n:4095\r\n*4\r\n$9\r\n127.0.0.1\r\n:7001\r\n$40\r\n"),
        "{slots}"
    );
    assert!(
        slots.contains("\r\n:8192\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:7001\r\n"),
        "{slots}"
    );
    let info = client.line("CLUSTER INFO");
    assert!(
        info.contains("cluster_state:fail\r\n") && info.contains("cluster_slots_fail:4096\r\n"),
        "{info}"
    );
    assert!(info.contains("cluster_size:2\r\n"), "{info}");
    assert!(!info.contains("collie_problem"), "{info}");
    *node.fake.problems.lock().unwrap() = vec!["the clock: off\r\nby much".to_owned(), "b".to_owned()];
    let info = client.line("CLUSTER INFO");
    assert!(
        info.ends_with("\r\ncollie_problem_1:the clock: off  by much\r\ncollie_problem_2:b\r\n\r\n"),
        "{info}"
    );
}

#[test]
fn failover_takes_over_what_others_lead() {
    let node = node(2);
    let mut client = node.client();
    let refused = client.line("CLUSTER FAILOVER");
    assert!(
        refused.starts_with("-ERR You should send CLUSTER FAILOVER to a replica: "),
        "{refused}"
    );
    for line in [
        "CLUSTER FAILOVER",
        "CLUSTER FAILOVER FORCE",
        "cluster failover force",
    ] {
        node.fake.partitions[1].set_role(Role::Led("127.0.0.1:7002".parse().unwrap()));
        assert_eq!(client.line(line), "+OK\r\n");
        let info = client.line("CLUSTER INFO");
        assert!(info.contains("cluster_size:1\r\n"), "{info}");
    }
    node.fake.partitions[1].set_role(Role::Leaderless);
    for (line, refusal) in [
        (
            "CLUSTER FAILOVER TAKEOVER",
            "-ERR CLUSTER FAILOVER TAKEOVER is not offered",
        ),
        ("CLUSTER FAILOVER NOW", "-ERR syntax error"),
        ("CLUSTER FAILOVER FORCE FORCE", "-ERR syntax error"),
    ] {
        let refused = client.line(line);
        assert!(refused.starts_with(refusal), "{line}: {refused}");
    }
    assert!(client.line("CLUSTER INFO").contains("cluster_state:fail"));
}

#[test]
fn nodes_are_listed_and_what_is_asked_of_them_is_handed_on() {
    let node = node(1);
    let mut client = node.client();
    let listed = client.line("COLLIE.NODE LIST");
    assert!(listed.starts_with("*3\r\n"), "{listed}");
    let first = [
        ("number", ":1"),
        ("address", "$14\r\n127.0.0.1:7001"),
        ("role", "$6\r\nserves"),
        ("health", "$6\r\nonline"),
        ("replicas", ":1"),
        ("leads", ":1"),
        ("joining", ":0"),
        ("leaving", ":0"),
        ("drained", "*2\r\n:1\r\n:4"),
    ];
    for (name, value) in first {
        let field = format!("${}\r\n{name}\r\n{value}\r\n", name.len());
        assert!(listed.contains(&field), "{name}: {listed}");
    }
    for line in [
        "COLLIE.NODE DRAIN 2",
        "collie.node serve 2",
        "COLLIE.NODE DRAIN 2 DISK 1",
        "collie.node serve 2 disk 0",
        "COLLIE.NODE REMOVE 3",
        "COLLIE.NODE REPLACE 1 3",
        "COLLIE.NODE FINALIZE",
        "COLLIE.NODE LAYOUT 1 per-disk",
        "collie.node layout 2 PRIVATE disk 1",
        "COLLIE.NODE LAYOUT 2 shared PARTITION 7",
        "COLLIE.NODE split 12000",
        "COLLIE.NODE ACCEPT-LOSS",
        "collie.node accept-loss without 3 4",
    ] {
        assert_eq!(client.line(line), "+OK\r\n", "{line}");
    }
    let asked = node.fake.node_requests.lock().unwrap().clone();
    let layout = |node, of, layout| NodeRequest::Layout { node, of, layout };
    let expected = [
        NodeRequest::Drain(2),
        NodeRequest::Serve(2),
        NodeRequest::DrainDisk { node: 2, disk: 1 },
        NodeRequest::ServeDisk { node: 2, disk: 0 },
        NodeRequest::Remove(3),
        NodeRequest::Replace { node: 1, by: 3 },
        NodeRequest::Finalize,
        layout(1, LogsOf::Node, LogLayout::PerDisk),
        layout(2, LogsOf::Disk(1), LogLayout::Private),
        layout(2, LogsOf::Partition(7), LogLayout::Shared),
        NodeRequest::Split(12_000),
        NodeRequest::AcceptLoss { without: [].into() },
        NodeRequest::AcceptLoss {
            without: [3, 4].into(),
        },
    ];
    let info = client.line("CLUSTER INFO");
    assert!(
        info.contains(
            "\r\ncollie_level:1\r\ncollie_newest_level:2\r\ncollie_layout:private\r\ncollie_logs_to_move:3\r\n\
             collie_drained_disks:0=map 1=4 2=absent\r\ncollie_reads:lease\r\n\
             collie_durability:process\r\ncollie_partitions:1\r\ncollie_splits:1\r\n"
        ),
        "{info}"
    );
    assert_eq!(asked, expected);
    for (line, refusal) in [
        ("COLLIE.NODE REMOVE 9", "-ERR the cluster has no node 9"),
        ("COLLIE.NODE DRAIN x", "-ERR a node is named by its number"),
        ("COLLIE.NODE DRAIN -1", "-ERR a node is named by its number"),
        ("COLLIE.NODE DRAIN 1 DISK", "-ERR syntax error"),
        ("COLLIE.NODE REMOVE 1 DISK 1", "-ERR wrong number of arguments"),
        ("COLLIE.NODE SERVE 1 TAPE 1", "-ERR syntax error"),
        ("COLLIE.NODE DRAIN 1 DISK x", "-ERR a disk is named by its number"),
        ("COLLIE.NODE ACCEPT-LOSS WITHOUT", "-ERR syntax error"),
        ("COLLIE.NODE ACCEPT-LOSS 3", "-ERR syntax error"),
        ("COLLIE.NODE REPLACE 1", "-ERR wrong number of arguments"),
        ("COLLIE.NODE STOP 1", "-ERR unknown subcommand 'STOP'"),
        (
            "COLLIE.NODE LAYOUT 1 two",
            "-ERR a layout is shared, per-disk or private",
        ),
        ("COLLIE.NODE LAYOUT 1 shared disk", "-ERR syntax error"),
        (
            "COLLIE.NODE LAYOUT 1 shared disk -1",
            "-ERR a disk is named by its number",
        ),
        ("COLLIE.NODE LAYOUT 1 shared tape 1", "-ERR syntax error"),
        (
            "COLLIE.NODE SPLIT 16384",
            "-ERR a slot is a number from 0 to 16383",
        ),
        ("COLLIE.NODE SPLIT -1", "-ERR a slot is a number from 0 to 16383"),
    ] {
        let refused = client.line(line);
        assert!(refused.starts_with(refusal), "{line}: {refused}");
    }
}

#[test]
fn the_clusters_that_get_the_rows_are_asked_for_and_listed() {
    let node = node(1);
    let mut client = node.client();
    for line in [
        "COLLIE.DUPLICATE ADD second a.host:7001 192.0.2.1:7002",
        "collie.duplicate end second",
        "COLLIE.DUPLICATE PAUSE second",
        "COLLIE.DUPLICATE RESUME second",
    ] {
        assert_eq!(client.line(line), "+OK\r\n", "{line}");
    }
    let id = "00112233445566778899aabbccddeeff";
    let own = client.line(&format!("COLLIE.DUPLICATE RECEIVE {id}"));
    assert_eq!(own, format!("$32\r\n{}\r\n", "ab".repeat(16)));
    assert_eq!(client.line("COLLIE.DUPLICATE ID"), own);
    let asked = node.fake.node_requests.lock().unwrap().clone();
    let [
        NodeRequest::Duplicate { name, addresses },
        end,
        pause,
        resume,
        NodeRequest::Receive(from),
    ] = &asked[..]
    else {
        panic!("{asked:?}");
    };
    assert_eq!((name.as_str(), addresses.len()), ("second", 2));
    assert_eq!(*end, NodeRequest::EndDuplication("second".to_owned()));
    assert_eq!(*pause, NodeRequest::PauseDuplication("second".to_owned()));
    assert_eq!(*resume, NodeRequest::ResumeDuplication("second".to_owned()));
    let info = client.line("CLUSTER INFO");
    assert!(
        info.contains("\r\ncollie_duplications_paused:second\r\n"),
        "{info}"
    );
    assert_eq!((from[0], from[15]), (0, 0xff));
    let listed = client.line("COLLIE.DUPLICATE LIST");
    for (name, value) in [
        ("name", "$6\r\nsecond"),
        ("addresses", "$26\r\na.host:7001,192.0.2.1:7002"),
        ("paused", ":1"),
        ("partitions", ":9"),
        ("waiting", ":1"),
        ("copying", ":2"),
        ("following", ":3"),
        ("lag_entries", ":4"),
        ("rows", ":5"),
        ("problem", "$23\r\npartition 7: it is away"),
        ("problem_s", ":6"),
    ] {
        let field = format!("${}\r\n{name}\r\n{value}\r\n", name.len());
        assert!(listed.contains(&field), "{name}: {listed}");
    }
    for (line, refusal) in [
        ("COLLIE.DUPLICATE RECEIVE 00", "-ERR the id of a cluster has 32"),
        ("COLLIE.DUPLICATE ADD second", "-ERR wrong number of arguments"),
        ("COLLIE.DUPLICATE STOP x", "-ERR unknown subcommand 'STOP'"),
    ] {
        let refused = client.line(line);
        assert!(refused.starts_with(refusal), "{line}: {refused}");
    }
}

#[test]
fn partitions_are_listed_with_their_slots_and_nodes() {
    let node = node(2);
    let mut client = node.client();
    node.fake.partitions[1].set_role(Role::Leaderless);
    let listed = client.line("COLLIE.NODE PARTITIONS");
    let partition = |number: u16, slots: (u16, u16), leader: &str, served: &str| {
        format!(
            "*18\r\n$9\r\npartition\r\n:{number}\r\n$5\r\nfirst\r\n:{}\r\n$4\r\nlast\r\n:{}\r\n$6\r\nleader\r\n\
             {leader}\r\n$8\r\nsplit_at\r\n:12000\r\n$6\r\nserved\r\n{served}\r\n\
             $5\r\nnodes\r\n*3\r\n:1\r\n:2\r\n:3\r\n$7\r\njoining\r\n*0\r\n$7\r\nleaving\r\n*0\r\n",
            slots.0, slots.1
        )
    };
    let expected =
        partition(1, (0, 8191), ":1", "$3\r\nyes") + &partition(2, (8192, 16_383), "$-1", "$2\r\nno");
    assert_eq!(listed, format!("*2\r\n{expected}"));
}

#[test]
fn what_the_cluster_does_itself_is_refused_with_what_to_use() {
    let node = node(1);
    let mut client = node.client();
    for line in [
        "ADDSLOTS 1",
        "ADDSLOTSRANGE 1 2",
        "BUMPEPOCH",
        "DELSLOTS 1",
        "DELSLOTSRANGE 1 2",
        "FLUSHSLOTS",
        "FORGET x",
        "MEET 127.0.0.1 1",
        "REPLICATE x",
        "RESET",
        "SAVECONFIG",
        "SET-CONFIG-EPOCH 1",
        "SETSLOT 1 STABLE",
    ] {
        let refused = client.line(&format!("CLUSTER {line}"));
        assert!(
            refused.starts_with("-ERR CLUSTER ") && refused.contains("`collie cluster`"),
            "{refused}"
        );
    }
    assert!(client.line("CLUSTER HELP").contains("CLUSTER <subcommand>"));
}

#[test]
fn a_server_without_a_cluster_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = crate::support::start(dir.path(), crate::support::config());
    let mut client = server.client();
    for line in [
        "CLUSTER INFO",
        "CLUSTER KEYSLOT a",
        "CLUSTER HELP",
        "CLUSTER MEET 127.0.0.1 1",
        "READONLY",
        "READWRITE",
        "ASKING",
    ] {
        assert_eq!(
            client.line(line),
            "-ERR This instance has cluster support disabled\r\n",
            "{line}"
        );
    }
    assert!(client.line("INFO cluster").contains("cluster_enabled:0"));
    assert!(client.line("HELLO 2").contains("\r\nstandalone\r\n"));
}
