//! Lives of a server on the mount, each ended by a power cut or by the death of the daemon.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use collie_check::postgres::{Checked, Ledger, reason, run};
use collie_sim::faultfs::{Asked, Moment, Names, Trap};
use collie_sim::{Data, Effects, Keep, OpKind, PowerCut, Rng, mix};

use crate::load::{TABLES, load};
use crate::machine::Machine;
use crate::skipped;

/// No full pages in the log, so few pages in memory that others are written all the time, and
/// vacuum wherever it finds something.
pub(crate) const SETTINGS: [&str; 9] = [
    "full_page_writes=off",
    "shared_buffers=1MB",
    "bgwriter_delay=20ms",
    "synchronous_commit=on",
    "autovacuum_naptime=1s",
    "autovacuum_vacuum_threshold=20",
    "autovacuum_vacuum_scale_factor=0",
    "autovacuum_vacuum_cost_delay=0",
    "autovacuum_max_workers=2",
];
/// Between its start and its end a server lives under load, in operations that change the disk.
const LIFE: [u64; 2] = [1_500, 9_000];
/// What waits for a disk that has a trap set waits for so long.
const PATIENCE: Duration = Duration::from_secs(3);
/// So many lives a cluster has, until what transactions left that did not commit makes it large.
const LIVES: u64 = 20;
/// Rows of the unlogged table that a clean end of the server has to keep.
const UNLOGGED: u64 = 300;

/// So many disks are kept as the last cuts left them, as evidence.
const KEPT: u64 = 3;

/// What ends a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The power is cut under load.
    Load,
    /// While `collie drain` brings pages home, under load.
    Drain,
    /// While `collie drain` brings pages home of a directory that is not mounted.
    DrainUnmounted,
    /// Under load, and once more while the mount or the server recovers.
    Recovery,
    /// The daemon is killed under load.
    Kill,
}

/// What came of a test's lives.
#[derive(Debug, Default)]
struct Report {
    ends: BTreeMap<End, u64>,
    /// Power cuts, and of these those that lost something.
    cuts: u64,
    lossy: u64,
    /// Cuts at an operation that a trap named.
    trapped: u64,
    left_over: u64,
    /// Maps of free space with torn pages, which the server takes for empty.
    maps_of_space: u64,
    acknowledged: usize,
    /// What was wrong, if anything was.
    harm: Vec<String>,
}

fn asked(name: &str, otherwise: u64) -> u64 {
    let asked = std::env::var(name).ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(otherwise)
}

/// Where evidence of what failed is kept, if it is asked for.
fn evidence(test: &str) -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("COLLIE_PG_EVIDENCE")?).join(test))
}

/// An operation that the disk may stop at.
fn trap(rng: &mut Rng, within: u64) -> (String, Trap) {
    type Is = fn(&Asked) -> bool;
    let aims: [(&str, u64, Is); 10] = [
        ("any change", within, |_| true),
        ("sync of displaced pages", 6, |a| {
            a.kind.syncs() && within_path(a, ".collie/shadow")
        }),
        ("write of displaced pages", 200, |a| {
            a.kind == OpKind::Write && within_path(a, ".collie/shadow")
        }),
        ("the log", 40, |a| within_path(a, ".collie/log")),
        ("the map", 4, |a| within_path(a, ".collie/MAP")),
        ("sync of a relation", 20, |a| {
            a.kind.syncs() && within_path(a, "/base/")
        }),
        ("length of a relation", 10, |a| {
            a.kind == OpKind::SetLen && within_path(a, "/base/")
        }),
        ("removal of a relation", 10, |a| {
            a.kind == OpKind::RemoveFile && within_path(a, "/base/")
        }),
        ("the end of a checkpoint", 2, |a| {
            a.kind.syncs() && within_path(a, "pg_control")
        }),
        ("a name", 10, |a| {
            matches!(
                a.kind,
                OpKind::Create | OpKind::CreateDir | OpKind::Rename | OpKind::SyncDir
            )
        }),
    ];
    let (name, most, is) = aims[rng.index(aims.len())];
    let nth = 1 + rng.below(most);
    let moment = if rng.coin() { Moment::Before } else { Moment::After };
    (format!("{moment:?} {nth} of {name}"), Trap::new(nth, moment, is))
}

