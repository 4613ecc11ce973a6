//! The tools of Redis, unmodified (Debian's redis-tools). If they are missing the tests print so
//! and pass, unless `COLLIE_REQUIRE_TOOLS` is set.

use std::net::SocketAddr;
use std::process::Command;

use crate::support::{config, start};

fn is_there(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        assert!(
            std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(),
            "{tool} is missing"
        );
        println!("skipped: {tool} is missing (Debian: redis-tools)");
    }
    found
}

/// Runs a tool against the server; returns its output, and fails if the tool does.
fn run(tool: &str, addr: SocketAddr, args: &[&str]) -> String {
    let port = addr.port().to_string();
    let output = Command::new(tool)
        .args(["-h", "127.0.0.1", "-p", &port])
        .args(args)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{tool} {args:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

#[test]
fn redis_cli_works_as_it_is() {
    if !is_there("redis-cli") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let cli = |args: &[&str]| run("redis-cli", server.addr, args);
    assert_eq!(cli(&["SET", "greeting", "hello"]), "OK\n");
    assert_eq!(cli(&["-3", "GET", "greeting"]), "hello\n");
    assert_eq!(cli(&["-3", "GET", "nothing"]), "\n");
    assert_eq!(cli(&["-n", "5", "INCR", "counter"]), "1\n");
    assert_eq!(
        cli(&["--json", "MGET", "greeting", "nothing"]),
        "[\"hello\",null]\n"
    );
    for i in 0..50 {
        cli(&["SET", &format!("key:{i}"), "value"]);
    }
    assert_eq!(cli(&["--scan", "--pattern", "key:*"]).lines().count(), 50);
    assert!(cli(&["--bigkeys"]).contains("Biggest string found"));
    assert!(cli(&["-r", "3", "PING"]).lines().all(|line| line == "PONG"));
    assert!(cli(&["-3", "INFO", "log"]).contains("group_frames:"));
    assert!(cli(&["COMMAND", "DOCS", "get"]).contains("summary"));
    assert!(cli(&["NOSUCH", "x"]).starts_with("ERR unknown command 'NOSUCH', with args beginning with: 'x'"));
}

#[test]
fn redis_benchmark_works_as_it_is() {
    if !is_there("redis-benchmark") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    for pipeline in ["1", "16"] {
        let args = [
            "-t",
            "ping,set,get,incr,mset",
            "-n",
            "2000",
            "-c",
            "50",
            "-d",
            "100",
            "-r",
            "1000",
            "--csv",
            "-P",
            pipeline,
        ];
        let said = run("redis-benchmark", server.addr, &args);
        for test in [
            "PING_INLINE",
            "PING_MBULK",
            "SET",
            "GET",
            "INCR",
            "MSET (10 keys)",
        ] {
            assert!(
                said.contains(&format!("\"{test}\",")),
                "{test} is missing in {said}"
            );
        }
        assert!(!said.contains("ERR"), "{said}");
    }
}
