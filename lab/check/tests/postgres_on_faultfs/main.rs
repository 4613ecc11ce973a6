//! PostgreSQL 15, as it is, on the file system that forgets. It needs root, `/dev/fuse` and Debian's
//! `postgresql-15`; where they are missing the tests say so and pass, unless
//! `COLLIE_REQUIRE_TOOLS` is set.
//!
//! The power cuts: `COLLIE_PG_CUTS` of them, from `COLLIE_SEED`; without the former there are none.
//! Which operation a cut falls on is up to the machine, so a seed repeats the ways, and not the run.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test ends where its assumptions do, says what it skips, and uses files as any program does"
)]

mod cuts;
mod disk;

use std::time::Instant;

use collie_sim::faultfs::Names;
use disk::OnDisk;

#[test]
fn an_unmodified_server_does_all_it_does_elsewhere() {
    let Some(mut disk) = OnDisk::new(1, Names::Journal) else {
        return;
    };
    let begin = Instant::now();
    let place = disk.make_dir("place");
    let cluster = &mut disk.cluster;
    cluster.init_at(cluster.data(), &[]).unwrap();
    cluster.start(&[]).unwrap();
    let pgbench = |args: &[&str]| {
        let done = cluster.program("pgbench").args(args).output().unwrap();
        assert!(done.status.success(), "{done:?}\n{}", cluster.said());
    };
    pgbench(&["-i", "-s", "1", "-q"]);
    pgbench(&["-c", "4", "-j", "2", "-t", "100"]);
    let statements = format!(
        "CHECKPOINT;
         VACUUM FULL;
         CREATE DATABASE by_log STRATEGY WAL_LOG;
         CREATE DATABASE by_copy STRATEGY FILE_COPY;
         CREATE TABLESPACE place LOCATION '{}';
         CREATE TABLE there (n int) TABLESPACE place;
         INSERT INTO there SELECT generate_series(1, 10000);
         CREATE DATABASE there TEMPLATE by_copy TABLESPACE place STRATEGY FILE_COPY;
         ALTER DATABASE by_log SET TABLESPACE place;
         TRUNCATE pgbench_history;
         REINDEX TABLE pgbench_accounts;
         CHECKPOINT",
        place.display()
    );
    cluster.sql("postgres", &statements).unwrap();
    for database in ["by_log", "by_copy", "there"] {
        cluster
            .sql(database, "CREATE TABLE t (n int); INSERT INTO t VALUES (7)")
            .unwrap();
    }
    cluster
        .sql("by_log", "DROP DATABASE by_copy; VACUUM FULL t")
        .unwrap();
    cluster.stop().unwrap();
    let checked = cluster.checksums().unwrap();
    assert!(checked.contains("Bad checksums:  0"), "{checked}");
    cluster.start(&[]).unwrap();
    let counts = "SELECT (SELECT count(*) FROM there), (SELECT count(*) FROM pgbench_accounts)";
    assert_eq!(cluster.sql("postgres", counts).unwrap().trim(), "10000|100000");
    cluster.stop().unwrap();
    println!("figures: PostgreSQL on faultfs took {:?}", begin.elapsed());
}
