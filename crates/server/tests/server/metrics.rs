//! `/metrics` and `/healthz`, scraped as Prometheus does.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Client, PATIENCE, Running, command, config, start_on, wait_for};
use collie_db::{Db, Options, RingMode};
use collie_io::{Clock, RealClock};
use collie_server::{Server, ServerConfig, ServerError};
use collie_sim::{Fault, FaultKind, SimDevice};

fn options(device: &SimDevice) -> Options {
    // Writes that are durable when they return would not be blocked with the syncs.
    device.support_direct(false);
    Options {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 1 << 20,
        segment_bytes: 16 << 20,
        ..crate::support::options()
    }
}

fn open(device: &SimDevice, dir: &std::path::Path) -> Db {
    Db::open(dir, options(device)).unwrap()
}

fn with_metrics() -> ServerConfig {
    ServerConfig {
        metrics: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        ring_bytes: 1 << 20,
        ..config()
    }
}

/// Sends a request as it is and returns the whole response.
fn ask(addr: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(addr: SocketAddr, path: &str) -> (String, String) {
    let answer = ask(addr, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let length = format!("Content-Length: {}\r\n", body.len());
    assert!(format!("{head}\r\n").contains(&length), "{head}");
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// The samples of a page by name and labels. Fails if the page breaks a rule of the format or of
/// its names.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    let (mut current, mut kind) = (String::new(), String::new());
    let mut names = BTreeSet::new();
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            current = help.split(' ').next().unwrap().to_owned();
            assert!(names.insert(current.clone()), "{current} is there twice");
            assert!(
                current.starts_with("collie_") || current.starts_with("process_"),
                "{current}"
            );
            assert!(help.ends_with('.'), "{help}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, of) = rest.split_once(' ').unwrap();
            assert_eq!(name, current);
            assert_eq!(of == "counter", name.ends_with("_total"), "{name} is a {of}");
            kind = of.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let base = match kind.as_str() {
                "summary" => name.trim_end_matches("_sum").trim_end_matches("_count"),
                _ => name,
            };
            assert_eq!(base, current, "{line}");
            for unit in ["_ns", "_ms", "_us", "_kb", "_mb"] {
                assert!(!name.contains(unit), "{name} is not in a base unit");
            }
            let before = found.insert(series.to_owned(), value.parse().unwrap());
            assert!(before.is_none(), "{series} is there twice");
        }
    }
    found
}

/// The page, once it has the engine's statistics: if these take too long, the first pages lack
/// them.
fn page(addr: SocketAddr) -> String {
    let mut page = String::new();
    wait_for("a page with the engine's figures", || {
        let (status, body) = get(addr, "/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        page = body;
        page.contains("collie_log_durable_lsn")
    });
    page
}

#[test]
fn the_page_counts_what_clients_did_and_has_documented_names() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(open(&SimDevice::new(3), dir.path()));
    let mut client = server.0.client();
    for line in ["SET a 1", "SET b 2 PX 100000", "GET a", "GET nothing"] {
        client.line(line);
    }
    assert!(client.line("INCR").starts_with("-ERR wrong number"));
    assert!(client.line("INCRBY a x").starts_with("-ERR value is not"));
    let page = page(server.1);
    let samples = samples(&page);
    for (series, value) in [
        ("collie_connections", 1.0),
        ("collie_commands_total{command=\"set\"}", 2.0),
        ("collie_commands_total{command=\"get\"}", 2.0),
        ("collie_command_errors_total{command=\"incrby\"}", 1.0),
        ("collie_command_errors_total{command=\"get\"}", 0.0),
        ("collie_request_errors_total", 2.0),
        ("collie_keyspace_hits_total", 1.0),
        ("collie_keyspace_misses_total", 1.0),
        ("collie_keys{db=\"0\"}", 2.0),
        ("collie_expiring_keys{db=\"0\"}", 1.0),
        ("collie_writes_refused", 0.0),
        ("collie_log_poisoned", 0.0),
        ("collie_family_stalled{family=\"db0.0\"}", 0.0),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series}\n{page}");
    }
    for series in [
        "collie_command_seconds_total{command=\"set\"}",
        "collie_log_durable_lsn",
        "collie_log_stage_seconds_count{stage=\"sync\"}",
        "collie_log_group_frames_sum",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
    ] {
        assert!(
            samples.get(series).is_some_and(|value| *value > 0.0),
            "{series}\n{page}"
        );
    }

    let shown: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
        .collect();
    let document = include_str!("../../../../docs/book/src/operations.md");
    let documented: BTreeSet<&str> = document
        .split('`')
        .filter_map(|name| name.split('{').next())
        .filter(|name| name.starts_with("collie_") || name.starts_with("process_"))
        // A node of a cluster has those, too.
        .filter(|name| !name.starts_with("collie_cluster_"))
        .collect();
    assert_eq!(shown, documented);
}

