//! How the background threads of a log are called.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::crew::Member;
use crate::lockfree::sync::{AtomicU32, Ordering};
use crate::lockfree::wait_word::WaitWord;

/// Calls one thread, which sleeps between its turns. A call during a turn makes the next one begin
/// at once.
#[derive(Debug)]
pub(crate) struct Signal {
    word: WaitWord,
    /// 1 from a call on, until the thread begins a turn.
    called: AtomicU32,
    /// Who answers where the log has no thread of its own for it.
    member: OnceLock<Arc<Member>>,
}

/// What a thread found at the beginning of a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    word: u32,
    pub(super) called: bool,
}

impl Signal {
    pub(crate) fn new() -> Self {
        Self {
            word: WaitWord::new(),
            called: AtomicU32::new(0),
            member: OnceLock::new(),
        }
    }

    /// From here on calls go to a thread of a set.
    pub(super) fn answered_by(&self, member: Arc<Member>) {
        // A log joins its set once.
        let _ = self.member.set(member);
    }

    /// What the caller wrote before is seen by the turn that follows.
    pub(crate) fn call(&self) {
        if let Some(member) = self.member.get() {
            return member.call();
        }
        // AcqRel: the call that finds 0 wakes the thread, and `begin` sees what came before any of
        // them.
        if self.called.swap(1, Ordering::AcqRel) == 0 {
            self.word.bump();
            self.word.wake(1);
        }
    }

    /// Whether a call is not answered yet. Relaxed: one too many costs a turn.
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed) != 0
    }

    /// Begins a turn.
    pub(super) fn begin(&self) -> Turn {
        let word = self.word.read();
        // AcqRel pairs with `call`.
        let called = self.called.swap(0, Ordering::AcqRel) != 0;
        Turn { word, called }
    }

    /// Sleeps until a call since `turn` began, at most `timeout`. May return early.
    pub(super) fn wait(&self, turn: Turn, timeout: Option<Duration>) {
        self.word.wait(turn.word, timeout);
    }
}
