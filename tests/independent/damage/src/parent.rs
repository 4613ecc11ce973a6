//! Rounds: a store is made in a few lives, and copies of it are damaged, opened and judged.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::damage::{Class, Damage, Image, Kind, Source, class};
use crate::judge::{Commit, History, lie};
use crate::plan::{Plan, Step, shared_ring};
use crate::process;
use crate::rng::Rng;
use crate::rules::{Before, Verdict};

#[derive(Default)]
struct Totals {
    stores: u64,
    commits: u64,
    damages: u64,
    refused: u64,
    /// Of these, errors that name another file than the damaged one.
    elsewhere: u64,
    unread: u64,
    opened: u64,
    lost: u64,
    older: u64,
    undone: u64,
    repaired: u64,
    lies: u64,
    violations: u64,
    kinds: BTreeMap<(Class, String), (u64, u64, u64)>,
}

struct Settings {
    seed: u64,
    rounds: u64,
    until: Option<Instant>,
    damages: u64,
    only: Option<u64>,
    class: Option<String>,
    lies: bool,
    verbose: bool,
    dir: PathBuf,
    keep: PathBuf,
}

pub fn usage() -> i32 {
    eprintln!(
        "usage: collie-independent-damage run [--seed N] [--rounds N | --seconds N] [--damages N] [--only N]\n\
         \u{20}                                    [--class Segment|Ring|Table|..] [--lies] [--verbose] [--dir DIR] [--keep DIR]"
    );
    2
}

impl Settings {
    fn new(options: &[&str]) -> Option<Self> {
        let mut settings = Self {
            seed: 1,
            rounds: 10,
            until: None,
            damages: 40,
            only: None,
            class: None,
            lies: false,
            verbose: false,
            dir: format!("/dev/shm/collie-damage-{}", std::process::id()).into(),
            keep: std::env::temp_dir().join("collie-damage-kept"),
        };
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match *option {
                "--lies" => settings.lies = true,
                "--verbose" => settings.verbose = true,
                "--dir" => settings.dir = options.next()?.into(),
                "--class" => settings.class = Some((*options.next()?).to_owned()),
                "--keep" => settings.keep = options.next()?.into(),
                _ => {
                    let number: u64 = options.next()?.parse().ok()?;
                    match *option {
                        "--seed" => settings.seed = number,
                        "--rounds" => settings.rounds = number,
                        "--seconds" => settings.until = Some(Instant::now() + Duration::from_secs(number)),
                        "--damages" => settings.damages = number,
                        "--only" => settings.only = Some(number),
                        _ => return None,
                    }
                }
            }
        }
        Some(settings)
    }
}

pub fn run(options: &[&str]) -> i32 {
    let Some(settings) = Settings::new(options) else {
        return usage();
    };
    let mut totals = Totals::default();
    let (begun, mut seed) = (Instant::now(), settings.seed);
    loop {
        let over = match settings.until {
            Some(until) => Instant::now() >= until,
            None => seed >= settings.seed + settings.rounds,
        };
        if over {
            break;
        }
        if let Err(error) = round(&settings, seed, &mut totals) {
            eprintln!("seed {seed}: {error}");
            totals.violations += 1;
        }
        seed += 1;
    }
    let _ = fs::remove_dir_all(&settings.dir);
    if settings.verbose {
        for ((class, kind), (refused, unread, opened)) in &totals.kinds {
            println!("{class:?} {kind}: {refused} refused, {unread} refused when read, {opened} opened");
        }
    }
    let t = &totals;
    println!(
        "figures: {} stores, {} commits, {} damages: {} refused ({} by the name of another file), {} when read, {} \
         opened, {} with a reported or documented loss, {} with an earlier list of families; {} undone, {} \
         repaired, {} lies found, {} violations, {:.0} s",
        t.stores,
        t.commits,
        t.damages,
        t.refused,
        t.elsewhere,
        t.unread,
        t.opened,
        t.lost,
        t.older,
        t.undone,
        t.repaired,
        t.lies,
        t.violations,
        begun.elapsed().as_secs_f64(),
    );
    i32::from(totals.violations > 0)
}

/// A store as its lives left it.
struct Made {
    history: History,
    image: Image,
    older: Vec<Image>,
}

