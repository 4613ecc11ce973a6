//! When replies are sent, and what is left after a crash: a server on a simulated device, whose
//! syncs a test blocks or makes fail.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::support::{
    Client, Random, Running, command, config, field, open_on, rounds, start_on, until, wait_for,
};
use collie_db::{Db, FamilyOptions, Options, RingMode, Stall};
use collie_io::{Device, RealDevice};
use collie_server::{Ack, ServerConfig};
use collie_sim::{Fault, FaultKind, Points, PowerCut, SimDevice, Snapshot};

/// Long enough for a reply to have come once its request was executed, if it does not wait.
const A_WHILE: Duration = Duration::from_millis(150);

fn start(device: &SimDevice, dir: &Path, config: ServerConfig) -> Running {
    start_on(open_on(device, dir), config)
}

/// The tables' directories at some moments. They lie outside the simulated device; while none of
/// them is written to, they match any image of it.
struct Tables {
    kept: tempfile::TempDir,
}

impl Tables {
    fn new() -> Tables {
        Tables {
            kept: tempfile::tempdir().unwrap(),
        }
    }

    /// Adds the current contents of a store's directory.
    fn keep(&self, dir: &Path) {
        copy(dir, self.kept.path());
    }

    /// Restores a store's directory.
    fn put_back(&self, dir: &Path) {
        std::fs::remove_dir_all(dir).unwrap();
        copy(self.kept.path(), dir);
    }
}

fn copy(from: &Path, to: &Path) {
    if !to.exists() {
        std::fs::create_dir(to).unwrap();
    }
    // Files that are removed at this moment belong to a dropped family, and were copied before.
    for entry in RealDevice::new().list(from).unwrap_or_default() {
        let (from, to) = (from.join(&entry.name), to.join(&entry.name));
        if entry.is_dir() {
            copy(&from, &to);
        } else {
            let copied = std::fs::copy(&from, to);
            assert!(copied.is_ok() || !from.exists(), "{from:?}: {copied:?}");
        }
    }
}

/// How often a connection has waited for the log, or begun to.
fn waits(client: &mut Client) -> u64 {
    field(client, "stats", "durability_waits").parse().unwrap()
}

/// A client whose replies do not wait for durability.
fn watcher(server: &Running) -> Client {
    let mut watcher = server.client();
    assert_eq!(watcher.line("CLIENT ACK buffered"), "+OK\r\n");
    watcher
}

/// Whether a connection's request, which it sends now, is executed and its reply delayed. `watcher`
/// observes that.
fn is_delayed(watcher: &mut Client, client: &mut Client, request: &[u8]) -> bool {
    let before = waits(watcher);
    client.send(request);
    let mut has_come = false;
    wait_for("a reply arrives or is delayed", || {
        has_come = !client.is_silent_for(Duration::from_millis(1));
        has_come || waits(watcher) > before
    });
    !has_come && client.is_silent_for(A_WHILE)
}

