//! `collie node --config`: a cluster of one node.

use rustix::process::Signal;

use crate::addresses::addresses;
use crate::client::wait_for;
use crate::common::{collie, run, stderr};
use crate::reload::{config_get, reload, write};
use crate::serve::Served;

#[test]
fn a_node_runs_by_its_file_and_sighup_reads_that_anew() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let [client, other, peer] = addresses(3)[..] else {
        unreachable!("three addresses")
    };
    let config = |node: &str, rest: &str| {
        let (dir, password) = (at("node"), at("password"));
        let text = format!(
            "[node]\ndir = {dir:?}\nlisten = \"{client}\"\n{node}\n[server]\npassword-file = {password:?}\n{rest}"
        );
        write(&at("node.toml"), &text);
    };
    let start = |flags: &[&str]| {
        let mut command = collie();
        command
            .args(["node", "--config"])
            .arg(at("node.toml"))
            .args(flags);
        Served::run(command)
    };
    let peer = format!("peer = \"{peer}\"");
    write(&at("password"), "first\n");
    config(
        &format!("{peer}\nzone = \"a\""),
        "[limits]\nmaxclients = 50\ntimeout = 600\n",
    );
    let listen = other.to_string();
    let bootstrap = ["--bootstrap", "--replicas", "1", "--partitions", "4"];
    let mut served = start(&[&bootstrap[..], &["--listen", &listen]].concat());
    assert_eq!(served.addr, other, "the command line overrides the file");
    let mut client_of_it = served.connect();
    assert_eq!(client_of_it.text(&["AUTH", "first"]), "+OK");
    assert!(config_get(&mut client_of_it, "maxclients").contains("50"));
    wait_for("a leader", || client_of_it.text(&["SET", "a", "1"]) == "+OK");

    write(&at("password"), "second\n");
    let changed =
        "[limits]\nmaxclients = 60\ntimeout = 600\n[diagnostics]\nlog-level = \"info,collie_log=warn\"\n";
    config(&format!("{peer}\nzone = \"b\""), changed);
    let said = reload(&mut served);
    for part in ["maxclients", "requirepass", "log-level"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!said.contains("timeout"), "{said}");
    let said = served.line_with("after a restart");
    assert!(said.contains("{\"node.zone\"}"), "{said}");
    let mut client_of_it = served.connect();
    assert_eq!(client_of_it.text(&["AUTH", "second"]), "+OK");
    assert!(config_get(&mut client_of_it, "maxclients").contains("60"));

    // A file that cannot be used changes nothing, and is no end.
    config("", "[limits]\nmaxclients = 70\n");
    let said = reload(&mut served);
    assert!(
        said.contains("stay as they were") && said.contains("lacks peer"),
        "{said}"
    );
    assert!(config_get(&mut client_of_it, "maxclients").contains("60"));
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");

    config(&peer, "");
    let served = start(&[]);
    assert_eq!(served.addr, client);
    let mut client_of_it = served.connect();
    assert_eq!(client_of_it.text(&["AUTH", "second"]), "+OK");
    wait_for("a leader", || client_of_it.text(&["GET", "a"]) == "1");
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

#[test]
fn a_nodes_configuration_is_checked_before_it_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let nothing = run(["node"]);
    assert_eq!(nothing.status.code(), Some(1));
    for part in ["--dir, --listen, --peer", "[node]", "--config"] {
        assert!(stderr(&nothing).contains(part), "{}", stderr(&nothing));
    }
    let (file, node) = (dir.path().join("node.toml"), dir.path().join("node"));
    let check = |rest: &str, flags: &[&str]| {
        let text =
            format!("[node]\ndir = {node:?}\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:0\"\n{rest}");
        write(&file, &text);
        let args = ["node", "--check-config", "--config", file.to_str().unwrap()];
        run([&args[..], flags].concat())
    };
    let good = check(
        "layout = \"private\"\n[server]\nrequirepass = \"sesame\"\n[limits]\nmaxclients = 5\n",
        &["--zone", "b", "--threads", "2"],
    );
    assert!(good.status.success(), "{}", stderr(&good));
    let shown = String::from_utf8(good.stdout).unwrap();
    for part in [
        "[node]",
        "layout = \"private\"",
        "zone = \"b\"",
        "replace-after = 300",
        "threads = 2",
        "maxclients = 5",
        "requirepass is set",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    for part in ["sesame", "tls-port", "ack = ", "[store]"] {
        assert!(!shown.contains(part), "{part} is in {shown}");
    }
    for (rest, said) in [
        (
            "bootstrap = true\n",
            "node.toml, line 5, node.bootstrap: unknown field",
        ),
        (
            "[server]\nlisten = \"127.0.0.1:0\"\n",
            "line 6, server.listen: unexpected field",
        ),
        (
            "peer-ca = \"/nowhere\"\n",
            "all of peer-ca, peer-cert and peer-key",
        ),
        (
            "peer-ca = \"/nowhere\"\npeer-cert = \"/nowhere\"\npeer-key = \"/nowhere\"\n",
            "/nowhere",
        ),
        (
            "[limits]\nproto-max-bulk-len = \"513mb\"\n",
            "proto-max-bulk-len is 537919488",
        ),
    ] {
        let refused = check(rest, &[]);
        assert_eq!(refused.status.code(), Some(1), "{rest}");
        assert!(
            stderr(&refused).contains(said),
            "{said} is not in {}",
            stderr(&refused)
        );
    }
    assert!(!node.exists(), "the node was made");
}
