//! `collie serve` as its operators see it: configuration, diagnostics, the supervisor.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::client::{Client, PATIENCE, content, elements, field};
use crate::common::{collie, run, stderr};
use crate::serve::Served;

/// Writes a configuration that only its owner may read.
fn config_file(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("collie.toml");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A store that is served with a configuration file, and flags behind it.
fn served_with(dir: &Path, text: &str, flags: &[&str]) -> Served {
    let file = config_file(dir, text);
    let mut all = vec!["--config", file.to_str().unwrap()];
    all.extend(flags);
    Served::start(&dir.join("store"), &all)
}

/// The names and values of the parameters that match a pattern, one after the other.
fn config_get_all(client: &mut Client, pattern: &str) -> Vec<String> {
    let reply = client.call_raw(&["CONFIG", "GET", pattern]);
    elements(&reply).into_iter().map(content).collect()
}

/// The parameters that `CONFIG SET` may change. The password is unknown afterwards.
pub(crate) fn settable(client: &mut Client) -> Vec<String> {
    let names = config_get_all(client, "*").into_iter().step_by(2);
    let may_change = |name: &String| {
        // Every other parameter refuses this value.
        let refused = client.text(&["CONFIG", "SET", name, "\0"]);
        !refused.contains("can't set immutable config")
    };
    names.filter(may_change).collect()
}

/// The value of one parameter.
fn config_get(client: &mut Client, name: &str) -> String {
    let mut found = config_get_all(client, name);
    assert_eq!((found.len(), found[0].as_str()), (2, name));
    found.remove(1)
}

#[test]
fn the_command_line_overrides_the_file_and_that_the_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[server]\nack = \"process\"\nthreads = 3\n[limits]\nmaxclients = 77\ntimeout = 600\n\
                authentication-timeout = 7\n\
                client-output-buffer-limit = \"3mb\"\nmaxmemory-clients = \"70mb\"\nproto-max-bulk-len = \"2mb\"\n\
                client-query-buffer-limit = \"5mb\"\ntcp-keepalive = 11\n\
                [diagnostics]\nlog-level = \"warn\"\nslowlog-log-slower-than = -1\nslowlog-max-len = 5\n";
    let served = served_with(dir.path(), text, &["--threads", "1"]);
    let mut client = served.connect();
    for (name, value) in [
        ("ack", "process"),
        ("io-threads", "1"),
        ("maxclients", "77"),
        ("timeout", "600"),
        ("authentication-timeout", "7"),
        (
            "client-output-buffer-limit",
            "normal 3145728 0 0 slave 0 0 0 pubsub 0 0 0",
        ),
        ("maxmemory-clients", "73400320"),
        ("proto-max-bulk-len", "2097152"),
        ("client-query-buffer-limit", "5242880"),
        ("tcp-keepalive", "11"),
        ("loglevel", "warning"),
        ("slowlog-log-slower-than", "-1"),
        ("slowlog-max-len", "5"),
        ("databases", "16"),
    ] {
        assert_eq!(config_get(&mut client, name), value, "{name}");
    }
    let rewrite = client.text(&["CONFIG", "REWRITE"]);
    assert!(rewrite.contains("collie.toml"), "{rewrite}");
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

#[test]
fn every_setting_of_config_set_can_stand_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("store"), &[]);
    let mut client = served.connect();
    let example = include_str!("../../../../packaging/collie.toml");
    let settable = settable(&mut client);
    assert!(settable.len() >= 12, "{settable:?}");
    for name in settable {
        let name = if name == "loglevel" { "log-level" } else { &name };
        let stands = |prefix: &str| example.contains(&format!("\n{prefix}{name} = "));
        assert!(stands("#") || stands("# "), "{name} is not in the example");
    }
    // It ends in order although its password is unknown now.
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

