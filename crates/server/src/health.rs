//! Whether writes are accepted, as `/healthz`, `/metrics` and `INFO` report it.
//!
//! The results of the writes decide: the first refused write sets the state to refusing, the next
//! accepted write that adds data resets it. An accepted removal changes nothing, because the engine
//! keeps space for removals when it has none left for data. Where nothing is written, the
//! engine's statistics show whether it has room again. An error of the request itself (too large, wrong
//! type) does not count as a refusal.

use std::sync::atomic::{AtomicBool, Ordering};

use collie_db::{Error as DbError, Stats};
use parking_lot::Mutex;

/// Whether a write adds data or removes some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Adds,
    Removes,
}

/// The outcome of the latest writes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Taken,
    /// Refused for this reason, until one is accepted.
    Refused(String),
    /// The log or a flush has failed: refused until the store is opened again.
    Failed(String),
}

/// Tracks whether writes are accepted, by the results of the latest ones.
#[derive(Debug)]
pub(crate) struct WriteHealth {
    state: Mutex<State>,
    /// Whether `state` is other than `Taken`, so that accepted writes need not lock it. It is set
    /// and cleared under the lock; a writer that reads it late leaves the reset to the next writer,
    /// so its accesses are Relaxed.
    is_refusing: AtomicBool,
}

impl Default for WriteHealth {
    fn default() -> WriteHealth {
        WriteHealth {
            state: Mutex::new(State::Taken),
            is_refusing: AtomicBool::new(false),
        }
    }
}

impl WriteHealth {
    /// Records the outcome of a write, and returns it.
    pub(crate) fn note<T>(&self, effect: Effect, written: Result<T, DbError>) -> Result<T, DbError> {
        match &written {
            Ok(_) if effect == Effect::Adds => self.taken(),
            Ok(_) => {}
            Err(error) => self.refused(error),
        }
        written
    }

    fn taken(&self) {
        if !self.is_refusing.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        if let State::Refused(reason) = &*state {
            tracing::info!(%reason, "writes are taken again");
            *state = State::Taken;
            self.is_refusing.store(false, Ordering::Relaxed);
        }
    }

    /// Records why a write is refused, or why an accepted one will not become durable.
    pub(crate) fn refused(&self, error: &DbError) {
        let next = match error {
            DbError::Poisoned { .. } | DbError::Background { .. } => State::Failed(error.to_string()),
            DbError::StorageFull { .. } | DbError::Unprepared { .. } => State::Refused(error.to_string()),
            _ => return,
        };
        self.refuse(next);
    }

    fn refuse(&self, next: State) {
        let mut state = self.state.lock();
        match &*state {
            // The first cause is the most informative.
            State::Failed(_) => return,
            State::Refused(_) => {}
            State::Taken => tracing::warn!(state = ?next, "writes are refused"),
        }
        *state = next;
        self.is_refusing.store(true, Ordering::Relaxed);
    }

    /// Why writes are refused, or `None`. `engine`: the engine's statistics, since it may have
    /// failed, or found room, while there were no writes.
    pub(crate) fn refusal(&self, engine: Option<&Stats>) -> Option<String> {
        match &*self.state.lock() {
            State::Taken => engine.and_then(|stats| stats.refusal.clone()),
            State::Refused(_) if engine.is_some_and(|stats| stats.no_room.is_none()) => {
                engine.and_then(|stats| stats.refusal.clone())
            }
            State::Refused(reason) | State::Failed(reason) => Some(reason.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Result<(), DbError> {
        Err(DbError::StorageFull {
            needed: "no room".to_owned(),
            path: "a device".into(),
        })
    }

    #[test]
    fn a_refusal_sets_the_state_until_a_write_adds_something() {
        let health = WriteHealth::default();
        assert_eq!(health.refusal(None), None);
        assert!(health.note(Effect::Adds, full()).is_err());
        assert!(health.refusal(None).unwrap().contains("no room"));
        // The engine has space for removals when it has none for data.
        health.note(Effect::Removes, Ok(())).unwrap();
        assert!(health.refusal(None).is_some());
        health.note(Effect::Adds, Ok(())).unwrap();
        assert_eq!(health.refusal(None), None);
    }

    #[test]
    fn errors_of_a_request_are_no_refusal() {
        let health = WriteHealth::default();
        for error in [DbError::BatchTooLarge { size: 2, limit: 1 }, DbError::Closed] {
            assert!(health.note::<()>(Effect::Adds, Err(error)).is_err());
        }
        assert_eq!(health.refusal(None), None);
    }

    #[test]
    fn a_failed_log_stays_failed() {
        let health = WriteHealth::default();
        let poisoned = DbError::Poisoned {
            cause: "a sync failed".into(),
        };
        assert!(health.note::<()>(Effect::Adds, Err(poisoned)).is_err());
        health.note(Effect::Adds, Ok(())).unwrap();
        let _ = health.note(Effect::Adds, full());
        assert!(health.refusal(None).unwrap().contains("a sync failed"));
    }
}
