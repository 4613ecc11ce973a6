//! A server in a process of its own, for the tests that talk to one over a socket.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::args::{LEASHED, SERVED};
use crate::programs;

/// How long a server may take to open its store.
const OPENING: Duration = Duration::from_secs(120);
/// How long it may take to end, whether asked to or killed.
const ENDING: Duration = Duration::from_secs(60);
/// How often a server that ends is looked at.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// How the line begins by which a server says where it listens.
const LISTENING: &str = "listening on 127.0.0.1:";
/// How a thread says that it panicked.
const PANICKED: &str = "panicked at";
/// Lines of what a server said that are kept.
const LINES_MAX: usize = 40;

/// A running server. Dropped, it is killed.
pub(crate) struct Served {
    child: Child,
    pub(crate) port: u16,
    said: Arc<Mutex<Said>>,
    listeners: Vec<JoinHandle<()>>,
}

/// What a server says on both of its outputs.
#[derive(Default)]
struct Said {
    latest: VecDeque<String>,
    /// The lines by which its threads said that they panicked.
    panics: Vec<String>,
}

impl Said {
    fn add(&mut self, line: String) {
        if line.contains(PANICKED) && self.panics.len() < LINES_MAX {
            self.panics.push(line.clone());
        }
        if self.latest.len() == LINES_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back(line);
    }
}

/// What came of a start.
pub(crate) enum Start {
    Serves(Served),
    /// It ended before it served, and said this.
    Ended(ExitStatus, String),
}

/// `collie serve` on a store: at any port, and a configuration file for the rest.
pub(crate) fn collie(store: &Path, config: &Path, more: &[&str]) -> anyhow::Result<Vec<OsString>> {
    let mut words = vec![programs::collie()?.into(), "serve".into()];
    words.extend(["--log-level", "warn", "--listen", "127.0.0.1:0", "--dir"].map(OsString::from));
    words.extend([store.into(), "--config".into(), config.into()]);
    words.extend(more.iter().map(OsString::from));
    Ok(words)
}

/// A server with memtables, tables and segments of which a minute sees many.
pub(crate) fn moderate(store: &Path, rings: Option<&Path>) -> anyhow::Result<Vec<OsString>> {
    let mut words: Vec<OsString> = vec![programs::this()?.into()];
    words.extend([SERVED, "moderate", "--dir"].map(OsString::from));
    words.push(store.into());
    if let Some(rings) = rings {
        words.extend(["--rings".into(), rings.into()]);
    }
    Ok(words)
}

impl Served {
    /// Starts a server and waits until it listens. `before`: a command that becomes the one behind
    /// it.
    pub(crate) fn try_start(before: &[OsString], command: &[OsString]) -> anyhow::Result<Start> {
        let mut words = before.to_vec();
        words.extend([programs::this()?.into(), LEASHED.into()]);
        words.extend_from_slice(command);
        let (program, rest) = words.split_first().context("there is no program to start")?;
        let mut child = Command::new(program)
            .args(rest)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", Path::new(program).display()))?;
        let (sender, port) = mpsc::channel();
        let said = Arc::new(Mutex::new(Said::default()));
        let out = child.stdout.take().map(boxed);
        let err = child.stderr.take().map(boxed);
        let listeners = [out, err].into_iter().flatten().map(|pipe| {
            let (said, sender) = (Arc::clone(&said), sender.clone());
            std::thread::spawn(move || listen(pipe, &said, &sender))
        });
        let mut served = Self {
            child,
            port: 0,
            listeners: listeners.collect(),
            said,
        };
        drop(sender);
        match port.recv_timeout(OPENING) {
            Ok(port) => {
                served.port = port;
                Ok(Start::Serves(served))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = served.wait()?;
                Ok(Start::Ended(status, served.said()))
            }
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "the server does not serve after {OPENING:?}; it said:\n{}",
                    served.said()
                )
            }
        }
    }

    /// As [`Served::try_start`], of a server that must serve.
    pub(crate) fn start(before: &[OsString], command: &[OsString]) -> anyhow::Result<Self> {
        match Self::try_start(before, command)? {
            Start::Serves(served) => Ok(served),
            Start::Ended(status, said) => {
                bail!("the server ended with {status} before it served; it said:\n{said}")
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said last.
    pub(crate) fn said(&self) -> String {
        let lines: Vec<String> = self.said.lock().latest.iter().cloned().collect();
        lines.join("\n")
    }

    /// The lines by which its threads said that they panicked.
    pub(crate) fn panics(&self) -> Vec<String> {
        self.said.lock().panics.clone()
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("cannot wait for the server")
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill the server")?;
        self.wait().map(drop)
    }

    /// Asks it to end in order, and waits for that.
    pub(crate) fn end(&mut self) -> anyhow::Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("cannot end the server")?;
        self.wait()
    }

    /// Waits for its end, and for all that it has to say.
    fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        for _ in 0..ENDING.as_millis() / BETWEEN_LOOKS.as_millis() {
            if let Some(status) = self.has_ended()? {
                for listener in self.listeners.drain(..) {
                    // A thread that only listens has nothing to panic about.
                    let _ = listener.join();
                }
                return Ok(status);
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        bail!(
            "the server has not ended within {ENDING:?}; it said:\n{}",
            self.said()
        )
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may be dead and waited for; then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn boxed(pipe: impl Read + Send + 'static) -> Box<dyn Read + Send> {
    Box::new(pipe)
}

fn listen(pipe: impl Read, said: &Mutex<Said>, sender: &Sender<u16>) {
    for line in BufReader::new(pipe).lines().map_while(Result::ok) {
        let port = line.split_once(LISTENING).map(|(_, rest)| rest);
        if let Some(Ok(port)) = port.map(|rest| rest.trim().parse()) {
            // No thread waits any more for one that took too long.
            let _ = sender.send(port);
        }
        said.lock().add(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_lines_are_kept_and_all_panics() {
        let mut said = Said::default();
        said.add("thread 'x' panicked at src/a.rs:1:2:".to_owned());
        for n in 0..LINES_MAX {
            said.add(n.to_string());
        }
        assert_eq!(said.latest.len(), LINES_MAX);
        assert_eq!(said.latest.front().map(String::as_str), Some("0"));
        assert_eq!(said.panics.len(), 1);
    }

    #[test]
    fn the_port_is_read_from_what_the_server_says() {
        let said = Mutex::new(Said::default());
        let (sender, port) = mpsc::channel();
        let text = "collie 0.1.0\nmetrics at http://127.0.0.1:1/metrics\nlistening on 127.0.0.1:4711\n";
        listen(text.as_bytes(), &said, &sender);
        assert_eq!(port.recv(), Ok(4711));
        assert!(said.lock().latest.len() == 3);
    }
}
