//! Starts the child, kills it, and has every epoch judged.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::events::{Event, TxId};
use crate::judge::{End, Epoch, Lists};
use crate::plan::Plan;

#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// Everything follows from it, as far as threads allow. The last one counts.
    #[arg(long, overrides_with = "seed")]
    pub seed: Option<u64>,
    /// Ends after the round in which so many transactions have ended.
    #[arg(long, overrides_with = "transactions", default_value_t = 10_000)]
    pub transactions: u64,
    /// Rounds with one store before the next.
    #[arg(long, default_value_t = 6)]
    pub rounds_per_store: u32,
    /// Turns of each thread between two opens.
    #[arg(long, default_value_t = 80)]
    pub turns: u32,
    /// Where stores are, and what is left of those with violations.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Ends with the first store that has a violation.
    #[arg(long)]
    pub stop: bool,
    /// Give guards a new value each time, so that nothing depends on a write of the value that is there.
    #[arg(long)]
    pub changing_guards: bool,
}

/// When the child is killed.
#[derive(Debug, Clone, Copy)]
enum Kill {
    /// After so many commits since an open.
    Commits {
        open: u32,
        commits: u64,
    },
    /// As some work that was forced has begun.
    Work {
        open: u32,
        nth: u64,
    },
    /// As a family is created or dropped.
    Family {
        open: u32,
    },
    /// As the store is opened.
    Opening {
        open: u32,
    },
    Never,
}

struct Store {
    dir: PathBuf,
    plan: Plan,
    /// What was done since the last open, until the next shows how it came out.
    epoch: Option<(Epoch, End)>,
    lists: Lists,
    next_tx: u64,
    /// Families that come and go: whether each is known to be there, or known not to be.
    families: BTreeMap<u32, (String, Family)>,
    creating: Vec<String>,
    highest: u64,
    violations: Vec<String>,
    log: std::fs::File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    There,
    InDoubt,
    Gone,
}

#[derive(Default)]
struct Totals {
    figures: BTreeMap<String, u64>,
    violations: u64,
}

impl Totals {
    fn add(&mut self, what: &str, count: u64) {
        *self.figures.entry(what.into()).or_default() += count;
    }

    fn of(&self, what: &str) -> u64 {
        self.figures.get(what).copied().unwrap_or(0)
    }
}

/// What kills a child that says nothing: no test of time, only an end to waiting.
const SILENCE: Duration = Duration::from_secs(300);

pub fn run(args: &RunArgs) -> Result<i32> {
    let seed = args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs())
    });
    println!("seed: {seed}");
    let base = match &args.dir {
        Some(dir) => dir.clone(),
        None => std::env::temp_dir().join(format!("collie-independent-{}", std::process::id())),
    };
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut totals = Totals::default();
    while totals.of("transactions ended") < args.transactions {
        let dir = base.join(format!("store-{}", totals.of("stores")));
        std::fs::create_dir_all(&dir)?;
        let mut store = Store::new(dir, rng.random::<u32>().into())?;
        totals.add("stores", 1);
        for _ in 0..args.rounds_per_store {
            let kill = random_kill(&mut rng, &store.plan, args.turns);
            store.round(args, &mut rng, kill, &mut totals)?;
            totals.add("rounds", 1);
            if !store.violations.is_empty() || totals.of("transactions ended") >= args.transactions {
                break;
            }
        }
        if store.violations.is_empty() {
            // How the last kill came out.
            store.child(args, 0, 1, &mut rng, Kill::Never, &mut totals)?;
        }
        totals.violations += store.violations.len() as u64;
        for violation in store.violations.iter().take(6) {
            println!(
                "VIOLATION (seed {seed}, {}, plan {}): {violation}",
                store.dir.display(),
                store.plan.seed
            );
        }
        if store.violations.is_empty() {
            std::fs::remove_dir_all(&store.dir)?;
        } else if args.stop {
            break;
        }
    }
    for (what, count) in &totals.figures {
        println!("{count:>9} {what}");
    }
    let f = |what: &str| totals.of(what);
    println!(
        "figures: {} rounds, {} opens, {} kills, {} transactions ended, {} committed, {} outlived a kill, {} did not \
         (none of them promised), {} violations",
        f("rounds"),
        f("opens"),
        f("kills"),
        f("transactions ended"),
        f("commits acknowledged"),
        f("commits that outlived a kill"),
        f("commits that did not outlive a kill"),
        totals.violations
    );
    if totals.violations == 0 {
        let _ = std::fs::remove_dir(&base);
    }
    Ok(i32::from(totals.violations > 0))
}