#[test]
fn a_configuration_is_checked_without_opening_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let text = format!(
        "[store]\ndir = \"{}\"\n[server]\nrequirepass = \"sesame\"\n[limits]\nmaxclients = 5\n",
        store.display()
    );
    let file = config_file(dir.path(), &text);
    let file = file.to_str().unwrap();
    let check = |flags: &[&str]| run([&["serve", "--check-config", "--config", file], flags].concat());
    let output = check(&["--ack", "process"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let shown = String::from_utf8(output.stdout).unwrap();
    for part in [
        "maxclients = 5",
        "ack = \"process\"",
        "listen = \"127.0.0.1:6380\"",
        "requirepass is set",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(!shown.contains("sesame"), "{shown}");
    assert!(!store.exists(), "the store was made");

    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = check(&[]);
    assert!(output.status.success());
    assert!(
        stderr(&output).contains("every user can read it"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_logs_options_are_set_in_the_file_or_by_flags() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[store]\nwal-ttl = 3600\nwal-size-limit = \"2gb\"\n";
    let served = served_with(dir.path(), text, &["--pad-to-block"]);
    let mut client = served.connect();
    for value in ["1", "2", "3"] {
        assert_eq!(client.text(&["SET", "a", value]), "+OK");
    }
    let mut figure = |name: &str| field(&mut client, "log", name).parse::<u64>().unwrap();
    assert!(figure("filler_bytes") > 3 * 3000);
    assert_eq!((figure("archived_segments"), figure("archived_bytes")), (0, 0));
    assert!(dir.path().join("store/log/archive").is_dir());
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");

    let file = config_file(dir.path(), text);
    let check = |flags: &[&str]| {
        let config = [
            "serve",
            "--check-config",
            "--dir",
            "/x",
            "--config",
            file.to_str().unwrap(),
        ];
        run([&config[..], flags].concat())
    };
    let output = check(&["--wal-ttl", "0", "--wal-size-limit", "5mb"]);
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    for part in ["pad-to-block = false", "wal-ttl = 0", "wal-size-limit = \"5mb\""] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(
        stderr(&output).contains("below that of one segment"),
        "{}",
        stderr(&output)
    );
    let refused = check(&["--wal-size-limit", "lots"]);
    assert!(
        stderr(&refused).contains("expected bytes"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn a_wrong_configuration_is_refused_with_file_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    for (text, parts) in [
        (
            "[server]\n\nlisten = 6380\n",
            &["collie.toml, line 3, server.listen", "6380"][..],
        ),
        (
            "[limits]\nmaxclient = 5\n",
            &["collie.toml, line 2, limits.maxclient", "`maxclients`"],
        ),
        (
            "[store]\nring-bytes = \"1mb\"\n[limits]\nproto-max-bulk-len = \"8mb\"\n",
            &["proto-max-bulk-len is 8388608", "262144"],
        ),
        (
            "[store]\npad-to-block = true\nring-bytes = \"8kb\"\n",
            &["ring-bytes is 8192", "at least 16384 with pad-to-block"],
        ),
        (
            "[store]\nwal-ttl = \"1h\"\n",
            &["collie.toml, line 2, store.wal-ttl", "\"1h\"", "a whole number"],
        ),
        (
            "[server]\nlisten = \"0.0.0.0:0\"\n",
            &["passwords too: expected TLS (tls-port and tls-only)"],
        ),
        ("[server]\npassword-file = \"/nowhere\"\n", &["/nowhere"]),
    ] {
        let file = config_file(dir.path(), text);
        let store = dir.path().join("store");
        let output = run([
            "serve",
            "--dir",
            store.to_str().unwrap(),
            "--config",
            file.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for part in parts {
            assert!(
                stderr(&output).contains(part),
                "{part} is not in {}",
                stderr(&output)
            );
        }
        assert!(!store.exists(), "the store was made");
    }
    let nowhere = run(["serve", "--config", "/nowhere/collie.toml"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(
        stderr(&nowhere).contains("/nowhere/collie.toml"),
        "{}",
        stderr(&nowhere)
    );
    let no_store = run(["serve", "--config", config_file(dir.path(), "").to_str().unwrap()]);
    assert!(
        stderr(&no_store).contains("names no store"),
        "{}",
        stderr(&no_store)
    );
}

#[test]
fn the_start_reports_store_ring_ack_and_address_in_a_line_each() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("store"), &["--ack", "process"]);
    // Tests beside this one may leave rings behind, which a start names.
    let said = served.said.iter();
    let said: Vec<_> = said
        .filter(|line| !line.contains("rings of stores that are gone"))
        .collect();
    let [store, ring, ack, address] = said[..] else {
        panic!("{:?}", served.said)
    };
    assert!(store.contains("a new store"), "{store}");
    assert!(
        ring.starts_with("ring of ") && ring.contains("/dev/shm"),
        "{ring}"
    );
    assert!(ack.starts_with("ack process: "), "{ack}");
    assert_eq!(address, &format!("listening on {}\n", served.addr));
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

#[test]
fn what_is_said_changes_with_the_log_level_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("store"), &["--log-level", "error"]);
    let mut client = served.connect();
    assert_eq!(config_get(&mut client, "loglevel"), "error");
    let browser = |served: &Served| {
        let mut page = served.connect();
        // It is warned of, and its connection is closed without a word.
        assert!(page.try_text(&["POST", "/"]).is_err());
    };
    browser(&served);
    assert_eq!(client.text(&["CONFIG", "SET", "loglevel", "notice"]), "+OK");
    assert_eq!(config_get(&mut client, "loglevel"), "notice");
    browser(&served);
    assert_eq!(client.text(&["CONFIG", "SET", "loglevel", "error"]), "+OK");
    browser(&served);
    let wrong = client.text(&["CONFIG", "SET", "loglevel", "loud"]);
    assert!(wrong.contains("debug, verbose, notice, warning"), "{wrong}");
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
    assert_eq!(last.matches("a browser may have").count(), 1, "{last}");
}

#[test]
fn with_json_every_line_is_an_object_even_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    std::fs::create_dir(&store).unwrap();
    std::fs::write(store.join("letter"), "dear reader").unwrap();
    let output = run(["serve", "--log-format", "json", "--dir", store.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let last = lines.last().unwrap();
    assert_eq!(last["level"], "ERROR");
    assert!(last["message"].as_str().unwrap().contains("letter"), "{last}");
}

#[test]
fn the_supervisor_is_notified_of_the_start_and_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    for shutdown in [false, true] {
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut child = collie()
            .args(["serve", "--listen", "127.0.0.1:0", "--ring", "private", "--dir"])
            .arg(dir.path().join("store"))
            .env("NOTIFY_SOCKET", &path)
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let receive = || {
            let mut message = [0; 4096];
            let len = socket.recv(&mut message).unwrap();
            String::from_utf8(message[..len].to_vec()).unwrap()
        };
        let ready = receive();
        assert!(ready.starts_with("READY=1\n"), "{ready}");
        let addr = ready.split("listening on ").nth(1).unwrap();
        // Clients can connect as soon as the message arrives.
        let mut client = Client::connect(addr.split(',').next().unwrap().parse().unwrap());
        assert_eq!(client.text(&["PING"]), "+PONG");
        if shutdown {
            assert!(client.try_text(&["SHUTDOWN"]).is_err());
        } else {
            rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
        }
        let stopping = receive();
        assert!(stopping.starts_with("STOPPING=1\n"), "{stopping}");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn open_files_are_raised_to_their_limit_and_clients_lowered() {
    let dir = tempfile::tempdir().unwrap();
    let limited = |limit: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args([
            "-c",
            &format!("ulimit {limit} && exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_collie"),
        ]);
        Served::start_by(shell, &dir.path().join("store"), &[])
    };
    let served = limited("-n 600");
    let mut client = served.connect();
    assert_eq!(config_get(&mut client, "maxclients"), "300");
    let more = client.text(&["CONFIG", "SET", "maxclients", "301"]);
    assert!(more.ends_with("try with 300"), "{more}");
    assert!(
        served.said.concat().contains("maxclients is lowered"),
        "{:?}",
        served.said
    );
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");

    let served = limited("-S -n 300");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", served.pid().as_raw_nonzero())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let words: Vec<&str> = files.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{files}");
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

#[test]
fn values_up_to_the_limit_are_kept_and_longer_ones_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mib16 = 16 << 20;
    let mut served = Served::start(&store, &[]);
    let advertised = |served: &Served| {
        config_get(&mut served.connect(), "proto-max-bulk-len")
            .parse::<usize>()
            .unwrap()
    };
    // A container whose /dev/shm is too small for the default ring says so, and is asked for one of
    // its size.
    let file = config_file(dir.path(), "[store]\nring-bytes = \"64mb\"\n");
    let mut flags = Vec::new();
    if served.said.concat().contains("has no space for a ring of 64 MiB") {
        assert!(advertised(&served) < mib16);
        flags = vec!["--config", file.to_str().unwrap()];
        let (status, said) = served.end(Signal::TERM);
        assert!(status.success(), "{said}");
        served = Served::start(&store, &flags);
    }
    let limit = advertised(&served);
    assert!(limit >= mib16, "{limit}");
    let mut client = served.connect();
    let value = "v".repeat(mib16);
    let longest = "l".repeat(limit);
    assert_eq!(client.text(&["SET", "whole", &value]), "+OK");
    assert_eq!(client.text(&["SET", "grown", &value[1..]]), "+OK");
    assert_eq!(client.text(&["APPEND", "grown", "v"]), format!(":{mib16}"));
    let last = (mib16 - 1).to_string();
    assert_eq!(
        client.text(&["SETRANGE", "stretched", &last, "v"]),
        format!(":{mib16}")
    );
    assert_eq!(
        client.text(&["SET", "longest", &longest, "PX", "100000000"]),
        "+OK"
    );

    // One byte more is refused with a reason, whichever way it comes.
    for words in [
        &["APPEND", "longest", "l"][..],
        &["SETRANGE", "longest", &limit.to_string(), "l"],
    ] {
        let refused = client.text(words);
        assert!(
            refused.starts_with("-ERR string exceeds maximum allowed size"),
            "{refused}"
        );
    }
    let refused = client.text(&["SET", "longer", &format!("{longest}l")]);
    assert!(refused.contains("invalid bulk length"), "{refused}");

    let check = |served: &Served| {
        let mut client = served.connect();
        for key in ["whole", "grown"] {
            assert!(client.text(&["GET", key]) == value, "{key}");
        }
        let stretched = client.text(&["GET", "stretched"]);
        assert!(stretched.len() == mib16 && stretched.ends_with("\0v"));
        assert!(client.text(&["GET", "longest"]) == longest);
        assert_eq!(client.text(&["EXISTS", "longer"]), ":0");
    };
    check(&served);
    let (status, said) = served.end(Signal::TERM);
    assert!(status.success(), "{said}");
    let mut served = Served::start(&store, &flags);
    check(&served);
    let mut client = served.connect();
    assert_eq!(client.text(&["SET", "whole", &value]), "+OK");
    for _ in 0..2 {
        let (status, said) = served.end(Signal::KILL);
        assert_eq!(status.code(), None, "{said}");
        served = Served::start(&store, &flags);
        check(&served);
    }
    let (status, said) = served.end(Signal::KILL);
    assert_eq!(status.code(), None, "{said}");

    // A smaller ring reads what a larger one wrote.
    let file = config_file(dir.path(), "[store]\nring-bytes = \"1mb\"\n");
    let served = Served::start(&store, &["--config", file.to_str().unwrap()]);
    check(&served);
    let (status, said) = served.end(Signal::TERM);
    assert!(status.success(), "{said}");
}

#[test]
fn a_silent_connection_holds_no_buffer() {
    const CONNECTIONS: usize = 1_000;
    // A quarter of the buffer that a connection reads into.
    const BYTES_EACH: usize = 16 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("store"), &["--ring", "private"]);
    let resident = || -> usize {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", served.pid().as_raw_nonzero())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    };
    let connect = |count: usize| -> Vec<Client> {
        let mut clients: Vec<Client> = (0..count).map(|_| served.connect()).collect();
        for client in &mut clients {
            assert_eq!(client.text(&["PING"]), "+PONG");
        }
        clients
    };
    // The first ones make the server's threads set up what they share.
    let few = connect(100);
    let before = resident();
    let many = connect(CONNECTIONS);
    let grown = resident().saturating_sub(before);
    assert!(
        grown < CONNECTIONS * BYTES_EACH,
        "{} bytes for each connection",
        grown / CONNECTIONS
    );
    drop((few, many));
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}
