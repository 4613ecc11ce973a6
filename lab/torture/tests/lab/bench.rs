//! `collie-lab bench` through the real binary: what it prints, not how fast anything is.

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{fields, json_lines, lab, rings_of, run, stderr};

#[test]
fn bench_log_prints_one_object_per_log_and_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let output = run([
        "bench",
        "log",
        "--threads",
        "1,2",
        "--size",
        "64",
        "--durability",
        "buffered",
        "--baselines",
        "--duration",
        "0.02",
        "--repeat",
        "1",
        "--json",
        "--db",
        dir.path().to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let lines = json_lines(&output);
    let seen: Vec<_> = lines
        .iter()
        .map(|l| (l["log"].as_str().unwrap(), l["threads"].as_u64().unwrap()))
        .collect();
    let logs = ["collie", "mutex", "insert-locks", "link-buffer"];
    let expected: Vec<_> = [1, 2].iter().flat_map(|t| logs.map(|log| (log, *t))).collect();
    assert_eq!(seen, expected);
    for line in &lines {
        for field in [
            "log",
            "threads",
            "size",
            "in_flight",
            "drains",
            "appends_per_sec",
            "p50_us",
            "p99_us",
            "p999_us",
            "max_us",
        ] {
            assert!(fields(line).contains(&field), "{field} in {line}");
        }
        assert!(line["appends_per_sec"].as_f64().unwrap() > 0.0);
        assert_eq!(
            (line["size"].as_u64(), line["drains"].is_boolean()),
            (Some(64), true)
        );
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "it cleans up behind itself"
    );
}

#[test]
fn bench_log_for_people_puts_the_ratio_first() {
    let output = run([
        "bench",
        "log",
        "--threads",
        "2",
        "--durability",
        "process",
        "--baselines",
        "--duration",
        "0.02",
        "--repeat",
        "1",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("× the best lock-based one"), "{text}");
    assert!(text.contains("link-buffer"), "{text}");
}

#[test]
fn a_wrong_flag_is_named_and_ends_with_code_2_or_1() {
    let output = run(["bench", "log", "--thraeds", "2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--threads"),
        "it suggests the right one: {}",
        stderr(&output)
    );
    let output = run(["bench", "log", "--threads", "0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("threads"), "{}", stderr(&output));
}

#[test]
fn bench_prints_one_object_per_workload() {
    let output = run([
        "bench",
        "fillseq",
        "fillrandom",
        "overwrite",
        "readrandom",
        "--num",
        "2000",
        "--threads",
        "2",
        "--durability",
        "process",
        "--json",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let lines = json_lines(&output);
    let names: Vec<_> = lines.iter().map(|line| line["bench"].as_str().unwrap()).collect();
    assert_eq!(names, ["fillseq", "fillrandom", "overwrite", "readrandom"]);
    for line in &lines {
        for field in [
            "bench",
            "engine",
            "threads",
            "durability",
            "ring",
            "ops",
            "seconds",
            "ops_per_sec",
            "mb_per_sec",
            "p50_us",
            "p99_us",
            "p999_us",
            "max_us",
            "cpu_us_per_op",
            "syncs",
            "writes_per_sync",
            "waf",
            "saf",
        ] {
            assert!(fields(line).contains(&field), "{field} in {line}");
        }
        assert_eq!(line["ops"], 2000);
    }
}

#[test]
fn a_store_that_was_filled_is_read_by_a_later_command() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().to_str().unwrap();
    let fill = run(["bench", "fillseq", "--num", "500", "--sync=0", "--db", db]);
    assert!(fill.status.success(), "{}", stderr(&fill));
    let text = String::from_utf8(fill.stdout).unwrap();
    assert!(
        text.contains("micros/op") && text.contains("500 operations"),
        "{text}"
    );
    let read = run(["bench", "readrandom", "--num", "500", "--db", db]);
    assert!(read.status.success(), "{}", stderr(&read));
    let text = String::from_utf8(read.stdout).unwrap();
    assert!(text.contains("(500 of 500 found)"), "{text}");

    let none = run(["bench", "readrandom", "--num", "500"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("fill one first"), "{}", stderr(&none));
}

#[test]
fn what_a_signal_interrupts_leaves_nothing_behind() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        for words in [
            &["bench", "fillrandom", "--num", "1000000000"][..],
            &["bench", "log", "--threads", "2", "--duration", "600"],
            &["torture", "kill", "--rounds", "1000000"],
        ] {
            let temporary = tempfile::tempdir().unwrap();
            let mut child = lab()
                .args(words)
                .env("TMPDIR", temporary.path())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let files = || std::fs::read_dir(temporary.path()).unwrap().count();
            // `torture kill` has its rings in other processes.
            let has_ring = words[0] == "bench" && rings_have_space();
            let mut rings = Vec::new();
            while files() == 0 || (rings.is_empty() && has_ring) {
                assert_eq!(child.try_wait().unwrap(), None, "{words:?}");
                rings = rings_of(&child);
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            let dirs = rings_beside(&rings);
            kill_process(Pid::from_child(&child), signal).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(code), "{words:?}");
            assert_eq!(files(), 0, "{words:?}");
            assert!(dirs.iter().all(|dir| !dir.exists()), "{dirs:?}");
        }
    }
}

/// Whether shared memory has space for a ring beside those of all other tests. If not, as in many
/// containers, the ring is private.
fn rings_have_space() -> bool {
    let system = rustix::fs::statvfs("/dev/shm");
    system.is_ok_and(|system| system.f_bavail * system.f_frsize >= 1 << 30)
}

/// The directories of the rings, which are temporary ones of the command.
fn rings_beside(rings: &[std::path::PathBuf]) -> Vec<std::path::PathBuf> {
    let dirs: Vec<_> = rings
        .iter()
        .map(|ring| ring.parent().unwrap().to_owned())
        .collect();
    for dir in &dirs {
        assert_ne!(dir, std::path::Path::new("/dev/shm"), "{rings:?}");
    }
    dirs
}

#[test]
fn bench_commit_prints_one_object_per_mode_and_its_rows_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let output = run([
        "bench",
        "commit",
        "--threads",
        "4",
        "--mode",
        "sync,early-release,async,own-flush",
        "--in-flight",
        "3",
        "--hot-share",
        "50",
        "--sync-delay-us",
        "100",
        "--duration",
        "0.05",
        "--repeat",
        "1",
        "--json",
        "--db",
        dir.path().to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let lines = json_lines(&output);
    let seen: Vec<_> = lines
        .iter()
        .map(|l| (l["mode"].as_str().unwrap(), l["in_flight"].as_u64().unwrap()))
        .collect();
    let expected = [("sync", 1), ("early-release", 3), ("async", 1), ("own-flush", 1)];
    assert_eq!(seen, expected);
    for line in &lines {
        for field in [
            "threads",
            "hot_keys",
            "hot_share",
            "sync_delay_us",
            "commits_per_sec",
            "flushes",
            "flush_us_mean",
            "flush_share",
            "lock_wait_share",
            "locks_held_us_mean",
            "retries_per_commit",
            "cpu_percent",
            "cpu_us_per_op",
            "checked",
            "p50_us",
            "p99_us",
            "max_us",
        ] {
            assert!(fields(line).contains(&field), "{field} in {line}");
        }
        assert!(line["commits_per_sec"].as_f64().unwrap() > 0.0);
    }
    let wrong = run(["bench", "commit", "--hot-share", "101"]);
    assert!(!wrong.status.success() && stderr(&wrong).contains("101 is more than 100"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn bench_orders_prints_an_object_per_mode_that_adds_up() {
    let dir = tempfile::tempdir().unwrap();
    // All kinds of transactions and distributions: everything hot, nothing hot, lookups only.
    for words in [
        &["--mode", "sync,early-release,async,own-flush", "--in-flight", "3"][..],
        &["--concurrency", "optimistic", "--districts", "1"],
        &[
            "--isolation",
            "snapshot",
            "--items",
            "1",
            "--hot-items",
            "1",
            "--hot-share",
            "100",
        ],
        &[
            "--concurrency",
            "optimistic",
            "--isolation",
            "snapshot",
            "--lines",
            "1",
        ],
        &["--look-ups", "100", "--hot-items", "0", "--hot-share", "0"],
    ] {
        let usual = [
            "--threads",
            "4",
            "--sync-delay-us",
            "100",
            "--duration",
            "0.05",
            "--repeat",
            "1",
        ];
        let output = lab()
            .args(["bench", "orders", "--json", "--db"])
            .arg(dir.path())
            .args(usual)
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        let lines = json_lines(&output);
        let modes: Vec<_> = lines.iter().map(|l| l["mode"].as_str().unwrap()).collect();
        match words[0] {
            "--mode" => assert_eq!(modes, ["sync", "early-release", "async", "own-flush"]),
            _ => assert_eq!(modes, ["sync", "early-release", "async"]),
        }
        for line in &lines {
            for field in [
                "concurrency",
                "isolation",
                "districts",
                "items",
                "hot_items",
                "hot_share",
                "lines",
                "look_ups",
                "flush_us_mean",
                "p99_us",
            ] {
                assert!(fields(line).contains(&field), "{field} in {line}");
            }
            assert!(line["commits_per_sec"].as_f64().unwrap() > 0.0, "{line}");
            let looks_up = words[0] == "--look-ups";
            assert_eq!(line["checked"].as_u64().unwrap() == 0, looks_up, "{line}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{words:?}");
    }
}

#[test]
fn bench_orders_reports_checks_and_refuses_bad_settings() {
    let tiny = ["--threads", "2", "--duration", "0.05", "--repeat", "1"];
    let output = lab().args(["bench", "orders"]).args(tiny).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for expected in [
        "80 of 100 place an order",
        "early-release: ",
        "orders were read again",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    for (words, expected) in [
        (["--districts", "0"], "districts: 0 is not from 1"),
        (["--look-ups", "101"], "look-ups: 101 is more than 100"),
        (["--hot-items", "20000"], "leaves none for the other lines"),
        (["--hot-items", "0"], "set --hot-share 0"),
        (["--in-flight", "0"], "in-flight: 0 is not from 1"),
    ] {
        let output = lab().args(["bench", "orders"]).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(
            stderr(&output).contains(expected),
            "{expected}: {}",
            stderr(&output)
        );
    }
}
