//! A cluster, its server and its programs.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use collie_io::{Device, RealDevice};
use rustix::process::{Pid, Signal, kill_process};

use super::processes::{BETWEEN_LOOKS, LOOKS, kill_and_wait};

const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
/// Who may run it, the first who is there.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// Small files and few processes, where nothing else is said.
const SMALL: [&str; 7] = [
    "max_connections=24",
    "max_wal_size=4MB",
    "min_wal_size=2MB",
    "checkpoint_timeout=30s",
    "max_worker_processes=0",
    "log_checkpoints=off",
    "update_process_title=off",
];

/// What a cluster is set to where nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defaults {
    /// What makes checkpoints and new files frequent.
    Small,
    /// PostgreSQL's own.
    Installed,
}

/// What a command said.
pub type Said = Result<String, String>;

/// A cluster and its server. It has a directory for what is beside its data: sockets, the server's
/// log, and a cluster that is copied.
#[derive(Debug)]
pub struct Cluster {
    server: Option<Child>,
    /// Its segment of shared memory, which outlives its death.
    memory: Option<String>,
    home: PathBuf,
    data: PathBuf,
    user: (u32, u32),
    defaults: Defaults,
}

/// What is missing here, if anything is.
#[must_use]
pub fn missing() -> Option<String> {
    if RealDevice::new().uid() != 0 {
        return Some("only root can mount a file system for another user, and become that user".into());
    }
    let needed = [
        "initdb",
        "postgres",
        "psql",
        "pgbench",
        "pg_checksums",
        "pg_isready",
        "pg_amcheck",
    ];
    let absent = needed.iter().map(|name| Path::new(PROGRAMS).join(name));
    let absent = absent.into_iter().find(|path| !path.exists());
    absent.map(|path| format!("{} is not there", path.display()))
}

/// Runs a command to its end.
///
/// # Errors
/// What it said, where it failed.
pub fn run(command: &mut Command) -> Said {
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|e| format!("{command:?}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match done.status.success() {
        true => Ok(text(&done.stdout)),
        false => Err(format!(
            "{command:?}: {}\n{}{}",
            done.status,
            text(&done.stdout),
            text(&done.stderr)
        )),
    }
}

