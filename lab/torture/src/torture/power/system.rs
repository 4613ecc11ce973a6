//! The server under test: how it is started, when it serves, and its end.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use collie_cli::resp::Reply;
use collie_sim::faultfs::FaultFs;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::args::{LEASHED, SERVED};
use crate::client;
use crate::programs;
use crate::torture::ports;

/// How long a server may take to open its store.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// How long one that listens may take for an answer, before the disk is looked at again: it may
/// have stopped.
const ANSWER: Duration = Duration::from_millis(50);
/// Lines of what a server said that are kept.
const LINES_MAX: usize = 40;

/// Which product the power is cut under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum System {
    /// This program's own server.
    Collie,
    /// `redis-server` with `appendfsync always`, found along the path.
    Redis,
    /// fjall behind the server of lab/bench/peers, which `--program` names.
    Fjall,
}

impl System {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Collie => "collie",
            Self::Redis => "redis",
            Self::Fjall => "fjall",
        }
    }
}

/// What a server is started with.
pub(crate) struct Setup {
    pub(crate) system: System,
    /// The program, where it is not this one or along the path.
    pub(crate) program: Option<PathBuf>,
    /// Where its files go: on the file system that forgets.
    pub(crate) store: PathBuf,
    /// Where Collie's ring goes, which a power cut takes away.
    pub(crate) rings: Option<PathBuf>,
}

/// What came of a start.
pub(crate) enum Started {
    /// It serves.
    Ready,
    /// The disk stopped before it served.
    Stopped,
    /// It ended by itself.
    Ended(ExitStatus),
}

/// A running server. Dropped, it is killed.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    said: Arc<Mutex<VecDeque<String>>>,
}

impl Setup {
    /// The program and its arguments.
    fn command(&self, port: u16) -> anyhow::Result<(PathBuf, Vec<String>)> {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let store = self.store.display().to_string();
        let (program, mut arguments) = match self.system {
            System::Collie => {
                let mut arguments = words(&format!("{SERVED} small --port {port}"));
                if let Some(rings) = &self.rings {
                    arguments.extend(["--rings".to_owned(), rings.display().to_string()]);
                }
                (programs::this()?, arguments)
            }
            System::Redis => {
                let text = format!(
                    "--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync always --loglevel warning \
                     --auto-aof-rewrite-percentage 100 --auto-aof-rewrite-min-size 512kb"
                );
                let mut arguments = words(&text);
                arguments.extend(["--save".to_owned(), String::new()]);
                ("redis-server".into(), arguments)
            }
            System::Fjall => ("collie-peers".into(), words(&format!("serve --port {port}"))),
        };
        arguments.extend(["--dir".to_owned(), store]);
        Ok((self.program.clone().unwrap_or(program), arguments))
    }

    /// Starts a server.
    pub(crate) fn start(&self) -> anyhow::Result<Server> {
        let port = ports::free(1)?[0];
        let (program, arguments) = self.command(port)?;
        let mut child = Command::new(programs::this()?)
            .arg(LEASHED)
            .arg(&program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let out = child
            .stdout
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        let err = child
            .stderr
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        for pipe in [out, err].into_iter().flatten() {
            let said = Arc::clone(&said);
            std::thread::spawn(move || listen(pipe, &said));
        }
        Ok(Server { child, port, said })
    }
}

impl Setup {
    /// Repairs a store that its server refused, as its documentation says. `false` where there is
    /// nothing that does.
    pub(crate) fn repair(&self) -> anyhow::Result<bool> {
        if self.system != System::Redis {
            return Ok(false);
        }
        let manifest = self.store.join("appendonlydir/appendonly.aof.manifest");
        let mut child = Command::new("redis-check-aof")
            .arg("--fix")
            .arg(manifest)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start redis-check-aof")?;
        // It asks before it cuts off what it does not understand; where it does not ask, the pipe
        // has no reader.
        let _ = child.stdin.take().map(|mut pipe| pipe.write_all(b"y\n"));
        let status = child.wait().context("cannot wait for redis-check-aof")?;
        Ok(status.success())
    }
}

fn listen(pipe: impl Read, said: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(pipe).lines().map_while(Result::ok) {
        let mut said = said.lock();
        if said.len() == LINES_MAX {
            said.pop_front();
        }
        said.push_back(line);
    }
}

impl Server {
    /// Waits until it serves, or until the disk has stopped.
    pub(crate) fn wait(&mut self, fs: &FaultFs) -> anyhow::Result<Started> {
        let looks = PATIENCE.as_millis() / BETWEEN_LOOKS.as_millis();
        for _ in 0..looks {
            if fs.wait_for_stop(BETWEEN_LOOKS)?.is_some() {
                return Ok(Started::Stopped);
            }
            if let Some(status) = self.child.try_wait().context("cannot wait for the server")? {
                return Ok(Started::Ended(status));
            }
            if let Ok(mut client) = client::connect_for(self.port, ANSWER)
                && let Ok(Reply::Text(_)) = client.call(&[b"PING"])
            {
                return Ok(Started::Ready);
            }
        }
        bail!(
            "the server does not serve after {PATIENCE:?}; it said:\n{}",
            self.said()
        )
    }

    /// What it said last.
    pub(crate) fn said(&self) -> String {
        let lines: Vec<String> = self.said.lock().iter().cloned().collect();
        lines.join("\n")
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("cannot wait for the server")
    }

    /// Kills it; it is gone when its calls on the stopped disk have failed.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill the server")
    }

    /// Asks it to end in order, and waits for that.
    pub(crate) fn end(mut self) -> anyhow::Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("cannot end the server")?;
        self.child.wait().context("cannot wait for the server")
    }

    /// Waits for the end of one that was killed.
    pub(crate) fn reap(mut self) -> anyhow::Result<()> {
        self.child.wait().map(drop).context("cannot wait for the server")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be dead already. It is not waited for: on a stopped disk its end comes when the
        // power goes off.
        let _ = self.child.kill();
    }
}
