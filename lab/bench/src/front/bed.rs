//! One server on one place, from `initdb` to the last file that is removed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use collie_check::postgres::Cluster;
use collie_io::{Clock, RealClock};
use serde::{Deserialize, Serialize};

use super::mode::FrontMode;
use super::processes::cpu_us;
use crate::disks::{Disk, open_to_all};
use crate::disks::{Interrupt, Running};
use crate::error::{At, BenchError};

/// How long a server may take until it serves, and a mount until it is there.
const START_NS: u64 = 120_000_000_000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// What a mount's daemon tells of itself; what this version of it does not tell is left out.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct MountFigures {
    /// Pages that are in the shadow file.
    #[serde(default)]
    pub displaced_pages: u64,
    /// FSYNC requests so far, and how long they took, in microseconds.
    pub fsyncs: Option<u64>,
    /// The median of them.
    pub fsync_p50_us: Option<f64>,
    /// 99 % of them took at most this.
    pub fsync_p99_us: Option<f64>,
    /// The longest.
    pub fsync_max_us: Option<f64>,
}

/// What all beds of a measurement share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tools<'a> {
    /// This program.
    pub(super) collie: &'a Path,
    pub(super) interrupt: &'a Interrupt,
    /// Bytes of a mount's shadow file.
    pub(super) shadow_bytes: u64,
}

/// A cluster, its server, and the mount that it is on.
#[derive(Debug)]
pub(super) struct Bed<'a> {
    tools: Tools<'a>,
    cluster: Cluster,
    daemon: Option<Running>,
    home: PathBuf,
    // Last, as what is on it goes first.
    disk: Disk,
}

impl<'a> Bed<'a> {
    /// A new cluster on a disk; `home` is a directory that is made for what is not measured.
    pub(super) fn new(
        tools: Tools<'a>,
        home: PathBuf,
        disk: Disk,
        mode: FrontMode,
    ) -> Result<Self, BenchError> {
        fs::create_dir(&home).at("make", &home)?;
        open_to_all(&home)?;
        let data = disk.at().join("data");
        let cluster = Cluster::as_installed(&home, &data).at("prepare a cluster in", &home)?;
        let mut bed = Self {
            tools,
            cluster,
            daemon: None,
            home,
            disk,
        };
        bed.cluster.make_dir(&data).at("make", &data)?;
        let wal = bed.disk.at().join("wal");
        bed.cluster.make_dir(&wal).at("make", &wal)?;
        if mode == FrontMode::Collie {
            bed.mount()?;
        }
        let waldir = format!("--waldir={}", wal.display());
        bed.run(&mut bed.cluster.initdb(&data, &[&waldir]))?;
        Ok(bed)
    }

    pub(super) fn run(&self, command: &mut Command) -> Result<String, BenchError> {
        self.tools.interrupt.run(command)
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    fn collie(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.tools.collie);
        command.args(words).process_group(0);
        command
    }

