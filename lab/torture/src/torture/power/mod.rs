//! `collie-lab torture power`: a server under many clients, on a file system that forgets what was not
//! synced. Its power is cut at chosen operations, in recovery too, and what was acknowledged to
//! clients must be there.

mod aim;
mod ledger;
mod load;
mod system;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use collie_check::Verdict;
use collie_db::{FamilyOptions, Options};
use collie_io::{Device, OpenMode, RealDevice, read_exact_at, write_all_at};
use collie_sim::faultfs::{FaultFs, Fell, Names};
use collie_sim::{Effects, Image, PowerCut, Rng};

use crate::client;
use crate::temporary::Temporary;
use crate::torture::mountable::ensure_mountable;
pub(crate) use aim::Aim;
use ledger::Ledger;
use load::Load;
pub(crate) use system::System;
use system::{Server, Setup, Started};

/// Of ten cuts, how many are aimed at a server that opens its store; some of them come too late.
const IN_RECOVERY_OF_TEN: u64 = 3;
/// How long a server lives at most, when what a cut is aimed at does not come about. Of another
/// product it is not known what does.
const LIFE: Duration = Duration::from_secs(10);
const LIFE_OF_OTHERS: Duration = Duration::from_secs(2);
/// The same where one aim is asked for: it is met sooner or later, on a slow machine too.
const LIFE_UNTIL_AIM: Duration = Duration::from_secs(120);
/// How long it lives at most, in milliseconds, when a moment is aimed at.
const MOMENT_MS: u64 = 600;
/// The store's directory on the file system that forgets, and where that is mounted.
const STORE: &str = "store";
const MOUNT: &str = "disk";
/// Of another product about so many findings are described in words.
const WORDS_MAX: usize = 16;
/// The databases that the clients write to, as families.
const FAMILIES: [&str; 2] = ["db0.0", "db1.0"];

/// Options under which memtables, tables and segments are so small that flushes, compactions and
/// recycling happen all the time, for a server that has `options` otherwise.
pub(crate) fn small(options: Options) -> Options {
    let family = FamilyOptions {
        write_buffer_bytes: 96 << 10,
        table_bytes: 64 << 10,
        ..FamilyOptions::default()
    };
    Options {
        ring_bytes: 1 << 20,
        segment_bytes: 256 << 10,
        max_total_wal_size: Some(1 << 20),
        family_options: FAMILIES.map(|name| (name.to_owned(), family.clone())).into(),
        ..options
    }
}

/// What is to be tortured, and how.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) system: System,
    pub(crate) program: Option<PathBuf>,
    pub(crate) names: Names,
    pub(crate) aim: Option<Aim>,
    pub(crate) seed: u64,
}

/// What became of all rounds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// Power cuts.
    pub(crate) rounds: u64,
    /// Those that came before the server served.
    pub(crate) in_recovery: u64,
    /// Times that everything was looked at.
    pub(crate) checks: u64,
    /// What all checks found; `acknowledged` and `recovered` are of the last one alone.
    pub(crate) verdict: Verdict,
    /// Times that a client read what others had written, and the ledger noted it.
    pub(crate) reads: u64,
    /// Reads that showed less than an earlier answer, while the server ran.
    pub(crate) went_back: u64,
    /// Times that a server did not open what a cut had left, and its own tool repaired that.
    pub(crate) repaired: u64,
    /// Times that it did not and that was not repaired; it began with an empty store.
    pub(crate) refused: u64,
    /// Where the cuts fell.
    pub(crate) fell: BTreeMap<&'static str, u64>,
    /// How the power went.
    pub(crate) ways: BTreeMap<&'static str, u64>,
    /// What that did to what was not durable.
    pub(crate) effects: Effects,
    pub(crate) words: Vec<String>,
}

impl Report {
    pub(crate) fn holds(&self) -> bool {
        self.verdict.holds() && self.went_back == 0
    }
}