/// A running server and the address of its metrics.
fn served(db: Db) -> (Running, SocketAddr) {
    let server = start_on(db, with_metrics());
    let metrics = server.metrics.unwrap();
    (server, metrics)
}

#[test]
fn a_page_is_served_while_writers_are_stalled() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(11);
    let server = served(open(&device, dir.path()));
    let value = "v".repeat(60_000);
    assert_eq!(server.0.client().call(&["SET", "old", &value]), "+OK\r\n");
    page(server.1);
    let held_syncs = device.hold_syncs();
    let mut writers: Vec<Client> = (0..40).map(|_| server.0.client()).collect();
    for (number, writer) in writers.iter_mut().enumerate() {
        writer.send(&command(&["SET", &format!("k{number}"), &value]));
    }
    // They connect at once, and are accepted one after the other.
    let mut pages = 0;
    wait_for("three pages, and all writers are accepted", || {
        let (status, page) = get(server.1, "/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        let samples = samples(&page);
        let accepted = samples["collie_connections"] >= 40.0;
        // The engine's part is there too, current or previous.
        assert!(samples.contains_key("collie_log_durable_lsn"), "{page}");
        assert_eq!(get(server.1, "/healthz").0, "HTTP/1.1 200 OK");
        pages += 1;
        accepted && pages >= 3
    });
    held_syncs.release();
    for mut writer in writers {
        assert_eq!(writer.reply(), b"+OK\r\n");
    }
}

#[test]
fn bytes_of_fillers_and_of_the_archive_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        pad_to_block: true,
        segment_bytes: 1 << 20,
        max_total_wal_size: Some(2 << 20),
        wal_size_limit: 16 << 20,
        ..options(&SimDevice::new(7))
    };
    let server = served(Db::open(dir.path(), options).unwrap());
    let mut client = server.0.client();
    let value = "v".repeat(60_000);
    for number in 0..60 {
        assert_eq!(client.call(&["SET", &format!("k{number}"), &value]), "+OK\r\n");
    }
    // Families that pin more of the log than that are flushed, and segments are archived, in the
    // background.
    let mut samples = BTreeMap::new();
    wait_for("segments in the archive", || {
        samples = self::samples(&page(server.1));
        samples["collie_log_archived_segments"] > 0.0
    });
    let segments = samples["collie_log_archived_segments"];
    assert_eq!(
        samples["collie_log_archived_bytes"],
        segments * f64::from(1 << 20)
    );
    assert!(
        samples["collie_log_filler_bytes_total"] > 60.0 * 32.0,
        "{samples:?}"
    );
}

#[test]
fn health_fails_with_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(5);
    let server = served(open(&device, dir.path()));
    assert_eq!(
        get(server.1, "/healthz"),
        ("HTTP/1.1 200 OK".to_owned(), "ok\n".to_owned())
    );
    device.inject(Fault::new(FaultKind::SyncFails));
    assert!(server.0.client().line("SET a 1").starts_with("-MISCONF"));
    let (status, reason) = get(server.1, "/healthz");
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(reason.starts_with("writes are refused: "), "{reason}");
    // It does not shut down in order any more.
    let _ = server.0.stop();
}

#[test]
fn health_follows_the_writes_that_a_full_disk_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(7);
    let options = Options {
        segment_bytes: 1 << 20,
        ..options(&device)
    };
    let server = served(Db::open(dir.path(), options).unwrap());
    let mut client = server.0.client();
    let value = "v".repeat(60_000);
    assert_eq!(client.call(&["SET", "a", &value]), "+OK\r\n");
    device.limit_space(Some(0));
    let mut set = |number: usize| client.call(&["SET", &format!("k{number}"), &value]);
    let refused = (0..10_000)
        .map(&mut set)
        .find(|reply| *reply != "+OK\r\n")
        .unwrap();
    assert!(
        refused.starts_with("-MISCONF") && refused.contains("no space left"),
        "{refused}"
    );
    // A client's own mistake changes nothing, nor does a read.
    for line in ["INCR a", "GET nothing", "SET a"] {
        client.line(line);
    }
    let (status, reason) = get(server.1, "/healthz");
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(
        reason.starts_with("writes are refused: no space left"),
        "{reason}"
    );
    assert_eq!(
        samples(&get(server.1, "/metrics").1)["collie_writes_refused"],
        1.0
    );
    let info = client.line("INFO log");
    assert!(info.contains("writes_refused_because:no space left"), "{info}");
    assert!(
        client
            .line("INFO persistence")
            .contains("aof_last_write_status:err")
    );

    device.limit_space(None);
    let mut set = |number: usize| client.call(&["SET", &format!("k{number}"), &value]);
    assert!(
        (0..10_000).any(|number| set(number) == "+OK\r\n"),
        "writes do not go on"
    );
    assert_eq!(get(server.1, "/healthz").0, "HTTP/1.1 200 OK");
    assert_eq!(
        samples(&get(server.1, "/metrics").1)["collie_writes_refused"],
        0.0
    );
    let info = client.line("INFO log");
    assert!(info.contains("writes_refused_because:no\r\n"), "{info}");
    assert!(
        client
            .line("INFO persistence")
            .contains("aof_last_write_status:ok")
    );
}