    /// Mounts the data directory, and returns how many seconds that took.
    pub(super) fn mount(&mut self) -> Result<f64, BenchError> {
        let mut mount = self.collie(&["mount"]);
        mount.arg("--shadow").arg(self.tools.shadow_bytes.to_string());
        let began = RealClock.monotonic();
        // From here on it is unmounted when this ends.
        let daemon = self
            .daemon
            .insert(Running::start(mount.arg(self.cluster.data()))?);
        loop {
            let said = daemon.said();
            let taken = RealClock.monotonic() - began;
            if said.lines().any(|line| line.starts_with("mounted ")) {
                return Ok(taken as f64 / 1e9);
            }
            if daemon.ended()?.is_some() || taken > START_NS {
                return Err(BenchError::Program {
                    program: "collie mount".into(),
                    said,
                });
            }
            self.tools.interrupt.check()?;
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Takes the mount away again, in order.
    pub(super) fn unmount(&mut self) -> Result<(), BenchError> {
        let Some(daemon) = self.daemon.take() else {
            return Ok(());
        };
        let unmounted = self.run(self.collie(&["umount"]).arg(self.cluster.data()));
        match unmounted {
            Ok(_) => daemon.end(self.tools.interrupt).map(|_| ()),
            Err(error) => {
                self.daemon = Some(daemon);
                Err(error)
            }
        }
    }

    /// Brings every page home, and returns how many seconds that took.
    pub(super) fn drain(&self) -> Result<f64, BenchError> {
        let began = RealClock.monotonic();
        self.run(self.collie(&["drain"]).arg(self.cluster.data()))?;
        Ok((RealClock.monotonic() - began) as f64 / 1e9)
    }

    /// What the mount's daemon tells; `None` without a mount.
    pub(super) fn mount_figures(&self) -> Result<Option<MountFigures>, BenchError> {
        if self.daemon.is_none() {
            return Ok(None);
        }
        let mut status = self.collie(&["front", "status", "--json"]);
        let text = self.run(status.arg(self.cluster.data()))?;
        let figures = serde_json::from_str(text.trim()).map_err(|_| BenchError::Output {
            place: "collie front status --json".into(),
            expected: "one object",
            found: text,
        })?;
        Ok(Some(figures))
    }

    /// Starts the server and waits until it serves.
    pub(super) fn start(&mut self, settings: &[String]) -> Result<(), BenchError> {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let failed = |cluster: &Cluster, how: String| BenchError::Program {
            program: "postgres".into(),
            said: format!("{how}\n{}", tail(&cluster.said())),
        };
        let began = RealClock.monotonic();
        let spawned = self.cluster.spawn(&settings);
        spawned.map_err(|e| failed(&self.cluster, e.to_string()))?;
        loop {
            match self.cluster.serves() {
                Ok(true) => return Ok(()),
                Ok(false) if RealClock.monotonic() - began < START_NS => {}
                Ok(false) => return Err(failed(&self.cluster, "it does not serve".into())),
                Err(ended) => return Err(failed(&self.cluster, ended.to_string())),
            }
            self.tools.interrupt.check()?;
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Ends the server and starts it again, and so the mount, whose figures begin anew.
    pub(super) fn restart(&mut self, settings: &[String]) -> Result<(), BenchError> {
        self.stop()?;
        if self.daemon.is_some() {
            self.unmount()?;
            self.mount()?;
        }
        self.start(settings)
    }

    /// Ends the server in order.
    pub(super) fn stop(&mut self) -> Result<(), BenchError> {
        self.cluster.stop().map_err(|said| BenchError::Program {
            program: "postgres".into(),
            said: tail(&said),
        })
    }

    /// Runs one statement and returns its one row, columns separated by `|`.
    pub(super) fn sql(&self, statement: &str) -> Result<String, BenchError> {
        let mut psql = self.psql();
        let answer = self.run(psql.args(["-c", statement]))?;
        Ok(answer.trim().to_owned())
    }

    /// Runs a file of statements with variables.
    pub(super) fn script(&self, name: &str, text: &str, variables: &[String]) -> Result<(), BenchError> {
        let file = self
            .cluster
            .write_aside(name, text)
            .at("write", &self.home.join(name))?;
        let mut psql = self.psql();
        for variable in variables {
            psql.args(["-v", variable]);
        }
        self.run(psql.arg("-f").arg(file)).map(|_| ())
    }

    fn psql(&self) -> Command {
        let mut psql = self.cluster.program("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
        psql
    }

    /// Processor time of the server so far, in microseconds.
    pub(super) fn server_cpu_us(&self) -> u64 {
        self.cluster.server().map_or(0, cpu_us)
    }

    /// That of the mount's daemon.
    pub(super) fn daemon_cpu_us(&self) -> Option<u64> {
        self.daemon.as_ref().map(|daemon| cpu_us(daemon.id()))
    }

    /// Ends all of it in order, and reports what fails.
    pub(super) fn close(mut self) -> Result<(), BenchError> {
        if self.cluster.server().is_some() {
            self.stop()?;
        }
        self.unmount()?;
        self.disk.remove()?;
        fs::remove_dir_all(&self.home).at("remove", &self.home)
    }
}

impl Drop for Bed<'_> {
    fn drop(&mut self) {
        // What ended in order left nothing to do; otherwise what fails here adds nothing to the
        // error that brought it about.
        let _ = self.cluster.kill(|| {});
        if let Some(daemon) = self.daemon.take() {
            let run = |command: &mut Command| Interrupt::default().run(command);
            let unmounted = run(self.collie(&["umount"]).arg(self.cluster.data()));
            let ended = unmounted.and_then(|_| daemon.end(&Interrupt::default()));
            if ended.is_err() {
                let _ = run(Command::new("umount").arg("-l").arg(self.cluster.data()));
            }
        }
    }
}

/// The end of what a server said.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines
        .get(lines.len().saturating_sub(20)..)
        .unwrap_or_default()
        .join("\n")
}
