//! Processes that are killed: the test runs itself as a second process that opens the store, runs
//! the program's steps and reports each one that has ended, and is killed (SIGKILL) at a random
//! moment, also while it opens. What is there afterwards is what the option set promises; then the
//! store is brought to where the model is and goes on.

use std::io::{BufRead, BufReader, Lines, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use collie_db::WalRecoveryMode;

use crate::common::{self, Rng};
use crate::program::{Families, Map, Model, NAMES, Program, Step, Stretch, write_to};
use crate::sets::{self, Keeps};
use crate::store::Store;

/// The second process's parameters: a directory, and numbers.
const DIR: &str = "COLLIE_MODEL_DIR";
const SET: &str = "COLLIE_MODEL_SET";
const KILL: &str = "COLLIE_MODEL_KILL";
const STEPS: &str = "COLLIE_MODEL_STEPS";
/// Its test's name.
const TEST: &str = "kill::what_a_killed_process_runs";

/// A program's seed and length, and where its stores are.
pub(crate) struct Place {
    pub(crate) seed: u64,
    pub(crate) ops: u64,
    dir: PathBuf,
    /// For the rings that are shared; they go with the directory.
    pub(crate) rings: PathBuf,
}

impl Place {
    pub(crate) fn new(dir: &Path, seed: u64, ops: u64) -> Self {
        Self {
            seed,
            ops,
            dir: dir.into(),
            rings: dir.join("rings"),
        }
    }

    pub(crate) fn store(&self, set: usize) -> PathBuf {
        self.dir.join(format!("store-{set}"))
    }
}

/// How often processes were killed, and what that took away.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    kills: u64,
    opening: u64,
    acknowledged: u64,
    taken: u64,
    refused: u64,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} processes killed, {} of them while opening; {} steps acknowledged, {} of the last ones gone where no \
             level promised them; {} incomplete ends refused where that was asked for",
            self.kills, self.opening, self.acknowledged, self.taken, self.refused
        )
    }
}

/// The stretch of the program's kill of that number.
fn find(seed: u64, ops: u64, kill: u64) -> Stretch {
    let (mut program, mut model) = (Program::new(seed, ops), Model::new());
    let mut kills = 0;
    loop {
        let step = program.next(&model);
        model.apply(&step);
        if let Step::Kill = step {
            if kills == kill {
                return program.stretch(&mut model);
            }
            kills += 1;
        }
    }
}

#[test]
fn what_a_killed_process_runs() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let number = |name| common::number(name).unwrap();
    let place = Place::new(Path::new(&dir), number("COLLIE_SEED"), number("COLLIE_OPS"));
    let stretch = find(place.seed, place.ops, number(KILL));
    let (which, steps) = (number(SET) as usize, number(STEPS) as usize);
    let mut set = sets::all(&place.rings).swap_remove(which);
    if steps == 0 {
        // What another one that was killed has left, as its mode may refuse it.
        set.options.wal_recovery_mode = WalRecoveryMode::default();
    }
    println!("\ntold {OPENING}");
    let mut store = Store::open(set, &place.store(which));
    println!("reported {OPENED}");
    let mut model = stretch.before;
    for (n, step) in stretch.steps.iter().take(steps).enumerate() {
        model.apply(step);
        store.apply(step);
        store.check(step, &model, &format!("in a process that is killed, step {n}"));
        println!("reported {}", OPENED + 1 + n);
    }
    // The process that started it kills it, or has ended.
    drop(std::io::stdin().read(&mut [0]));
}

/// What the second process reports: that it opens the store, that it has, and how many steps it has
/// done since.
const OPENING: usize = 1;
const OPENED: usize = 2;

/// The second process.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    reported: usize,
}

impl Process {
    fn start(place: &Place, set: usize, kill: u64, steps: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(DIR, &place.dir)
            .env(SET, set.to_string())
            .env(KILL, kill.to_string())
            .env(STEPS, steps.to_string())
            .env("COLLIE_SEED", place.seed.to_string())
            .env("COLLIE_OPS", place.ops.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            lines,
            reported: 0,
        }
    }

