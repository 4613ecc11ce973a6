//! The parent's side of a writer.

use std::ffi::OsStr;
use std::io::BufReader;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};

use super::history::{Counts, THREADS};
use super::messages::Message;
use crate::args::WRITER;
use crate::programs;

/// How long a writer may take to come to its next stage.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks whether it has acknowledged anything.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// A writer that runs. Dropped, it is killed.
pub(crate) struct Writer {
    child: Child,
    stages: Receiver<Message>,
    listener: Option<JoinHandle<anyhow::Result<Heard>>>,
    acknowledged: Arc<AtomicU64>,
}

/// All that a writer said in its life.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heard {
    /// What it found when it opened the store, if it came so far.
    pub(crate) found: Option<Counts>,
    /// How many commits of each thread it had acknowledged; 0 for those of which it acknowledged
    /// none.
    pub(crate) acknowledged: Counts,
}

impl Writer {
    /// Starts a writer on the store in `dir`, its ring in `rings`.
    pub(crate) fn start(dir: &Path, rings: Option<&Path>) -> anyhow::Result<Self> {
        let program = programs::this()?;
        let mut child = Command::new(&program)
            .arg(WRITER)
            .arg(dir)
            .args(
                rings
                    .into_iter()
                    .flat_map(|rings| [OsStr::new("--rings"), rings.as_os_str()]),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pipe = child.stdout.take();
        let (sender, stages) = mpsc::channel();
        let acknowledged = Arc::new(AtomicU64::new(0));
        let mut writer = Self {
            child,
            stages,
            listener: None,
            acknowledged: Arc::clone(&acknowledged),
        };
        let pipe = pipe.context("the writer has no pipe")?;
        writer.listener = Some(std::thread::spawn(move || {
            listen(
                &mut BufReader::with_capacity(1 << 16, pipe),
                &sender,
                &acknowledged,
            )
        }));
        Ok(writer)
    }

    /// Waits until the writer comes to a stage, or is past it.
    pub(crate) fn wait_for(&self, stage: Message) -> anyhow::Result<()> {
        loop {
            match self.stages.recv_timeout(PATIENCE) {
                Ok(message) if message == stage => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the writer has not come to {stage:?} within {PATIENCE:?}")
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the writer ended by itself before {stage:?}; it has said why above")
                }
            }
        }
    }

    /// Waits until something was acknowledged.
    pub(crate) fn wait_for_acknowledgement(&self) -> anyhow::Result<()> {
        let mut waited = Duration::ZERO;
        while self.acknowledged() == 0 {
            anyhow::ensure!(
                waited < PATIENCE,
                "the writer has acknowledged nothing within {PATIENCE:?}"
            );
            std::thread::sleep(BETWEEN_LOOKS);
            waited += BETWEEN_LOOKS;
        }
        Ok(())
    }

    /// Acknowledgements heard so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        // Relaxed: a figure to watch.
        self.acknowledged.load(Ordering::Relaxed)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL and returns all that it said before.
    pub(crate) fn kill(mut self) -> anyhow::Result<Heard> {
        self.child.kill().context("cannot kill the writer")?;
        let status = self.child.wait().context("cannot wait for the writer")?;
        let listener = self.listener.take().context("the writer has no listener")?;
        let heard = match listener.join() {
            Ok(heard) => heard?,
            Err(_) => bail!("the listening thread panicked"),
        };
        if let Some(code) = status.code() {
            bail!("the writer ended by itself with code {code}; it has said why above");
        }
        Ok(heard)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may be dead and waited for; then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(
    pipe: &mut BufReader<impl std::io::Read>,
    sender: &mpsc::Sender<Message>,
    acknowledged: &AtomicU64,
) -> anyhow::Result<Heard> {
    let mut heard = Heard::default();
    let mut found = [0; THREADS];
    while let Some(message) = Message::read(pipe)? {
        match message {
            Message::Opening => {}
            Message::Found { thread, count } => *slot(&mut found, thread)? = count,
            Message::Open => heard.found = Some(found),
            Message::Acknowledged { thread, count } => {
                *slot(&mut heard.acknowledged, thread)? = count;
                acknowledged.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        }
        // Who does not wait for stages does not care.
        let _ = sender.send(message);
    }
    Ok(heard)
}

fn slot(counts: &mut Counts, thread: usize) -> anyhow::Result<&mut u64> {
    counts
        .get_mut(thread)
        .with_context(|| format!("the writer has no thread {thread}"))
}
