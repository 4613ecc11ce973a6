//! `collie torture` through the real binary, and a served store that is killed under its clients.

use rustix::process::Signal;

use crate::common::{fields, json_lines, run, stderr};
use crate::serve::{Client, Served};

const FIELDS: [&str; 8] = [
    "acknowledged",
    "lost",
    "partial",
    "recovered",
    "reordered",
    "rounds",
    "seed",
    "test",
];

/// How often something is killed: more in the long form of the tests.
fn kills(default: u64) -> u64 {
    let given = std::env::var("COLLIE_KILLS").ok();
    given.map_or(default, |n| n.parse().unwrap())
}

#[test]
fn nothing_acknowledged_is_lost_when_the_writer_is_killed() {
    let rounds = kills(8).to_string();
    let output = run(["torture", "kill", "--rounds", &rounds, "--seed", "5", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    assert!(FIELDS.iter().all(|field| fields(line).contains(field)), "{line}");
    assert_eq!(
        (line["test"].as_str(), line["seed"].as_u64()),
        (Some("kill"), Some(5))
    );
    assert_eq!(line["rounds"].to_string(), rounds);
    let count = |field: &str| line[field].as_u64().unwrap();
    assert!(
        count("acknowledged") > 0 && count("recovered") >= count("acknowledged"),
        "{line}"
    );
    assert_eq!((count("lost"), count("partial"), count("reordered")), (0, 0, 0));
}

#[test]
fn crash_images_are_recovered() {
    let output = run(["torture", "images", "--rounds", "100", "--seed", "3", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    assert!(FIELDS.iter().all(|field| fields(line).contains(field)), "{line}");
    assert_eq!(line["test"], "images");
    assert!(line["rounds"].as_u64().unwrap() >= 100);
    assert_eq!(
        (line["lost"].as_u64(), line["failed"].as_u64()),
        (Some(0), Some(0))
    );
}

#[test]
fn fifty_clients_count_exactly_across_kills() {
    const CLIENTS: u64 = 50;
    const EACH: u64 = 100;
    // The served process is killed while all count; each client then finds the new one, and asks for its own
    // last acknowledged value: what it counts must be that or, where the kill swallowed a reply, one more.
    let dir = tempfile::tempdir().unwrap();
    let kills = kills(3);
    let port = std::sync::atomic::AtomicU16::new(0);
    let served = Served::start(dir.path(), &[]);
    port.store(served.port, std::sync::atomic::Ordering::SeqCst);
    let served = std::thread::scope(|scope| {
        let mut served = served;
        let counting: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let port = &port;
                scope.spawn(move || count_to(client, EACH * (kills + 1), port))
            })
            .collect();
        for _ in 0..kills {
            std::thread::sleep(std::time::Duration::from_millis(150));
            served = served.restart(dir.path());
            port.store(served.port, std::sync::atomic::Ordering::SeqCst);
        }
        counting.into_iter().for_each(|thread| thread.join().unwrap());
        served
    });
    let mut client = served.connect();
    let total: u64 = (0..CLIENTS)
        .map(|n| {
            client
                .call(&["GET", &format!("counter {n}")])
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum();
    assert_eq!(total, CLIENTS * EACH * (kills + 1));
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

/// Increments a counter of its own until it is `target`, over as many connections as it takes, and checks each
/// reply.
fn count_to(client: u64, target: u64, port: &std::sync::atomic::AtomicU16) {
    let key = format!("counter {client}");
    let mut acknowledged = 0;
    while acknowledged < target {
        let Ok(mut connection) = Client::connect(port.load(std::sync::atomic::Ordering::SeqCst)) else {
            std::thread::sleep(std::time::Duration::from_millis(5));
            continue;
        };
        let Ok(there) = connection.call(&["GET", &key]) else {
            continue;
        };
        let there: u64 = if there == "$-1" { 0 } else { there.parse().unwrap() };
        assert!(
            there == acknowledged || there == acknowledged + 1,
            "{key}: {acknowledged} was acknowledged, {there} is there"
        );
        acknowledged = there;
        while acknowledged < target {
            let Ok(reply) = connection.call(&["INCR", &key]) else {
                break;
            };
            assert_eq!(reply, format!(":{}", acknowledged + 1));
            acknowledged += 1;
        }
    }
}
