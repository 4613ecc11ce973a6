//! What a round's threads note for the report.

use std::time::Duration;

use collie_sim::Effects;
use parking_lot::Mutex;

use super::disks::add;

/// A time during which a node was in trouble that the others need not be in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Writes that were acknowledged to the clients.
    pub(crate) writes: u64,
    pub(crate) span: Duration,
}

impl Window {
    pub(crate) fn per_s(&self) -> f64 {
        self.writes as f64 / self.span.as_secs_f64().max(1e-3)
    }
}

/// What was done to nodes, and what came of it, each by the name of the fault.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) struck: Mutex<Vec<&'static str>>,
    /// Times without a successful write to the keys whose leader a fault hit; `None`: there was none
    /// within the patience, or before the round ended.
    pub(crate) silences: Mutex<Vec<(&'static str, Option<Duration>)>>,
    pub(crate) windows: Mutex<Vec<(&'static str, Window)>>,
    /// What power cuts left of what was not synced.
    pub(crate) effects: Mutex<Effects>,
}

impl Notes {
    pub(crate) fn struck(&self, name: &'static str) {
        self.struck.lock().push(name);
    }

    pub(crate) fn silence(&self, name: &'static str, silence: Option<Duration>) {
        self.silences.lock().push((name, silence));
    }

    pub(crate) fn went_on(&self, name: &'static str, writes: u64, span: Duration) {
        self.windows.lock().push((name, Window { writes, span }));
    }

    pub(crate) fn cut(&self, effects: Effects) {
        add(&mut self.effects.lock(), effects);
    }
}
