//! Directories that go with the command that made them, also when a signal ends it.
//!
//! Beside the directory for files there is one for rings in shared memory: what a process that is
//! interrupted, or killed on purpose, leaves there goes as well. Only SIGKILL, or a second signal,
//! leaves both.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use collie_cli::output;
use collie_io::{Device, RealDevice};
use collie_log::RingMode;
use parking_lot::Mutex;
use rustix::process::{WaitOptions, wait};
use tempfile::{Builder, TempDir};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::REMOVER;

/// How this program's own file is called whatever became of its name.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// What is to go.
static PLACES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Whether another part ends the command when a signal comes.
static LEFT_ALONE: AtomicBool = AtomicBool::new(false);

/// A directory for files, and one for rings.
pub(crate) struct Temporary {
    files: Option<TempDir>,
    /// `None` where there is no shared memory; then the log says so itself.
    rings: Option<TempDir>,
    path: PathBuf,
}

impl Temporary {
    /// Makes them, the one for files in `parent`.
    pub(crate) fn new(prefix: &str, parent: &Path) -> anyhow::Result<Self> {
        clean_up_on_signals()?;
        let files = Builder::new()
            .prefix(prefix)
            .tempdir_in(parent)
            .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        let rings = match RingMode::default() {
            RingMode::Shared { dir } => Builder::new().prefix(prefix).tempdir_in(dir).ok(),
            RingMode::Private => None,
        };
        let mut places = PLACES.lock();
        places.push(files.path().to_owned());
        places.extend(rings.iter().map(|rings| rings.path().to_owned()));
        Ok(Self {
            path: files.path().to_owned(),
            files: Some(files),
            rings,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory for rings.
    pub(crate) fn rings(&self) -> Option<&Path> {
        self.rings.as_ref().map(TempDir::path)
    }

    /// A ring of the wanted kind whose file goes with this.
    pub(crate) fn ring(&self, wanted: RingMode) -> RingMode {
        shared_in(self.rings(), wanted)
    }

    /// Leaves both where they are, and says where the one for files is.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.forget();
        for dir in [self.files.take(), self.rings.take()].into_iter().flatten() {
            let _ = dir.keep();
        }
        self.path.clone()
    }

    /// Removes both, and reports a failure.
    pub(crate) fn close(mut self) -> std::io::Result<()> {
        let files = self.files.take().map_or(Ok(()), TempDir::close);
        let rings = self.rings.take().map_or(Ok(()), TempDir::close);
        files.and(rings)
    }

    fn forget(&self) {
        let rings = self.rings();
        PLACES
            .lock()
            .retain(|place| *place != self.path && Some(place.as_path()) != rings);
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.forget();
    }
}

/// `wanted`, its file in `dir` where it is shared and there is one.
pub(crate) fn shared_in(dir: Option<&Path>, wanted: RingMode) -> RingMode {
    match (wanted, dir) {
        (RingMode::Shared { .. }, Some(dir)) => RingMode::Shared { dir: dir.to_owned() },
        (wanted, _) => wanted,
    }
}

/// From now on signals end a server, and what is temporary goes when that has ended.
pub(crate) fn leave_signals_alone() {
    // Relaxed: a signal that comes at this very moment may be taken either way.
    LEFT_ALONE.store(true, Ordering::Relaxed);
}

/// Removes what is temporary when a signal ends the command.
fn clean_up_on_signals() -> anyhow::Result<()> {
    static WATCHED: OnceLock<()> = OnceLock::new();
    if WATCHED.set(()).is_err() {
        return Ok(());
    }
    let cannot = "cannot watch for signals";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context(cannot)?;
    let entered = runtime.enter();
    let mut hangup = signal(SignalKind::hangup()).context(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).context(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).context(cannot)?;
    drop(entered);
    let watch = move || {
        let number = runtime.block_on(async {
            tokio::select! {
                _ = hangup.recv() => 1,
                _ = interrupt.recv() => 2,
                _ = terminate.recv() => 15,
            }
        });
        if LEFT_ALONE.load(Ordering::Relaxed) {
            return;
        }
        let places = PLACES.lock();
        // Other threads may be making files there at this moment: they end with the process's old
        // image.
        let error = Command::new(THIS_PROGRAM)
            .arg(REMOVER)
            .arg((128 + number).to_string())
            .args(&*places)
            .exec();
        output::complain(&anyhow::Error::new(error).context("cannot remove what is temporary"));
        std::process::exit(128 + number);
    };
    std::thread::Builder::new()
        .name("collie-signals".to_owned())
        .spawn(watch)
        .context(cannot)?;
    Ok(())
}

/// Removes what a process has left that became this one, once its children are gone: they may write
/// there until then.
pub(crate) fn remove_and_exit(code: u8, places: &[PathBuf]) -> ! {
    // The kernel signals a writer that its parent is gone, or it finds the pipe closed.
    while wait(WaitOptions::empty()).is_ok() {}
    for place in places {
        // What was mounted there was this process's, and is dead.
        if let Err(error) = collie_sim::faultfs::unmount_below(place) {
            let left = format!("cannot unmount what is in {}", place.display());
            output::complain(&anyhow::Error::new(error).context(left));
        }
        match RealDevice::new().remove_dir_all(place) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let left = format!("cannot remove {}", place.display());
                output::complain(&anyhow::Error::new(error).context(left));
            }
            _ => {}
        }
    }
    // As a shell reports a command that a signal ended.
    std::process::exit(code.into())
}
