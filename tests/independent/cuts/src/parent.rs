//! Rounds: a disk, the processes that live on it, one failure, and cuts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::child::Life;
use crate::disk::Disk;
use crate::fuse::{CLASSES, Class, Fault, Fired, KINDS, Kind, Shared};
use crate::judge::{End, Judge};
use crate::rng::Rng;

/// Without a line or an operation for so long a process hangs.
const HANGS: Duration = Duration::from_secs(90);

#[derive(Default)]
struct Totals {
    rounds: u64,
    lives: u64,
    cuts: u64,
    kills: u64,
    acknowledged: u64,
    disk: u64,
    answers: u64,
    after_failure: u64,
    refused_reads: u64,
    /// By kind, class and error: how many, after how many the store was to be reopened.
    failures: BTreeMap<(Kind, Class, i32), (u64, u64)>,
    violations: u64,
}

/// Where the processes of one job live.
struct Place {
    base: PathBuf,
}

impl Place {
    fn new(job: u64) -> std::io::Result<Self> {
        // On a tmpfs: making a directory durable on the way costs nothing there.
        let base = PathBuf::from(format!("/dev/shm/collie-cuts-{}-{job}", std::process::id()));
        for sub in ["disk", "ring"] {
            std::fs::create_dir_all(base.join(sub))?;
        }
        Ok(Self { base })
    }

    fn disk(&self) -> PathBuf {
        self.base.join("disk")
    }

    fn ring(&self) -> PathBuf {
        self.base.join("ring")
    }

