//! What a server does in its life, on a mount over a directory of the machine's own disk.

use std::fs;
use std::path::Path;
use std::time::Instant;

use collie_check::postgres::{Cluster, run};

use crate::daemon::{Daemon, collie};
use crate::skipped;

const SETTINGS: [&str; 3] = ["full_page_writes=off", "shared_buffers=1MB", "max_wal_senders=4"];

/// A directory that is mounted, and ends with the test.
struct Mounted<'a> {
    dir: &'a Path,
    log: &'a Path,
    daemon: Option<Daemon>,
}

impl Mounted<'_> {
    fn mount(&mut self) {
        self.daemon = Some(Daemon::start(self.dir, &["--shadow", "8mb"], self.log).unwrap());
    }

    fn umount(&mut self) {
        self.daemon.take().unwrap().umount().unwrap();
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.kill();
            let _ = run(&mut collie(["umount"], self.dir));
        }
        if std::thread::panicking() {
            println!("{}", fs::read_to_string(self.log).unwrap_or_default());
        }
    }
}

/// The server dies with the test, before the mount is taken away.
struct Served(Cluster);

impl Drop for Served {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.0.said());
        }
        let _ = self.0.kill(|| {});
    }
}

#[test]
fn an_unmodified_server_does_all_it_does_elsewhere() {
    if skipped() {
        return;
    }
    let begin = Instant::now();
    let home = tempfile::tempdir().unwrap();
    let (data, wal, log) = (
        home.path().join("data"),
        home.path().join("wal"),
        home.path().join("daemon.log"),
    );
    let mut mounted = Mounted {
        dir: &data,
        log: &log,
        daemon: None,
    };
    let mut served = Served(Cluster::new(home.path(), &data).unwrap());
    let cluster = &mut served.0;
    for dir in [&data, &wal] {
        cluster.make_dir(dir).unwrap();
    }
    mounted.mount();
    cluster
        .init_at(&data, &["--waldir", wal.to_str().unwrap()])
        .unwrap();
    cluster.start(&SETTINGS).unwrap();
    check_upgrade(cluster, home.path());
    statements(cluster);

    let copy = home.path().join("copy");
    cluster.make_dir(&copy).unwrap();
    let place = home.path().join("place");
    cluster.make_dir(&place).unwrap();
    let mapped = format!("{}={}", data.join("place").display(), place.display());
    let mut backup = cluster.program("pg_basebackup");
    backup.arg("-D").arg(&copy).args(["-c", "fast", "-T", &mapped]);
    run(&mut backup).unwrap();
    cluster.amcheck().unwrap();
    check_contents(cluster);
    cluster.stop().unwrap();
    cluster.checksums().unwrap();
    check_backup(home.path(), &copy);

    // Another server, then another daemon as well.
    cluster.start(&SETTINGS).unwrap();
    check_contents(cluster);
    cluster.stop().unwrap();
    leave_displaced(cluster, &mut mounted);
    let refused = cluster.start(&SETTINGS).unwrap_err();
    assert!(refused.contains("is not a valid data directory"), "{refused}");
    run(&mut collie(["front", "check"], &data)).unwrap();
    mounted.mount();
    cluster.checksums().unwrap();
    cluster.start(&SETTINGS).unwrap();
    check_contents(cluster);
    cluster
        .sql("postgres", "UPDATE pgbench_accounts SET filler = 'z'; CHECKPOINT")
        .unwrap();
    run(&mut collie(["drain"], &data)).unwrap();
    cluster
        .sql("postgres", "UPDATE pgbench_accounts SET filler = 'a'")
        .unwrap();
    cluster.stop().unwrap();
    mounted.umount();

    run(&mut collie(["drain"], &data)).unwrap();
    cluster.checksums().unwrap();
    cluster.start(&["full_page_writes=on"]).unwrap();
    check_contents(cluster);
    cluster.amcheck().unwrap();
    cluster.stop().unwrap();
    println!("figures: PostgreSQL on a mount took {:?}", begin.elapsed());
}

/// For what the server itself may refuse.
const TRIES: u32 = 5;