fn make(base: &Path, seed: u64) -> Result<Made, String> {
    Image::default()
        .restore(base)
        .map_err(|error| format!("{}: {error}", base.display()))?;
    let plan = Plan::new(seed);
    let mut history = History::default();
    history.families.push(("default".into(), 0));
    let mut older = Vec::new();
    for (which, steps) in plan.lives.iter().enumerate() {
        let wrong = |what: String| format!("life {which}, nothing damaged: {what}");
        let copy = || older.extend(Image::read(base));
        let args = ["life", &seed.to_string(), &which.to_string()];
        let answers = process::run(&args, base, copy).map_err(|error| error.to_string())?;
        if let Some(what) = &answers.wrong {
            return Err(wrong(what.clone()));
        }
        if let Some((word, text)) = answers.failures.first() {
            return Err(wrong(format!("{word} {text}")));
        }
        let found = answers.dumps.first().ok_or_else(|| wrong("no answer".into()))?;
        check_survivors(&mut history, found).map_err(wrong)?;
        history.settle();
        for at in answers.done {
            match &steps[at] {
                Step::Commit(ops, level) => history.logged.push(Commit::new(ops, seed, *level as u8)),
                Step::Bare(ops) => history.bare.push(Commit::new(ops, seed, 0)),
                Step::Create(family) => history.families.push(family.clone()),
                Step::Drop(family) => history.families.retain(|there| there != family),
                // All that was written before is in tables, and so durable.
                Step::FlushAll | Step::Compact => {
                    history.settle();
                    history.bare.iter_mut().for_each(|commit| commit.level = 3);
                }
                Step::FlushWal => history
                    .logged
                    .iter_mut()
                    .for_each(|commit| commit.level = commit.level.max(2)),
                Step::Flush(name) if name == crate::plan::BARE => {
                    history.bare.iter_mut().for_each(|commit| commit.level = 3);
                }
                _ => {}
            }
        }
        if matches!(steps.last(), Some(Step::Close)) {
            history.settle();
            history.bare.iter_mut().for_each(|commit| commit.level = 3);
        }
        older.extend(Image::read(base));
    }
    let image = older.pop().ok_or("no life")?;
    Ok(Made {
        history,
        image,
        older,
    })
}

/// An undamaged store has all that was acknowledged, before and after each life.
fn check_survivors(history: &mut History, found: &crate::judge::Found) -> Result<(usize, usize), String> {
    let prefixes = history.prefixes(found)?;
    let (logged, bare) = (prefixes.logged.last().copied(), prefixes.bare.last().copied());
    let (logged, bare) = (logged.unwrap_or(0), bare.unwrap_or(0));
    let bare_least = history
        .bare
        .iter()
        .rposition(|commit| commit.level >= 3)
        .map_or(0, |at| at + 1);
    let least = history.acknowledged(1);
    if logged < least || bare < bare_least {
        return Err(format!(
            "{logged} commits and {bare} without the log, acknowledged {least} and {bare_least}"
        ));
    }
    history.cut(&prefixes);
    Ok((logged, bare))
}

fn round(settings: &Settings, seed: u64, totals: &mut Totals) -> Result<(), String> {
    let foreign = make(&settings.dir.join("other"), seed ^ 0xf0_0000)?.image;
    let base = settings.dir.join("store-of-this-round");
    let Made {
        mut history,
        image,
        older,
    } = make(&base, seed)?;
    totals.stores += 1;
    totals.commits += (history.logged.len() + history.bare.len()) as u64;
    let whole = probe(&base, seed, &image, "tolerate", false)?;
    let first = whole
        .dumps
        .first()
        .ok_or_else(|| format!("nothing damaged: {:?}", whole.failures))?;
    // Levels before they are settled by what is found: they say what a later frame shows.
    let (logged, bare) = check_survivors(&mut history, first)?;
    let last = whole
        .verified
        .clone()
        .ok_or("nothing damaged, and verifying refuses")?;
    let base_text = settings.dir.display().to_string();
    let mut before = Before {
        history: &history,
        image: &image,
        logged,
        bare,
        last,
        base: &base_text,
        mode: "tolerate",
    };
    let full = before.expected(&Damage {
        name: "LOCK".into(),
        kind: Kind::Remove,
    });
    before.check_answers(&whole, full).map(drop)?;
    // A kill may leave an incomplete end where the ring ends with its process.
    let strict = probe(&base, seed, &image, "absolute", false)?;
    let is_unclean = match strict.failure("refused") {
        Some(refusal) if shared_ring(seed) => {
            return Err(format!("nothing damaged, and a ring beside it: {refusal}"));
        }
        refusal => refusal.is_some(),
    };
    for at in 0..20 {
        let mut wrong = first.clone();
        if lie(&mut wrong, Rng::new(seed, 50 + at).next()) {
            before
                .check(&wrong, full, "")
                .err()
                .ok_or_else(|| format!("lie {at} was not noticed"))?;
            totals.lies += 1;
        }
    }
    let source = Source {
        now: &image,
        older: &older,
        foreign: &foreign,
        last: before.last.clone(),
        class: settings.class.as_deref(),
    };
    for at in 0..settings.damages {
        if settings.only.is_some_and(|only| only != at) {
            continue;
        }
        if settings.until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let mut rng = Rng::new(seed, 100 + at);
        before.mode = *rng.pick(&["tolerate", "tolerate", "absolute", "point"]);
        if before.mode == "absolute" && is_unclean {
            before.mode = "tolerate";
        }
        let mut damages = Vec::from_iter(source.draw(&mut rng));
        if rng.chance(12) {
            damages.extend(source.draw(&mut rng));
        }
        if damages.is_empty() {
            break;
        }
        let mut damaged = image.clone();
        damages
            .iter()
            .for_each(|damage| source.apply(&mut damaged, damage));
        let repair = rng.chance(15);
        let tried = one(settings, seed, &base, &before, &damages, &damaged, repair, totals);
        if let Err(what) = tried {
            totals.violations += 1;
            let kept = settings.keep.join(format!("{seed}-{at}"));
            if !settings.lies {
                let _ = damaged.restore(&kept.join("damaged"));
                let _ = image.restore(&kept.join("before"));
            }
            println!(
                "violation: --seed {seed} --rounds 1 --only {at}, mode {}, repair {repair}, {damages:?}: {what}\n  kept in {}",
                before.mode,
                kept.display()
            );
        }
    }
    Ok(())
}