fn random_kill(rng: &mut SmallRng, plan: &Plan, turns: u32) -> Kill {
    let about = u64::from(plan.threads * turns) / 2;
    let open = if rng.random_ratio(1, 3) { 1 } else { 2 };
    match rng.random_range(0..10) {
        0..=4 => Kill::Commits {
            open,
            commits: rng.random_range(1..=about.max(2)),
        },
        5..=7 => Kill::Work {
            open,
            nth: rng.random_range(1..12),
        },
        8 => Kill::Family { open },
        _ => Kill::Opening { open },
    }
}

impl Store {
    fn new(dir: PathBuf, seed: u64) -> Result<Self> {
        let log = std::fs::File::create(dir.join("events"))?;
        Ok(Self {
            dir,
            plan: Plan::new(seed),
            epoch: None,
            lists: Lists::new(),
            next_tx: 1,
            families: BTreeMap::new(),
            creating: Vec::new(),
            highest: 0,
            violations: Vec::new(),
            log,
        })
    }

    /// Two opens, with a close between them; killed somewhere.
    fn round(&mut self, args: &RunArgs, rng: &mut SmallRng, kill: Kill, totals: &mut Totals) -> Result<()> {
        writeln!(self.log, "# a round, {kill:?}")?;
        self.child(args, args.turns, 2, rng, kill, totals)
    }

    fn child(
        &mut self,
        args: &RunArgs,
        turns: u32,
        opens: u32,
        rng: &mut SmallRng,
        kill: Kill,
        totals: &mut Totals,
    ) -> Result<()> {
        let seed: u64 = rng.random::<u32>().into();
        let mut child = Command::new(std::env::current_exe()?)
            .arg("child")
            .arg("--dir")
            .arg(&self.dir)
            .args(["--plan", &self.plan.seed.to_string()])
            .args(["--seed", &seed.to_string()])
            .args(["--first-tx", &self.next_tx.to_string()])
            .args(["--turns", &turns.to_string()])
            .args(["--opens", &opens.to_string()])
            .args(args.changing_guards.then_some("--changing-guards"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(
                std::fs::File::options()
                    .create(true)
                    .append(true)
                    .open(self.dir.join("stderr"))?,
            )
            .spawn()
            .context("cannot start the child")?;
        let lines = lines_of(&mut child)?;
        let (mut opened, mut commits, mut works, mut killed, mut done) = (0, 0, 0, false, false);
        loop {
            let line = match lines.recv_timeout(SILENCE) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.violations
                        .push(format!("the child {} says nothing any more", child.id()));
                    child.kill()?;
                    break;
                }
            };
            self.log.write_all(line.as_bytes())?;
            let event: Event = match serde_json::from_str(line.trim_end()) {
                Ok(event) => event,
                // The kill came as it was written.
                Err(_) if !line.ends_with('\n') => break,
                Err(error) => bail!("the child said {line:?}: {error}"),
            };
            if matches!(event, Event::Opening) {
                (opened, commits, works) = (opened + 1, 0, 0);
            }
            let now = match (&event, kill) {
                (Event::Ok { .. }, Kill::Commits { open, commits: at }) => {
                    commits += 1;
                    opened == open && commits == at
                }
                (Event::Work { done: false, .. }, Kill::Work { open, nth }) => {
                    works += 1;
                    opened == open && works == nth
                }
                (Event::Creating { .. } | Event::Dropping { .. }, Kill::Family { open }) => opened == open,
                (Event::Opening, Kill::Opening { open }) => opened == open,
                _ => false,
            };
            if now && !killed {
                if !matches!(kill, Kill::Commits { .. }) {
                    spin(Duration::from_micros(rng.random_range(0..15_000)));
                }
                // SIGKILL.
                child.kill()?;
                killed = true;
                totals.add("kills", 1);
            }
            done |= matches!(event, Event::Done);
            self.event(event, totals)?;
        }
        let status = child.wait()?;
        if !killed && !done && self.violations.is_empty() {
            self.violations
                .push(format!("the child ended with {status}; see its stderr"));
        }
        Ok(())
    }