    fn lose_memory(&self) {
        let _ = std::fs::remove_dir_all(self.ring());
        let _ = std::fs::create_dir_all(self.ring());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

/// A process's life, and what it reported.
fn live(shared: &Shared, life: &Life, end: End) -> (Vec<String>, Option<String>) {
    let Ok(program) = std::env::current_exe() else {
        return (Vec::new(), Some("no path of this program".into()));
    };
    let spawned = Command::new(program)
        .arg("child")
        .args(life.to_args())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return (Vec::new(), Some(format!("no process: {error}"))),
    };
    let (send, lines) = mpsc::channel();
    let output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let read = output
            .into_iter()
            .flat_map(|output| BufReader::new(output).lines().map_while(Result::ok));
        read.for_each(|line| {
            let _ = send.send(line);
        });
    });
    let errors = child.stderr.take();
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(mut errors) = errors {
            let _ = std::io::Read::read_to_string(&mut errors, &mut text);
        }
        text
    });
    let mut lines_read: Vec<String> = Vec::new();
    let mut wrong = None;
    let mut moved = (Instant::now(), 0);
    loop {
        match lines.recv_timeout(Duration::from_millis(3)) {
            Ok(line) => {
                let idle = line == "idle";
                lines_read.push(line);
                moved.0 = Instant::now();
                if idle {
                    break;
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        let world = shared.world();
        if world.left.is_some() {
            break;
        }
        if world.operations != moved.1 {
            moved = (Instant::now(), world.operations);
        }
        drop(world);
        if moved.0.elapsed() > HANGS {
            wrong = Some(format!("hangs, after {:?}", lines_read.last()));
            break;
        }
    }
    if end == End::Cut {
        shared.cut();
    }
    let _ = child.kill();
    if shared.world().left.is_some() {
        shared.release();
    }
    let status = child.wait();
    let _ = reader.join();
    lines_read.extend(lines.try_iter());
    let errors = errors.join().unwrap_or_default();
    if errors.contains("panicked") {
        wrong = Some(format!("panicked: {status:?} {errors}"));
    }
    (lines_read, wrong)
}

fn error_for(kind: Kind, rng: &mut Rng) -> i32 {
    use libc::{EACCES, EIO, EMFILE, ENOSPC, EOPNOTSUPP, EPERM};
    let of: &[i32] = match kind {
        Kind::Write | Kind::SyncData | Kind::Sync | Kind::SyncDir | Kind::Truncate => &[EIO, EIO, ENOSPC],
        Kind::Create | Kind::MakeDir => &[EIO, ENOSPC, EMFILE, EPERM],
        Kind::Rename => &[EIO, ENOSPC, EPERM],
        Kind::Remove => &[EIO, EPERM],
        Kind::Allocate => &[EIO, ENOSPC, EOPNOTSUPP],
        Kind::Open => &[EMFILE, EIO, EACCES],
        Kind::Read | Kind::List | Kind::Look => &[EIO],
    };
    rng.pick(of)
}

/// What one life of a round is.
struct Step {
    life: Life,
    fault: Option<Fault>,
    /// After so many changes, counted from the life's start.
    cut_at: Option<u64>,
    cut_after: Option<u64>,
    end: End,
}

struct Round<'a> {
    place: &'a Place,
    seed: u64,
    direct: bool,
    lies: bool,
    steps: Vec<Step>,
}

#[derive(Default)]
struct Outcome {
    judge: Judge,
    fired: Option<Fired>,
    reopen: bool,
    lives: u64,
    cuts: u64,
    kills: u64,
    counts: BTreeMap<(Kind, Class), u64>,
    events: String,
}

impl Round<'_> {
    fn run(mut self) -> Outcome {
        let mut out = Outcome::default();
        let mut rng = Rng::new(self.seed ^ 0xd15c);
        let mut shared = Shared::new(Disk::new(rng.next()));
        let mut mounted = None;
        let mut boot = 1;
        for (number, step) in self.steps.drain(..).enumerate() {
            if mounted.is_none() {
                mounted = shared
                    .mount(&self.place.disk())
                    .map_err(|error| out.judge.violations.push(format!("no mount: {error}")))
                    .ok();
                if mounted.is_none() {
                    return out;
                }
            }
            let mut life = step.life;
            life.boot = boot;
            let before = {
                let mut world = shared.world();
                world.fault = step.fault;
                world.cut_at = step.cut_at.map(|at| world.operations + at);
                world.cut_after = step.cut_after;
                world.cut_seed = rng.next();
                world.direct = self.direct;
                world.lies = self.lies;
                world.fired.is_some()
            };
            let (lines, wrong) = live(&shared, &life, step.end);
            out.lives += 1;
            let mut world = shared.world();
            world.fault = None;
            let fired = world.fired.clone().filter(|_| !before);
            if let Some(fired) = &fired {
                out.fired = Some(fired.clone());
            }
            let cut = world.left.take();
            if number == 0 {
                out.counts = world.counts.clone();
            }
            out.events += &format!("=== life {number}: {life:?}\n{}\n", lines.join("\n"));
            out.events += &format!(
                "--- {:?}; {}\n{}\n{}",
                fired,
                if cut.is_some() { "cut" } else { "killed" },
                world.trace.join("\n"),
                world.disk.tree()
            );
            world.trace.clear();
            drop(world);
            out.judge.life(&lines, fired.is_some());
            out.reopen |= out.fired.is_some() && std::mem::take(&mut out.judge.poisoned);
            if let Some(wrong) = wrong {
                out.judge.violations.push(wrong);
            }
            if let Some(left) = cut {
                out.cuts += 1;
                out.judge.end(End::Cut);
                if let Some(session) = mounted.take() {
                    let _ = session.umount_and_join();
                }
                out.events += &format!("--- after the cut\n{}", left.tree());
                shared = Shared::new(left);
                self.place.lose_memory();
                boot += 1;
            } else {
                out.kills += 1;
                out.judge.end(End::Killed);
            }
            if !out.judge.violations.is_empty() {
                break;
            }
        }
        if let Some(session) = mounted.take() {
            let _ = session.umount_and_join();
        }
        self.place.lose_memory();
        out
    }
}

fn base_life(place: &Place, seed: u64, number: u64) -> Life {
    Life {
        store: place.disk().join("store"),
        ring: place.ring(),
        boot: 1,
        seed,
        number,
        threads: 1,
        steps: 0,
        reopen: false,
        close: false,
        inspect: false,
        second: false,
    }
}

