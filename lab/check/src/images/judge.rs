//! Makes images of a program's moments, lets the log recover each, and judges what it found.

use std::path::Path;

use collie_io::{Device, OpenMode, read_exact_at};
use collie_log::{Frame, Level, Log, LogError, LogOptions};

use collie_sim::SimDevice;

use crate::images::ImagesReport;
use crate::images::as_index;
use crate::images::commits::{DIR, commit, find};
use crate::images::process::{Life, run};
use crate::images::program::{Program, Setup};
use crate::ledger::{Commit, Survives};
use collie_sim::Rng;
use collie_sim::VOLATILE_DIR;
use collie_sim::{Fault, FaultKind, OpKind};
use collie_sim::{Image, Points, PowerCut, Snapshot};

/// What happened to the world of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The process died.
    ProcessDeath,
    /// The power went, in the way of [`PowerCut::WAYS`] with this index.
    PowerCut(usize),
    /// The process died and its ring is gone.
    MissingRing,
    /// The log's directory was copied, and the copy finds the ring of the original.
    ForeignRing,
    /// The ring is of another moment than the files.
    StaleRing,
    /// The process died, and the ring claims another boot.
    OtherBoot,
    /// The power went, and a bit of the log's files rotted.
    BitRot,
}

impl Kind {
    /// All kinds, of which the first are the commonest faults.
    fn all() -> impl Iterator<Item = Self> {
        let cuts = (0..PowerCut::WAYS.len()).map(Self::PowerCut);
        let others = [
            Self::MissingRing,
            Self::ForeignRing,
            Self::StaleRing,
            Self::OtherBoot,
            Self::BitRot,
        ];
        [Self::ProcessDeath].into_iter().chain(cuts).chain(others)
    }

    fn nth(n: u64) -> Self {
        let count = Self::all().count() as u64;
        Self::all().nth(as_index(n % count)).unwrap_or(Self::ProcessDeath)
    }

    fn random(rng: &mut Rng) -> Self {
        if rng.one_in(4) {
            Self::ProcessDeath
        } else {
            Self::nth(rng.next_u64())
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::ProcessDeath => "process death",
            Self::PowerCut(way) => PowerCut::WAYS.get(way).map_or("power cut", |w| w.0),
            Self::MissingRing => "missing ring",
            Self::ForeignRing => "foreign ring",
            Self::StaleRing => "stale ring",
            Self::OtherBoot => "ring of another boot",
            Self::BitRot => "bit rot",
        }
    }

    fn survives(self) -> Survives {
        match self {
            Self::ProcessDeath => Survives::Process,
            Self::BitRot => Survives::Damage,
            _ => Survives::Power,
        }
    }
}

/// Runs a program and judges `images` images of it: of moments in turn, spread evenly, and of every
/// kind in turn; or of random moments and kinds.
pub(crate) fn explore(program: &Program, seed: u64, images: u64, in_turn: bool, report: &mut ImagesReport) {
    let lives = match run(program, seed) {
        Ok(lives) => lives,
        Err(e) => return report.fail(format!("{e}\n  {program:?}")),
    };
    for (kind, times) in lives.iter().flat_map(|life| &life.faults) {
        report.count(fault_name(*kind), *times);
    }
    let moments = lives
        .iter()
        .flat_map(|life| life.snapshots.iter().map(move |s| (life, s)));
    let moments: Vec<_> = moments.collect();
    let mut rng = Rng::new(seed ^ 0x1_4A6E);
    for n in 0..images {
        let place = match in_turn {
            true => as_index(n * moments.len() as u64 / images),
            false => rng.index(moments.len()),
        };
        let Some(&(life, snapshot)) = moments.get(place) else {
            return;
        };
        let wanted = match in_turn {
            true => Kind::nth(seed.wrapping_add(n)),
            false => Kind::random(&mut rng),
        };
        let kind = suitable(wanted, life, snapshot, program.threads > 1);
        let survives = match kind {
            Kind::PowerCut(_) if life.damaged => Survives::Damage,
            kind => kind.survives(),
        };
        let case = Case {
            setup: program.setup,
            life,
            tag: snapshot.tag(),
            kind,
        };
        let image = case.image(snapshot, &mut rng, report);
        let before = report.failed;
        case.judge(&image, survives, 0, None, &mut rng, report);
        if report.failed > before {
            report.detail(&format!(
                "image {n}: {} at {}\n  {program:?}",
                kind.name(),
                moment(snapshot)
            ));
        }
    }
}