pub(crate) fn statements(cluster: &Cluster) {
    let pgbench = |args: &[&str]| run(cluster.program("pgbench").args(args)).unwrap();
    pgbench(&["-i", "-s", "1", "-q"]);
    pgbench(&["-c", "4", "-j", "2", "-t", "100"]);
    let place = cluster.data().join("place");
    cluster.make_dir(&place).unwrap();
    let outside = cluster.data().with_file_name("outside");
    cluster.make_dir(&outside).unwrap();
    let outside = format!("CREATE TABLESPACE outside LOCATION '{}'", outside.display());
    let refused = cluster.sql("postgres", &outside).unwrap_err();
    assert!(refused.contains("pg_tblspc"), "{refused}");
    cluster.sql("postgres", "CHECKPOINT; VACUUM FULL").unwrap();
    // PostgreSQL 15 refuses it now and then where it has few buffers and much is written.
    let by_log = || cluster.sql("postgres", "CREATE DATABASE by_log STRATEGY WAL_LOG");
    let is_made = (0..TRIES).any(|_| match by_log() {
        Ok(_) => true,
        Err(said) if said.contains("buffer is pinned in InvalidateBuffer") => false,
        Err(said) => panic!("{said}"),
    });
    assert!(is_made, "no database was made in {TRIES} tries");
    let statements = format!(
        "CREATE DATABASE by_copy STRATEGY FILE_COPY;
         CREATE TABLESPACE place LOCATION '{}';
         CREATE TABLE there (n int) TABLESPACE place;
         INSERT INTO there SELECT generate_series(1, 10000);
         CREATE DATABASE there TEMPLATE by_copy TABLESPACE place STRATEGY FILE_COPY;
         ALTER DATABASE by_log SET TABLESPACE place;
         CREATE UNLOGGED TABLE unlogged AS SELECT generate_series(1, 5000) AS n;
         TRUNCATE pgbench_history;
         REINDEX TABLE pgbench_accounts;
         CREATE TABLE gone AS SELECT generate_series(1, 20000) AS n;
         CHECKPOINT;
         UPDATE gone SET n = n + 1;
         CHECKPOINT;
         TRUNCATE gone;
         DROP TABLE gone;
         CHECKPOINT;
         CREATE EXTENSION amcheck",
        place.display()
    );
    cluster.sql("postgres", &statements).unwrap();
    for database in ["by_log", "by_copy", "there"] {
        let statements = "CREATE TABLE t (n int); INSERT INTO t VALUES (7)";
        cluster.sql(database, statements).unwrap();
    }
    cluster
        .sql("by_log", "DROP DATABASE by_copy; VACUUM FULL t")
        .unwrap();
}

/// Unmounts the directory of a server that does not run when pages are displaced: where the daemon
/// has brought all of them home by itself, once more.
fn leave_displaced(cluster: &mut Cluster, mounted: &mut Mounted<'_>) {
    for _ in 0..20 {
        cluster.start(&SETTINGS).unwrap();
        let update = "UPDATE pgbench_accounts SET filler = 'y' WHERE aid < 10000";
        cluster.sql("postgres", update).unwrap();
        cluster.stop().unwrap();
        mounted.umount();
        let check = run(&mut collie(["front", "check", "--json"], mounted.dir)).unwrap();
        if !check.contains("\"pages\":0") {
            return;
        }
        mounted.mount();
    }
    panic!("no page is ever displaced");
}

pub(crate) fn check_contents(cluster: &Cluster) {
    let counts = "SELECT (SELECT count(*) FROM there), (SELECT count(*) FROM pgbench_accounts),
        (SELECT count(*) FROM unlogged)";
    assert_eq!(
        cluster.sql("postgres", counts).unwrap().trim(),
        "10000|100000|5000"
    );
    for database in ["by_log", "there"] {
        assert_eq!(cluster.sql(database, "SELECT n FROM t").unwrap().trim(), "7");
    }
}

/// A copy that the server made of itself is a cluster, without any mount.
fn check_backup(home: &Path, copy: &Path) {
    let beside = home.join("beside");
    fs::create_dir(&beside).unwrap();
    let mut served = Served(Cluster::new(&beside, copy).unwrap());
    run(served.0.program("pg_verifybackup").arg(copy)).unwrap();
    served.0.start(&["full_page_writes=on"]).unwrap();
    let count = "SELECT count(*) FROM pgbench_accounts";
    assert_eq!(served.0.sql("postgres", count).unwrap().trim(), "100000");
    served.0.stop().unwrap();
    served.0.checksums().unwrap();
}

/// One version is enough for the check that comes before an upgrade, where there are no tablespaces.
fn check_upgrade(cluster: &Cluster, home: &Path) {
    let new = home.join("new");
    cluster.make_dir(&new).unwrap();
    cluster.init_at(&new, &["--no-sync"]).unwrap();
    let mut upgrade = cluster.program("pg_upgrade");
    let programs = Path::new(upgrade.get_program()).parent().unwrap().to_owned();
    upgrade
        .arg("--check")
        .arg("-b")
        .arg(&programs)
        .arg("-B")
        .arg(&programs);
    upgrade.arg("-d").arg(cluster.data()).arg("-D").arg(&new);
    let said = run(&mut upgrade).unwrap();
    assert!(said.contains("Clusters are compatible"), "{said}");
}
