//! A machine that runs PostgreSQL on the mount: its disk forgets, and its power can be cut.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use collie_check::postgres::{Cluster, run};
use collie_sim::faultfs::{FaultFs, Names};
use collie_sim::{Effects, Op, PowerCut};
use rustix::mount::{UnmountFlags, unmount};

use crate::daemon::{Daemon, collie};
use crate::shared::rings_of;

/// The disk has the data, which is mounted over, and beside it the log of PostgreSQL.
pub(crate) struct Machine {
    pub(crate) cluster: Cluster,
    pub(crate) fs: FaultFs,
    daemon: Option<Daemon>,
    /// Other programs that use the disk, and die with the power.
    programs: Vec<Child>,
    /// Room for displaced pages.
    shadow: &'static str,
    /// What was asked of the disk before the last power cut.
    trace: Vec<Op>,
    home: tempfile::TempDir,
}

impl Machine {
    /// A machine with an empty disk.
    pub(crate) fn new(seed: u64, names: Names, shadow: &'static str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let at = home.path().join("disk");
        fs::create_dir(&at).unwrap();
        let cluster = Cluster::new(home.path(), &at.join("data")).unwrap();
        let fs = FaultFs::mount(&at, names, seed).unwrap();
        fs::set_permissions(fs.path(), Permissions::from_mode(0o755)).unwrap();
        Self {
            cluster,
            fs,
            daemon: None,
            programs: Vec::new(),
            shadow,
            trace: Vec::new(),
            home,
        }
    }

    /// Puts a new cluster on the disk, in place of one that is there: durable, its log outside of
    /// the directory that is mounted over. Nothing is mounted.
    pub(crate) fn init_again(&mut self) {
        let script = "rm -rf data wal && cp -a \"$0\" data && mv data/pg_wal wal \
                      && find data wal -exec sync {} + && sync .";
        let mut copy = Command::new("sh");
        copy.args(["-ec", script]).arg(self.cluster.template().unwrap());
        run(copy.current_dir(self.fs.path())).unwrap();
        symlink(self.fs.path().join("wal"), self.data().join("pg_wal")).unwrap();
        File::open(self.data()).unwrap().sync_all().unwrap();
    }

    pub(crate) fn data(&self) -> &Path {
        self.cluster.data()
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("daemon.log")
    }

    /// What all daemons said.
    pub(crate) fn daemons_said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    pub(crate) fn mount(&mut self) -> Result<(), String> {
        let log = self.log();
        let daemon = Daemon::start(self.data(), &["--shadow", self.shadow], &log)?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Begins to mount.
    pub(crate) fn spawn_mount(&mut self) {
        let log = self.log();
        self.daemon = Some(Daemon::spawn(self.data(), &["--shadow", self.shadow], &log));
    }

    /// Whether what [`Machine::spawn_mount`] began is done.
    pub(crate) fn is_mounted(&mut self) -> Result<bool, String> {
        self.daemon.as_mut().unwrap().serves()
    }

    pub(crate) fn umount(&mut self) -> Result<(), String> {
        self.daemon.take().unwrap().umount().map(drop)
    }

    /// Starts a program that dies with the power.
    pub(crate) fn run_beside(&mut self, mut program: Command) {
        self.programs.push(program.spawn().unwrap());
    }

    /// `collie` with the data directory.
    pub(crate) fn collie<const N: usize>(&self, args: [&str; N]) -> Command {
        collie(args, self.data())
    }

    /// Cuts the power under all that runs, and takes the rings of logs away as a restart of the
    /// machine does.
    pub(crate) fn cut(&mut self, how: PowerCut, seed: u64) -> Effects {
        self.fs.stop().unwrap();
        let rings = self.kill_all();
        for ring in rings {
            fs::remove_file(ring).unwrap();
        }
        self.trace = self.fs.trace().unwrap();
        self.fs.power_cycle(how, seed).unwrap()
    }

    /// Returns the rings that were left.
    fn kill_all(&mut self) -> Vec<PathBuf> {
        let mut rings: Vec<PathBuf> = self.programs.iter().flat_map(rings_of).collect();
        let mut processes: Vec<Child> = self.programs.drain(..).collect();
        if let Some(daemon) = self.daemon.take() {
            let (process, of_daemon) = daemon.into_process();
            processes.push(process);
            rings.extend(of_daemon);
        }
        let fs = &self.fs;
        let let_go = || {
            for process in &mut processes {
                let _ = process.kill();
            }
            let _ = fs.fail_calls();
            // Its path leads over the disk, which gives errors by now.
            let _ = detach(&self.home.path().join("disk/data"));
        };
        self.cluster.kill(let_go).unwrap();
        for mut process in processes {
            process.wait().unwrap();
        }
        rings
    }

    /// Kills the daemon with SIGKILL, then, when `between` has passed, the server, which cannot
    /// go on; and takes the dead mount away.
    pub(crate) fn kill_daemon(&mut self, between: impl FnOnce()) -> Result<(), String> {
        self.daemon.take().unwrap().kill();
        between();
        self.cluster.kill(|| {}).unwrap();
        run(&mut self.collie(["umount"])).map(drop)
    }

    /// Keeps the disk, logs and words of what failed.
    pub(crate) fn keep_as(&self, kept: &Path) {
        fs::create_dir_all(kept).unwrap();
        let mut copy = Command::new("cp");
        copy.args(["-a", "--sparse=always", "--"])
            .arg(self.fs.path())
            .arg(kept.join("disk"));
        let _ = run(&mut copy);
        let lines = self.trace.iter().map(|op| format!("{op}\n"));
        fs::write(kept.join("trace"), lines.collect::<String>()).unwrap();
    }

    /// Keeps what servers and daemons said.
    pub(crate) fn keep_logs(&self, kept: &Path) {
        fs::create_dir_all(kept).unwrap();
        fs::write(kept.join("server.log"), self.cluster.said()).unwrap();
        fs::write(kept.join("daemon.log"), self.daemons_said()).unwrap();
    }

    /// The end of all that runs, without a power cut, and of the mount.
    pub(crate) fn end_all(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            for ring in daemon.kill() {
                let _ = fs::remove_file(ring);
            }
        }
        for mut program in self.programs.drain(..) {
            let _ = program.kill();
            let _ = program.wait();
        }
        let _ = self.cluster.kill(|| {});
        let _ = detach(self.data());
    }
}

fn detach(at: &Path) -> rustix::io::Result<()> {
    unmount(at, UnmountFlags::FORCE | UnmountFlags::DETACH)
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.fs.stop();
        for ring in self.kill_all() {
            let _ = fs::remove_file(ring);
        }
    }
}
