//! A PostgreSQL cluster on the file system that forgets, run by a user who is not root.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use collie_io::{Device, RealDevice};
use collie_sim::faultfs::{self, FaultFs, Names};
use collie_sim::{Effects, PowerCut};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
/// Where the files of the database `postgres` are, whose number is fixed.
const FILES: &str = "/base/5/";
/// Who may run it, the first who is there.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// How often it is looked whether something has come about, and for how long at most.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
const LOOKS: u32 = 3_000;
/// Small files and few processes, where nothing else is said.
const SETTINGS: [&str; 8] = [
    "listen_addresses=",
    "max_connections=24",
    "max_wal_size=4MB",
    "min_wal_size=2MB",
    "checkpoint_timeout=30s",
    "max_worker_processes=0",
    "log_checkpoints=off",
    "update_process_title=off",
];

/// A cluster, its disk and its server.
pub(crate) struct Cluster {
    server: Option<Child>,
    /// Its segment of shared memory, which outlives its death.
    memory: Option<String>,
    pub(crate) fs: FaultFs,
    home: tempfile::TempDir,
    user: (u32, u32),
}

/// What a command said.
pub(crate) type Said = Result<String, String>;

/// What is missing here, if anything is.
fn missing() -> Option<String> {
    if let Err(missing) = faultfs::available() {
        return Some(missing.to_string());
    }
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
    ];
    let absent = needed.iter().map(|name| Path::new(PROGRAMS).join(name));
    let absent = absent.into_iter().find(|path| !path.exists());
    absent.map(|path| format!("{} is not there", path.display()))
}

