//! A cluster in a directory of this machine: where its nodes are, and which of them run.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use collie_cli::resp::{self, Client, Reply};
use collie_io::{Device, OpenMode, RealDevice, write_all_at};
use serde::{Deserialize, Serialize};

use crate::node::is_node;

/// The file that makes a directory that of a cluster.
const FILE: &str = "cluster.toml";
/// The longest such file.
const FILE_MAX: usize = 4096;
/// From a node's port for clients to that for its peers, as in Redis Cluster.
const PEER_PORT: u16 = 10_000;
/// A node that runs answers within this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// So much of the end of a node's diagnostics is shown.
const TAIL: usize = 2000;

/// The arguments of `up` when it made the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shape {
    pub(super) nodes: u16,
    pub(super) port: u16,
}

/// A cluster in a directory.
#[derive(Debug)]
pub(super) struct LocalCluster {
    dir: PathBuf,
    pub(super) shape: Shape,
}

/// A node of it.
#[derive(Debug, Clone)]
pub(super) struct LocalNode {
    /// From 1 on. Not the node's number in the cluster, which it gets as it joins.
    pub(super) index: u16,
    pub(super) dir: PathBuf,
    pub(super) diagnostics: PathBuf,
    /// The file that has the number of its process.
    pid: PathBuf,
    pub(super) address: SocketAddr,
    pub(super) peer: SocketAddr,
}

impl LocalCluster {
    /// The cluster in a directory, if there is one.
    pub(super) fn find(dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = dir.join(FILE);
        let file = match RealDevice::new().open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let mut bytes = vec![0; FILE_MAX];
        let len = file
            .read_at(&mut bytes, 0)
            .with_context(|| format!("cannot read {}", path.display()))?;
        bytes.truncate(len);
        let shape = String::from_utf8(bytes)
            .map_err(anyhow::Error::from)
            .and_then(|text| Ok(toml::from_str::<Shape>(&text)?))
            .and_then(|shape| {
                check(shape)?;
                Ok(shape)
            })
            .with_context(|| format!("{} is not what `collie cluster up` writes", path.display()))?;
        let dir = std::path::absolute(dir)?;
        Ok(Some(Self { dir, shape }))
    }

    /// As [`find`](Self::find), where there must be one.
    pub(super) fn get(dir: &Path) -> anyhow::Result<Self> {
        Self::find(dir)?.with_context(|| {
            format!(
                "there is no cluster in {}: `collie cluster up --dir` makes one",
                dir.display()
            )
        })
    }

    /// Makes a directory for a cluster. One that holds anything is refused, and so is a shape whose
    /// ports are not free, which would stay the cluster's.
    pub(super) fn make(dir: &Path, shape: Shape) -> anyhow::Result<Self> {
        let made = Self {
            dir: std::path::absolute(dir)?,
            shape,
        };
        made.nodes()
            .iter()
            .try_for_each(LocalNode::check_ports)
            .map_err(|error| anyhow!("{error:#}; choose another --port"))?;
        let device = RealDevice::new();
        let write = || -> anyhow::Result<()> {
            device.create_dir_all(dir)?;
            if let Some(entry) = device.list(dir)?.first() {
                bail!("expected an empty directory, found {:?}", entry.name);
            }
            let file = device.open(&dir.join(FILE), OpenMode::CreateNew)?;
            let text = format!(
                "# Written by `collie cluster up`; read again when it starts the nodes.\n{}",
                toml::to_string(&shape)?
            );
            write_all_at(&*file, text.as_bytes(), 0)?;
            file.sync_all()?;
            device.sync_dir(dir)?;
            Ok(())
        };
        write().with_context(|| format!("cannot make a cluster in {}", dir.display()))?;
        Ok(made)
    }

    pub(super) fn nodes(&self) -> Vec<LocalNode> {
        let node = |index: u16| {
            let port = self.shape.port + index - 1;
            let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            LocalNode {
                index,
                dir: self.dir.join(format!("node-{index}")),
                diagnostics: self.dir.join(format!("node-{index}.log")),
                pid: self.dir.join(format!("node-{index}.pid")),
                address: at(port),
                peer: at(port + PEER_PORT),
            }
        };
        (1..=self.shape.nodes).map(node).collect()
    }
}

impl LocalNode {
    /// A connection to the node, if it runs.
    pub(super) fn connect(&self) -> Option<Client> {
        let mut client = Client::plain(resp::connect(self.address, PATIENCE).ok()?);
        matches!(client.call(&[b"PING"]), Ok(Reply::Text(_))).then_some(client)
    }