#[test]
fn no_reply_reflects_a_commit_that_is_not_durable() {
    // The device's syncs are blocked: clients that wrote, or read what was written, get no reply;
    // all others do.
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(1);
    let server = start(&device, dir.path(), config());
    server.client().line("SET old 1");
    let mut watcher = watcher(&server);
    let held_syncs = device.hold_syncs();
    let mut answered = Vec::new();
    for (line, expected) in [
        ("SET new 2", "+OK\r\n"),
        ("GET new", "$1\r\n2\r\n"),
        ("SETNX new 3", ":0\r\n"),
        ("SET new 3 NX", "$-1\r\n"),
        ("EXISTS new", ":1\r\n"),
        ("MGET old new", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
        ("STRLEN new", ":1\r\n"),
        ("KEYS n*", "*1\r\n$3\r\nnew\r\n"),
        ("DBSIZE", ":2\r\n"),
        ("SELECT 0", "+OK\r\n"),
    ] {
        let mut client = server.client();
        let request = command(&line.split(' ').collect::<Vec<_>>());
        if line.starts_with("SELECT") {
            client.send(&request);
            assert_eq!(client.reply(), expected.as_bytes(), "{line} reflects no data");
        } else {
            assert!(
                is_delayed(&mut watcher, &mut client, &request),
                "{line} was answered before it was durable"
            );
            answered.push((client, line, expected));
        }
    }
    let mut client = server.client();
    assert_eq!(
        client.line("GET old"),
        "$1\r\n1\r\n",
        "a reply that reflects only durable commits is sent at once"
    );
    assert_eq!(client.line("GET nothing"), "$-1\r\n");
    assert_eq!(client.line("CLIENT ACK buffered"), "+OK\r\n");
    assert_eq!(
        client.line("GET new"),
        "$1\r\n2\r\n",
        "a client with a weaker level gets its reply at once"
    );
    held_syncs.release();
    for (mut client, line, expected) in answered {
        assert_eq!(String::from_utf8(client.reply()).unwrap(), expected, "{line}");
    }
}

#[test]
fn a_deletion_is_not_reflected_before_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(2);
    let server = start(&device, dir.path(), config());
    server.client().line("MSET a 1 b 2");
    let mut watcher = watcher(&server);
    let held_syncs = device.hold_syncs();
    let (mut deleter, mut reader) = (server.client(), server.client());
    assert!(is_delayed(&mut watcher, &mut deleter, &command(&["DEL", "a"])));
    assert!(
        is_delayed(&mut watcher, &mut reader, &command(&["GET", "a"])),
        "a reply that a key is gone waits as well"
    );
    held_syncs.release();
    assert_eq!(deleter.reply(), b":1\r\n");
    assert_eq!(reader.reply(), b"$-1\r\n");
}

#[test]
fn a_pipeline_waits_once() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(3);
    let server = start(&device, dir.path(), config());
    let (mut client, mut watcher) = (server.client(), watcher(&server));
    let before = waits(&mut watcher);
    let held_syncs = device.hold_syncs();
    let mut pipeline = Vec::new();
    for i in 0..100 {
        pipeline.extend(command(&["SET", &format!("k{i}"), "v"]));
        pipeline.extend(command(&["INCR", "counter"]));
    }
    assert!(is_delayed(&mut watcher, &mut client, &pipeline));
    held_syncs.release();
    for i in 1..=100 {
        assert_eq!(client.reply(), b"+OK\r\n");
        assert_eq!(client.reply(), format!(":{i}\r\n").into_bytes());
    }
    assert_eq!(waits(&mut watcher) - before, 1);
}

/// A server whose clients share one thread, and whose log is written through the page cache.
fn start_with_one_thread(
    device: &SimDevice,
    dir: &Path,
    options: Options,
    databases: FamilyOptions,
) -> Running {
    device.support_direct(false);
    let ring_bytes = options.ring_bytes;
    let options = Options {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        segment_bytes: 16 << 20,
        ..options
    };
    start_on(
        Db::open(dir, options).unwrap(),
        ServerConfig {
            threads: 1,
            databases,
            ring_bytes,
            ..config()
        },
    )
}

/// Forty clients write more than the ring takes while the device blocks every sync, and share their
/// only thread with clients that read.
fn readers_go_on_while_writers_are_stalled(options: Options, databases: FamilyOptions, value_len: usize) {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(11);
    let server = start_with_one_thread(&device, dir.path(), options, databases);
    let value = "v".repeat(value_len);
    // The log has met frames of this size, and so reserves space for them.
    assert_eq!(
        server.client().call(&["MSET", "old", "1", "large", &value]),
        "+OK\r\n"
    );
    let held_syncs = device.hold_syncs();
    let mut writers: Vec<Client> = (0..40).map(|_| server.client()).collect();
    let (mut reader, mut watcher) = (server.client(), watcher(&server));
    let mut read = || -> usize {
        let bytes = field(&mut watcher, "stats", "total_net_input_bytes");
        bytes.parse().unwrap()
    };
    let before = read();
    for (number, writer) in writers.iter_mut().enumerate() {
        writer.send(&command(&["SET", &format!("k{number}"), &value]));
        assert_eq!(reader.line("GET old"), "$1\r\n1\r\n");
    }
    // Once all of them have been read, every client that must wait does.
    wait_for("all writes are read", || read() > before + 40 * value_len);
    for (line, expected) in [
        ("GET old", "$1\r\n1\r\n"),
        ("GET nothing", "$-1\r\n"),
        ("PING", "+PONG\r\n"),
    ] {
        assert_eq!(reader.line(line), expected);
    }
    // The engine's statistics are delivered when its writers go on; only the client that requests
    // them waits.
    let mut asking = server.client();
    asking.line("CLIENT ACK buffered");
    asking.send(&command(&["INFO"]));
    assert_eq!(reader.line("GET old"), "$1\r\n1\r\n");
    for writer in &mut writers {
        assert!(
            writer.is_silent_for(Duration::from_millis(1)),
            "nothing is durable"
        );
    }
    held_syncs.release();
    for mut writer in writers {
        assert_eq!(writer.reply(), b"+OK\r\n");
    }
    assert_eq!(asking.reply()[0], b'$');
}