/// Runs a command to its end.
fn run(command: &mut Command) -> Said {
    let done = command.stdin(Stdio::null()).output().unwrap();
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
    /// An empty disk; `None`, and a reason on the output, where there cannot be one.
    pub(crate) fn new(seed: u64, names: Names) -> Option<Self> {
        if let Some(missing) = missing() {
            assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
            println!("skipped: {missing}");
            return None;
        }
        let user = USERS.into_iter().find_map(ids_of).unwrap();
        let home = tempfile::tempdir().unwrap();
        let all_may_pass = || Permissions::from_mode(0o755);
        fs::set_permissions(home.path(), all_may_pass()).unwrap();
        for (name, owned) in [("disk", false), ("sockets", true), ("template", true)] {
            let path = home.path().join(name);
            fs::create_dir(&path).unwrap();
            if owned {
                chown(&path, Some(user.0), Some(user.1)).unwrap();
            }
        }
        let fs = FaultFs::mount(&home.path().join("disk"), names, seed).unwrap();
        fs::set_permissions(fs.path(), all_may_pass()).unwrap();
        let cluster = Self {
            server: None,
            memory: None,
            fs,
            home,
            user,
        };
        cluster.make_dir("data");
        Some(cluster)
    }

    /// A directory on the disk that the server may use, with a durable name.
    pub(crate) fn make_dir(&self, name: &str) -> PathBuf {
        let path = self.fs.path().join(name);
        fs::create_dir(&path).unwrap();
        chown(&path, Some(self.user.0), Some(self.user.1)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        File::open(self.fs.path()).unwrap().sync_all().unwrap();
        path
    }

    /// A file beside the disk, which programs may read.
    pub(crate) fn write_aside(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        path
    }

    fn data(&self) -> PathBuf {
        self.fs.path().join("data")
    }

    fn sockets(&self) -> PathBuf {
        self.home.path().join("sockets")
    }

    /// One of PostgreSQL's programs, as its user, in a directory that this may use.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(Path::new(PROGRAMS).join(name));
        command.uid(self.user.0).gid(self.user.1);
        command.current_dir(self.sockets()).env_clear();
        command.env("PGHOST", self.sockets()).env("PGUSER", "me");
        command.env("PGDATABASE", "postgres").env("LC_ALL", "C");
        command
    }

    /// Makes a cluster in a directory.
    fn init_at(&self, data: &Path) {
        let mut initdb = self.program("initdb");
        initdb.args([
            "--data-checksums",
            "--wal-segsize=1",
            "--auth=trust",
            "--username=me",
        ]);
        run(initdb.arg("-D").arg(data)).unwrap();
    }

    /// Makes a cluster on the disk.
    pub(crate) fn init(&self) {
        self.init_at(&self.data());
    }

    /// Puts a new cluster in the place of the one on the disk, if any: a durable copy of one that
    /// was made elsewhere.
    pub(crate) fn init_again(&mut self) {
        let template = self.home.path().join("template");
        if fs::read_dir(&template).unwrap().next().is_none() {
            self.init_at(&template);
        }
        let script = "rm -rf data && cp -a \"$0\" data && find data -exec sync {} + && sync .";
        let mut copy = Command::new("sh");
        copy.args(["-ec", script]).arg(&template);
        run(copy.current_dir(self.fs.path())).unwrap();
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("log")
    }

    /// Starts the server and waits until it serves; what it said where it ends instead.
    pub(crate) fn start(&mut self, settings: &[&str]) -> Result<(), String> {
        let log = || {
            let mut options = OpenOptions::new();
            options.append(true).create(true).open(self.log()).unwrap()
        };
        let before = fs::read(self.log()).unwrap_or_default().len();
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data());
        command.arg("-k").arg(self.sockets());
        for setting in SETTINGS.iter().chain(settings) {
            command.args(["-c", setting]);
        }
        command.stdin(Stdio::null()).stdout(log()).stderr(log());
        let mut server = command.spawn().unwrap();
        for _ in 0..LOOKS {
            if server.try_wait().unwrap().is_some() {
                let said = fs::read(self.log()).unwrap().split_off(before);
                return Err(String::from_utf8_lossy(&said).into_owned());
            }
            if run(&mut self.program("pg_isready")).is_ok() {
                self.server = Some(server);
                self.memory = self.shared_memory();
                return Ok(());
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        self.server = Some(server);
        panic!("the server does not serve: {}", self.said());
    }

    /// The number of the running server's segment of shared memory, which its file names.
    fn shared_memory(&self) -> Option<String> {
        let lines = fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        let (_key, number) = lines.lines().nth(6)?.trim().split_once(char::is_whitespace)?;
        Some(number.trim().to_owned())
    }

    /// All that servers said.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Runs statements in a database, one after the other.
    pub(crate) fn sql(&self, database: &str, statements: &str) -> Said {
        let mut psql = self.program("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database]);
        for statement in statements.split(';').filter(|text| !text.trim().is_empty()) {
            psql.args(["-c", statement]);
        }
        run(&mut psql)
    }

    /// Ends the server in order.
    pub(crate) fn stop(&mut self) {
        let mut server = self.server.take().unwrap();
        kill_process(Pid::from_child(&server), Signal::INT).unwrap();
        let status = server.wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.said());
        self.memory = None;
    }

    /// Checks the checksum of every page, of a cluster that was stopped in order.
    pub(crate) fn checksums(&self) -> Said {
        run(self
            .program("pg_checksums")
            .arg("--check")
            .arg("-D")
            .arg(self.data()))
    }

    /// The files that the check of the checksums complained of, if no table and no index has any of
    /// them; what is not known to be left over is in use.
    pub(crate) fn left_over(&self, said: &str) -> Option<Vec<String>> {
        let named = said.lines().filter(|line| line.contains(" failed in file "));
        let files: Vec<&str> = named.filter_map(|line| line.split('"').nth(1)).collect();
        let is_left_over = |file: &&str| {
            let name = file.rsplit('/').next().unwrap_or_default();
            let number: String = name.chars().take_while(char::is_ascii_digit).collect();
            let of_this = file.contains(FILES) && !number.is_empty();
            let query = format!("SELECT pg_filenode_relation(0, {number}) IS NULL");
            of_this
                && self
                    .sql("postgres", &query)
                    .is_ok_and(|answer| answer.trim() == "t")
        };
        let are_left_over = !files.is_empty() && files.iter().all(is_left_over);
        are_left_over.then(|| files.into_iter().map(str::to_owned).collect())
    }

    /// Cuts the power under the server.
    pub(crate) fn cut(&mut self, how: PowerCut, seed: u64) -> Effects {
        self.fs.stop().unwrap();
        self.kill();
        self.fs.power_cycle(how, seed).unwrap()
    }

    /// Kills the server and all its processes. What waits for the disk ends when that fails.
    fn kill(&mut self) {
        let Some(mut server) = self.server.take() else {
            return;
        };
        let pid = Pid::from_child(&server);
        // While it stands still it starts none, and it has waited for none.
        let _ = kill_process(pid, Signal::STOP);
        let children = children_of(pid);
        let _ = kill_process(pid, Signal::KILL);
        for &child in &children {
            let _ = kill_process(child, Signal::KILL);
        }
        let _ = self.fs.fail_calls();
        let _ = server.wait();
        let gone = |child: &Pid| stat_of(*child).is_none_or(|(state, _)| state == "Z");
        for _ in 0..LOOKS {
            if children.iter().all(gone) {
                break;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        // The next server, on a device of another number, takes it for another's.
        if let Some(memory) = self.memory.take() {
            let _ = run(Command::new("ipcrm").args(["-m", &memory]));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.fs.stop();
        self.kill();
    }
}

/// A process's state and its parent.
fn stat_of(pid: Pid) -> Option<(String, i32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // Its name is in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Pid::from_raw(name.to_str()?.parse().ok()?)
    });
    let parent = parent.as_raw_nonzero().get();
    pids.filter(|&pid| stat_of(pid).is_some_and(|(_, above)| above == parent))
        .collect()
}