/// A disk, a server on it, and the ledger.
pub(crate) struct Power {
    plan: Plan,
    setup: Setup,
    fs: FaultFs,
    rng: Rng,
    ledger: Ledger,
    /// How many changes the last whole recovery made.
    recovery_changes: u64,
    /// The store has just been repaired.
    repaired: bool,
    /// The disk that the last server found, and where that had stopped.
    found: Option<(Image, String)>,
    pub(crate) report: Report,
}

/// Runs a program of the system to its end.
fn run(program: &str, args: &[&OsStr]) -> anyhow::Result<()> {
    let status = Command::new(program).args(args).status();
    let status = status.with_context(|| format!("cannot run {program}"))?;
    anyhow::ensure!(status.success(), "{program} on the new disk: {status}");
    Ok(())
}

impl Power {
    /// A new disk in `temporary`.
    pub(crate) fn new(plan: Plan, temporary: &Temporary) -> anyhow::Result<Self> {
        ensure_mountable()?;
        let device = RealDevice::new();
        let mount = temporary.path().join(MOUNT);
        device.create_dir_all(&mount)?;
        let mut rng = Rng::new(plan.seed);
        let fs =
            FaultFs::mount(&mount, plan.names, rng.next_u64()).context("cannot mount the file system")?;
        let setup = Setup {
            system: plan.system,
            program: plan.program.clone(),
            store: mount.join(STORE),
            rings: temporary.rings().map(Path::to_owned),
        };
        let mut power = Self {
            plan,
            setup,
            fs,
            rng,
            ledger: Ledger::new(),
            recovery_changes: 0,
            repaired: false,
            found: None,
            report: Report::default(),
        };
        power.make_store()?;
        Ok(power)
    }

    /// The store's directory, durable as a package's would be.
    fn make_store(&mut self) -> anyhow::Result<()> {
        // By processes of their own: one that is killed while it waits for the file system that it
        // serves itself would never end.
        run("mkdir", &["-p".as_ref(), self.setup.store.as_os_str()])?;
        run("sync", &[self.fs.path().as_os_str()])
    }

    /// Runs until there were `rounds` cuts, or until something was found. `done` is called
    /// after each.
    pub(crate) fn run(&mut self, rounds: u64, mut done: impl FnMut(&Report)) -> anyhow::Result<()> {
        // Of another product all that it loses is counted.
        let is_collie = self.plan.system == System::Collie;
        let goes_on = |report: &Report| !is_collie || report.holds();
        while self.report.rounds < rounds && goes_on(&self.report) {
            let number = self.report.rounds;
            self.round().with_context(|| format!("before cut {number}"))?;
            done(&self.report);
        }
        if goes_on(&self.report) {
            self.last_life().context("after the last cut")?;
        }
        Ok(())
    }

    /// One life of a server, and the cut that ends it.
    fn round(&mut self) -> anyhow::Result<()> {
        let aimed_at_recovery = match self.plan.aim {
            Some(aim) => aim == Aim::Recovery,
            None => self.rng.below(10) < IN_RECOVERY_OF_TEN,
        };
        if aimed_at_recovery {
            let nth = 1 + self.rng.below(self.recovery_changes.max(1));
            self.fs.set_trap(Aim::Recovery.trap(nth, &mut self.rng))?;
        }
        let mut server = self.setup.start()?;
        let in_recovery = match server.wait(&self.fs)? {
            Started::Stopped => true,
            Started::Ready => !self.fs.clear_trap()?,
            Started::Ended(status) => return self.refused(&server, status),
        };
        if !in_recovery {
            self.recovery_changes = self.fs.changes()?;
            if !self.check(&server)? {
                return self.give_up(server);
            }
            self.serve(&mut server)?;
        }
        self.cut(server, in_recovery)
    }

