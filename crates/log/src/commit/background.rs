//! The background threads: one flushes what no thread waits for, one prepares and releases
//! segments, and where writes go to the page cache one writes while the first one syncs. They are
//! the log's own, or those of its [set](crate::LogSet).

use std::sync::Arc;

use super::crew::{Member, Role};
use super::duty::{Duty, Next};
use super::flushing::{Flushing, Writing};
use super::preparing::Preparing;
use super::signal::Signal;
use crate::core::Core;
use crate::error::{At, LogError};
use crate::lockfree::sync::{Builder, JoinHandle, Mutex, current, lock};
use crate::options::LogOptions;
use crate::set::LogSet;

/// Without its background threads a log would neither flush nor prepare: better to say so at once.
pub(super) const PANICKED: &str = "a background thread of the log panicked";

/// Who works for an open log in the background.
#[derive(Debug)]
pub(crate) struct Background {
    workers: Mutex<Workers>,
    running: bool,
}

#[derive(Debug, Default)]
struct Workers {
    threads: Vec<JoinHandle<()>>,
    members: Vec<Arc<Member>>,
}

impl Background {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Self, LogError> {
        let LogOptions { threads, set, .. } = &core.options;
        let mut workers = Workers::default();
        if *threads {
            let started = match set {
                Some(set) => workers.join(core, set),
                None => workers.spawn(core),
            };
            if let Err(error) = started {
                core.stop();
                workers.end();
                return Err(error);
            }
        }
        Ok(Self {
            running: *threads,
            workers: Mutex::new(workers),
        })
    }

    /// Has released segments dealt with; without threads, here and now.
    pub(crate) fn release(&self, core: &Core) {
        if self.running {
            core.preparer.call();
        } else if let Err(error) = core.release() {
            tracing::warn!(%error, "cannot release segments");
        }
    }

    /// In a child of the process that started them: the threads are not there.
    pub(crate) fn forget(&self) {
        std::mem::forget(std::mem::take(&mut *lock(&self.workers)));
    }

    /// Waits until none of them works for the log; it was stopped before. Where one of them closes
    /// the log, as the last handle went with a task's waker, that one ends when it comes back from
    /// there.
    pub(crate) fn join(&self) {
        let workers = std::mem::take(&mut *lock(&self.workers));
        workers.end();
    }
}

type Duties = Vec<(Role, Box<dyn Duty>)>;

/// The duties of a log.
fn duties(core: &Arc<Core>) -> Result<Duties, LogError> {
    let mut duties: Duties = vec![
        (Role::Flush, Box::new(Flushing::new(core)?)),
        (Role::Prepare, Box::new(Preparing::new(core))),
    ];
    if !core.segments.direct() {
        duties.push((Role::Write, Box::new(Writing(Arc::clone(core)))));
    }
    Ok(duties)
}

/// By which it is called.
fn signal(core: &Core, role: Role) -> &Signal {
    match role {
        Role::Flush => &core.flusher,
        Role::Write => &core.writer,
        Role::Prepare => &core.preparer,
    }
}

impl Workers {
    /// Threads of the log's own.
    fn spawn(&mut self, core: &Arc<Core>) -> Result<(), LogError> {
        for (role, duty) in duties(core)? {
            let own = Arc::clone(core);
            let thread = Builder::new()
                .name(role.thread_name().to_owned())
                .spawn(move || work(&own, role, duty))
                .at("start a thread for", &core.dir)?;
            self.threads.push(thread);
        }
        Ok(())
    }

    /// Those of a set.
    fn join(&mut self, core: &Arc<Core>, set: &LogSet) -> Result<(), LogError> {
        for (role, duty) in duties(core)? {
            let member = set.crew(role).join(duty);
            signal(core, role).answered_by(Arc::clone(&member));
            self.members.push(member);
        }
        Ok(())
    }

    fn end(self) {
        let own = current().id();
        for thread in self.threads {
            if thread.thread().id() != own && thread.join().is_err() {
                tracing::error!("{PANICKED}");
            }
        }
        self.members.iter().for_each(Member::leave);
    }
}

/// The life of a thread of the log's own.
fn work(core: &Core, role: Role, duty: Box<dyn Duty>) {
    let mut duty = AbandonOnPanic(duty);
    role.begin();
    let signal = signal(core, role);
    loop {
        let turn = signal.begin();
        match duty.0.turn(turn.called) {
            Next::Stop => return,
            Next::Again => {}
            Next::Sleep(time) => {
                let before = core.now();
                signal.wait(turn, time);
                let is_short = time.is_none_or(|time| u128::from(core.now() - before) < time.as_nanos());
                // A clock that stands still says nothing of the time: then it is the call that tells.
                if !(signal.is_called() && is_short) {
                    duty.0.interval_passed();
                }
            }
        }
    }
}

struct AbandonOnPanic(Box<dyn Duty>);

impl Drop for AbandonOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abandon();
        }
    }
}
