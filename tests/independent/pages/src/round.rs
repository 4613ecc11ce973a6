//! A round: one disk, and the lives of one directory on it.

use std::fmt::{self, Display};
use std::path::Path;
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use collie_independent_cuts::disk::Disk;
use collie_independent_cuts::fuse::{Fault, Kind, Shared};
use collie_independent_cuts::rng::Rng;

use crate::machine::{HANGS, Machine, detach};
use crate::model::End;
use crate::worker::{Stop, Watch, Worker};

#[derive(Default)]
pub struct Figures {
    pub rounds: u64,
    lives: u64,
    cuts: u64,
    kills: u64,
    unmounts: u64,
    recoveries: u64,
    operations: u64,
    syncs: u64,
    read: u64,
    full: u64,
    failures: u64,
    /// After a failure the daemon took no more writes.
    refused: u64,
}

impl Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rounds,
            lives,
            cuts,
            kills,
            unmounts,
            recoveries,
            operations,
            syncs,
            read,
            full,
            failures,
            refused,
        } = self;
        write!(
            f,
            "{rounds} rounds, {lives} lives, {cuts} cuts ({recoveries} in starts), {kills} kills, \
             {unmounts} unmounts, {operations} operations, {syncs} syncs, {} MiB read, \
             {full} times a full shadow file, {failures} failures of the disk ({refused} ended writes)",
            read >> 20
        )
    }
}

pub struct Plan<'a> {
    pub collie: &'a Path,
    pub base: &'a Path,
    pub seed: u64,
    /// Syncs of the log do nothing, which is to be noticed.
    pub lies: bool,
}

/// How a life is to end.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Cut,
    Kill,
    Unmount,
    /// And every page comes home.
    Drain,
}

impl Plan<'_> {
    pub fn run(&self, figures: &mut Figures) -> Result<(), String> {
        let mut rng = Rng::new(self.seed);
        let page = rng.pick(&[8192, 8192, 8192, 4096, 16384, 32768]);
        let slots = rng.pick(&[64, 64, 100, 300, 1000]);
        let machine =
            Machine::new(self.collie, self.base, page, page * slots).map_err(|e| format!("no place: {e}"))?;
        let clients = 1 + rng.below(3);
        let workers = (0..clients)
            .map(|n| Worker::new(n, &machine.data(), page, Rng::new(rng.next())))
            .collect();
        let shared = Shared::new(Disk::new(rng.next()).with_atomic_moves());
        let mut round = Round {
            machine,
            shared,
            session: None,
            daemon: None,
            workers,
            rng,
            lies: self.lies,
            figures,
        };
        let done = round.lives();
        round.end_all();
        done.map_err(|wrong| {
            let (page, shadow) = (round.machine.page, round.machine.shadow);
            let traces = round
                .workers
                .iter()
                .enumerate()
                .map(|(n, worker)| format!("client {n}\n{}\n", worker.trace.join("\n")));
            let world = round.shared.world();
            let disk = format!("disk\n{}\n{}", world.trace.join("\n"), world.disk.tree());
            let _ = std::fs::write(self.base.join("events"), traces.collect::<String>() + &disk);
            format!("{wrong}\n(pages of {page} bytes, a shadow file of {shadow}, {clients} clients)")
        })
    }
}

struct Round<'a> {
    machine: Machine,
    shared: Shared,
    session: Option<fuser::BackgroundSession>,
    daemon: Option<Child>,
    workers: Vec<Worker>,
    rng: Rng,
    lies: bool,
    figures: &'a mut Figures,
}

/// A start that failed reads nothing and changes no more than the one before.
fn before_or(before: Option<End>, end: End) -> Option<End> {
    if end == End::Cut { Some(end) } else { before }
}

fn random_fault(rng: &mut Rng) -> Fault {
    use Kind::{Allocate, Create, Open, Read, Remove, Rename, Sync, SyncData, SyncDir, Truncate, Write};
    let kind = rng.pick(&[
        Write, Write, SyncData, SyncData, SyncData, Sync, SyncDir, SyncDir, Create, Rename, Remove, Allocate,
        Truncate, Open, Read,
    ]);
    let errno = match kind {
        Open => rng.pick(&[libc::EMFILE, libc::EIO]),
        Read | Remove => libc::EIO,
        _ => rng.pick(&[libc::EIO, libc::EIO, libc::ENOSPC]),
    };
    let nth = if rng.chance(30) {
        rng.small(10)
    } else {
        rng.small(500)
    };
    Fault {
        kind,
        class: None,
        nth,
        errno,
    }
}