    /// Something was found. What Collie has found stays as it is; another product begins with an
    /// empty store.
    fn give_up(&mut self, mut server: Server) -> anyhow::Result<()> {
        if self.plan.system == System::Collie {
            return Ok(());
        }
        server.kill()?;
        server.reap()?;
        self.start_over()
    }

    fn start_over(&mut self) -> anyhow::Result<()> {
        RealDevice::new().remove_dir_all(&self.setup.store)?;
        self.ledger.start_over();
        self.make_store()
    }

    /// Has clients write and read until the disk stops.
    fn serve(&mut self, server: &mut Server) -> anyhow::Result<()> {
        let is_collie = self.plan.system == System::Collie;
        let (aim, nth) = Aim::draw(&mut self.rng, is_collie, self.plan.aim);
        let mut life = match (is_collie, self.plan.aim) {
            (true, Some(_)) => LIFE_UNTIL_AIM,
            (true, None) => LIFE,
            (false, _) => LIFE_OF_OTHERS,
        };
        if aim == Aim::Moment {
            life = Duration::from_millis(self.rng.below(MOMENT_MS));
        } else {
            self.fs.set_trap(aim.trap(nth, &mut self.rng))?;
        }
        let counts = self.ledger.answered();
        let (fs, ledger, rng) = (&self.fs, &self.ledger, &mut self.rng);
        std::thread::scope(|scope| {
            let load = Load::start(scope, ledger, server.port, &counts, rng);
            let stopped = fs.wait_for_stop(life);
            let ended = server.has_ended();
            // Whatever came of it: the clients end when the server does, and that when its calls
            // have failed.
            let halted = fs.stop();
            let killed = server.kill();
            let failed = fs.fail_calls();
            let clients = load.join();
            stopped?;
            halted?;
            failed?;
            if let Some(status) = ended? {
                bail!(
                    "the server ended by itself ({status}); it said:\n{}",
                    server.said()
                );
            }
            killed?;
            clients
        })
    }

    /// Cuts the power, and takes the ring away as a restart of the machine does.
    fn cut(&mut self, mut server: Server, in_recovery: bool) -> anyhow::Result<()> {
        self.fs.stop()?;
        server.kill()?;
        self.fs.fail_calls()?;
        server.reap()?;
        let fell = self
            .fs
            .wait_for_stop(Duration::ZERO)?
            .unwrap_or(Fell { at: None });
        let (way, how) = PowerCut::WAYS
            .get(self.rng.index(PowerCut::WAYS.len()))
            .copied()
            .context("there is no way to cut the power")?;
        let effects = self
            .fs
            .power_cycle(how, self.rng.next_u64())
            .context("cannot cut the power")?;
        remove_rings(self.setup.rings.as_deref())?;
        self.note(&fell, in_recovery, way, effects);
        let words = format!("cut {}: {fell}; the power went as \"{way}\"", self.report.rounds);
        self.found = self.fs.left().cloned().map(|image| (image, words));
        Ok(())
    }

    fn note(&mut self, fell: &Fell, in_recovery: bool, way: &'static str, effects: Effects) {
        let report = &mut self.report;
        report.rounds += 1;
        report.in_recovery += u64::from(in_recovery);
        for place in aim::places(fell, in_recovery) {
            *report.fell.entry(place).or_default() += 1;
        }
        *report.ways.entry(way).or_default() += 1;
        report.effects.kept += effects.kept;
        report.effects.lost += effects.lost;
        report.effects.garbage += effects.garbage;
        report.effects.names_lost += effects.names_lost;
        report.effects.lengths_lost += effects.lengths_lost;
        report.verdict.acknowledged = self.ledger.acknowledged();
        report.reads = self.ledger.reads();
        report.went_back = self.ledger.went_back();
    }

