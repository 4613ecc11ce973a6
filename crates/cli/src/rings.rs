//! `collie rings`: the rings in shared memory, and the removal of those whose stores are gone.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use collie_cli::Outcome;
use collie_cli::output::{Results, grouped};
use collie_io::RealDevice;
use collie_log::RingMode;
use collie_log::rings::{self, RingState, RingView};
use serde::Serialize;

use crate::args::RingsArgs;

/// A ring, as `--json` shows it.
#[derive(Serialize)]
struct RingLine<'a> {
    ring: &'a Path,
    bytes: u64,
    log: Option<&'a Path>,
    state: &'static str,
    /// Why its state is not known.
    why: Option<&'a str>,
    /// With `--remove-dead`: whether it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<bool>,
}

pub(crate) fn run(args: &RingsArgs) -> anyhow::Result<Outcome> {
    let device = RealDevice::new();
    let mut results = Results::new();
    let mut outcome = Outcome::Good;
    if args.remove_dead {
        for (ring, removed) in rings::remove_dead(&device, &args.ring_dir)? {
            show(&mut results, args.json, &ring, Some(removed.is_ok()))?;
            if let Err(error) = removed {
                outcome = Outcome::Bad;
                collie_cli::output::note(format_args!("cannot remove {}: {error}", ring.path.display()));
            }
        }
    } else {
        for ring in rings::list(&device, &args.ring_dir)? {
            show(&mut results, args.json, &ring, None)?;
        }
    }
    results.flush()?;
    Ok(outcome)
}

fn show(results: &mut Results, json: bool, ring: &RingView, removed: Option<bool>) -> std::io::Result<()> {
    let (state, means, why) = match &ring.state {
        RingState::InUse => ("in use", "in use by a process", None),
        RingState::Left => ("left", "left by a process; the next start reads it", None),
        RingState::Dead => ("dead", "dead: its store is gone", None),
        RingState::Unknown(why) => ("unknown", "unknown", Some(why.as_str())),
        _ => ("unknown", "unknown", None),
    };
    let log = ring.log_dir.as_deref();
    if json {
        return results.json(&RingLine {
            ring: &ring.path,
            bytes: ring.bytes,
            log,
            state,
            why,
            removed,
        });
    }
    let place = log.map_or_else(|| "-".into(), Path::to_string_lossy);
    let means = match removed {
        None => means,
        Some(true) => "removed",
        Some(false) => "not removed",
    };
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    results.line(format_args!(
        "{:>13} bytes  {place}  {means}{why}\n{:>19}  {}",
        grouped(ring.bytes),
        "",
        ring.path.display()
    ))
}

/// How long a start waits for the file systems of other stores, of which one may hang.
const PATIENCE: Duration = Duration::from_secs(1);

/// The message of a start about dead rings beside its own, if there are any.
pub(crate) fn dead_line(ring: &RingMode) -> Option<String> {
    let RingMode::Shared { dir } = ring else {
        return None;
    };
    let of = dir.clone();
    // A start needs none of this: what cannot be listed is not named.
    let look = move || rings::dead(&RealDevice::new(), &of).unwrap_or_default();
    let dir = dir.display();
    let Some(dead) = within(PATIENCE, look) else {
        return Some(format!(
            "it is not known whether rings in {dir} are of stores that are gone: the file system of one does not answer"
        ));
    };
    if dead.is_empty() {
        return None;
    }
    let bytes: u64 = dead.iter().map(|ring| ring.bytes).sum();
    Some(format!(
        "rings of stores that are gone take {} bytes of memory in {dir} ({} of them): `collie rings --ring-dir {dir}` \
         lists them, and removes them with --remove-dead",
        grouped(bytes),
        dead.len()
    ))
}

/// What `look` finds, if it does within that time. Its thread is left otherwise: nothing ends a
/// call to a file system that hangs.
fn within<T: Send + 'static>(patience: Duration, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, found) = mpsc::channel();
    let thread = std::thread::Builder::new().name("collie-rings".to_owned());
    // What comes too late is not received.
    thread.spawn(move || drop(sender.send(look()))).ok()?;
    found.recv_timeout(patience).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every start waited for the file systems of all stores that had left a ring.
    #[test]
    fn a_look_that_does_not_end_is_not_waited_for() {
        assert_eq!(within(Duration::MAX, || 1), Some(1));
        let (end, hangs) = mpsc::channel::<()>();
        let look = move || hangs.recv().is_ok();
        assert_eq!(within(Duration::from_millis(1), look), None);
        drop(end);
    }
}