/// A kind of image that can be judged at this moment, in place of one that cannot.
fn suitable(kind: Kind, life: &Life, snapshot: &Snapshot, threaded: bool) -> Kind {
    // The memory of several threads is of one instant only where they were stopped, and that was
    // between operations.
    let torn_memory = threaded && snapshot.at().is_some();
    match kind {
        Kind::PowerCut(_) | Kind::BitRot => kind,
        _ if torn_memory => Kind::PowerCut(as_index(snapshot.op()) % PowerCut::WAYS.len()),
        // A ring of another moment does not agree with the files where a frame was overtaken in
        // between.
        Kind::StaleRing if life.holes || threaded => Kind::MissingRing,
        kind => kind,
    }
}

/// Where a snapshot was taken, in words.
fn moment(snapshot: &Snapshot) -> String {
    match snapshot.at() {
        Some(op) => op.to_string(),
        None => format!("a moment after operation {}", snapshot.op()),
    }
}

fn fault_name(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::AnyFails => "operation fails",
        FaultKind::ReadFails => "read fails",
        FaultKind::WriteFails => "write fails",
        FaultKind::SyncFails => "sync fails",
        FaultKind::Interrupted => "interrupted",
        FaultKind::ShortRead => "short read",
        FaultKind::ShortWrite => "short write",
        FaultKind::StaleSector => "stale sector",
        FaultKind::MisdirectedSector => "misdirected sector",
        FaultKind::OpenFails => "open fails",
        FaultKind::RemoveFails => "removing fails",
        FaultKind::RenameFails => "renaming fails",
        FaultKind::AllocateFails => "reserving space fails",
        FaultKind::NoSpace => "no space",
        FaultKind::SlowSync => "slow sync",
    }
}

/// What a log chose that tried both ways to write.
pub const CHOICES: [&str; 2] = ["syncs chosen", "direct writes chosen"];

/// What a device may do to a recovery.
const RECOVERY_FAULTS: [FaultKind; 8] = [
    FaultKind::AnyFails,
    FaultKind::ReadFails,
    FaultKind::WriteFails,
    FaultKind::SyncFails,
    FaultKind::ShortRead,
    FaultKind::ShortWrite,
    FaultKind::Interrupted,
    FaultKind::NoSpace,
];

/// What [`forgot_a_directory`] finds.
const FORGOTTEN: &str = "directory forgotten";

/// Whether a sync failed that was to make the name of a directory durable which an earlier process
/// had made. (The log removes a directory again that it made itself, and makes it anew.)
fn forgot_a_directory(device: &SimDevice) -> bool {
    let trace = device.trace();
    let made = |dir: &Path| {
        let mut making = trace.iter().filter(|op| op.kind == OpKind::CreateDir);
        making.any(|op| !op.failed && op.path.as_path() == dir)
    };
    let on_the_way = Path::new(DIR).ancestors();
    let names = on_the_way.filter_map(|dir| Some((dir, dir.parent()?)));
    names.filter(|(dir, _)| !made(dir)).any(|(_, parent)| {
        let mut syncs = trace.iter().filter(|op| op.kind == OpKind::SyncDir);
        syncs.any(|op| op.failed && op.path.as_path() == parent)
    })
}

/// One image and what must hold of it.
struct Case<'a> {
    setup: Setup,
    life: &'a Life,
    tag: u64,
    kind: Kind,
}