#[test]
fn readers_go_on_while_writers_wait_for_room_in_the_ring() {
    // Small writes, which run on the connection's thread while the engine is not under pressure,
    // and large ones, which never do.
    for value_len in [60_000, 200_000] {
        let options = Options {
            ring_bytes: 1 << 20,
            ..crate::support::options()
        };
        readers_go_on_while_writers_are_stalled(options, FamilyOptions::default(), value_len);
    }
}

#[test]
fn readers_go_on_while_writers_wait_for_memtables_to_be_flushed() {
    // A memtable is flushed when the log is durable past it, which the blocked syncs prevent.
    let databases = FamilyOptions {
        write_buffer_bytes: 512 << 10,
        ..FamilyOptions::default()
    };
    let options = Options {
        ring_bytes: 16 << 20,
        ..crate::support::options()
    };
    readers_go_on_while_writers_are_stalled(options, databases, 60_000);
}

/// A command that held its rows meanwhile would keep them from all others.
#[test]
fn rows_are_free_while_their_writers_wait_for_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(12);
    let databases = FamilyOptions {
        write_buffer_bytes: 512 << 10,
        max_write_buffers: 4,
        ..FamilyOptions::default()
    };
    let options = Options {
        ring_bytes: 16 << 20,
        ..crate::support::options()
    };
    let server = start_with_one_thread(&device, dir.path(), options, databases);
    let value = "v".repeat(60_000);
    // The log has met frames of this size, and so reserves space for them.
    assert_eq!(server.client().call(&["SET", "first", &value]), "+OK\r\n");
    let held_syncs = device.hold_syncs();
    let family = server.db.family("db0.0").unwrap();
    let write = |number: usize| {
        let mut writer = server.client();
        writer.send(&command(&["SET", &format!("k{number}"), &value]));
        wait_for("it is written", || {
            family.contains(format!("kk{number}")).unwrap()
        });
        writer
    };
    let is_stopped = || server.db.stats().families["db0.0"].stall == Stall::Stopped;
    let mut writers = Vec::new();
    while !is_stopped() {
        writers.push(write(writers.len()));
    }
    // So few do not exceed memory too far.
    for _ in 0..3 {
        writers.push(write(writers.len()));
    }
    let rows: Vec<String> = (0..writers.len()).map(|number| format!("kk{number}")).collect();
    let mut owner = server.db.row_owner("a program");
    let rows = rows.iter().map(|row| (&family, row.as_bytes()));
    drop(
        server
            .db
            .lock_rows(&mut owner, rows, Duration::from_secs(30))
            .unwrap(),
    );
    assert!(is_stopped());
    held_syncs.release();
    for mut writer in writers {
        assert_eq!(writer.reply(), b"+OK\r\n");
    }
}

