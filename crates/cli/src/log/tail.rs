//! `collie log tail`: durable frames, from outside the process that writes them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use collie_cli::Outcome;
use collie_cli::output::{self, Results};
use collie_io::Device;
use collie_log::follow::{Followed, Follower};
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::signal::unix::{SignalKind, signal};

use super::frames::{FrameLine, Shown, frame_heading, frame_text, hex};

/// How long to wait for more frames after a read without any: doubled each time, up to the second
/// value.
const WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// The options of the command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) from: Option<u64>,
    pub(super) follow: bool,
    pub(super) json: bool,
    pub(super) shown: Shown,
}

pub(super) fn tail(device: &Arc<dyn Device>, dir: &Path, wanted: Wanted) -> anyhow::Result<Outcome> {
    let stopped = watch_signals()?;
    let mut follower = Follower::open(device, dir, wanted.from)?;
    let mut results = Results::new();
    if !wanted.json {
        results.line(frame_heading())?;
    }
    let mut frames = 0_u64;
    let mut wait = WAIT.0;
    // Relaxed: it orders nothing.
    while !stopped.load(Ordering::Relaxed) {
        let next = if wanted.follow {
            follower.poll()
        } else {
            follower.poll_to_end()
        };
        // Frames are written out before an error is reported.
        if !matches!(next, Ok(Some(_))) {
            results.flush()?;
        }
        match next? {
            Some(followed) => {
                print(&mut results, &followed, wanted)?;
                frames += 1;
                wait = WAIT.0;
            }
            None if wanted.follow => {
                if listener_is_gone(wait)? {
                    return Ok(Outcome::Good);
                }
                wait = (2 * wait).min(WAIT.1);
            }
            None => break,
        }
    }
    results.flush()?;
    output::note(format_args!(
        "{frames} frames; what follows begins at --from {}",
        follower.resume_at()
    ));
    Ok(Outcome::Good)
}

fn print(results: &mut Results, followed: &Followed, wanted: Wanted) -> std::io::Result<()> {
    let line = line_of(followed, wanted.shown);
    if wanted.json {
        results.json(&line)
    } else {
        let payload = &followed.frame.payload;
        results.line(frame_text(&line, payload, wanted.shown))
    }
}

fn line_of(followed: &Followed, shown: Shown) -> FrameLine<'_> {
    let frame = &followed.frame;
    FrameLine {
        lsn: frame.start,
        end: frame.end,
        epoch: followed.epoch,
        durable_mark: followed.durable_mark,
        stream: frame.stream,
        kind: frame.kind,
        kind_name: "data",
        len: frame.payload.len(),
        segment: Some(followed.segment.to_string_lossy()),
        offset: Some(followed.offset),
        payload: (shown == Shown::Payload).then(|| hex(&frame.payload)),
    }
}

/// Waits for a time; returns whether the reader of the results' pipe has closed it meanwhile. A
/// tail that has nothing to print would not notice that otherwise.
fn listener_is_gone(wait: Duration) -> anyhow::Result<bool> {
    let stdout = rustix::stdio::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    let wait = Timespec::try_from(wait).context("cannot wait")?;
    match rustix::event::poll(&mut watched, Some(&wait)) {
        // A signal's handler ran; the caller checks the flag.
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error).context("cannot wait"),
    }
    let closed = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    Ok(watched.iter().any(|fd| fd.revents().intersects(closed)))
}

/// A flag that SIGINT and SIGTERM set, so that the tail ends at a frame at which it can be resumed.
fn watch_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let cannot = "cannot watch for signals";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context(cannot)?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).context(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).context(cannot)?;
    drop(entered);
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    let watch = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        flag.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new()
        .name("collie-signals".to_owned())
        .spawn(watch)
        .context(cannot)?;
    Ok(stopped)
}
