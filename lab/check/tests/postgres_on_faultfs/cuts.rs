//! Power cuts under a server that writes pages of 8 KiB to a disk that keeps less at once.

use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use collie_check::postgres::{Checked, Cluster, Ledger, reason};
use collie_sim::faultfs::Names;
use collie_sim::{Data, Keep, PowerCut, Rng};

use crate::disk::OnDisk;

/// So many cuts at most a test waits for harm where harm must come.
const PATIENCE: u64 = 30;
/// Between these a server lives under load, in operations that change the disk.
const LIFE: [u64; 2] = [1_000, 6_000];
/// So few pages in memory that others are written all the time.
const SETTINGS: [&str; 3] = [
    "shared_buffers=1MB",
    "bgwriter_delay=20ms",
    "synchronous_commit=on",
];
/// What a disk keeps whole: sectors of 512 B, or blocks of 4 KiB.
const WAYS: [(&str, Data); 2] = [("any sectors", Data::AnySectors), ("any blocks", Data::AnyBlocks)];

/// A transaction of the load that makes and removes files.
const FILES: &str = "DROP TABLE IF EXISTS made_:client_id;
CREATE TABLE made_:client_id AS SELECT n, repeat('x', 100) AS filler FROM generate_series(1, 300) n;
CREATE INDEX ON made_:client_id (n);
TRUNCATE made_:client_id;
INSERT INTO made_:client_id VALUES (1, 'y');
";

/// What came of a test's cuts.
#[derive(Debug, Default)]
struct Report {
    cuts: u64,
    /// Cuts that lost something.
    lossy: u64,
    /// Clusters that did not start again, whose ledger could not be read, or of which pages were
    /// damaged when they had been stopped.
    refused: u64,
    unreadable: u64,
    damaged: u64,
    /// Files with damaged pages that no table or index has: transactions that were not committed
    /// leave theirs for ever.
    left_over: BTreeSet<String>,
    /// Commits that were acknowledged, and of these those that were not there.
    acknowledged: usize,
    missing: usize,
    words: Vec<String>,
}

fn asked(name: &str, otherwise: u64) -> u64 {
    let asked = std::env::var(name).ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(otherwise)
}

/// Random updates of a table that does not fit into memory, and new tables in between.
fn load(disk: &OnDisk) -> Child {
    let files = disk.cluster.write_aside("files.sql", FILES).unwrap();
    let mut pgbench = disk.cluster.program("pgbench");
    pgbench.args([
        "-n",
        "-c",
        "4",
        "-j",
        "2",
        "-T",
        "600",
        "-b",
        "tpcb-like@20",
        "-f",
    ]);
    pgbench.arg(format!("{}@1", files.display()));
    let quiet = pgbench
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.spawn().unwrap()
}

