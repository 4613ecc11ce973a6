//! The nodes: processes of `collie node`, each on a small disk (tmpfs) of its own.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::resp::Stopped;

#[derive(Clone, Debug)]
pub struct Shape {
    pub nodes: usize,
    pub partitions: u64,
    pub layout: &'static str,
    /// MiB of each disk.
    pub disk: u64,
    /// MiB; none: the default.
    pub limit: Option<u64>,
}

pub struct Cluster {
    pub shape: Shape,
    pub base: PathBuf,
    collie: PathBuf,
    first: u16,
    pub stopped: Stopped,
    running: Vec<Option<Child>>,
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let status = Command::new(program)
        .args(arguments)
        .status()
        .map_err(|e| format!("{program}: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{program} {arguments:?}: {status}"))
    }
}

/// Mounts from here on are of this process and its children only, and end with them.
pub fn own_mounts() -> Result<(), String> {
    // SAFETY: no memory is involved.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(format!("no mount namespace: {}", std::io::Error::last_os_error()));
    }
    run("mount", &["--make-rprivate", "/"])
}

impl Cluster {
    pub fn new(collie: &Path, base: &Path, first: u16, shape: Shape) -> Result<Self, String> {
        let stopped = (0..shape.nodes as u16).map(|n| (first + n, AtomicBool::new(false)));
        let cluster = Self {
            collie: collie.into(),
            base: base.into(),
            first,
            stopped: Arc::new(stopped.collect::<HashMap<_, _>>()),
            running: (0..shape.nodes).map(|_| None).collect(),
            shape,
        };
        for node in 0..cluster.shape.nodes {
            let disk = cluster.disk(node);
            std::fs::create_dir_all(&disk).map_err(|e| e.to_string())?;
            let size = format!("size={}m", cluster.shape.disk);
            run(
                "mount",
                &[
                    "-t",
                    "tmpfs",
                    "-o",
                    &size,
                    "collie-nodes",
                    &disk.to_string_lossy(),
                ],
            )?;
        }
        Ok(cluster)
    }

    pub fn disk(&self, node: usize) -> PathBuf {
        self.base.join(format!("disk-{}", node + 1))
    }

    pub fn port(&self, node: usize) -> u16 {
        self.first + node as u16
    }

    pub fn ports(&self) -> Vec<u16> {
        (0..self.shape.nodes).map(|node| self.port(node)).collect()
    }