    fn event(&mut self, event: Event, totals: &mut Totals) -> Result<()> {
        match &event {
            Event::Violation { text } => self.violations.push(text.clone()),
            Event::Opened { visible } => {
                totals.add("opens", 1);
                if let Some((epoch, end)) = &self.epoch
                    && epoch.closed
                    && *end == End::Closed
                    && *visible < self.highest
                {
                    self.violations.push(format!(
                        "after a close at {} or later the store opens at {visible}",
                        self.highest
                    ));
                }
            }
            Event::State { lists, families } => {
                let lists: Lists = lists.iter().cloned().collect();
                self.families_are_right(families);
                if let Some((epoch, end)) = self.epoch.take() {
                    let began = Instant::now();
                    let found = epoch.judge(&self.plan, end, &lists);
                    totals.add(
                        "milliseconds in the checker",
                        u64::try_from(began.elapsed().as_millis())?,
                    );
                    totals.add("epochs", 1);
                    if end == End::Killed {
                        totals.add("commits that outlived a kill", found.survived);
                        totals.add("commits that did not outlive a kill", found.lost);
                    }
                    self.violations.extend(found.violations);
                } else if lists.values().any(|list| !list.is_empty()) && self.lists.is_empty() {
                    self.violations.push("a new store is not empty".into());
                }
                self.lists.clone_from(&lists);
                self.epoch = Some((Epoch::new(lists), End::Killed));
                self.highest = 0;
            }
            Event::Begin { id, .. } => self.next_tx = self.next_tx.max(id + 1),
            Event::Ok { id, end, back, .. } => {
                self.highest = self.highest.max(*end);
                totals.add(&format!("{}: committed", self.kind(*id)), 1);
                totals.add("savepoints gone back to", u64::from(*back));
                totals.add("transactions ended", 1);
                totals.add("commits acknowledged", 1);
            }
            Event::Fail { id, why, .. } => {
                totals.add("transactions ended", 1);
                totals.add(&format!("{}: {why}", self.kind(*id)), 1);
            }
            Event::Work { what, done: true } => totals.add(&format!("{what} forced"), 1),
            Event::Creating { name } => self.creating.push(name.clone()),
            Event::Created { name, id } => {
                totals.add("families created", 1);
                if let Some(at) = self.creating.iter().position(|other| other == name) {
                    self.creating.remove(at);
                }
                if self.families.insert(*id, (name.clone(), Family::There)).is_some() {
                    self.violations
                        .push(format!("the family id {id} was given twice"));
                }
            }
            Event::Dropping { id, name } => {
                self.families.insert(*id, (name.clone(), Family::InDoubt));
            }
            Event::Dropped { id, name } => {
                totals.add("families dropped", 1);
                self.families.insert(*id, (name.clone(), Family::Gone));
            }
            _ => {}
        }
        if let Some((epoch, end)) = &mut self.epoch {
            if let Event::End { closed } = &event {
                epoch.closed = *closed;
                *end = End::Closed;
            }
            if let Err(text) = epoch.note(&event) {
                self.violations.push(text);
            }
        }
        Ok(())
    }

    fn kind(&self, id: TxId) -> &str {
        self.epoch.as_ref().map_or("", |(epoch, _)| epoch.kind(id))
    }

    fn families_are_right(&mut self, there: &[(String, u32)]) {
        for (name, id) in there {
            match self.families.get(id) {
                Some((_, Family::Gone)) => {
                    self.violations
                        .push(format!("the family {name:?} ({id}) was dropped, and is there"));
                }
                Some((known, _)) if known != name => {
                    self.violations
                        .push(format!("the family {id} was named {known:?}, and is {name:?}"));
                }
                None if !self.creating.contains(name) => {
                    self.violations
                        .push(format!("no transaction created the family {name:?} ({id})"));
                }
                _ => {}
            }
        }
        for (id, (name, state)) in &self.families {
            if *state == Family::There && !there.iter().any(|(_, other)| other == id) {
                self.violations.push(format!(
                    "the family {name:?} ({id}) was created, and is not there"
                ));
            }
        }
        for (_, state) in self
            .families
            .values_mut()
            .filter(|(_, state)| *state == Family::InDoubt)
        {
            *state = Family::Gone;
        }
        for (name, id) in there {
            self.families.insert(*id, (name.clone(), Family::There));
        }
        self.creating.clear();
    }
}

fn lines_of(child: &mut Child) -> Result<Receiver<String>> {
    let stdout = child.stdout.take().context("the child has no output")?;
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::with_capacity(1 << 16, stdout);
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if send.send(line).is_err() {
                return;
            }
        }
    });
    Ok(receive)
}

fn spin(span: Duration) {
    let began = Instant::now();
    while began.elapsed() < span {
        std::hint::spin_loop();
    }
}