impl Case<'_> {
    fn image(&self, snapshot: &Snapshot, rng: &mut Rng, report: &mut ImagesReport) -> Image {
        let seed = rng.next_u64();
        let mut image = match self.kind {
            Kind::PowerCut(way) => {
                let (_, cut) = PowerCut::WAYS.get(way).copied().unwrap_or(PowerCut::WAYS[0]);
                snapshot.power_cut(cut, seed)
            }
            Kind::BitRot => snapshot.power_cut(PowerCut::WAYS[1].1, seed),
            _ => snapshot.process_death(),
        };
        let rings = image.files(Path::new(VOLATILE_DIR)).len();
        let struck = match self.kind {
            Kind::ProcessDeath => true,
            Kind::PowerCut(way) => {
                let effects = image.effects();
                if way == 1 {
                    effects.kept > 0
                } else {
                    effects.lost + effects.garbage > 0
                }
            }
            Kind::MissingRing => {
                image.clear_volatile();
                rings > 0
            }
            Kind::ForeignRing => {
                image.copy_dir(Path::new(DIR));
                rings > 0
            }
            Kind::StaleRing => match self.life.snapshots.get(rng.index(self.life.snapshots.len())) {
                Some(other) => {
                    image.take_volatile_from(&other.process_death());
                    rings > 0 && other.op() != snapshot.op()
                }
                None => false,
            },
            Kind::OtherBoot => {
                image.change_boot_id();
                rings > 0
            }
            Kind::BitRot => image.rot(Path::new(DIR), seed).is_some(),
        };
        report.count(self.kind.name(), u64::from(struck));
        image
    }

    /// Recovers an image and judges it; then goes on with the log, and crashes the recovery itself.
    /// `same` is what an earlier recovery of the same crash found.
    fn judge(
        &self,
        image: &Image,
        survives: Survives,
        depth: u32,
        same: Option<&[Commit]>,
        rng: &mut Rng,
        report: &mut ImagesReport,
    ) {
        report.rounds += 1;
        let device = image.device();
        device.record(Points::Changes, 6);
        let rings = Rings::of(&device);
        let (log, handed_out) = match self.open(&device, rng, report) {
            Ok(opened) => opened,
            // A ring that is ahead of the files proves that they lost what was durable.
            Err(LogError::Corrupt { .. } | LogError::Version { .. })
                if survives == Survives::Damage || self.kind == Kind::StaleRing =>
            {
                report.refused += 1;
                return;
            }
            Err(e) => return report.fail(format!("opening failed: {e}")),
        };
        if log.recovery().probe.is_some() {
            let [syncs, direct] = CHOICES;
            report.count(if log.recovery().direct { direct } else { syncs }, 1);
        }
        let interrupted = device.take_snapshots();
        device.record(Points::Never, 0);
        let found = match find(&log) {
            Ok(found) => found,
            Err(e) => return report.fail(format!("reading failed: {e}")),
        };
        let verdict = self.life.ledger.check(self.tag, survives, &found);
        report.verdict.add(&verdict);
        if !verdict.holds() {
            return report.fail(format!("{verdict}"));
        }
        if let Err(e) = check_frames(&log, &handed_out) {
            return report.fail(e);
        }
        if let Some(same) = same
            && same != found
        {
            return report.fail(format!(
                "a recovery that was interrupted came to another end: {} commits, not {}",
                found.len(),
                same.len()
            ));
        }
        // An interrupted recovery has left a ring of its own, which the next one may take.
        if self.kind == Kind::ForeignRing && depth == 0 && !rings.still_on(&device) {
            return report.fail("a foreign ring was touched".into());
        }
        // A device that damaged what it holds owes nothing to the life after, nor one that forgot
        // the name of the log's directory: its maker was killed, and what opened it cannot know.
        let forgot = forgot_a_directory(&device);
        report.count(FORGOTTEN, u64::from(forgot));
        let sound = survives != Survives::Damage && !self.life.damaged && !forgot;
        if sound && rng.coin() {
            self.live_on(&device, log, &found, rng, report);
        } else {
            device.kill();
        }
        if sound && depth < 2 && rng.one_in(2) {
            self.interrupt(&interrupted, survives, depth, &found, rng, report);
        }
    }

    /// Opens the log, now and then on a device that has a fault; after that fault it is opened
    /// again.
    fn open(
        &self,
        device: &SimDevice,
        rng: &mut Rng,
        report: &mut ImagesReport,
    ) -> Result<(Log, Vec<Frame>), LogError> {
        let options = || self.setup.options(device, false);
        if !rng.one_in(4) {
            // Where the device has a fault, there are no threads: it must strike the opening and not
            // what they do next.
            let threads = self.setup.finds_out() && rng.one_in(3);
            return open_with(self.setup.options(device, threads));
        }
        let kind = RECOVERY_FAULTS
            .get(rng.index(RECOVERY_FAULTS.len()))
            .copied()
            .unwrap_or(FaultKind::AnyFails);
        device.inject(match kind {
            FaultKind::ShortRead | FaultKind::ShortWrite | FaultKind::Interrupted => {
                Fault::new(kind).one_in(3)
            }
            _ => Fault::new(kind).after(rng.below(20)).once(),
        });
        let opened = open_with(options());
        device.heal();
        for (kind, times) in device.fault_counts() {
            report.count(fault_name(kind), times);
        }
        match opened {
            Err(LogError::Io { .. } | LogError::StorageFull { .. }) => {
                report.count("recovery failed and tried again", 1);
                open_with(options())
            }
            opened => opened,
        }
    }

    /// Crashes the recovery at one of its own moments.
    fn interrupt(
        &self,
        moments: &[Snapshot],
        survives: Survives,
        depth: u32,
        found: &[Commit],
        rng: &mut Rng,
        report: &mut ImagesReport,
    ) {
        let Some(moment_of) = moments.get(rng.index(moments.len())) else {
            return;
        };
        report.count("recovery interrupted", 1);
        let way = rng.index(PowerCut::WAYS.len());
        let (name, cut) = PowerCut::WAYS.get(way).copied().unwrap_or(PowerCut::WAYS[0]);
        let (image, power) = match rng.coin() {
            true => (moment_of.process_death(), None),
            false => (moment_of.power_cut(cut, rng.next_u64()), Some(name)),
        };
        let weaker = match (survives, power) {
            (Survives::Process, Some(_)) => Survives::ProcessThenPower,
            _ => survives,
        };
        // After a power cut all that was left is durable, and after a process death the ring is
        // still there: recovery has the same to begin with again, unless the power takes the ring
        // away only now.
        let same = match self.kind {
            Kind::PowerCut(_) => Some(found),
            _ => power.is_none().then_some(found),
        };
        let before = report.failed;
        self.judge(&image, weaker, depth + 1, same, rng, report);
        if report.failed > before {
            let fault = power.unwrap_or("process death");
            report.detail(&format!("recovery {depth} met {fault} at {}", moment(moment_of)));
        }
    }

    /// The next process commits, the power goes at once, and everything is still there.
    fn live_on(
        &self,
        device: &SimDevice,
        log: Log,
        found: &[Commit],
        rng: &mut Rng,
        report: &mut ImagesReport,
    ) {
        let ledger = self.life.ledger.after(found);
        let worker = log.worker();
        let committed = worker.and_then(|mut worker| {
            (0..=rng.below(3)).try_for_each(|_| {
                let len = self.setup.payload_len(rng);
                commit(&log, &mut worker, &ledger, len, Some(Level::Disk))
            })
        });
        if let Err(e) = committed {
            return report.fail(format!("going on after recovery failed: {e}"));
        }
        let way = rng.index(PowerCut::WAYS.len());
        let (name, cut) = PowerCut::WAYS.get(way).copied().unwrap_or(PowerCut::WAYS[0]);
        let image = device.snapshot().power_cut(cut, rng.next_u64());
        device.kill();
        drop(log);
        report.rounds += 1;
        report.count("life after recovery", 1);
        let reopened = Log::open(DIR, self.setup.options(&image.device(), false));
        match reopened.and_then(|log| find(&log)) {
            Ok(found) => {
                let verdict = ledger.check(ledger.now(), Survives::Power, &found);
                report.verdict.add(&verdict);
                if !verdict.holds() {
                    report.fail(format!(
                        "after recovery, commits and a power cut ({name}): {verdict}"
                    ));
                }
            }
            Err(e) => report.fail(format!("after recovery, commits and a power cut ({name}): {e}")),
        }
    }
}