    pub fn start(&mut self, node: usize) -> Result<(), String> {
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.base.join(format!("node-{}.log", node + 1)));
        let log = log.map_err(|e| e.to_string())?;
        let address = |port: u16| format!("127.0.0.1:{port}");
        let port = self.port(node);
        let mut command = Command::new(&self.collie);
        command.arg("node").arg("--dir").arg(self.disk(node).join("node"));
        command.args(["--listen", &address(port), "--peer", &address(port + 10)]);
        command.args(["--metrics", &address(port + 20), "--layout", self.shape.layout]);
        if let Some(limit) = self.shape.limit {
            command.args(["--log-limit", &format!("{limit}mb")]);
        }
        if self.disk(node).join("node").exists() {
            // It is restarted without.
        } else if node == 0 {
            command.args(["--bootstrap", "--replicas", &self.shape.nodes.to_string()]);
            command.args(["--partitions", &self.shape.partitions.to_string()]);
        } else {
            command.args(["--join", &address(self.first + 10)]);
        }
        // SAFETY: prctl is safe after a fork. The node ends with this process, whose main thread starts all.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let errors = log.try_clone().map_err(|e| e.to_string())?;
        let child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        self.running[node] = Some(child.map_err(|e| format!("{}: {e}", self.collie.display()))?);
        Ok(())
    }

    pub fn signal(&mut self, node: usize, signal: i32) {
        let stopped = &self.stopped[&self.port(node)];
        stopped.store(
            signal == libc::SIGSTOP || stopped.load(Ordering::Relaxed),
            Ordering::Relaxed,
        );
        if let Some(child) = &self.running[node] {
            // SAFETY: the process is a child of this one that was not waited for.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
        if signal == libc::SIGCONT || signal == libc::SIGKILL {
            self.stopped[&self.port(node)].store(false, Ordering::Relaxed);
        }
    }

    /// Ends it by a signal, and waits.
    pub fn end(&mut self, node: usize, signal: i32) -> Result<(), String> {
        self.signal(node, signal);
        for _ in 0..300 {
            if self.ended(node)?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(format!(
            "node {} does not end by signal {signal} within 30 s",
            node + 1
        ))
    }

    /// The status of a node that has ended since.
    pub fn ended(&mut self, node: usize) -> Result<Option<String>, String> {
        let status = match &mut self.running[node] {
            Some(child) => child.try_wait().map_err(|e| e.to_string())?,
            None => return Ok(None),
        };
        if status.is_some() {
            self.running[node] = None;
        }
        Ok(status.map(|s| format!("node {} ended: {s}", node + 1)))
    }

    /// Bytes of the node's disk that are in removed files which its process has open.
    pub fn removed(&self, node: usize) -> u64 {
        let Some(child) = &self.running[node] else {
            return 0;
        };
        let open = std::fs::read_dir(format!("/proc/{}/fd", child.id()))
            .into_iter()
            .flatten()
            .flatten();
        let of_disk = |path: &PathBuf| {
            let link = std::fs::read_link(path).unwrap_or_default();
            link.starts_with(self.disk(node)) && link.to_string_lossy().ends_with(" (deleted)")
        };
        let files = open
            .map(|entry| entry.path())
            .filter(of_disk)
            .filter_map(|path| std::fs::metadata(path).ok());
        let sizes: HashMap<u64, u64> = files.map(|file| (file.ino(), file.blocks() * 512)).collect();
        sizes.values().sum()
    }

    /// A file that leaves `left` bytes of the node's disk.
    pub fn ballast(&self, node: usize, left: u64) -> Result<(), String> {
        let mut file = File::create(self.disk(node).join("ballast")).map_err(|e| e.to_string())?;
        let mut size = 0;
        for piece in [1 << 20, 1 << 16, 1 << 12] {
            // SAFETY: the file is open.
            while unsafe { libc::posix_fallocate(file.as_raw_fd(), size, piece) } == 0 {
                size += piece;
            }
        }
        file.set_len((size as u64).saturating_sub(left))
            .and_then(|()| file.flush())
            .map_err(|e| e.to_string())
    }

    pub fn no_ballast(&self, node: usize) {
        let _ = std::fs::remove_file(self.disk(node).join("ballast"));
    }

    /// The exit code and the text of `collie cluster status`.
    pub fn status(collie: &Path, ports: &[u16]) -> (i32, String) {
        let nodes = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect::<Vec<_>>()
            .join(",");
        match Command::new(collie)
            .args(["cluster", "status", "--node", &nodes])
            .output()
        {
            Ok(out) => (
                out.status.code().unwrap_or(-1),
                format!(
                    "{}{}",
                    String::from_utf8_lossy(&out.stdout),
                    String::from_utf8_lossy(&out.stderr)
                ),
            ),
            Err(e) => (-1, e.to_string()),
        }
    }

    /// The code and the body of an answer to HTTP.
    pub fn http(port: u16, path: &str) -> Result<(u16, String), String> {
        let get = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", port + 20))?;
            stream.set_read_timeout(Some(Duration::from_secs(3)))?;
            stream.write_all(
                format!("GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").as_bytes(),
            )?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = get().map_err(|e| e.to_string())?;
        let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_string());
        Ok((code.ok_or("no HTTP status")?, body.unwrap_or_default()))
    }

    /// Lines of diagnostics that no node should write.
    pub fn panics(&self) -> Option<String> {
        (0..self.shape.nodes).find_map(|node| {
            let text = std::fs::read(self.base.join(format!("node-{}.log", node + 1))).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let line = text.lines().find(|line| line.contains("panicked at"))?;
            Some(format!("node {}: {line}", node + 1))
        })
    }

    /// Ends all, and keeps what is on their disks if asked to.
    pub fn close(&mut self, keep: bool) {
        for node in 0..self.shape.nodes {
            let _ = self.end(node, libc::SIGKILL);
            self.no_ballast(node);
            let disk = self.disk(node);
            let _ = keep.then(|| {
                run(
                    "cp",
                    &[
                        "-r",
                        &disk.to_string_lossy(),
                        &self.base.join(format!("kept-{}", node + 1)).to_string_lossy(),
                    ],
                )
            });
            let _ = run("umount", &["-l", &disk.to_string_lossy()]);
        }
        if !keep {
            let _ = std::fs::remove_dir_all(&self.base);
        }
    }
}
