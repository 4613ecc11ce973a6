//! Runs programs and keeps what they leave for the judge.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use collie_log::{Level, Log, LogError, Worker};

use crate::images::commits::{DIR, append, append_overtaken, commit, find, wait};
use crate::images::program::{Program, Setup, Step};
use crate::ledger::{Ledger, Survives};
use collie_sim::Rng;
use collie_sim::SimDevice;
use collie_sim::{Fault, FaultCounts, FaultKind};
use collie_sim::{Points, PowerCut, Snapshot};

/// Snapshots kept of one life of a program.
const SNAPSHOTS_MAX: usize = 400;

/// One process: from the log's opening to its death.
pub(crate) struct Life {
    pub(crate) ledger: Ledger,
    pub(crate) snapshots: Vec<Snapshot>,
    /// Whether a frame was ever overtaken, so that rings of different moments do not agree.
    pub(crate) holes: bool,
    /// Whether the device lost or misplaced sectors that it said it had.
    pub(crate) damaged: bool,
    pub(crate) faults: FaultCounts,
}

/// Runs a program and returns its lives, or what went wrong although nothing may.
pub(crate) fn run(program: &Program, seed: u64) -> Result<Vec<Life>, String> {
    let mut rng = Rng::new(seed);
    let mut lives = Vec::new();
    let mut process = Process::start(program.setup, SimDevice::new(rng.next_u64()), Ledger::new());
    process.open()?;
    if program.threads > 1 {
        process.run_threads(program)?;
        lives.push(process.end());
        return Ok(lives);
    }
    for step in &program.steps {
        match step {
            Step::Die | Step::PowerCut => {
                process = process.crash(*step, &mut rng, &mut lives)?;
            }
            Step::Reopen => {
                if !process.close()? {
                    process = process.crash(Step::Die, &mut rng, &mut lives)?;
                }
            }
            step => process.step(*step, &mut rng)?,
        }
        process.observe();
    }
    lives.push(process.end());
    Ok(lives)
}

/// A running process with its log; without one after an error that ends it.
struct Process {
    setup: Setup,
    device: SimDevice,
    ledger: Ledger,
    log: Option<(Log, Vec<Worker>)>,
    snapshots: Vec<Snapshot>,
    holes: bool,
    faulty: bool,
    damaged: bool,
    turn: usize,
}

impl Process {
    fn start(setup: Setup, device: SimDevice, ledger: Ledger) -> Self {
        device.record(Points::Changes, SNAPSHOTS_MAX);
        let tags = ledger.clone();
        device.tag_snapshots(move || tags.now());
        Self {
            setup,
            device,
            ledger,
            log: None,
            snapshots: Vec::new(),
            holes: false,
            faulty: false,
            damaged: false,
            turn: 0,
        }
    }

    /// Opens the log with three workers.
    fn open(&mut self) -> Result<(), String> {
        let opened = Log::open(DIR, self.setup.options(&self.device, false));
        let opened = opened.and_then(|log| {
            let workers: Result<Vec<_>, _> = (0..3).map(|_| log.worker()).collect();
            workers.map(|workers| (log, workers))
        });
        match opened {
            Ok(opened) => {
                self.log = Some(opened);
                Ok(())
            }
            Err(e) => self.tolerate("open", &e),
        }
    }

    /// Errors are right where a fault was injected, and end the use of the log; else they are a
    /// failure.
    fn tolerate(&mut self, what: &str, error: &LogError) -> Result<(), String> {
        if !self.faulty {
            return Err(format!("{what} failed on a healthy device: {error}"));
        }
        if !matches!(error, LogError::StorageFull { .. }) {
            self.log = None;
        }
        Ok(())
    }

    fn observe(&mut self) {
        if self.snapshots.len() < SNAPSHOTS_MAX {
            self.snapshots.push(self.device.snapshot());
        }
    }

    fn step(&mut self, step: Step, rng: &mut Rng) -> Result<(), String> {
        match step {
            Step::Append(len, level) => self.append(len, level),
            Step::Flush(level) => self.flush(level),
            Step::Hole => self.hole(),
            Step::Release => self.release(),
            Step::Fault(kind) => {
                self.faulty = true;
                self.damaged |= matches!(kind, FaultKind::StaleSector | FaultKind::MisdirectedSector);
                self.device.inject(Fault::new(kind).after(rng.below(3)).once());
                Ok(())
            }
            Step::Full(room) => {
                self.faulty = true;
                self.device.limit_space(Some(room));
                Ok(())
            }
            Step::Room => {
                self.device.limit_space(None);
                Ok(())
            }
            Step::Reopen | Step::Die | Step::PowerCut => Ok(()),
        }
    }

    /// Closes the log and opens it again; `false` where that did not succeed, which only a fault
    /// excuses: what the log holds only a new process can say then.
    fn close(&mut self) -> Result<bool, String> {
        let Some((log, workers)) = self.log.take() else {
            return Ok(false);
        };
        drop(workers);
        if let Err(e) = log.close() {
            self.tolerate("close", &e)?;
            return Ok(false);
        }
        self.open()?;
        Ok(self.log.is_some())
    }

    fn append(&mut self, len: usize, level: Option<Level>) -> Result<(), String> {
        self.turn += 1;
        let Some((log, workers)) = &mut self.log else {
            return Ok(());
        };
        let turn = self.turn % workers.len();
        let Some(worker) = workers.get_mut(turn) else {
            return Ok(());
        };
        match commit(log, worker, &self.ledger, len, level) {
            Ok(()) => Ok(()),
            Err(e) => self.tolerate("append", &e),
        }
    }