fn ids_of(user: &str) -> Option<(u32, u32)> {
    let id = |flag: &str| {
        run(Command::new("id").args([flag, user]))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    Some((id("-u")?, id("-g")?))
}

impl Cluster {
    /// A cluster that will be in `data`, with small files and few processes; `home` is an empty
    /// directory for the rest.
    ///
    /// # Errors
    /// There is no user to run it, or `home` cannot be used.
    pub fn new(home: &Path, data: &Path) -> io::Result<Self> {
        Self::with(home, data, Defaults::Small)
    }

    /// As [`Cluster::new`], with PostgreSQL's own defaults. Its processes are groups of their own,
    /// so that a terminal's signals reach only who started them.
    ///
    /// # Errors
    /// As [`Cluster::new`].
    pub fn as_installed(home: &Path, data: &Path) -> io::Result<Self> {
        Self::with(home, data, Defaults::Installed)
    }

    fn with(home: &Path, data: &Path, defaults: Defaults) -> io::Result<Self> {
        let user = USERS.into_iter().find_map(ids_of);
        let user = user.ok_or_else(|| io::Error::other(format!("none of the users {USERS:?} is there")))?;
        let cluster = Self {
            server: None,
            memory: None,
            home: home.to_owned(),
            data: data.to_owned(),
            user,
            defaults,
        };
        fs::set_permissions(home, Permissions::from_mode(0o755))?;
        for name in ["sockets", "template"] {
            cluster.make_dir(&home.join(name))?;
        }
        Ok(cluster)
    }

    /// Makes a directory that the server may use.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)?;
        chown(path, Some(self.user.0), Some(self.user.1))?;
        fs::set_permissions(path, Permissions::from_mode(0o700))
    }

    /// Writes a file beside the data, which programs may read.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_aside(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        let path = self.home.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))?;
        Ok(path)
    }

    /// Where its files are.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    fn sockets(&self) -> PathBuf {
        self.home.join("sockets")
    }

    /// One of PostgreSQL's programs, as its user, in a directory that this may use.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(Path::new(PROGRAMS).join(name));
        command.uid(self.user.0).gid(self.user.1);
        command.current_dir(self.sockets()).env_clear();
        command.env("PGHOST", self.sockets()).env("PGUSER", "me");
        command.env("PGDATABASE", "postgres").env("LC_ALL", "C");
        if self.defaults == Defaults::Installed {
            command.process_group(0);
        }
        command
    }

    /// Makes a cluster in a directory, with further arguments of `initdb`.
    ///
    /// # Errors
    /// What `initdb` says.
    pub fn init_at(&self, data: &Path, more: &[&str]) -> Said {
        run(&mut self.initdb(data, more))
    }

    /// The command that makes a cluster in a directory, with further arguments of `initdb`.
    #[must_use]
    pub fn initdb(&self, data: &Path, more: &[&str]) -> Command {
        let mut initdb = self.program("initdb");
        initdb.args(["--data-checksums", "--auth=trust", "--username=me"]);
        if self.defaults == Defaults::Small {
            initdb.arg("--wal-segsize=1");
        }
        initdb.args(more).arg("-D").arg(data);
        initdb
    }

    /// A directory with a cluster that can be copied.
    ///
    /// # Errors
    /// What `initdb` says.
    pub fn template(&self) -> io::Result<PathBuf> {
        let template = self.home.join("template");
        if fs::read_dir(&template)?.next().is_none() {
            self.init_at(&template, &["--no-sync"])
                .map_err(io::Error::other)?;
        }
        Ok(template)
    }

    fn log(&self) -> PathBuf {
        self.home.join("log")
    }

    /// All that servers said.
    #[must_use]
    pub fn said(&self) -> String {
        let bytes = fs::read(self.log()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Starts the server, and does not wait until it serves. `memory` of one that ran here before
    /// is nobody's by now.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&mut self, settings: &[&str]) -> io::Result<()> {
        let log = || {
            let mut options = OpenOptions::new();
            options.append(true).create(true).open(self.log())
        };
        let mut command = self.program("postgres");
        command.arg("-D").arg(&self.data);
        command.arg("-k").arg(self.sockets());
        let small: &[&str] = match self.defaults {
            Defaults::Small => &SMALL,
            Defaults::Installed => &[],
        };
        for setting in ["listen_addresses="].iter().chain(small).chain(settings) {
            command.args(["-c", setting]);
        }
        command.stdin(Stdio::null()).stdout(log()?).stderr(log()?);
        self.server = Some(command.spawn()?);
        Ok(())
    }

    /// The number of the running server's first process.
    #[must_use]
    pub fn server(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// Whether the server serves; an error where it has ended.
    ///
    /// # Errors
    /// It has ended: with the state that it ended with.
    pub fn serves(&mut self) -> io::Result<bool> {
        let server = self.server.as_mut();
        let server = server.ok_or_else(|| io::Error::other("the server was not started"))?;
        if let Some(status) = server.try_wait()? {
            self.server = None;
            return Err(io::Error::other(format!("the server ended with {status}")));
        }
        if run(&mut self.program("pg_isready")).is_err() {
            return Ok(false);
        }
        self.memory = self.shared_memory();
        Ok(true)
    }

    /// Starts the server and waits until it serves.
    ///
    /// # Errors
    /// What it said, where it ends instead, or does not serve for a minute.
    pub fn start(&mut self, settings: &[&str]) -> Result<(), String> {
        let before = self.said().len();
        let said = |cluster: &Self| cluster.said().split_off(before);
        self.spawn(settings).map_err(|e| e.to_string())?;
        for _ in 0..LOOKS {
            match self.serves() {
                Ok(true) => return Ok(()),
                Ok(false) => std::thread::sleep(BETWEEN_LOOKS),
                Err(ended) => return Err(format!("{}{ended}", said(self))),
            }
        }
        Err(format!("{}it does not serve", said(self)))
    }

    /// The number of the running server's segment of shared memory, which its file names.
    fn shared_memory(&self) -> Option<String> {
        let lines = fs::read_to_string(self.data.join("postmaster.pid")).ok()?;
        let (_key, number) = lines.lines().nth(6)?.trim().split_once(char::is_whitespace)?;
        Some(number.trim().to_owned())
    }

    /// Runs statements in a database, one after the other.
    ///
    /// # Errors
    /// What the first that fails says.
    pub fn sql(&self, database: &str, statements: &str) -> Said {
        let mut psql = self.program("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database]);
        for statement in statements.split(';').filter(|text| !text.trim().is_empty()) {
            psql.args(["-c", statement]);
        }
        run(&mut psql)
    }

    /// Ends the server in order.
    ///
    /// # Errors
    /// It does not end as it should.
    pub fn stop(&mut self) -> Result<(), String> {
        let Some(mut server) = self.server.take() else {
            return Err("the server was not started".into());
        };
        kill_process(Pid::from_child(&server), Signal::INT).map_err(|e| e.to_string())?;
        let status = server.wait().map_err(|e| e.to_string())?;
        self.memory = None;
        match status.success() {
            true => Ok(()),
            false => Err(format!("{}it ended with {status}", self.said())),
        }
    }

    /// Kills the server and all its processes. What waits for the file system ends when `let_go`
    /// lets its calls fail.
    ///
    /// # Errors
    /// They do not end.
    pub fn kill(&mut self, let_go: impl FnOnce()) -> io::Result<()> {
        let Some(server) = self.server.take() else {
            let_go();
            return Ok(());
        };
        let memory = self.memory.take().or_else(|| memory_of(&server));
        let shared = shared_files(&server);
        let killed = kill_and_wait(server, let_go);
        for file in shared {
            let _ = fs::remove_file(file);
        }
        // The next server, on a device of another number, takes it for another's.
        if let Some(memory) = memory {
            let _ = run(Command::new("ipcrm").args(["-m", &memory]));
        }
        killed
    }
}

/// The segment of shared memory that a server has made, which may not have written its file yet.
fn memory_of(server: &Child) -> Option<String> {
    let segments = fs::read_to_string("/proc/sysvipc/shm").ok()?;
    let creator = server.id().to_string();
    let mut lines = segments.lines().skip(1).map(str::split_whitespace);
    lines.find_map(|mut fields| {
        let number = fields.nth(1)?.to_owned();
        (fields.nth(2)? == creator).then_some(number)
    })
}

/// The files in shared memory that a server has, which outlive its death too.
fn shared_files(server: &Child) -> BTreeSet<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.id())).unwrap_or_default();
    let mapped = maps
        .lines()
        .filter_map(|line| line.split_once("/dev/shm/PostgreSQL."));
    mapped
        .map(|(_, number)| PathBuf::from(format!("/dev/shm/PostgreSQL.{number}")))
        .collect()
}