#[test]
fn a_waiting_connection_delays_no_other() {
    // One thread: every connection shares it with those that wait for the blocked sync.
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(4);
    let server = start(
        &device,
        dir.path(),
        ServerConfig {
            threads: 1,
            ..config()
        },
    );
    server.client().line("SET old 1");
    let held_syncs = device.hold_syncs();
    let mut waiting: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for (i, client) in waiting.iter_mut().enumerate() {
        client.send(&command(&["SET", &format!("k{i}"), "v"]));
    }
    let mut client = server.client();
    for _ in 0..100 {
        assert_eq!(client.line("GET old"), "$1\r\n1\r\n");
    }
    assert!(waiting[0].is_silent_for(A_WHILE));
    held_syncs.release();
    for client in &mut waiting {
        assert_eq!(client.reply(), b"+OK\r\n");
    }
}

#[test]
fn the_level_is_the_servers_or_the_connections() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(5);
    let server = start(
        &device,
        dir.path(),
        ServerConfig {
            ack: Ack::Buffered,
            ..config()
        },
    );
    let mut client = server.client();
    assert_eq!(client.line("CLIENT ACK"), "$8\r\nbuffered\r\n");
    assert_eq!(
        client.line("CLIENT ACK often"),
        "-ERR ack must be one of disk, process, buffered\r\n"
    );
    let held_syncs = device.hold_syncs();
    assert_eq!(client.line("SET a 1"), "+OK\r\n");
    assert_eq!(
        client.line("WAITAOF 1 0 50"),
        "*2\r\n:0\r\n:0\r\n",
        "the barrier reports that it was not reached"
    );
    let mut strict = server.client();
    assert_eq!(strict.line("CLIENT ACK disk"), "+OK\r\n");
    strict.send(&command(&["GET", "a"]));
    assert!(strict.is_silent_for(A_WHILE));
    client.send(&command(&["WAITAOF", "1", "0", "0"]));
    assert!(client.is_silent_for(A_WHILE));
    held_syncs.release();
    assert_eq!(client.reply(), b"*2\r\n:1\r\n:0\r\n");
    assert_eq!(strict.reply(), b"$1\r\n1\r\n");
    assert_eq!(client.line("CONFIG SET ack disk"), "+OK\r\n");
    assert_eq!(
        client.line("CONFIG GET appendfsync"),
        "*2\r\n$11\r\nappendfsync\r\n$6\r\nalways\r\n"
    );
    assert_eq!(
        server.client().line("CLIENT ACK"),
        "$4\r\ndisk\r\n",
        "new connections take the server's level"
    );
    // A pipeline that changes to a weaker level keeps the promise to its first part.
    let mut turning = server.client();
    turning.line("CLIENT ACK disk");
    let held_syncs = device.hold_syncs();
    turning.send(
        &[
            command(&["SET", "b", "1"]),
            command(&["CLIENT", "ACK", "buffered"]),
        ]
        .concat(),
    );
    assert!(turning.is_silent_for(A_WHILE));
    held_syncs.release();
    assert_eq!(
        (turning.reply(), turning.reply()),
        (b"+OK\r\n".to_vec(), b"+OK\r\n".to_vec())
    );
}

