//! `collie-lab bench front` through the real binary, as short as it can be: what it prints and leaves,
//! not how fast anything is.

use std::path::Path;
use std::process::Output;

use collie_check::postgres;

use crate::common::{json_lines, lab, run, stderr};

/// Whether the tests cannot run here, and says why.
fn skipped() -> bool {
    let fuse = match Path::new("/dev/fuse").exists() {
        true => None,
        false => Some("/dev/fuse is not there".to_owned()),
    };
    let Some(missing) = fuse.or_else(postgres::missing) else {
        return false;
    };
    assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
    println!("SKIPPED: {missing}");
    true
}

/// A directory that PostgreSQL's user may pass, and the arguments of a short measurement in it.
fn short(dir: &Path, seconds: u32) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = format!(
        "bench front --scale 1 --clients 2 --seconds {seconds} --warm-up 0.5 --shared-buffers 16MB --shadow 16mb --json --dir"
    );
    let words = words.split(' ').map(str::to_owned);
    words.chain([dir.to_str().unwrap().to_owned()]).collect()
}

fn assert_nothing_is_left(dir: &Path) {
    let left: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.to_str().unwrap()), "{mounts}");
}

fn measured(output: &Output) -> Vec<serde_json::Value> {
    assert!(output.status.success(), "{}", stderr(output));
    json_lines(output)
}

#[test]
fn bench_front_measures_a_server_as_installed_and_on_the_mount() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let more = ["--modes", "default,collie", "--out", out.path().to_str().unwrap()];
    let lines = measured(&run(short(dir.path(), 2)
        .into_iter()
        .chain(more.map(str::to_owned))));
    let modes: Vec<_> = lines.iter().map(|line| line["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["default", "collie"]);
    for line in &lines {
        let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} in {line}"));
        assert!(number("tps") > 0.0 && number("failed") == 0.0, "{line}");
        assert!(
            0.0 < number("p50_ms") && number("p50_ms") <= number("p99_ms"),
            "{line}"
        );
        assert!(number("p99_ms") <= number("max_ms"), "{line}");
        assert!(
            number("wal_bytes_per_transaction") > 0.0 && number("server_cpu_us") > 0.0,
            "{line}"
        );
        // The last second may not be whole.
        assert_eq!(line["series"].as_array().unwrap().len(), 2, "{line}");
        let on_mount = line["mode"] == "collie";
        assert_eq!(number("full_page_images") == 0.0, on_mount, "{line}");
        assert_eq!(line["mount"].is_object(), on_mount, "{line}");
    }
    let saved = std::fs::read_to_string(out.path().join("results.json")).unwrap();
    assert_eq!(saved.lines().count(), 2);
    for plot in ["tps.svg", "latency.svg"] {
        let svg = std::fs::read_to_string(out.path().join(plot)).unwrap();
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
            "{plot}"
        );
        assert!(svg.contains("collie") && svg.contains("default"), "{plot}");
    }
    assert_nothing_is_left(dir.path());
}

#[test]
fn a_measurement_that_fails_stops_what_it_started() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The mount is there, and the cluster on it, when the server refuses its settings.
    let more = ["--modes", "collie", "--set", "no_such_setting=1"];
    let output = run(short(dir.path(), 2).into_iter().chain(more.map(str::to_owned)));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no_such_setting"), "{}", stderr(&output));
    assert_nothing_is_left(dir.path());
}

#[test]
fn an_interrupted_measurement_stops_what_it_started() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = lab();
    let words = short(dir.path(), 2)
        .into_iter()
        .chain(["--modes".into(), "collie".into()]);
    let mut bench = command.args(words).spawn().unwrap();
    // It is in the middle when its server serves on the mount.
    let sockets = || {
        let home = std::fs::read_dir(dir.path()).unwrap().next()?.unwrap().path();
        std::fs::read_dir(home.join("home/sockets")).ok()?.next()
    };
    while sockets().is_none() && bench.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&bench);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert_nothing_is_left(dir.path());
}