    /// Reads its reports, up to that one or the end.
    fn hear(&mut self, until: usize) {
        while self.reported < until
            && let Some(line) = self.lines.next()
        {
            if let Some(reported) = line.unwrap().strip_prefix("reported ") {
                self.reported = reported.parse().unwrap();
            }
        }
    }

    /// Kills it some time after it has reported that. Returns its last report.
    fn kill(mut self, reported: usize, micros: u64) -> usize {
        self.hear(reported);
        std::thread::sleep(Duration::from_micros(micros));
        self.child.kill().unwrap();
        self.hear(usize::MAX);
        let status = self.child.wait().unwrap();
        assert_eq!(
            status.signal(),
            Some(9),
            "the second process was not killed, it ended by itself ({status}); above is what it said"
        );
        self.reported
    }
}

/// Runs a stretch on a store in processes that are killed, compares what they leave with what was
/// promised, and goes on from there in this process.
pub(crate) fn strike(
    place: &Place,
    (set, kill): (usize, u64),
    store: &mut Store,
    stretch: &Stretch,
    rng: &mut Rng,
    figures: &mut Figures,
) {
    let steps = &stretch.steps;
    store.close();
    let reported = match rng.below(4) {
        0 => OPENING,
        _ => OPENED + rng.below(steps.len() as u64 + 1) as usize,
    };
    let while_opening = 3_000;
    let micros = rng.below(if reported == OPENING { while_opening } else { 400 });
    let process = Process::start(place, set, kill, steps.len());
    let done = process.kill(reported, micros).saturating_sub(OPENED);
    figures.note(reported, done);
    // What it has left is often found by one that is killed over it.
    for _ in 0..rng.below(3) {
        Process::start(place, set, kill, 0).kill(OPENING, rng.below(while_opening));
        figures.note(OPENING, 0);
    }
    figures.refused += u64::from(store.reopen_after_kill());
    let context = format!("{}, killed after step {done} of {}", store.set.name, steps.len());
    let found = store.content();
    let left = left(store.set.keeps, stretch, done, &found).unwrap_or_else(|| {
        panic!(
            "{context}: {}",
            unexplained(store.set.keeps, stretch, done, &found)
        )
    });
    figures.taken += done.saturating_sub(left) as u64;
    let mut model = stretch.before.clone();
    steps[..left].iter().for_each(|step| model.apply(step));
    model.let_go();
    store.repair(&model.families);
    store.check_all(&model.families, &context);
    for (n, step) in steps.iter().enumerate().skip(left) {
        model.apply(step);
        store.apply(step);
        store.check(step, &model, &format!("{context}, then step {n}"));
    }
    store.let_go();
}

impl Figures {
    fn note(&mut self, reported: usize, done: usize) {
        self.kills += 1;
        self.opening += u64::from(reported == OPENING);
        self.acknowledged += done as u64;
    }
}

/// Whether all that was done before it survives a kill once the step is acknowledged.
fn is_safe(step: &Step, keeps: Keeps) -> bool {
    match step {
        Step::Flush | Step::Compact | Step::FlushWal | Step::Reopen | Step::Create(_) => true,
        Step::Batch(_) => keeps == Keeps::Flushed { batches: true },
        _ => keeps == Keeps::Acknowledged,
    }
}

/// What a family may hold: with what no log holds lost from some moment on, and as the last one,
/// with all of it.
type Fates = [Option<Vec<Map>>; NAMES.len()];