/// Opens the log; with it, the frames that recovery handed out.
fn open_with(options: LogOptions) -> Result<(Log, Vec<Frame>), LogError> {
    let mut frames = Vec::new();
    let log = Log::open_with(DIR, options, |frame| {
        frames.push(frame.to_frame());
        Ok::<(), LogError>(())
    })?;
    Ok((log, frames))
}

/// Whether the frames that recovery handed out are those that are read, and each is got by its LSN;
/// and that recovery took no file for cut short: no image takes away a length that was synced.
fn check_frames(log: &Log, handed_out: &[Frame]) -> Result<(), String> {
    let torn = log.recovery().torn.as_ref();
    if let Some(torn) = torn.filter(|torn| torn.found.contains("the end of the file")) {
        return Err(format!("a file is taken for cut short: {torn:?}"));
    }
    let read: Result<Vec<_>, _> = log.read(log.recovery().first_frame).and_then(Iterator::collect);
    if read.as_deref().ok() != Some(handed_out) {
        let read = read.map(|frames| frames.len());
        let handed_out = handed_out.len();
        return Err(format!(
            "recovery handed out {handed_out} frames, and read are {read:?}"
        ));
    }
    handed_out
        .iter()
        .try_for_each(|frame| match log.get(frame.start) {
            Ok(got) if got == *frame => Ok(()),
            got => Err(format!("the frame at LSN {} is got as {got:?}", frame.start)),
        })
}

/// The ring files of a world, with their content.
struct Rings(Vec<(String, Vec<u8>)>);

impl Rings {
    fn of(device: &SimDevice) -> Self {
        let names = device.list(Path::new(VOLATILE_DIR)).unwrap_or_default();
        let read = names.into_iter().filter_map(|entry| {
            let file = device
                .open(&Path::new(VOLATILE_DIR).join(&entry.name), OpenMode::Read)
                .ok()?;
            let mut bytes = vec![0; as_index(file.stat().ok()?.len)];
            read_exact_at(&*file, &mut bytes, 0).ok()?;
            Some((entry.name, bytes))
        });
        Self(read.collect())
    }

    fn still_on(&self, device: &SimDevice) -> bool {
        let now = Self::of(device);
        self.0.iter().all(|ring| now.0.contains(ring))
    }
}
