//! One sync of a file for all threads that wait for one.

use parking_lot::{Condvar, Mutex};

use crate::FrontError;

/// Joins the syncs of a file that several threads need at once.
#[derive(Debug, Default)]
pub(crate) struct GroupSync {
    state: Mutex<SyncState>,
    /// Notified when a sync ends.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    /// Syncs that have begun; at most one of them has not ended.
    begun: u64,
    is_running: bool,
    /// The first failure: after it nothing is synced any more.
    failure: Option<FrontError>,
}

impl SyncState {
    /// Syncs that have ended.
    fn ended(&self) -> u64 {
        self.begun - u64::from(self.is_running)
    }
}

impl GroupSync {
    pub(crate) fn is_running(&self) -> bool {
        self.state.lock().is_running
    }

    /// Returns after a sync that began after the call: by this thread with `sync`, or by another one
    /// that has waited as long. A failure is final, and every caller's from then on.
    pub(crate) fn sync(&self, sync: impl FnOnce() -> Result<(), FrontError>) -> Result<(), FrontError> {
        let mut state = self.state.lock();
        // One that is running may have begun before this thread wrote.
        let wanted = state.begun + 1;
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.ended() >= wanted {
                return Ok(());
            }
            if !state.is_running {
                break;
            }
            self.ended.wait(&mut state);
        }
        state.begun += 1;
        state.is_running = true;
        drop(state);
        let done = sync();
        let mut state = self.state.lock();
        state.is_running = false;
        state.failure = done.as_ref().err().cloned();
        self.ended.notify_all();
        done
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    /// Waits until so many threads have asked, of which one syncs.
    fn wait_for_waiters(asked: &AtomicU32, count: u32) {
        while asked.load(Ordering::SeqCst) < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_that_ask_during_a_sync_share_the_next_one() {
        let (group, syncs, asked) = (GroupSync::default(), AtomicU32::new(0), AtomicU32::new(0));
        let (begun, first_begun) = channel();
        let (go, gone) = channel();
        std::thread::scope(|scope| {
            let (group, syncs, asked) = (&group, &syncs, &asked);
            scope.spawn(move || {
                group.sync(|| {
                    begun.send(()).unwrap();
                    gone.recv().unwrap();
                    syncs.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
            });
            first_begun.recv().unwrap();
            let others: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(move || {
                        asked.fetch_add(1, Ordering::SeqCst);
                        let done = group.sync(|| {
                            // All have asked by now, or share a later one.
                            wait_for_waiters(asked, 8);
                            syncs.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        });
                        assert!(done.is_ok());
                        assert!(syncs.load(Ordering::SeqCst) >= 2, "the first sync is not theirs");
                    })
                })
                .collect();
            wait_for_waiters(asked, 8);
            assert_eq!(syncs.load(Ordering::SeqCst), 0);
            go.send(()).unwrap();
            others.into_iter().for_each(|other| other.join().unwrap());
        });
        // The second, and a third where a thread had counted itself and not yet asked.
        assert!(syncs.load(Ordering::SeqCst) <= 3);
    }

    #[test]
    fn a_failure_is_final_and_everyones() {
        let group = GroupSync::default();
        let fail = || {
            Err(FrontError::io("sync", Path::new("f"))(std::io::Error::other(
                "bad",
            )))
        };
        assert!(group.sync(fail).is_err());
        let again = group.sync(|| panic!("a sync is not tried again"));
        assert!(again.unwrap_err().to_string().contains("bad"));
    }
}
