//! Whether writes are taken: what `/healthz`, `/metrics` and `INFO` tell.
//!
//! Nobody asks the engine for it, for the engine refuses for several reasons and some of them pass: the writes
//! themselves tell. The first that is refused makes the server ill, the first that is taken afterwards makes it well.
//! A removal that is taken changes nothing: the engine keeps room for removals where it has none for more data.
//! What was wrong with the request (too large, not of the type) is no refusal in this sense.

use std::sync::atomic::{AtomicBool, Ordering};

use collie_db::{Error as DbError, Stats};
use parking_lot::Mutex;

/// What a write does to the size of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Adds,
    Removes,
}

/// What became of the latest writes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Taken,
    /// Refused, for this reason, until one is taken.
    Refused(String),
    /// The log or a flush has failed: refused until the store is opened again.
    Failed(String),
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct WriteHealth {
    state: Mutex<State>,
    /// Whether `state` is another than taken, so that writes which are taken need not lock it. Set and cleared under the
    /// lock; a writer that sees it late leaves the clearing to the next: Relaxed.
    is_ill: AtomicBool,
}

impl Default for WriteHealth {
    fn default() -> WriteHealth {
        WriteHealth {
            state: Mutex::new(State::Taken),
            is_ill: AtomicBool::new(false),
        }
    }
}

impl WriteHealth {
    /// Notes what became of a write, and hands it on.
    pub(crate) fn note<T>(&self, effect: Effect, written: Result<T, DbError>) -> Result<T, DbError> {
        match &written {
            Ok(_) if effect == Effect::Adds => self.taken(),
            Ok(_) => {}
            Err(error) => self.refused(error),
        }
        written
    }

    fn taken(&self) {
        if !self.is_ill.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        if let State::Refused(reason) = &*state {
            tracing::info!(%reason, "writes are taken again");
            *state = State::Taken;
            self.is_ill.store(false, Ordering::Relaxed);
        }
    }

    /// Notes why a write is refused, or why one that was taken will not become durable.
    pub(crate) fn refused(&self, error: &DbError) {
        let next = match error {
            DbError::Poisoned { .. } | DbError::Background { .. } => State::Failed(error.to_string()),
            DbError::StorageFull { .. } | DbError::Unprepared { .. } => State::Refused(error.to_string()),
            _ => return,
        };
        self.become_ill(next);
    }

    fn become_ill(&self, next: State) {
        let mut state = self.state.lock();
        match &*state {
            // The first cause says most.
            State::Failed(_) => return,
            State::Refused(_) => {}
            State::Taken => tracing::warn!(state = ?next, "writes are refused"),
        }
        *state = next;
        self.is_ill.store(true, Ordering::Relaxed);
    }

    /// Why writes are refused, if they are. `engine`: what the engine says of itself, which may have failed with nobody
    /// writing.
    pub(crate) fn refusal(&self, engine: Option<&Stats>) -> Option<String> {
        match &*self.state.lock() {
            State::Taken => engine.and_then(|stats| stats.refusal.clone()),
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
    fn the_first_refusal_makes_ill_and_the_first_write_that_adds_makes_well() {
        let health = WriteHealth::default();
        assert_eq!(health.refusal(None), None);
        assert!(health.note(Effect::Adds, full()).is_err());
        assert!(health.refusal(None).unwrap().contains("no room"));
        // There is room for removals when there is none for more.
        health.note(Effect::Removes, Ok(())).unwrap();
        assert!(health.refusal(None).is_some());
        health.note(Effect::Adds, Ok(())).unwrap();
        assert_eq!(health.refusal(None), None);
    }

    #[test]
    fn what_clients_do_wrong_is_no_illness() {
        let health = WriteHealth::default();
        for error in [DbError::BatchTooLarge { size: 2, limit: 1 }, DbError::Closed] {
            assert!(health.note::<()>(Effect::Adds, Err(error)).is_err());
        }
        assert_eq!(health.refusal(None), None);
    }

    #[test]
    fn a_log_that_failed_stays_so() {
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
