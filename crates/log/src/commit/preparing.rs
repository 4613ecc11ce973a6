//! The background preparer's duty: room for what will be appended, and the release of what nothing
//! retains.

use std::sync::Arc;

use super::duty::{Duty, Next, RETRY};
use crate::core::Core;
use crate::error::{Fatal, LogError};
use crate::segments::archive::Archive;

/// Keeps one segment's worth of room prepared, and releases what no holder retains.
pub(super) struct Preparing {
    core: Arc<Core>,
    /// What was said in the program's log: once as long as it stays the same.
    warned: Option<String>,
}

impl Duty for Preparing {
    fn turn(&mut self, _called: bool) -> Next {
        let core = &self.core;
        if core.check().is_err() {
            return Next::Stop;
        }
        match core.release().and_then(|()| core.prepare_ahead()) {
            Ok(()) => {
                self.warned = None;
                core.note_prepared(&Ok(()));
                Next::Sleep(core.segments.archive().map(Archive::interval))
            }
            Err(error) => {
                // Also where nothing can be released room is prepared.
                let prepared = core.prepare_ahead();
                core.note_prepared(&prepared);
                self.warn_once(&prepared.err().unwrap_or(error));
                // The cause may go without telling us.
                Next::Sleep(Some(RETRY))
            }
        }
    }

    fn interval_passed(&mut self) -> bool {
        true
    }

    fn abandon(&self) {
        self.core.poison(&Fatal::unfinished(super::background::PANICKED));
    }
}

impl Preparing {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::clone(core),
            warned: None,
        }
    }

    fn warn_once(&mut self, error: &LogError) {
        let text = error.to_string();
        if self.warned.as_ref() != Some(&text) && self.core.check().is_ok() {
            let dir = self.core.dir.display();
            tracing::warn!(%dir, error = text, "segments cannot be prepared or released; it is tried again");
            self.warned = Some(text);
        }
    }
}