/// Makes a new cluster with the tables of the load and the ledger, and leaves it running.
fn begin(disk: &mut OnDisk, settings: &[&str]) -> Ledger {
    disk.init_again();
    let cluster = &mut disk.cluster;
    cluster.start(settings).unwrap();
    let mut pgbench = cluster.program("pgbench");
    let done = pgbench.args(["-i", "-s", "1", "-q"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    Ledger::make(cluster).unwrap()
}

/// How often a test cuts the power: not at all, unless `COLLIE_PG_CUTS` says so.
fn cuts() -> u64 {
    let cuts = asked("COLLIE_PG_CUTS", 0);
    if cuts == 0 {
        println!("not asked for: COLLIE_PG_CUTS says how many power cuts");
    }
    cuts
}

/// Cuts the power under a server, at most `cuts` times and until `is_enough`, and looks at what it
/// makes of what is left.
fn cut_again_and_again(
    full_page_writes: &str,
    names: Names,
    cuts: u64,
    is_enough: impl Fn(&Report) -> bool,
) -> Option<Report> {
    let seed = asked("COLLIE_SEED", 1);
    let mut rng = Rng::new(seed);
    let mut disk = OnDisk::new(rng.next_u64(), names)?;
    let full_page_writes = format!("full_page_writes={full_page_writes}");
    let mut settings = vec![&*full_page_writes];
    settings.extend(SETTINGS);
    let mut report = Report::default();
    let mut ledger = begin(&mut disk, &settings);
    for number in 0..cuts {
        let life = disk.fs.changes().unwrap() + LIFE[0] + rng.below(LIFE[1] - LIFE[0]);
        let mut pgbench = load(&disk);
        let writers = ledger.write(&disk.cluster).unwrap();
        while disk.fs.changes().unwrap() < life {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (way, data) = WAYS[usize::try_from(number).unwrap() % WAYS.len()];
        let how = PowerCut {
            data,
            lengths: Keep::Any,
            names: Keep::Any,
        };
        let effects = disk.cut(how, rng.next_u64());
        pgbench.wait().unwrap();
        ledger.note(writers).unwrap();
        report.cuts += 1;
        report.lossy += u64::from(effects.lost > 0);
        let words = format!("cut {number} (seed {seed}), \"{way}\", {effects:?}");
        let looked = look(&mut disk.cluster, &settings, &ledger, &mut report);
        let is_whole = looked.is_ok();
        report
            .words
            .extend(looked.err().map(|what| format!("{words}: {what}")));
        if number + 1 == cuts || is_enough(&report) {
            break;
        }
        if is_whole && names == Names::Journal {
            disk.cluster.start(&settings).unwrap();
        } else {
            // Names that are there after a cut are durable: only new ones can be lost.
            report.acknowledged += ledger.len();
            ledger = begin(&mut disk, &settings);
        }
    }
    report.acknowledged += ledger.len();
    Some(report)
}

/// Starts what a cut left, stops it in order, and checks its pages; what is wrong with it.
fn look(
    cluster: &mut Cluster,
    settings: &[&str],
    ledger: &Ledger,
    report: &mut Report,
) -> Result<(), String> {
    cluster.start(settings).map_err(|said| {
        report.refused += 1;
        format!("it does not start: {}", reason(&said))
    })?;
    let missing = ledger.missing(cluster);
    cluster.stop()?;
    let missing = missing.inspect_err(|_| report.unreadable += 1)?;
    report.missing += missing;
    let said = cluster.checksums();
    if said.is_err() {
        cluster.start(settings)?;
        let checked = cluster.judged(&said)?;
        cluster.stop()?;
        match checked {
            Checked::Whole => {}
            Checked::LeftOver(files) => report.left_over.extend(files),
            Checked::Damaged(files) => {
                report.damaged += 1;
                return Err(format!("damaged: {files:?}"));
            }
        }
    }
    match missing {
        0 => Ok(()),
        _ => Err(format!("{missing} acknowledged commits are missing")),
    }
}

fn tell(report: &Report, begin: Instant, how: &str) {
    println!(
        "figures: {how}: {} cuts, {} clusters did not start, {} ledgers could not be read, {} clusters had damaged \
         pages, {} files that none uses, {} of {} commits missing, {:?}",
        report.cuts,
        report.refused,
        report.unreadable,
        report.damaged,
        report.left_over.len(),
        report.missing,
        report.acknowledged,
        begin.elapsed()
    );
    report.words.iter().for_each(|words| println!("{words}"));
}

impl Report {
    /// Clusters that were harmed, and commits that are gone.
    fn harmed(&self) -> u64 {
        self.refused + self.unreadable + self.damaged + self.missing as u64
    }
}

#[test]
fn pages_are_torn_where_no_full_pages_are_logged() {
    let begin = Instant::now();
    let cuts = if cuts() == 0 { return } else { PATIENCE };
    let is_harmed = |report: &Report| report.refused + report.damaged > 0;
    let Some(report) = cut_again_and_again("off", Names::Journal, cuts, is_harmed) else {
        return;
    };
    tell(&report, begin, "without full pages in the log");
    assert!(is_harmed(&report), "{report:?}");
}

#[test]
fn full_pages_in_the_log_keep_pages_and_commits_whole() {
    let begin = Instant::now();
    let cuts = if cuts() == 0 { return } else { cuts() };
    let Some(report) = cut_again_and_again("on", Names::Journal, cuts, |_| false) else {
        return;
    };
    tell(&report, begin, "with full pages in the log");
    assert_eq!(report.harmed(), 0, "{report:?}");
    assert!(report.acknowledged > 0 && report.lossy > 0, "{report:?}");
}

/// PostgreSQL syncs a new table's file and not the directory that has its name.
#[test]
fn tables_vanish_where_the_sync_of_a_file_is_none_of_its_name() {
    let begin = Instant::now();
    let cuts = if cuts() == 0 { return } else { PATIENCE };
    let is_harmed = |report: &Report| report.harmed() > 0;
    let Some(report) = cut_again_and_again("on", Names::Posix, cuts, is_harmed) else {
        return;
    };
    tell(
        &report,
        begin,
        "with names that only their directory's sync keeps",
    );
    assert!(is_harmed(&report), "{report:?}");
}