    /// Whether it is a node already. A stop while it became one leaves the mark of its disk, and
    /// perhaps no more.
    pub(super) fn is_member(&self) -> anyhow::Result<bool> {
        let mark = self.dir.join("data").join(collie_cluster::MARK);
        match RealDevice::new().open(&mark, OpenMode::Read) {
            Ok(_) => is_node(&self.dir),
            Err(_) => Ok(false),
        }
    }

    /// Asks the process that this program started here last to end, if it runs: one that waits to join
    /// takes no clients. Any other process that may have its number by now is left alone.
    pub(super) fn terminate(&self) -> anyhow::Result<()> {
        let Some(pid) = self.read(&self.pid).and_then(|text| text.trim().parse().ok()) else {
            return Ok(());
        };
        let command = self.read(&PathBuf::from(format!("/proc/{pid}/cmdline")));
        let own = self.dir.display().to_string();
        if !command.is_some_and(|command| command.split('\0').any(|word| word == own)) {
            return Ok(());
        }
        if let Some(process) = rustix::process::Pid::from_raw(pid) {
            let sent = rustix::process::kill_process(process, rustix::process::Signal::TERM);
            sent.with_context(|| format!("cannot end process {pid}, node {}", self.index))?;
        }
        Ok(())
    }

    /// The start of a small file.
    fn read(&self, path: &Path) -> Option<String> {
        let file = RealDevice::new().open(path, OpenMode::Read).ok()?;
        let mut bytes = vec![0; FILE_MAX];
        let read = file.read_at(&mut bytes, 0).ok()?;
        bytes.truncate(read);
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Notes which process runs the node.
    fn note(&self, process: &Child) -> anyhow::Result<()> {
        let device = RealDevice::new();
        let write = || {
            match device.remove_file(&self.pid) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = device.open(&self.pid, OpenMode::CreateNew)?;
            write_all_at(&*file, process.id().to_string().as_bytes(), 0)
        };
        write().with_context(|| format!("cannot write {}", self.pid.display()))
    }

    /// Whether a process has the node's directory.
    pub(super) fn is_in_use(&self) -> bool {
        let lock = self.dir.join("node").join("LOCK");
        let free = RealDevice::new()
            .open(&lock, OpenMode::Read)
            .and_then(|file| file.try_lock());
        matches!(free, Ok(false))
    }

    /// Whether the node's ports are free: they are bound, and let go. A node that finds one taken later
    /// ends.
    pub(super) fn check_ports(&self) -> anyhow::Result<()> {
        for (at, what) in [(self.address, "clients"), (self.peer, "the other nodes")] {
            TcpListener::bind(at).map(drop).with_context(|| {
                format!(
                    "no node was started, since node {} cannot listen for {what} at {at}",
                    self.index
                )
            })?;
        }
        Ok(())
    }

    /// Starts the node in the background, in a process group of its own: what ends this program does
    /// not end it.
    pub(super) fn start(&self, start_args: &[OsString]) -> anyhow::Result<Child> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let open = |flags| {
            let mode = rustix::fs::Mode::from_raw_mode(0o644);
            rustix::fs::open(&self.diagnostics, flags, mode)
                .with_context(|| format!("cannot write {}", self.diagnostics.display()))
        };
        use rustix::fs::OFlags;
        let diagnostics = open(OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC)?;
        let both = diagnostics
            .try_clone()
            .context("no file descriptor is left for a node's diagnostics")?;
        let process = Command::new(&program)
            .arg("node")
            .arg("--dir")
            .arg(&self.dir)
            .args(["--listen", &self.address.to_string()])
            .args(["--peer", &self.peer.to_string()])
            .args(start_args)
            .stdin(Stdio::null())
            .stdout(Stdio::from(diagnostics))
            .stderr(Stdio::from(both))
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        self.note(&process)?;
        Ok(process)
    }

    /// The end of the node's diagnostics.
    pub(super) fn log_tail(&self) -> String {
        let read = || -> std::io::Result<String> {
            let file = RealDevice::new().open(&self.diagnostics, OpenMode::Read)?;
            let len = file.stat()?.len;
            let mut bytes = vec![0; TAIL];
            let read = file.read_at(&mut bytes, len.saturating_sub(TAIL as u64))?;
            bytes.truncate(read);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }
}

/// Asks whether the ports of a cluster fit below the last there is.
pub(super) fn check(shape: Shape) -> anyhow::Result<()> {
    ensure!(
        shape.nodes > 0 && shape.port > 0,
        "{} nodes from port {} on: expected one at least, and a port",
        shape.nodes,
        shape.port
    );
    let last = u32::from(shape.port) + u32::from(shape.nodes) - 1 + u32::from(PEER_PORT);
    ensure!(
        last <= u32::from(u16::MAX),
        "{} nodes from port {} on would need port {last}: choose a lower --port",
        shape.nodes,
        shape.port
    );
    Ok(())
}