/// How long a client may take for the head of its request.
const HEAD_SLOWEST: Duration = Duration::from_secs(5);

#[test]
fn malformed_requests_are_refused_and_slow_ones_delay_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(open(&SimDevice::new(3), dir.path()));
    let began = RealClock.monotonic();
    let mut slow = TcpStream::connect(server.1).unwrap();
    slow.write_all(b"GET /metr").unwrap();
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "HTTP/1.1 404 "),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        (b"GET /metrics HTTP/2\r\n\r\n", "HTTP/1.1 400 "),
        (b"PING\r\n\r\n", "HTTP/1.1 400 "),
        (&[b'x'; 9000], "HTTP/1.1 431 "),
        (b"GET /metrics?name=x HTTP/1.0\n\n", "HTTP/1.0 200 "),
    ] {
        let answer = ask(server.1, request);
        assert!(answer.starts_with(status), "{status}: {answer}");
    }
    let head = ask(server.1, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n") && !head.contains("collie_"), "{head}");
    let rest = slow.write_all(b"ics HTTP/1.1\r\n\r\n");
    let mut answer = String::new();
    let read = rest.and_then(|()| slow.read_to_string(&mut answer));
    if Duration::from_nanos(RealClock.monotonic() - began) < HEAD_SLOWEST {
        read.unwrap();
        assert!(answer.contains("collie_connections"), "{answer}");
    }
}

#[test]
fn connections_without_a_request_keep_no_probe_from_its_answer() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(open(&SimDevice::new(3), dir.path()));
    // They are accepted in order, and send nothing, or the beginning of a request. If each had its
    // time for it, the probe would wait for all of them, longer than for an answer.
    let idle: Vec<_> = (0..2_000)
        .map(|number| {
            let mut stream = TcpStream::connect(server.1).unwrap();
            if number % 2 == 0 {
                // It may have been closed already.
                let _ = stream.write_all(b"GET /healthz HTT");
            }
            stream
        })
        .collect();
    assert_eq!(get(server.1, "/healthz").0, "HTTP/1.1 200 OK");
    drop(idle);
}

#[test]
fn metrics_leave_the_machine_only_when_forced() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&SimDevice::new(3), dir.path());
    let strange = ServerConfig {
        metrics: Some(SocketAddr::from(([0, 0, 0, 0], 0))),
        password: Some("sesame".to_owned()),
        ..config()
    };
    let refused = Server::bind(strange.clone(), db.clone()).unwrap_err();
    assert!(
        matches!(refused, ServerError::MetricsOpenToNetwork { .. }),
        "{refused}"
    );
    let forced = ServerConfig {
        open_to_network: true,
        ..strange
    };
    let server = Server::bind(forced, db.clone()).unwrap();
    assert!(server.metrics_addr().is_some());
    drop(server);
    db.close().unwrap();
}

/// A database that cannot be created, or emptied, is a refusal like any other.
#[test]
fn health_fails_when_a_full_disk_refuses_a_database() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(7);
    let options = Options {
        reserve_bytes: Some(0),
        ..options(&device)
    };
    let server = served(Db::open(dir.path(), options).unwrap());
    let mut client = server.0.client();
    assert_eq!(client.line("SET a 1"), "+OK\r\n");
    device.limit_space(Some(0));
    let refused = client.line("SELECT 3");
    assert!(refused.starts_with("-MISCONF"), "{refused}");
    assert_eq!(get(server.1, "/healthz").0, "HTTP/1.1 503 Service Unavailable");
    device.limit_space(None);
    assert_eq!(client.line("SELECT 3"), "+OK\r\n");
    assert_eq!(client.line("SET a 1"), "+OK\r\n");
    assert_eq!(get(server.1, "/healthz").0, "HTTP/1.1 200 OK");
}