fn within_path(asked: &Asked, text: &str) -> bool {
    let has = |path: &std::path::Path| path.to_string_lossy().contains(text);
    has(&asked.path) || asked.to.as_deref().is_some_and(has)
}

/// A test: a machine, what is known of its cluster, and what has come of it.
struct Lives {
    machine: Machine,
    ledger: Option<Ledger>,
    rng: Rng,
    seed: u64,
    number: u64,
    report: Report,
    evidence: Option<PathBuf>,
}

impl Lives {
    fn new(test: &str, names: Names, seed: u64) -> Self {
        let mut rng = Rng::new(mix(seed ^ mix(test.len() as u64)));
        let shadow = ["1mb", "4mb", "16mb"][rng.index(3)];
        Self {
            machine: Machine::new(rng.next_u64(), names, shadow),
            ledger: None,
            rng,
            seed,
            number: 0,
            report: Report::default(),
            evidence: evidence(test),
        }
    }

    /// Makes a new cluster with the tables of the load and the ledger, and leaves it running.
    fn begin(&mut self) -> Result<(), String> {
        let machine = &mut self.machine;
        machine.init_again();
        machine.mount()?;
        machine.cluster.start(&SETTINGS)?;
        run(machine.cluster.program("pgbench").args(["-i", "-s", "1", "-q"]))?;
        machine.cluster.sql("postgres", TABLES)?;
        self.ledger = Some(Ledger::make(&machine.cluster)?);
        Ok(())
    }

    /// The end of a cluster.
    fn give_up(&mut self) {
        self.machine.end_all();
        let ledger = self.ledger.take();
        self.report.acknowledged += ledger.map_or(0, |ledger| ledger.len());
    }