#[test]
fn after_a_failed_sync_writes_are_refused_and_reads_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(6);
    let db = open_on(&device, dir.path());
    let server = start_on(db, config());
    let mut client = server.client();
    assert_eq!(client.line("SET old 1"), "+OK\r\n");
    device.inject(Fault::new(FaultKind::SyncFails));
    let misconf = "-MISCONF Errors writing to the AOF file: ";
    // In one pipeline: replies that reflect durable commits are sent, the others become errors, and
    // the framing stays intact.
    client.send(
        &[
            command(&["GET", "old"]),
            command(&["SET", "new", "2"]),
            command(&["GET", "old"]),
        ]
        .concat(),
    );
    assert_eq!(client.reply(), b"$1\r\n1\r\n");
    let refused = String::from_utf8(client.reply()).unwrap();
    assert!(refused.starts_with(misconf), "{refused}");
    assert_eq!(client.reply(), b"$1\r\n1\r\n");
    let mut other = server.client();
    for line in ["SET x 1", "INCR y", "DEL old", "FLUSHALL", "EXPIRE old 100"] {
        let refused = other.line(line);
        assert!(refused.starts_with(misconf), "{line}: {refused}");
    }
    assert_eq!(other.line("GET old"), "$1\r\n1\r\n");
    assert_eq!(other.line("PING"), "+PONG\r\n");
    assert!(device.fired(FaultKind::SyncFails) > 0);
    drop((client, other));
    assert!(
        server.stop().is_err(),
        "a store that is not closed cleanly is reported"
    );
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(7);
    let server = start(&device, dir.path(), config());
    let mut client = server.client();
    client.line("SET old 1");
    device.limit_space(Some(0));
    let big = "x".repeat(60_000);
    let mut refused = None;
    for i in 0..1_000 {
        let reply = client.call(&["SET", &format!("k{i}"), &big]);
        if reply != "+OK\r\n" {
            refused = Some((i, reply));
            break;
        }
    }
    let (first, reply) = refused.unwrap();
    assert!(
        reply.starts_with("-MISCONF Errors writing to the AOF file: no space left"),
        "{reply}"
    );
    assert_eq!(client.line("GET old"), "$1\r\n1\r\n");
    assert_eq!(
        client.line(&format!("EXISTS k{first}")),
        ":0\r\n",
        "what was refused is not there"
    );
    device.limit_space(None);
    until(&mut client, "SET again 1", "+OK\r\n");
    assert_eq!(client.line("DBSIZE"), format!(":{}\r\n", first + 2));
}

/// Starts a server on each capture of the change that the device recorded, with its unsynced part
/// lost in one way after another. `is_after` says whether a client finds the change whole; where it
/// was acknowledged it must, and a part of it is an error.
fn cut(
    device: &SimDevice,
    dir: &Path,
    tables: &Tables,
    acknowledged: &Snapshot,
    is_after: impl Fn(&Running, &mut Client) -> Result<bool, String>,
) {
    let mut seen = [0, 0];
    let snapshots = device.take_snapshots();
    let step = (snapshots.len() / rounds("COLLIE_POWER_CUTS", 2) / 15).max(1);
    for (i, snapshot) in snapshots.iter().step_by(step).chain([acknowledged]).enumerate() {
        let (name, way) = PowerCut::WAYS[i % PowerCut::WAYS.len()];
        let after = snapshot.power_cut(way, i as u64).device();
        tables.put_back(dir);
        let server = start(&after, dir, config());
        let mut client = server.client();
        let is_after =
            is_after(&server, &mut client).unwrap_or_else(|part| panic!("{name}, snapshot {i}: {part}"));
        assert!(
            is_after || snapshot.op() < acknowledged.op(),
            "{name}: the change was acknowledged"
        );
        seen[usize::from(is_after)] += 1;
        drop(client);
        server.stop().unwrap();
    }
    assert!(seen[0] > 0 && seen[1] > 0, "cuts before and after: {seen:?}");
}

#[test]
fn a_power_cut_leaves_emptied_databases_full_or_empty() {
    // The device is captured at every change that FLUSHALL makes, and its unsynced part lost in one
    // way after another. Two databases, both of which must be as before or both empty; empty if
    // that was acknowledged.
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(11);
    let server = start(&device, dir.path(), config());
    let mut client = server.client();
    client.line("MSET a 1 b 2 c 3");
    client.line("SELECT 5");
    client.line("MSET d 4 e 5");
    let tables = Tables::new();
    tables.keep(dir.path());
    device.record(Points::Changes, 400);
    assert_eq!(client.line("FLUSHALL"), "+OK\r\n");
    let acknowledged = device.snapshot();
    tables.keep(dir.path());
    assert_eq!(client.line("SET after 1"), "+OK\r\n");
    drop(client);
    server.stop().unwrap();
    cut(&device, dir.path(), &tables, &acknowledged, |server, client| {
        let first = client.line("EXISTS a b c");
        client.line("SELECT 5");
        let other = client.line("EXISTS d e");
        let left = server.db.families();
        assert!(left.len() <= 3, "left over: {left:?}");
        match (first.as_str(), other.as_str()) {
            (":3\r\n", ":2\r\n") => Ok(false),
            (":0\r\n", ":0\r\n") => Ok(true),
            found => Err(format!("{found:?}")),
        }
    });
}

