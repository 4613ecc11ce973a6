//! Waiting for a daemon that may be stopped: a call into its mount does not return before it answers,
//! and cannot be taken back.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, bail};

/// Its message is on standard error.
const PANICKED: &str = "a thread panicked";

/// Starts `work` on a thread of its own, which a process may leave behind at its end.
fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<Receiver<T>> {
    let (sender, done) = channel();
    std::thread::Builder::new()
        .spawn(move || {
            // Where it is not received, the process ends.
            let _ = sender.send(work());
        })
        .context("cannot start a thread")?;
    Ok(done)
}

/// Does `work`, and fails with `why` where that takes longer.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    why: impl FnOnce() -> String,
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    match start(work)?.recv_timeout(limit) {
        Ok(done) => Ok(done),
        Err(RecvTimeoutError::Timeout) => bail!(why()),
        Err(RecvTimeoutError::Disconnected) => bail!(PANICKED),
    }
}

/// Does `work`, however long it takes; after some time calls `say` once.
pub(super) fn with_notice<T: Send + 'static>(
    notice_after: Duration,
    say: impl FnOnce(),
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    let answer = start(work)?;
    match answer.recv_timeout(notice_after) {
        Ok(done) => return Ok(done),
        Err(RecvTimeoutError::Timeout) => say(),
        Err(RecvTimeoutError::Disconnected) => bail!(PANICKED),
    }
    answer.recv().context(PANICKED)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const NONE: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn what_does_not_answer_is_left_behind() {
        let (_never, wait) = channel::<()>();
        let error = within(NONE, || "it is stopped".into(), move || wait.recv()).unwrap_err();
        assert_eq!(error.to_string(), "it is stopped");
        assert_eq!(within(LONG, String::new, || 7).unwrap(), 7);
    }

    #[test]
    fn what_takes_long_is_noticed_and_waited_for() {
        let (answer, wait) = channel();
        let mut notices = 0;
        let say = || {
            notices += 1;
            answer.send(7).unwrap();
        };
        assert_eq!(with_notice(NONE, say, move || wait.recv().unwrap()).unwrap(), 7);
        assert_eq!(notices, 1);
        assert_eq!(with_notice(LONG, || panic!("no notice is due"), || 7).unwrap(), 7);
    }
}