    /// Judges everything that the server has; whether all is as it should be.
    fn check(&mut self, server: &Server) -> anyhow::Result<bool> {
        let checked = client::connect(server.port).and_then(|mut client| self.ledger.check(&mut client));
        let verdict = checked.with_context(|| format!("the check; the server said:\n{}", server.said()))?;
        self.repaired = false;
        let report = &mut self.report;
        report.checks += 1;
        let acknowledged = report.verdict.acknowledged;
        report.verdict.add(&verdict);
        (report.verdict.acknowledged, report.verdict.recovered) = (acknowledged, verdict.recovered);
        let holds = verdict.holds();
        if !holds {
            self.explain(verdict, server);
        }
        Ok(holds)
    }

    fn explain(&mut self, verdict: Verdict, server: &Server) {
        let words = &mut self.report.words;
        if words.len() > WORDS_MAX {
            return;
        }
        words.extend(verdict.findings);
        words.extend(self.found.iter().map(|(_, cut)| format!("after {cut}")));
        words.push(format!("the server said:\n{}", server.said()));
    }

    /// The server ended instead of opening what a cut had left. Collie must open it; of another
    /// product it is counted, and it goes on with what its own tool repairs, or else with an empty
    /// store.
    fn refused(&mut self, server: &Server, status: std::process::ExitStatus) -> anyhow::Result<()> {
        let cut = self.found.as_ref().map_or("before any cut", |(_, cut)| cut);
        let text = format!(
            "{cut}: the server ended with {status} and said:\n{}",
            server.said()
        );
        if self.plan.system == System::Collie || self.report.rounds == 0 {
            bail!(text);
        }
        self.fs.clear_trap()?;
        if !self.repaired && self.setup.repair()? {
            self.repaired = true;
            self.report.repaired += 1;
            return Ok(());
        }
        // What was repaired and is refused again was not.
        self.report.repaired -= u64::from(std::mem::take(&mut self.repaired));
        self.report.refused += 1;
        if self.report.words.len() <= WORDS_MAX {
            self.report.words.push(text);
        }
        self.start_over()
    }

    /// Looks at what the last cut left, and has the server end in order.
    fn last_life(&mut self) -> anyhow::Result<()> {
        let mut server = self.setup.start()?;
        match server.wait(&self.fs)? {
            Started::Ready => {}
            Started::Stopped => bail!("the disk stopped by itself"),
            Started::Ended(status) => return self.refused(&server, status),
        }
        self.check(&server)?;
        let status = server.end()?;
        anyhow::ensure!(
            status.success() || self.plan.system != System::Collie,
            "the server ended with {status}, asked to end in order"
        );
        Ok(())
    }

    /// Writes the disk that the last server found to `dir`, with the operations since.
    pub(crate) fn keep(&self, dir: &Path) -> anyhow::Result<()> {
        let device = RealDevice::new();
        let Some((image, cut)) = &self.found else {
            return Ok(());
        };
        let found = image.device();
        for path in image.files(Path::new("/")) {
            let to = dir.join("found").join(path.strip_prefix("/").unwrap_or(&path));
            device.create_dir_all(to.parent().unwrap_or(dir))?;
            let file = found.open(&path, OpenMode::Read)?;
            let mut bytes = vec![0; usize::try_from(file.stat()?.len).context("a file is too long")?];
            read_exact_at(&*file, &mut bytes, 0)?;
            write_all_at(&*device.open(&to, OpenMode::OpenOrCreate)?, &bytes, 0)?;
        }
        let mut text = format!("{cut}\n");
        for op in self.fs.trace()? {
            text.push_str(&format!("{op}\n"));
        }
        let trace = device.open(&dir.join("operations since"), OpenMode::OpenOrCreate)?;
        Ok(write_all_at(&*trace, text.as_bytes(), 0)?)
    }
}

fn remove_rings(rings: Option<&Path>) -> anyhow::Result<()> {
    let device = RealDevice::new();
    let Some(rings) = rings else { return Ok(()) };
    for entry in device.list(rings).context("cannot list the rings")? {
        device
            .remove_file(&rings.join(entry.name))
            .context("cannot remove a ring")?;
    }
    Ok(())
}