#[test]
fn a_power_cut_leaves_a_transaction_of_databases_whole_or_not() {
    // As above, with an EXEC that writes to two databases, empties one and swaps them.
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(12);
    let server = start(&device, dir.path(), config());
    let mut client = server.client();
    for line in ["MSET a 1 b 2", "SELECT 5", "MSET d 4 e 5", "SELECT 0"] {
        client.line(line);
    }
    let tables = Tables::new();
    tables.keep(dir.path());
    for line in ["MULTI", "SET x 1", "SELECT 5", "FLUSHDB", "SET y 1", "SWAPDB 0 5"] {
        client.line(line);
    }
    device.record(Points::Changes, 400);
    assert_eq!(client.line("EXEC"), "*5\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n");
    let acknowledged = device.snapshot();
    tables.keep(dir.path());
    assert_eq!(client.line("SET after 1"), "+OK\r\n");
    drop(client);
    server.stop().unwrap();
    cut(&device, dir.path(), &tables, &acknowledged, |_, client| {
        let first = client.line("MGET a b x d e y").replace("\r\n", " ");
        client.line("SELECT 5");
        let other = client.line("MGET a b x d e y").replace("\r\n", " ");
        let (none, one) = ("$-1", "$1 1");
        let is_before = first == format!("*6 {one} $1 2 {none} {none} {none} {none} ")
            && other == format!("*6 {none} {none} {none} $1 4 $1 5 {none} ");
        let is_after = first == format!("*6 {none} {none} {none} {none} {none} {one} ")
            && other == format!("*6 {one} $1 2 {one} {none} {none} {none} ");
        if is_before == is_after {
            return Err(format!("{first:?} and {other:?}"));
        }
        Ok(is_after)
    });
}

#[test]
fn what_a_reply_reflected_survives_a_power_cut() {
    // Clients increment one counter and read it, each recording the largest value that it was sent.
    // The device is captured meanwhile and its unsynced part lost in one way after another: the
    // counter must not be below any value that was sent.
    let mut random = Random::new("what_a_reply_reflected_survives_a_power_cut");
    for _ in 0..rounds("COLLIE_POWER_CUTS", 2) {
        let seed = random.below(1 << 30) as u64;
        let dir = tempfile::tempdir().unwrap();
        let device = SimDevice::new(seed);
        device.delay_syncs(Duration::from_micros(200));
        let db = open_on(&device, dir.path());
        let server = start_on(db, config());
        let tables = Tables::new();
        tables.keep(dir.path());
        let acknowledged = AtomicI64::new(0);
        let images = std::thread::scope(|scope| {
            for i in 0..6 {
                let mut client = server.client();
                let acknowledged = &acknowledged;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let reply = client.line(if i % 3 == 0 { "GET counter" } else { "INCR counter" });
                        let number = reply.trim_end().rsplit([':', '\n']).next().unwrap();
                        let number: i64 = number.parse().unwrap_or(0);
                        acknowledged.fetch_max(number, Ordering::SeqCst);
                    }
                });
            }
            (1..3)
                .map(|moment| {
                    // Of 400 increments.
                    while acknowledged.load(Ordering::SeqCst) < 100 * moment {
                        std::thread::yield_now();
                    }
                    let floor = acknowledged.load(Ordering::SeqCst);
                    (floor, device.snapshot())
                })
                .collect::<Vec<_>>()
        });
        server.stop().unwrap();
        for (floor, snapshot) in images {
            for (name, way) in PowerCut::WAYS {
                let after = snapshot.power_cut(way, seed).device();
                tables.put_back(dir.path());
                let server = start(&after, dir.path(), config());
                let found = server.client().line("GET counter");
                let found: i64 = found.trim_end().rsplit('\n').next().unwrap().parse().unwrap_or(0);
                assert!(
                    found >= floor,
                    "acknowledged {floor}, found {found}, {name:?}, seed {seed}"
                );
            }
        }
    }
}
