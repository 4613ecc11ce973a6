//! The end of a mount: the signals that request it, and what becomes of a mount that is in use.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use collie_cli::output::note;
use collie_front::{Mount, MountError, detach_dir, unmount_dir};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::users;

/// How long it takes until a mount that was in use is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// SIGTERM and SIGINT, from when they are caught: none is lost between two waits.
pub(super) struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn catch() -> anyhow::Result<Signals> {
        let catch = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let entered = runtime.enter();
            let terminate = signal(SignalKind::terminate())?;
            let interrupt = signal(SignalKind::interrupt())?;
            drop(entered);
            Ok::<_, std::io::Error>(Signals {
                runtime,
                terminate,
                interrupt,
            })
        };
        catch().context("signals cannot be caught")
    }
}

/// Serves until the mount is gone, which is returned. The first signal unmounts, as soon as no
/// process uses the mount; the next one detaches it: then there is none to return, and its users
/// get errors from the end of this process on.
pub(super) fn serve(mount: Mount, signals: Signals) -> anyhow::Result<Option<Mount>> {
    let Signals {
        runtime,
        mut terminate,
        mut interrupt,
    } = signals;
    let mount = Arc::new(mount);
    let (sender, mut gone) = tokio::sync::oneshot::channel();
    let waiting = Arc::clone(&mount);
    // Where the mount is detached the thread waits for its last user: the process does not.
    std::thread::Builder::new()
        .spawn(move || {
            waiting.wait();
            // Before the message, after which no other thread has the mount.
            drop(waiting);
            // Where it is not received, the mount is detached.
            let _ = sender.send(());
        })
        .context("cannot start a thread")?;
    let mut ending = MountEnd::of(&mount);
    let is_gone = runtime.block_on(async {
        loop {
            let is_asked = tokio::select! {
                _ = &mut gone => return true,
                _ = terminate.recv() => true,
                _ = interrupt.recv() => true,
                () = tokio::time::sleep(AGAIN), if ending.is_refused() => false,
            };
            if is_asked {
                ending.asked();
            } else {
                ending.tried(unmount_dir(mount.dir()));
            }
            if ending.stage == Stage::Detached {
                return false;
            }
        }
    });
    Ok(Arc::into_inner(mount).filter(|_| is_gone))
}

/// How far the end of a mount is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serves,
    /// It could not be unmounted: processes use it.
    Refused,
    /// It has no name here. What has its name now is not to be unmounted.
    Unmounted,
    /// Nor is its last user waited for.
    Detached,
}

/// The end of a mount.
struct MountEnd<'a> {
    mount: &'a Mount,
    stage: Stage,
    /// Whether it was reported that not everything is durable.
    is_failure_reported: bool,
}

impl MountEnd<'_> {
    fn of(mount: &Mount) -> MountEnd<'_> {
        MountEnd {
            mount,
            stage: Stage::Serves,
            is_failure_reported: false,
        }
    }

    fn is_refused(&self) -> bool {
        self.stage == Stage::Refused
    }

    /// A signal requests the end.
    fn asked(&mut self) {
        match self.stage {
            Stage::Serves => self.commit_and_unmount(),
            Stage::Refused => {
                self.commit_and_unmount();
                if self.is_refused() {
                    self.detach();
                }
            }
            // Another mount namespace has it, perhaps.
            Stage::Unmounted | Stage::Detached => self.stage = Stage::Detached,
        }
    }

    /// Where not everything can be made durable, that is reported, and nothing else can be done: what
    /// was synced is safe.
    fn commit_and_unmount(&mut self) {
        let done = match self.mount.unmount() {
            Err(MountError::Front(failure)) => {
                if !self.is_failure_reported {
                    note(format_args!(
                        "{}: what was not synced yet cannot be made durable: {failure}; what was synced is safe; \
                         it is unmounted all the same",
                        self.mount.dir().display()
                    ));
                }
                self.is_failure_reported = true;
                unmount_dir(self.mount.dir())
            }
            done => done,
        };
        self.tried(done);
    }

    /// Takes note of an attempt. A refusal is reported once.
    fn tried(&mut self, done: Result<(), MountError>) {
        match done {
            Ok(()) => self.stage = Stage::Unmounted,
            Err(error) => {
                if !self.is_refused() {
                    note(format_args!(
                        "{}; it is tried again until it succeeds; another signal detaches the mount at once",
                        users::busy(self.mount.dir(), std::process::id(), error)
                    ));
                }
                self.stage = Stage::Refused;
            }
        }
    }

    fn detach(&mut self) {
        match detach_dir(self.mount.dir()) {
            Ok(()) => self.stage = Stage::Detached,
            // It is gone, or tried again.
            Err(error) => note(error),
        }
    }
}
