//! A `collie serve` of its own, and the disk under it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::resp::{Conn, HANGS, Res};

/// The folder of a run: stores, the ring, logs of servers.
pub struct Place {
    pub collie: PathBuf,
    pub base: PathBuf,
}

impl Place {
    pub fn new(collie: PathBuf, under: &Path) -> Res<Self> {
        if !collie.exists() {
            return Err(format!(
                "{} is not there; cargo build --release -p collie-cli",
                collie.display()
            ));
        }
        let base = under.join(format!("collie-clients-{}", std::process::id()));
        std::fs::create_dir_all(base.join("ring")).map_err(|e| format!("{}: {e}", base.display()))?;
        // A ring of its own, in memory as by default: nothing stays in /dev/shm.
        mount(&base.join("ring"), 80)?;
        Ok(Self { collie, base })
    }

    pub fn remove(&self) {
        unmount(&self.base.join("ring"));
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

fn mount(at: &Path, mib: u64) -> Res<()> {
    std::fs::create_dir_all(at).map_err(|e| e.to_string())?;
    let size = format!("size={mib}m");
    let done = Command::new("mount")
        .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
        .arg(at)
        .status();
    if done.is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err(format!("mount {}", at.display()))
    }
}

fn unmount(at: &Path) {
    let _ = Command::new("umount").arg("-q").arg(at).status();
}

/// A file system of so many MiB.
pub struct Disk {
    pub at: PathBuf,
}

impl Disk {
    pub fn new(place: &Place, name: &str, mib: u64) -> Res<Self> {
        let at = place.base.join(name);
        unmount(&at); // One that was kept.
        mount(&at, mib)?;
        Ok(Self { at })
    }

    pub fn remove(self) {
        unmount(&self.at);
        let _ = std::fs::remove_dir(&self.at);
    }
}

pub struct Server {
    child: Child,
    pub port: u16,
    metrics: u16,
    /// From the start of the process to the first PONG.
    pub started: Duration,
}

impl Server {
    pub fn start(place: &Place, dir: &Path, args: &[String]) -> Res<Self> {
        let (config, log) = (place.base.join("collie.toml"), place.base.join("log"));
        let text = format!("[store]\nring-dir = {:?}\n", place.base.join("ring"));
        std::fs::write(&config, text).map_err(|e| e.to_string())?;
        let open = std::fs::OpenOptions::new().create(true).append(true).open(&log);
        let out = open.map_err(|e| e.to_string())?;
        let before = std::fs::metadata(&log).map_or(0, |meta| meta.len()) as usize;
        let begun = Instant::now();
        let child = Command::new(&place.collie)
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--metrics",
                "127.0.0.1:0",
                "--config",
            ])
            .arg(&config)
            .arg("--dir")
            .arg(dir)
            .args(args)
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(|e| e.to_string())?)
            .stderr(out)
            .spawn()
            .map_err(|e| format!("{}: {e}", place.collie.display()))?;
        let mut server = Self {
            child,
            port: 0,
            metrics: 0,
            started: Duration::ZERO,
        };
        loop {
            let text = std::fs::read(&log).map_err(|e| e.to_string())?;
            let text = String::from_utf8_lossy(&text[before..]).into_owned();
            let port = |mark: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(mark))?;
                line.rsplit(':')
                    .next()?
                    .trim_end_matches("/metrics")
                    .parse::<u16>()
                    .ok()
            };
            let ports = (
                port("listening on 127.0.0.1"),
                port("metrics at http://127.0.0.1"),
            );
            if let (Some(at), Some(metrics)) = ports {
                (server.port, server.metrics) = (at, metrics);
                break;
            }
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("the server did not start, {status}: {text}"));
            }
            if begun.elapsed() > HANGS {
                return Err(format!("the server did not start within {HANGS:?}: {text}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        server.conn()?.words("PING")?;
        server.started = begun.elapsed();
        Ok(server)
    }

    pub fn conn(&self) -> Res<Conn> {
        Conn::open(self.port)
    }

    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SHUTDOWN, and the exit code 0.
    pub fn stop(mut self) -> Res<Duration> {
        let begun = Instant::now();
        let mut conn = self.conn()?;
        conn.push(&[b"SHUTDOWN"]);
        conn.flush()?;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(begun.elapsed()),
                Ok(None) if begun.elapsed() < HANGS => std::thread::sleep(Duration::from_millis(2)),
                other => return Err(format!("after SHUTDOWN: {other:?} in {:?}", begun.elapsed())),
            }
        }
    }

    pub fn http(&self, path: &str) -> Res<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).map_err(|e| e.to_string())?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|e| e.to_string())?;
        let mut answer = String::new();
        stream.set_read_timeout(Some(HANGS)).map_err(|e| e.to_string())?;
        stream
            .read_to_string(&mut answer)
            .map_err(|e| format!("{path}: {e}"))?;
        Ok(answer)
    }

    pub fn metric(&self, name: &str) -> Res<f64> {
        let page = self.http("/metrics")?;
        let mut found = page
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found
            .next()
            .and_then(|value| value.trim().parse().ok())
            .ok_or_else(|| format!("no metric {name}"))
    }

    /// What all ways of asking say about writes: they must say the same.
    pub fn judge_health(&self, refused: bool) -> Res<()> {
        let health = self.http("/healthz")?;
        let status = health.split(' ').nth(1).unwrap_or_default().to_owned();
        let metric = self.metric("collie_writes_refused")?;
        let info = self.conn()?.info("aof_last_write_status")?;
        let expected = if refused {
            ("503", 1.0, "err")
        } else {
            ("200", 0.0, "ok")
        };
        if (status.as_str(), metric, info.as_str()) == expected {
            return Ok(());
        }
        Err(format!(
            "health: expected {expected:?}, found {status}, {metric}, {info}: {health:?}"
        ))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes that files take under a folder.
pub fn bytes_under(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    let each = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_under(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    });
    each.sum()
}