fn random_round(place: &Place, seed: u64) -> Round<'_> {
    let mut rng = Rng::new(seed);
    let kinds = [
        Kind::Write,
        Kind::SyncData,
        Kind::Sync,
        Kind::SyncDir,
        Kind::Create,
        Kind::Rename,
        Kind::Remove,
    ];
    let kind = if rng.chance(60) {
        rng.pick(&kinds)
    } else {
        rng.pick(&KINDS)
    };
    let most = match kind {
        Kind::Write | Kind::SyncData | Kind::Read | Kind::Look => 400,
        Kind::Sync | Kind::SyncDir | Kind::Open => 150,
        _ => 40,
    };
    let fault = Fault {
        kind,
        class: rng.chance(60).then(|| rng.pick(&CLASSES)),
        nth: rng.small(most),
        errno: error_for(kind, &mut rng),
    };
    let lives = 3 + rng.below(2);
    let failing = u64::from(rng.chance(25));
    let threads = 1 + rng.below(3);
    let steps = (0..lives).map(|number| {
        let last = number + 1 == lives;
        let mut life = base_life(place, seed, number);
        life.threads = threads;
        life.steps = if last { 8 } else { 10 + rng.below(140) };
        life.reopen = rng.chance(25);
        life.close = last || rng.chance(20);
        life.inspect = last || rng.chance(30);
        life.second = last && rng.chance(20);
        let end = match last {
            true => End::Killed,
            false if rng.chance(70) => End::Cut,
            false => End::Killed,
        };
        let in_recovery = number > 0 && rng.chance(33);
        Step {
            life,
            fault: (number == failing).then(|| fault.clone()),
            cut_at: match last {
                true => None,
                false if in_recovery => Some(rng.small(60)),
                false => rng.chance(30).then(|| 20 + rng.below(900)),
            },
            cut_after: rng
                .chance(60)
                .then(|| rng.small(400) - 1)
                .filter(|_| number == failing && !last),
            end,
        }
    });
    let steps = steps.collect();
    Round {
        place,
        seed,
        direct: rng.chance(70),
        lies: false,
        steps,
    }
}

/// The fixed program with one failure, a cut, and a life that reads.
fn fixed_round(place: &Place, seed: u64, fault: Option<Fault>, variant: u64) -> Round<'_> {
    let mut rng = Rng::new(seed);
    let mut first = base_life(place, seed, 0);
    first.close = variant != 1;
    first.reopen = variant == 3;
    let mut last = base_life(place, seed, 1);
    last.steps = 3;
    last.inspect = true;
    last.close = true;
    let cut_after = (variant == 0).then(|| rng.below(6));
    let second = Step {
        life: last,
        fault: None,
        cut_at: None,
        cut_after: None,
        end: End::Killed,
    };
    let first = Step {
        life: first,
        fault,
        cut_at: None,
        cut_after,
        end: if variant == 4 { End::Killed } else { End::Cut },
    };
    Round {
        place,
        seed,
        direct: seed % 3 != 0,
        lies: false,
        steps: vec![first, second],
    }
}

struct Report {
    totals: Mutex<Totals>,
    keep: PathBuf,
}

impl Report {
    fn add(&self, name: &str, out: Outcome) {
        let mut totals = self.totals.lock().expect("no thread panics with it");
        totals.rounds += 1;
        totals.lives += out.lives;
        totals.cuts += out.cuts;
        totals.kills += out.kills;
        totals.acknowledged += out.judge.counts.acknowledged;
        totals.disk += out.judge.counts.disk;
        totals.answers += out.judge.counts.answers;
        totals.after_failure += out.judge.counts.after_failure;
        totals.refused_reads += out.judge.counts.refused_reads;
        if let Some(fired) = &out.fired {
            let entry = totals
                .failures
                .entry((fired.kind, fired.class, fired.errno))
                .or_default();
            entry.0 += 1;
            entry.1 += u64::from(out.reopen);
        }
        if out.judge.violations.is_empty() {
            return;
        }
        totals.violations += 1;
        let path = self.keep.join(name);
        let _ = std::fs::create_dir_all(&self.keep);
        let failure = out.fired.as_ref().map_or("none".to_owned(), |fired| {
            let Fired {
                kind,
                class,
                path,
                errno,
                at,
            } = fired;
            format!("{kind:?} of {path} ({class:?}), errno {errno}, at change {at}")
        });
        let mut text = format!("{name}\nfailure: {failure}\n");
        for violation in &out.judge.violations {
            text += &format!("VIOLATION {violation}\n");
        }
        println!("{text}see {}\n", path.display());
        let _ = std::fs::write(&path, text + &out.events);
    }

    fn print(&self) -> bool {
        let totals = self.totals.lock().expect("no thread panics with it");
        println!("failure                                     times  to be reopened after it");
        for ((kind, class, errno), (times, reopen)) in &totals.failures {
            let error = std::io::Error::from_raw_os_error(*errno);
            println!(
                "{:<10} {:<8} {:<24} {times:>6} {reopen:>6}",
                format!("{kind:?}"),
                format!("{class:?}"),
                short(&error)
            );
        }
        let failures: u64 = totals.failures.values().map(|(times, _)| times).sum();
        println!(
            "{} rounds, {} processes, {failures} failures, {} cuts, {} kills and closes\n\
             {} acknowledgements ({} at Disk), {} answers checked, {} of both after a failure, {} reads refused\n\
             {} rounds with a violation",
            totals.rounds,
            totals.lives,
            totals.cuts,
            totals.kills,
            totals.acknowledged,
            totals.disk,
            totals.answers,
            totals.after_failure,
            totals.refused_reads,
            totals.violations
        );
        totals.violations == 0
    }
}

