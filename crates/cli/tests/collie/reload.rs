//! SIGHUP: what the configuration names is read anew.

use std::path::Path;

use rustix::process::{Signal, kill_process};

use crate::client::Client;
use crate::common::{run, stderr};
use crate::operations::settable;
use crate::serve::Served;

/// Has the server read its files anew, and returns what it says of it.
pub(crate) fn reload(served: &mut Served) -> String {
    kill_process(served.pid(), Signal::HUP).unwrap();
    served.line_with("SIGHUP: ")
}

/// Writes a file that only its owner may read.
pub(crate) fn write(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// What the server says of a parameter.
pub(crate) fn config_get(client: &mut Client, name: &str) -> String {
    client.line(&format!("CONFIG GET {name}"))
}

#[test]
fn what_changed_in_the_files_is_put_in_force_and_the_rest_stays() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let config = |rest: &str| {
        let password = at("password").display().to_string();
        write(
            &at("collie.toml"),
            &format!("[server]\npassword-file = \"{password}\"\n{rest}"),
        );
    };
    write(&at("password"), "first\n");
    config("[limits]\nmaxclients = 50\ntimeout = 600\n");
    let file = at("collie.toml");
    let mut served = Served::start(&at("store"), &["--config", file.to_str().unwrap()]);
    let mut client = served.connect();
    assert_eq!(client.text(&["AUTH", "first"]), "+OK");
    assert_eq!(client.text(&["CONFIG", "SET", "timeout", "77"]), "+OK");

    write(&at("password"), "second\n");
    config("threads = 1\n[limits]\nmaxclients = 60\ntimeout = 600\n[diagnostics]\nlog-level = \"debug\"\n");
    let said = reload(&mut served);
    for part in ["maxclients", "requirepass", "log-level"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!said.contains("timeout") && !said.contains("second"), "{said}");
    let said = served.line_with("after a restart");
    assert!(
        said.contains("server.threads") && !said.contains("maxclients"),
        "{said}"
    );
    assert!(config_get(&mut client, "maxclients").contains("60"));
    assert!(config_get(&mut client, "loglevel").contains("verbose"));
    // What a client has set is not undone by a file that says what it said.
    assert!(config_get(&mut client, "timeout").contains("77"));
    let mut other = served.connect();
    assert!(other.text(&["AUTH", "first"]).starts_with("-WRONGPASS"));
    assert_eq!(other.text(&["AUTH", "second"]), "+OK");

    // Files that cannot be used change nothing, and are no end.
    write(&at("password"), "\n");
    config("[limits]\nmaxclients = 70\n");
    let said = reload(&mut served);
    assert!(
        said.contains("stay as they were") && said.contains("password"),
        "{said}"
    );
    write(&at("password"), "third\n");
    config("[limits]\nmaxclients = \"many\"\n");
    let said = reload(&mut served);
    assert!(
        said.contains("stay as they were") && said.contains("limits.maxclients"),
        "{said}"
    );
    config("[limits]\nproto-max-bulk-len = 2000\n");
    let said = reload(&mut served);
    assert!(said.contains("nothing was changed: proto-max-bulk-len"), "{said}");
    assert_eq!(other.text(&["AUTH", "second"]), "+OK");
    assert!(config_get(&mut client, "maxclients").contains("60"));
    config("[limits]\nmaxclients = 80\ntimeout = 600\n");
    reload(&mut served);
    assert_eq!(other.text(&["AUTH", "third"]), "+OK");
    assert!(config_get(&mut client, "maxclients").contains("80"));
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

#[test]
fn every_setting_that_config_set_changes_is_reloaded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("collie.toml");
    write(&file, "");
    let mut served = Served::start(&dir.path().join("store"), &["--config", file.to_str().unwrap()]);
    let text = "[server]\nack = \"process\"\n[limits]\nmaxclients = 77\ntimeout = 600\n\
                authentication-timeout = 7\nclient-output-buffer-limit = \"3mb\"\n\
                maxmemory-clients = \"70mb\"\nproto-max-bulk-len = \"2mb\"\n\
                client-query-buffer-limit = \"5mb\"\ntcp-keepalive = 11\n\
                [diagnostics]\nslowlog-log-slower-than = -1\nslowlog-max-len = 5\n";
    write(&file, text);
    let said = reload(&mut served);
    let mut client = served.connect();
    let settings = [
        ("ack", "process"),
        ("maxclients", "77"),
        ("timeout", "600"),
        ("authentication-timeout", "7"),
        ("client-output-buffer-limit", "normal 3145728 0 0"),
        ("maxmemory-clients", "73400320"),
        ("proto-max-bulk-len", "2097152"),
        ("client-query-buffer-limit", "5242880"),
        ("tcp-keepalive", "11"),
        ("slowlog-log-slower-than", "-1"),
        ("slowlog-max-len", "5"),
    ];
    for (name, value) in settings {
        assert!(said.contains(name), "{name} is not in {said}");
        let shown = config_get(&mut client, name);
        assert!(shown.contains(value), "{name}: {shown}");
    }
    // The level of the log has another name in the file; for password and certificates there are other tests.
    let others = ["loglevel", "requirepass"];
    for name in settable(&mut client)
        .iter()
        .filter(|name| !name.starts_with("tls-"))
    {
        let listed = settings.iter().map(|(name, _)| *name).chain(others);
        assert!(
            listed.into_iter().any(|known| known == name),
            "{name} is not reloaded here"
        );
    }
    served.end(Signal::TERM);
}

#[test]
fn certificates_under_the_same_names_are_read_anew() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let place = dir.path().to_str().unwrap();
    for args in [
        &["new", "--dir", place][..],
        &["node", "--dir", place, "--name", "n1"],
        &["node", "--dir", place, "--name", "n2"],
    ] {
        let made = run([&["cluster", "ca"], args].concat());
        assert!(made.status.success(), "{}", stderr(&made));
    }
    let (pem, key, ca) = (at("n1.pem"), at("n1.key"), at("ca.pem"));
    let password = dir.path().join("password");
    write(&password, "first\n");
    let flags = [
        "--password-file",
        password.to_str().unwrap(),
        "--tls-listen",
        "localhost:0",
        "--tls-cert-file",
        &pem,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
    ];
    let mut served = Served::start(&dir.path().join("store"), &flags);
    std::fs::copy(at("n2.pem"), &pem).unwrap();
    write(&password, "second\n");
    let said = reload(&mut served);
    assert!(
        said.contains("stay as they were") && said.contains("n1.key"),
        "{said}"
    );
    let auth = served.connect().text(&["AUTH", "first"]);
    assert_eq!(auth, "+OK", "a password is in force without the certificate");
    std::fs::copy(at("n2.key"), &key).unwrap();
    kill_process(served.pid(), Signal::HUP).unwrap();
    served.line_with("new connections use the files of TLS as they were read now");
    served.line_with("SIGHUP: password, certificates and configuration were read anew");
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}
