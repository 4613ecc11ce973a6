//! Programs that are run to their end, unless the measurement is to stop.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_io::{Clock, RealClock};

use crate::error::{At, BenchError};

/// How often it is looked whether a program has ended.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Asks a measurement to stop from another thread; clones ask the same one.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// The measurement ends soon, with [`BenchError::Interrupted`], and takes away what it made.
    pub fn request(&self) {
        // Relaxed: it orders nothing.
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn check(&self) -> Result<(), BenchError> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(BenchError::Interrupted),
            false => Ok(()),
        }
    }

    /// Runs a program to its end and returns what it printed.
    pub(crate) fn run(&self, command: &mut Command) -> Result<String, BenchError> {
        self.check()?;
        Running::start(command)?.end(self)
    }
}

/// A program that runs, and is killed where nothing waits for its end.
#[derive(Debug)]
pub(crate) struct Running {
    what: String,
    child: Child,
    /// Both of its outputs go to a file, which takes however much there is.
    said: tempfile::NamedTempFile,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self, BenchError> {
        let what = command.get_program().to_string_lossy().into_owned();
        let path = Path::new(&what);
        let said = tempfile::NamedTempFile::new().at("keep what is said by", path)?;
        let output =
            |file: &tempfile::NamedTempFile| file.as_file().try_clone().at("keep what is said by", path);
        command
            .stdin(Stdio::null())
            .stdout(output(&said)?)
            .stderr(output(&said)?);
        let child = command.spawn().at("run", path)?;
        Ok(Self { what, child, said })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// All that it has said so far.
    pub(crate) fn said(&self) -> String {
        super::read(self.said.path())
    }

    /// The status that it ended with, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, BenchError> {
        self.child.try_wait().at("wait for", Path::new(&self.what))
    }

    /// Waits until a time of the wall clock, in microseconds; an error where it ends before.
    pub(crate) fn watch_until(&mut self, wall_us: u64, interrupt: &Interrupt) -> Result<(), BenchError> {
        while RealClock.wall_us() < wall_us {
            if let Some(status) = self.ended()? {
                return Err(self.failed(&format!("it ended too early, with {status}")));
            }
            interrupt.check()?;
            std::thread::sleep(BETWEEN_LOOKS);
        }
        interrupt.check()
    }

    /// Waits for its end, and returns what it said.
    pub(crate) fn end(mut self, interrupt: &Interrupt) -> Result<String, BenchError> {
        loop {
            match self.ended()? {
                Some(status) if status.success() => return Ok(self.said()),
                Some(status) => return Err(self.failed(&status.to_string())),
                None => {}
            }
            interrupt.check()?;
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    fn failed(&self, how: &str) -> BenchError {
        BenchError::Program {
            program: self.what.clone(),
            said: format!("{how}\n{}", self.said().trim_end()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // It has ended meanwhile, or is killed: either way there is no more to do.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