fn probe(
    base: &Path,
    seed: u64,
    image: &Image,
    mode: &str,
    repair: bool,
) -> Result<process::Answers, String> {
    image.restore(base).map_err(|error| error.to_string())?;
    let repair = if repair { "repair" } else { "open" };
    process::run(&["probe", &seed.to_string(), mode, repair], base, || {}).map_err(|error| error.to_string())
}

#[allow(
    clippy::too_many_arguments,
    reason = "one damage, and all that it is judged by"
)]
fn one(
    settings: &Settings,
    seed: u64,
    base: &Path,
    before: &Before<'_>,
    damages: &[Damage],
    damaged: &Image,
    repair: bool,
    totals: &mut Totals,
) -> Result<(), String> {
    let expected = damages
        .iter()
        .map(|damage| before.expected(damage))
        .reduce(|a, b| a.and(b));
    let mut expected = expected.ok_or("no damage")?;
    let mut answers = probe(base, seed, damaged, before.mode, repair)?;
    totals.damages += 1;
    if answers.repaired {
        // Told to truncate, it does so at any place, and said so.
        totals.repaired += 1;
        expected = crate::rules::Expected {
            floor: 0,
            silent: true,
            ..expected
        };
    }
    if settings.lies {
        answers.dumps.iter_mut().take(1).for_each(|found| {
            lie(found, seed);
        });
    }
    let mut verdict = before.check_answers(&answers, expected);
    if expected.older_families && verdict.as_ref().is_err_and(|what| what.starts_with("families ")) {
        totals.older += 1;
        verdict = Ok(Verdict::Opened(before.logged));
    }
    let verdict = verdict?;
    let kind = format!("{:?}", damages[0].kind)
        .split([' ', '{'])
        .next()
        .unwrap_or_default()
        .to_owned();
    let counts = totals.kinds.entry((class(&damages[0].name), kind)).or_default();
    match verdict {
        Verdict::Opened(left) => {
            counts.2 += 1;
            totals.opened += 1;
            totals.lost += u64::from(left < before.logged);
        }
        Verdict::Unread => {
            counts.1 += 1;
            totals.unread += 1;
        }
        Verdict::Refused(text) => {
            counts.0 += 1;
            totals.refused += 1;
            let file = |damage: &Damage| text.contains(damage.name.rsplit('/').next().unwrap_or_default());
            if !damages.iter().any(file) {
                totals.elsewhere += 1;
                if settings.verbose {
                    println!("elsewhere: {seed} {} {damages:?}: {text}", before.mode);
                }
            }
            if !answers.repaired {
                undo(seed, base, before, damages, damaged, &text)?;
                totals.undone += 1;
            }
        }
    }
    Ok(())
}

/// A refusal takes nothing: with the damaged files as they were, all is there.
fn undo(
    seed: u64,
    base: &Path,
    before: &Before<'_>,
    damages: &[Damage],
    damaged: &Image,
    refusal: &str,
) -> Result<(), String> {
    let mut now = Image::read(base).map_err(|error| error.to_string())?;
    let untouched = [
        "Corrupt",
        "Version",
        "LogIdMismatch",
        "WrongDirectory",
        "NotFound",
    ];
    let mut changed = now.differences(damaged);
    // The manifest is written anew before tables are looked at, and one family's after another's: tables
    // that a kill has left unfinished go then.
    changed.retain(|name| matches!(class(name), Class::Segment | Class::Archive | Class::Ring));
    if untouched.iter().any(|kind| refusal.starts_with(kind)) && !changed.is_empty() {
        return Err(format!("refused, and changed {changed:?}: {refusal}"));
    }
    for damage in damages {
        if damage.name.ends_with('/') {
            now.0.retain(|name, _| !name.starts_with(&damage.name));
            now.add_below(&damage.name, before.image);
            continue;
        }
        let mut names = vec![damage.name.clone()];
        match &damage.kind {
            Kind::Swap { with } => names.push(with.clone()),
            Kind::Duplicate { name } => names.push(name.clone()),
            Kind::Directory => drop(now.0.remove(&format!("{}/", damage.name))),
            _ => {}
        }
        for name in names {
            match before.image.0.get(&name) {
                Some(bytes) => drop(now.0.insert(name, bytes.clone())),
                None => drop(now.0.remove(&name)),
            }
        }
    }
    let answers = probe(base, seed, &now, "tolerate", false)?;
    let full = before.expected(&Damage {
        name: "LOCK".into(),
        kind: Kind::Remove,
    });
    before
        .check_answers(&answers, full)
        .map(drop)
        .map_err(|what| format!("refused ({refusal}), and when the damage was undone: {what}"))
}