    fn flush(&mut self, level: Level) -> Result<(), String> {
        let Some((log, _)) = &self.log else {
            return Ok(());
        };
        match log.flush(level) {
            Ok(_) => Ok(()),
            Err(e) => self.tolerate("flush", &e),
        }
    }

    /// Gives up what is durable; the holder's place is a frame's start or end.
    fn release(&mut self) -> Result<(), String> {
        if let Some((log, _)) = &self.log {
            let durable = log.durable();
            self.ledger.released(durable);
            log.retain("program", durable);
        }
        Ok(())
    }

    fn hole(&mut self) -> Result<(), String> {
        // The ring must have room for both frames, or the overtaker would wait for the overtaken.
        self.flush(Level::Disk)?;
        let Some((log, workers)) = &mut self.log else {
            return Ok(());
        };
        let [first, second, ..] = workers.as_mut_slice() else {
            return Ok(());
        };
        self.holes = true;
        // Where the ring is private a promise waits for the write, which waits for the hole.
        let level = self.setup.shared.then_some(Level::Process);
        let (mut snapshots, result) =
            append_overtaken([first, second], log, &self.ledger, &self.device, level);
        self.snapshots.append(&mut snapshots);
        result.or_else(|e| self.tolerate("append", &e))
    }

    /// The process goes, and the next one finds what it left.
    fn crash(mut self, step: Step, rng: &mut Rng, lives: &mut Vec<Life>) -> Result<Self, String> {
        self.observe();
        let snapshot = self.device.snapshot();
        let (image, survives) = match step {
            _ if self.damaged => (snapshot.process_death(), Survives::Process),
            Step::Die => (snapshot.process_death(), Survives::Process),
            _ => {
                let (_, cut) = PowerCut::WAYS
                    .get(rng.index(PowerCut::WAYS.len()))
                    .copied()
                    .unwrap_or(PowerCut::WAYS[0]);
                (snapshot.power_cut(cut, rng.next_u64()), Survives::Power)
            }
        };
        let setup = self.setup;
        let device = image.device();
        let mut next = Self::start(setup, device, self.ledger.clone());
        next.open()?;
        let Some((log, _)) = &next.log else {
            return Err("a healthy device opens".into());
        };
        let found = find(log).map_err(|e| format!("reading after {step:?}: {e}"))?;
        let verdict = self.ledger.check(snapshot.tag(), survives, &found);
        if !verdict.holds() {
            return Err(format!("after {step:?}: {verdict}"));
        }
        // The moments before the log was open again belong to the life before.
        let recovery = next.device.take_snapshots();
        let ledger = self.ledger.after(&found);
        let tags = ledger.clone();
        next.device.tag_snapshots(move || tags.now());
        next.ledger = ledger;
        next.damaged = self.damaged;
        let mut life = self.end();
        if survives == Survives::Process {
            life.snapshots.extend(recovery);
        }
        lives.push(life);
        Ok(next)
    }

    fn end(mut self) -> Life {
        // What is left of the process can do no more harm to the world that is judged.
        self.snapshots.extend(self.device.take_snapshots());
        self.device.kill();
        self.log = None;
        self.snapshots.sort_by_key(Snapshot::op);
        Life {
            ledger: self.ledger,
            snapshots: self.snapshots,
            holes: self.holes,
            damaged: self.damaged,
            faults: self.device.fault_counts(),
        }
    }

    /// The same steps on every thread. Appends stop for the snapshots that are taken from outside:
    /// memory cannot be copied at one instant while others write it.
    fn run_threads(&mut self, program: &Program) -> Result<(), String> {
        self.log = None;
        let log = Log::open(DIR, self.setup.options(&self.device, true)).map_err(|e| format!("open: {e}"))?;
        let pause = RwLock::new(());
        let failure = Mutex::new(None);
        let running = AtomicUsize::new(program.threads);
        std::thread::scope(|scope| {
            for _ in 0..program.threads {
                scope.spawn(|| {
                    if let Err(e) = run_thread(&log, &self.ledger, &program.steps, &pause) {
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(e.to_string());
                    }
                    running.fetch_sub(1, Ordering::Release);
                });
            }
            while running.load(Ordering::Acquire) > 0 {
                let stopped = pause.write().unwrap_or_else(PoisonError::into_inner);
                let snapshot = self.device.snapshot();
                drop(stopped);
                if self.snapshots.len() < SNAPSHOTS_MAX {
                    self.snapshots.push(snapshot);
                }
                std::thread::yield_now();
            }
        });
        drop(log);
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(()), |e| Err(format!("on several threads: {e}")))
    }
}

fn run_thread(log: &Log, ledger: &Ledger, steps: &[Step], pause: &RwLock<()>) -> Result<(), LogError> {
    let mut worker = log.worker()?;
    for step in steps {
        match *step {
            Step::Append(len, level) => {
                let going = pause.read().unwrap_or_else(PoisonError::into_inner);
                let (id, end) = append(&mut worker, ledger, len)?;
                drop(going);
                wait(log, ledger, id, end, level)?;
            }
            Step::Flush(level) => {
                log.flush(level)?;
            }
            Step::Release => {
                let durable = log.durable();
                ledger.released(durable);
                log.retain("program", durable);
            }
            _ => {}
        }
    }
    Ok(())
}
