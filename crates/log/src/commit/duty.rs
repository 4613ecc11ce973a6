//! What a background thread does for a log, in turns: so that a thread of its own can do it, and one
//! that many logs share ([`Crew`](super::crew::Crew)).

use std::time::Duration;

/// How long after a failure what may pass is tried again.
pub(crate) const RETRY: Duration = Duration::from_millis(100);

/// A background thread's work for one log. One thread at a time has its turn.
pub(crate) trait Duty: Send {
    /// Does what there is to do. `called`: a call came since the turn before.
    fn turn(&mut self, called: bool) -> Next;

    /// The time that the last turn gave has passed without a call. Whether there is something to do
    /// for the next turn; a thread of its own takes that anyway.
    fn interval_passed(&mut self) -> bool;

    /// A turn panicked: there is no further one, and the log must not go on without.
    fn abandon(&self);
}

/// How a duty goes on after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The log has stopped: never again.
    Stop,
    /// There may be more to do.
    Again,
    /// With the next call, or when so much time has passed.
    Sleep(Option<Duration>),
}