/// How many steps are there, when `done` were acknowledged and one more may have been under way;
/// `None` where `found` is nothing that may be. Writes that no log holds may be missing, of each
/// family from some moment on.
fn left(keeps: Keeps, stretch: &Stretch, done: usize, found: &Families) -> Option<usize> {
    if keeps == Keeps::Tables {
        return tables_alone(stretch, done, found).then_some(done);
    }
    let steps = &stretch.steps;
    let doubt = steps.len().min(done + 1);
    let safe = steps[..done].iter().rposition(|step| is_safe(step, keeps));
    let least = safe.map_or(0, |n| n + 1);
    let mut fates: Fates = stretch
        .before
        .families
        .clone()
        .map(|map| map.map(|map| vec![map]));
    let mut left = None;
    for n in 0..=doubt {
        // A family goes without waiting for the log.
        let dropped = |family| {
            steps[n..doubt]
                .iter()
                .any(|step| matches!(step, Step::Drop(it) if *it == family))
        };
        let explained = |family: usize| match (&fates[family], &found[family]) {
            (Some(fates), Some(found)) => fates.contains(found),
            (Some(_), None) => dropped(family),
            (None, found) => found.is_none(),
        };
        if n >= least && (0..NAMES.len()).all(explained) {
            left = Some(n);
        }
        if let Some(step) = steps[..doubt].get(n) {
            go_on(&mut fates, step, n < done);
        }
    }
    left
}

/// What may be left after one more step.
fn go_on(fates: &mut Fates, step: &Step, acknowledged: bool) {
    if let Step::Unlogged(family, ..) = step
        && let Some(fates) = &mut fates[*family]
        && let Some(all) = fates.last().cloned()
    {
        fates.push(all);
    }
    for (family, key, value) in step.writes() {
        let Some(fates) = &mut fates[family] else { continue };
        let kept = match step {
            Step::Unlogged(..) => fates.len() - 1,
            _ => 0,
        };
        for fate in &mut fates[kept..] {
            write_to(fate, &key, value.as_deref());
        }
    }
    match step {
        Step::Flush | Step::Compact | Step::Reopen if acknowledged => {
            for fates in fates.iter_mut().flatten() {
                fates.drain(..fates.len() - 1);
            }
        }
        Step::Create(family) => fates[*family] = Some(vec![Map::new()]),
        Step::Drop(family) => fates[*family] = None,
        _ => {}
    }
}

/// Whether each family is as it was after some step, not before it was flushed the last time.
fn tables_alone(stretch: &Stretch, done: usize, found: &Families) -> bool {
    let mut model = stretch.before.clone();
    let same = |model: &Model, family: usize| model.families[family] == found[family];
    let mut explained: [bool; NAMES.len()] = std::array::from_fn(|family| same(&model, family));
    for (n, step) in stretch.steps.iter().enumerate().take(done + 1) {
        model.apply(step);
        let acknowledged = n < done;
        for (family, explained) in explained.iter_mut().enumerate() {
            let flushed = match step {
                Step::Flush | Step::Compact | Step::Reopen => acknowledged,
                Step::Create(it) | Step::Drop(it) => *it == family && acknowledged,
                _ => false,
            };
            *explained = same(&model, family) || (*explained && !flushed);
        }
    }
    explained.into_iter().all(|explained| explained)
}

/// Says in what the store is not what it should be after the acknowledged steps.
fn unexplained(keeps: Keeps, stretch: &Stretch, done: usize, found: &Families) -> String {
    let mut model = stretch.before.clone();
    stretch.steps[..done].iter().for_each(|step| model.apply(step));
    let mut text = format!(
        "what is there is no state that {keeps:?} allows; the next step was to be {:?}. ",
        stretch.steps.get(done)
    );
    for ((name, found), expected) in NAMES.iter().zip(found).zip(&model.families) {
        let (Some(found), Some(expected)) = (found, expected) else {
            if found.is_some() != expected.is_some() {
                text += &format!(
                    "Family {name}: found {}, expected {}. ",
                    found.is_some(),
                    expected.is_some()
                );
            }
            continue;
        };
        for key in found.keys().chain(expected.keys()) {
            let (found, expected) = (found.get(key), expected.get(key));
            if found != expected {
                let len = |value: Option<&Vec<u8>>| value.map(Vec::len);
                text += &format!(
                    "{name}/{}: found {:?} bytes, expected {:?}. ",
                    key.escape_ascii(),
                    len(found),
                    len(expected)
                );
            }
        }
    }
    text
}