fn short(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os").next().unwrap_or_default().to_owned()
}

/// All rounds of the fixed program: each kind and class, each number, each variant.
fn fixed_rounds(
    place: &Place,
    seed: u64,
    variants: &[u64],
    report: &Report,
) -> Vec<(String, u64, Fault, u64)> {
    let dry = fixed_round(place, seed, None, 2).run();
    let counts = dry.counts.clone();
    report.add(&format!("fixed-{seed}-none"), dry);
    let mut rng = Rng::new(seed);
    let mut all = Vec::new();
    for ((kind, class), count) in counts {
        // Reads and looks are many and alike.
        let every = if matches!(kind, Kind::Read | Kind::Look) {
            5
        } else {
            1
        };
        for nth in (1..=count).step_by(every) {
            for &variant in variants {
                let fault = Fault {
                    kind,
                    class: Some(class),
                    nth,
                    errno: error_for(kind, &mut rng),
                };
                all.push((
                    format!("fixed-{seed}-{kind:?}-{class:?}-{nth}-{variant}"),
                    seed,
                    fault,
                    variant,
                ));
            }
        }
    }
    all
}

/// On a disk whose syncs of the log do nothing, violations are found.
fn notices_lies(place: &Place, seed: u64, rounds: u64) -> i32 {
    let noticed = |seed| {
        let mut round = random_round(place, seed);
        round.lies = true;
        round.steps.iter_mut().for_each(|step| step.fault = None);
        !round.run().judge.violations.is_empty()
    };
    let found = (seed..seed + rounds).filter(|seed| noticed(*seed)).count();
    println!("a disk that lies was noticed in {found} of {rounds} rounds");
    i32::from(found == 0)
}

fn option(args: &[String], name: &str, default: u64) -> u64 {
    let at = args.iter().position(|arg| arg == name);
    at.and_then(|at| args.get(at + 1)?.parse().ok())
        .unwrap_or(default)
}

pub fn run(args: &[String]) -> i32 {
    let seed = option(args, "--seed", 1);
    let rounds = option(args, "--rounds", 20);
    let fixed = option(args, "--fixed", 0);
    let every = option(args, "--every", 1).max(1) as usize;
    let jobs = option(args, "--jobs", 2);
    let keep = std::env::temp_dir().join(format!("collie-cuts-{}", std::process::id()));
    println!("seed {seed}");
    let report = Report {
        totals: Mutex::default(),
        keep,
    };
    let places: Vec<Place> = match (0..jobs.max(1)).map(Place::new).collect() {
        Ok(places) => places,
        Err(error) => {
            eprintln!("no place for stores: {error}");
            return 2;
        }
    };
    if !Path::new("/dev/fuse").exists() {
        eprintln!("no /dev/fuse here: this program cannot run");
        return 2;
    }
    if option(args, "--lies", 0) == 1 {
        return notices_lies(&places[0], seed, rounds);
    }
    let only = option(args, "--only", 0);
    if only > 0 {
        for _ in 0..rounds {
            report.add(&format!("random-{only}"), random_round(&places[0], only).run());
        }
        return i32::from(!report.print());
    }
    // One variant of the fixed program is one seed: its options are others.
    let list: Vec<_> = match places.first() {
        Some(place) => (0..fixed)
            .flat_map(|n| fixed_rounds(place, seed + n, &[0, 1, 2, 3, 4], &report))
            .collect(),
        None => Vec::new(),
    };
    let list: Vec<_> = list
        .into_iter()
        .skip(seed as usize % every)
        .step_by(every)
        .collect();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for place in &places {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if let Some((name, seed, fault, variant)) = list.get(number as usize) {
                        report.add(
                            name,
                            fixed_round(place, *seed, Some(fault.clone()), *variant).run(),
                        );
                    } else if number < list.len() as u64 + rounds {
                        let seed = seed.wrapping_mul(1_000_003) + number - list.len() as u64;
                        report.add(&format!("random-{seed}"), random_round(place, seed).run());
                    } else {
                        break;
                    }
                }
            });
        }
    });
    i32::from(!report.print())
}