impl Round<'_> {
    fn lives(&mut self) -> Result<(), String> {
        let io = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
        self.machine.restart(&mut self.rng).map_err(io("no boot"))?;
        self.session = Some(self.shared.mount(&self.machine.disk()).map_err(io("no disk"))?);
        // `collie front check` knows the pages' size from a cluster alone.
        let is_cluster = self.machine.page != 8192 || self.rng.chance(50);
        self.machine.make_cluster(is_cluster).map_err(io("no cluster"))?;
        let mut before = None;
        let lives = 3 + self.rng.below(8);
        for number in 0..lives {
            let is_last = number + 1 == lives;
            let way = match self.rng.below(100) {
                _ if is_last => Way::Drain,
                0..65 => Way::Cut,
                65..85 => Way::Kill,
                85..95 => Way::Unmount,
                _ => Way::Drain,
            };
            before = self
                .life(way, before, is_cluster)
                .map_err(|wrong| format!("life {number}, to end with {way:?}: {wrong}"))?;
            self.figures.lives += 1;
        }
        Ok(())
    }

    /// A life, and how it ended.
    fn life(&mut self, way: Way, before: Option<End>, is_cluster: bool) -> Result<Option<End>, String> {
        let steps = self.rng.pick(&[20, 100, 300, 800]);
        {
            let mut world = self.shared.world();
            world.lies = self.lies;
            world.trace.push(format!("=== a life to end with {way:?}"));
            world.cut_seed = self.rng.next();
            // Often in the start, and otherwise somewhere.
            let at = if self.rng.chance(20) {
                self.rng.small(60)
            } else {
                self.rng.small(6000)
            };
            world.cut_at = (way == Way::Cut && self.rng.chance(85)).then(|| world.operations + at);
        }
        let kill_after = (way == Way::Kill).then(|| Duration::from_millis(self.rng.small(3000)));
        let fault = self.rng.chance(25).then(|| random_fault(&mut self.rng));
        self.shared.arm(fault);
        self.daemon = Some(self.machine.start().map_err(|e| format!("no daemon: {e}"))?);
        if !self.wait_for_mount()? {
            self.figures.recoveries += u64::from(self.is_cut());
            return if way == Way::Cut || self.is_cut() {
                self.cut()
            } else {
                self.kill()
            }
            .map(|end| before_or(before, end));
        }
        let watch = Watch::default();
        let meddles = self.rng.chance(40);
        let stops = self.serve(before, steps, &watch, kill_after, meddles)?;
        self.figures.operations += watch.operations.load(Ordering::Relaxed);
        self.figures.syncs += watch.syncs.load(Ordering::Relaxed);
        self.figures.read += watch.read.load(Ordering::Relaxed);
        self.figures.full += watch.full.load(Ordering::Relaxed);
        let (is_cut, has_failed) = (self.is_cut(), self.has_failed());
        self.figures.failures += u64::from(has_failed);
        let mut is_over = kill_after.is_some();
        for (number, stop) in stops {
            match stop {
                Stop::Wrong(wrong) => return Err(format!("client {number}: {wrong}")),
                Stop::Failed(_) if is_cut || kill_after.is_some() => {}
                Stop::Failed(_) if has_failed => is_over = true,
                Stop::Failed(error) => return Err(format!("client {number}: {error}; nothing had failed")),
            }
        }
        if has_failed && !is_cut && kill_after.is_none() {
            self.probe()?;
        }
        if is_cut || way == Way::Cut {
            return self.cut().map(Some);
        }
        if is_over || has_failed {
            if has_failed {
                self.workers.iter_mut().for_each(Worker::suspect);
            }
            self.figures.kills += 1;
            return self.kill().map(Some);
        }
        let ended = self.unmount(way, is_cluster);
        match ended {
            Err(_) if self.has_failed() => {
                self.workers.iter_mut().for_each(Worker::suspect);
                self.kill().map(Some)
            }
            ended => ended,
        }
    }

    fn has_failed(&self) -> bool {
        self.shared.world().fired.is_some()
    }

    /// After a failure writes work, or the status says that they do not.
    fn probe(&mut self) -> Result<(), String> {
        {
            // This thread would wait for the disk, and no other one lets go of what waits since a cut.
            let mut world = self.shared.world();
            if world.left.is_some() {
                return Ok(());
            }
            world.cut_at = None;
        }
        let path = self.machine.data().join("base/9/1");
        let write = || -> std::io::Result<()> {
            std::fs::write(&path, vec![7; self.machine.page])?;
            std::fs::File::open(&path)?.sync_all()
        };
        let (first, second) = (write(), write());
        let status = std::fs::read_to_string(self.machine.data().join(".collie/status"));
        let (Err(error), false) = (second, self.is_cut()) else {
            return Ok(());
        };
        self.figures.refused += 1;
        match status {
            Ok(status) if !status.contains("\"failure\":null") => Ok(()),
            status => Err(format!(
                "writes fail ({first:?}, {error}), and the status is {status:?}"
            )),
        }
    }

    fn is_cut(&self) -> bool {
        self.shared.world().left.is_some()
    }

    fn wait_for_mount(&mut self) -> Result<bool, String> {
        let since = Instant::now();
        while !self.machine.is_mounted() {
            if self.is_cut() {
                return Ok(false);
            }
            if let Some(Ok(Some(status))) = self.daemon.as_mut().map(Child::try_wait)
                && !self.is_cut()
            {
                if self.has_failed() {
                    return Ok(false);
                }
                let log = std::fs::read_to_string(self.machine.base.join("log")).unwrap_or_default();
                return Err(format!(
                    "the mount does not start, {status}: {}",
                    log.lines().last().unwrap_or_default()
                ));
            }
            if since.elapsed() > HANGS {
                return Err("the mount hangs in its start".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(true)
    }

    /// The clients check what is there and go on, until all are done or the life ends.
    fn serve(
        &mut self,
        before: Option<End>,
        steps: u64,
        watch: &Watch,
        kill_after: Option<Duration>,
        meddles: bool,
    ) -> Result<Vec<(u64, Stop)>, String> {
        let (stops, left) = (Mutex::new(Vec::new()), AtomicU64::new(self.workers.len() as u64));
        let (shared, command) = (self.shared.clone(), self.machine.data().join(".collie/command"));
        let daemon = self.daemon.as_mut();
        let mut wrong = None;
        std::thread::scope(|scope| {
            for worker in &mut self.workers {
                let (stops, left) = (&stops, &left);
                scope.spawn(move || {
                    let looked = match before {
                        Some(end) => worker.recover(end),
                        None => worker.compare(None),
                    };
                    let done = looked
                        .and_then(|()| worker.run(steps, watch))
                        .and_then(|()| worker.compare(None));
                    if let Err(stop) = done {
                        stops
                            .lock()
                            .expect("no thread panics with it")
                            .push((worker.number, stop));
                        watch.stop.store(true, Ordering::Relaxed);
                    }
                    left.fetch_sub(1, Ordering::Relaxed);
                });
            }
            let is_cut = || shared.world().left.is_some();
            if meddles {
                let (stops, left) = (&stops, &left);
                let pause = self.rng.small(100);
                scope.spawn(move || {
                    for number in 0.. {
                        if left.load(Ordering::Relaxed) == 0 {
                            break;
                        }
                        let text = if number % 3 == 0 { "drain\n" } else { "commit\n" };
                        let told = std::fs::OpenOptions::new().write(true).open(&command);
                        let told =
                            told.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
                        if let Err(error) = told {
                            let stop = Stop::Failed(format!("{text:?}: {error}"));
                            stops.lock().expect("no thread panics with it").push((99, stop));
                            break;
                        }
                        std::thread::sleep(Duration::from_millis(pause));
                    }
                });
            }
            let (since, mut moved) = (Instant::now(), (Instant::now(), (0, 0)));
            let mut kill = false;
            while left.load(Ordering::Relaxed) > 0 && !is_cut() {
                std::thread::sleep(Duration::from_millis(2));
                let now = (
                    watch.operations.load(Ordering::Relaxed),
                    shared.world().operations,
                );
                if now != moved.1 {
                    moved = (Instant::now(), now);
                }
                if moved.0.elapsed() > HANGS {
                    wrong = Some("a client hangs".to_owned());
                    kill = true;
                }
                if kill || kill_after.is_some_and(|after| since.elapsed() > after) {
                    kill = true;
                    break;
                }
            }
            if (kill || is_cut())
                && let Some(daemon) = daemon
            {
                // A process that waits for the daemon gets an error, and what waits for the disk too.
                let _ = daemon.kill();
                if is_cut() {
                    shared.release();
                }
            }
        });
        match wrong {
            Some(wrong) => Err(wrong),
            None => Ok(stops.into_inner().expect("no thread panicked with it")),
        }
    }

    /// The daemon is killed, and its mount taken away.
    fn kill(&mut self) -> Result<End, String> {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            if self.is_cut() {
                self.shared.release();
            }
            let status = daemon.wait().map_err(|e| format!("no end of the daemon: {e}"))?;
            let log = std::fs::read_to_string(self.machine.base.join("log")).unwrap_or_default();
            if log.contains("panicked") {
                return Err(format!("the daemon panicked, {status}: {log}"));
            }
        }
        // The way to the mount leads through the disk, which answers nothing after a cut.
        let at = if self.is_cut() {
            self.machine.disk()
        } else {
            self.machine.data()
        };
        while self.machine.is_mounted() {
            detach(&at).map_err(|e| format!("the mount stays: {e}"))?;
        }
        Ok(End::Killed)
    }

    /// The power goes, where it has not.
    fn cut(&mut self) -> Result<End, String> {
        self.shared.cut();
        self.figures.cuts += 1;
        self.kill()?;
        let left = self
            .shared
            .world()
            .left
            .take()
            .ok_or("no disk is left")?
            .with_atomic_moves();
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
        let trace = std::mem::take(&mut self.shared.world().trace);
        self.shared = Shared::new(left);
        self.shared.world().trace = trace;
        self.machine
            .restart(&mut self.rng)
            .map_err(|e| format!("no boot: {e}"))?;
        self.session = Some(
            self.shared
                .mount(&self.machine.disk())
                .map_err(|e| format!("no disk: {e}"))?,
        );
        Ok(End::Cut)
    }

    fn unmount(&mut self, way: Way, is_cluster: bool) -> Result<Option<End>, String> {
        self.workers.iter_mut().for_each(Worker::close);
        let args: &[&str] = if way == Way::Drain {
            &["umount", "--drain"]
        } else {
            &["umount"]
        };
        let asked = self
            .machine
            .ask(args, || false)
            .map_err(|e| format!("collie {args:?}: {e}"))?;
        let (status, said) = asked.ok_or_else(|| format!("collie {args:?} hangs"))?;
        if !status.success() {
            return Err(format!("collie {args:?}: {status}: {said}"));
        }
        self.figures.unmounts += 1;
        let since = Instant::now();
        while let Some(Ok(None)) = self.daemon.as_mut().map(Child::try_wait) {
            if since.elapsed() > HANGS {
                return Err("the daemon does not end after an unmount".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.kill()?;
        self.workers.iter_mut().for_each(Worker::unmounted);
        if way == Way::Unmount {
            return match self.machine.ask(&["front", "check"], || false) {
                Ok(Some((status, _))) if status.success() => Ok(None),
                other => Err(format!("collie front check: {other:?}")),
            };
        }
        if is_cluster && !self.machine.data().join("PG_VERSION").exists() {
            return Err("PG_VERSION is not there after a drain".into());
        }
        for worker in &mut self.workers {
            if let Err(Stop::Wrong(wrong) | Stop::Failed(wrong)) = worker.compare(Some(&self.machine.data()))
            {
                return Err(format!("drained, below the mount: {wrong}"));
            }
        }
        Ok(None)
    }

    fn end_all(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("{error}");
        }
        self.shared.release();
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}