    /// One life of a cluster that runs, and what is left of it, running again.
    fn live(&mut self, end: End) -> Result<(), String> {
        *self.report.ends.entry(end).or_default() += 1;
        let begin = self.machine.fs.changes().unwrap();
        let life = LIFE[0] + self.rng.below(LIFE[1] - LIFE[0]);
        let load = load(&self.machine.cluster, self.ledger.as_ref().unwrap());
        while self.machine.fs.changes().unwrap() < begin + life {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut words = format!("life {} (seed {}), {end:?}", self.number, self.seed);
        if end == End::Kill {
            let between = Duration::from_millis(self.rng.below(300));
            self.machine.kill_daemon(|| std::thread::sleep(between))?;
            words.push_str(&format!(", {between:?} before the server"));
        } else {
            if end == End::Drain {
                let drain = self.machine.collie(["drain"]);
                self.machine.run_beside(drain);
            }
            words.push_str(&self.stop_disk(2_000));
            words.push_str(&self.cut());
        }
        load.end(self.ledger.as_mut().unwrap());
        if end == End::Recovery {
            words.push_str(&self.recover_and_cut());
        }
        let looked = self.look(end, &mut words);
        println!("{words}");
        looked.map_err(|what| format!("{words}: {what}"))
    }

    /// Stops the disk, now or at an operation among those that come.
    fn stop_disk(&mut self, within: u64) -> String {
        if self.rng.one_in(3) {
            self.machine.fs.stop().unwrap();
            return ", at once".into();
        }
        let (aim, trap) = trap(&mut self.rng, within);
        self.machine.fs.set_trap(trap).unwrap();
        let fell = self.machine.fs.wait_for_stop(PATIENCE).unwrap();
        self.report.trapped += u64::from(fell.is_some());
        format!(
            ", {aim} ({})",
            if fell.is_some() { "there" } else { "did not come" }
        )
    }

    /// Cuts the power.
    fn cut(&mut self) -> String {
        let blocks = self.rng.coin();
        let how = PowerCut {
            data: if blocks { Data::AnyBlocks } else { Data::AnySectors },
            lengths: Keep::Any,
            names: Keep::Any,
        };
        let effects: Effects = self.machine.cut(how, self.rng.next_u64());
        self.report.cuts += 1;
        self.report.lossy += u64::from(effects.lost > 0);
        if let Some(evidence) = &self.evidence {
            let kept = evidence.join(format!("left-{}", self.report.cuts));
            self.machine.keep_as(&kept);
            let old = evidence.join(format!("left-{}", self.report.cuts.saturating_sub(KEPT)));
            let _ = std::fs::remove_dir_all(&old);
        }
        format!(", {:?}, {effects:?}", how.data)
    }

    /// Lets the mount and the server recover, and cuts the power before that is done.
    fn recover_and_cut(&mut self) -> String {
        let within = [30, 300, 3_000][self.rng.index(3)];
        let (aim, trap) = trap(&mut self.rng, within);
        let machine = &mut self.machine;
        machine.fs.set_trap(trap).unwrap();
        machine.spawn_mount();
        let fell = |machine: &Machine| machine.fs.wait_for_stop(Duration::ZERO).unwrap().is_some();
        let mut is_started = false;
        // An error of either is found again, by what comes after the cut.
        while !fell(machine) {
            let done = if is_started {
                machine.cluster.serves().unwrap_or(true)
            } else {
                match machine.is_mounted() {
                    Ok(true) => {
                        is_started = machine.cluster.spawn(&SETTINGS).is_ok();
                        !is_started
                    }
                    Ok(false) => false,
                    Err(_) => true,
                }
            };
            if done {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let is_fallen = fell(machine);
        self.report.trapped += u64::from(is_fallen);
        let words = format!("; in recovery, {aim} ({is_fallen})");
        words + &self.cut()
    }

    /// Starts what is left, judges it, and leaves it running.
    fn look(&mut self, end: End, words: &mut String) -> Result<(), String> {
        if self.rng.one_in(4) {
            words.push_str("; checked first");
            self.check_what_is_left()?;
        }
        self.machine.mount()?;
        self.start()?;
        self.judge()?;
        self.machine.cluster.stop()?;
        self.machine.umount()?;
        run(&mut self.machine.collie(["front", "check"]))?;
        let is_cut = end == End::DrainUnmounted;
        if is_cut {
            let drain = self.machine.collie(["drain"]);
            self.machine.run_beside(drain);
            words.push_str(&self.stop_disk(200));
            words.push_str(&self.cut());
        }
        let is_plain = self.rng.one_in(6);
        if is_plain {
            words.push_str("; drained");
            run(&mut self.machine.collie(["drain"]))?;
        } else {
            self.machine.mount()?;
        }
        let said = self.machine.cluster.checksums();
        self.start()?;
        match self.machine.cluster.judged(&said)? {
            Checked::Whole => {}
            Checked::LeftOver(files) => self.report.left_over += files.len() as u64,
            Checked::Damaged(files) if files.iter().all(|file| file.ends_with("_fsm")) => {
                self.report.maps_of_space += files.len() as u64;
                words.push_str(&format!("; torn: {files:?}"));
            }
            Checked::Damaged(files) => return Err(format!("damaged: {files:?}")),
        }
        let kept = self
            .machine
            .cluster
            .sql("postgres", "SELECT count(*) FROM unlogged")?;
        if kept.trim() != UNLOGGED.to_string() {
            return Err(format!("{kept} rows are in the unlogged table"));
        }
        if is_plain {
            self.judge()?;
            self.machine.cluster.stop()?;
            self.machine.mount()?;
            self.start()?;
        }
        Ok(())
    }

    /// Checks the directory as the crash left it. A file whose removal was not recorded yet is
    /// missing, which the check cannot know from one that is lost; the ledger can.
    fn check_what_is_left(&self) -> Result<(), String> {
        let mut check = self.machine.collie(["front", "check", "--json"]);
        let done = check.output().map_err(|e| format!("{check:?}: {e}"))?;
        let said = || String::from_utf8_lossy(&[&done.stdout[..], &done.stderr].concat()).into_owned();
        let found: serde_json::Value =
            serde_json::from_slice(&done.stdout).map_err(|e| format!("{check:?}: {e}: {}", said()))?;
        let is_empty = |list: &str| found[list].as_array().is_some_and(Vec::is_empty);
        let is_as_found = done.status.success() == is_empty("missing");
        match is_empty("damaged") && is_as_found {
            true => Ok(()),
            false => Err(format!("{check:?}: {}: {}", done.status, said())),
        }
    }

    fn start(&mut self) -> Result<(), String> {
        let started = self.machine.cluster.start(&SETTINGS);
        started.map_err(|said| format!("the server does not start: {}", reason(&said)))
    }

    /// What clients see, and the indexes.
    fn judge(&mut self) -> Result<(), String> {
        let cluster = &self.machine.cluster;
        let missing = self.ledger.as_ref().unwrap().missing(cluster)?;
        if missing > 0 {
            return Err(format!("{missing} acknowledged commits are missing"));
        }
        let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts),
             (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(tbalance) FROM pgbench_tellers),
             (SELECT coalesce(sum(delta), 0) FROM pgbench_history)";
        let sums = cluster.sql("postgres", sums)?;
        let mut each = sums.trim().split('|');
        let first = each.next().unwrap_or_default();
        if each.any(|other| other != first) {
            return Err(format!("the sums of the balances differ: {sums}"));
        }
        cluster.amcheck()?;
        let unlogged = format!(
            "TRUNCATE unlogged;
             INSERT INTO unlogged SELECT n, repeat('v', 100) FROM generate_series(1, {UNLOGGED}) n"
        );
        cluster.sql("postgres", &unlogged).map(drop)
    }

    /// So many lives, and what came of them.
    fn all(mut self, lives: u64, ends: &[End]) -> Report {
        for number in 0..lives {
            self.number = number;
            let mut lived = Ok(());
            if self.ledger.is_none() || number % LIVES == 0 {
                self.give_up();
                lived = self.begin();
            }
            let end = ends[self.rng.index(ends.len())];
            let Err(what) = lived.and_then(|()| self.live(end)) else {
                continue;
            };
            println!("{what}");
            self.report.harm.push(what);
            if let Some(evidence) = &self.evidence {
                let kept = evidence.join(number.to_string());
                self.machine.keep_as(&kept.join("found"));
                self.machine.keep_logs(&kept);
                for cut in 0..KEPT {
                    let left = format!("left-{}", self.report.cuts.saturating_sub(cut));
                    let _ = std::fs::rename(evidence.join(&left), kept.join(&left));
                }
            } else {
                println!("{}\n{}", self.machine.daemons_said(), self.machine.cluster.said());
            }
            self.give_up();
        }
        self.give_up();
        self.report
    }
}

fn run_lives(test: &str, names: Names, lives: u64, ends: &[End]) {
    if lives == 0 {
        println!("not asked for: COLLIE_PG_MOUNT_CUTS and COLLIE_PG_MOUNT_KILLS say how many lives");
        return;
    }
    if skipped() {
        return;
    }
    let begin = Instant::now();
    let seed = asked("COLLIE_SEED", 1);
    let report = Lives::new(test, names, seed).all(lives, ends);
    println!(
        "figures: {test}: {} cuts, {} of them lossy, {} at a named operation, lives ended {:?}, {} commits, {} files \
         left over, {} torn maps of free space, {} lives harmed, {:?}",
        report.cuts,
        report.lossy,
        report.trapped,
        report.ends,
        report.acknowledged,
        report.left_over,
        report.maps_of_space,
        report.harm.len(),
        begin.elapsed()
    );
    assert!(report.harm.is_empty(), "{}", report.harm.join("\n"));
    assert!(report.acknowledged > 0);
}

/// A quarter of these in recovery, or while pages are brought home.
const CUTS: [End; 8] = [
    End::Load,
    End::Load,
    End::Load,
    End::Load,
    End::Load,
    End::Drain,
    End::DrainUnmounted,
    End::Recovery,
];

#[test]
fn no_power_cut_loses_anything_where_names_need_directory_syncs() {
    let cuts = asked("COLLIE_PG_MOUNT_CUTS", 0).div_ceil(2);
    run_lives("cuts-posix", Names::Posix, cuts, &CUTS);
}

#[test]
fn nothing_is_lost_in_power_cuts_where_any_sync_is_one_of_names() {
    let cuts = asked("COLLIE_PG_MOUNT_CUTS", 0) / 2;
    run_lives("cuts-journal", Names::Journal, cuts, &CUTS);
}

#[test]
fn nothing_is_lost_where_the_daemon_is_killed() {
    let kills = asked("COLLIE_PG_MOUNT_KILLS", 0);
    run_lives("kills", Names::Posix, kills, &[End::Kill]);
}
