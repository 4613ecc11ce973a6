//! How a command becomes an entry of the log, exactly once: runs of proposals.
//!
//! A leader computes what a command changes (its *effects*), and proposes that. The effects were
//! computed on everything that was submitted before them, so they are right only if all of that is
//! applied before them, and nothing else is. Raft does not promise that: single proposals are
//! refused in the middle of a term, and a leader that was deposed goes on for a while. Here is what
//! makes it so, without I/O, clocks or tasks.
//!
//! Rules, and what happens without them:
//!
//! 1. A command notes leader and run under its row locks, and reads overlay before table. A row leaves the overlay
//!    once the table shows it. *Else an entry applied in between is missed.*
//! 2. It is submitted to the run of its evaluation, in number order, or evaluated anew. *Else it counts on a
//!    refused entry.*
//! 3. Apply takes the run's next number, the first of that leader's later run, or another leader's first. Its
//!    leader must have computed it. *Else an entry behind a gap counts what is missing.*
//! 4. A run's first entry names the last one taken; apply compares and records. *Else the next run overwrites what
//!    raft called refused.*
//! 5. An entry not taken ends its run: overlay dropped, commands begin anew. *Else the next run reads refused
//!    values.*
//! 6. The next run begins once every entry is applied or was refused. *Else its first entry is skipped.*
//! 7. TRYAGAIN only after a refusal or skip; else UNKNOWN, connection closed. *Else clients repeat what still
//!    commits.*
//! 8. A read confirms leadership after evaluation, and waits for pending entries it saw. *Else a deposed leader
//!    answers with old state.*
//! 9. A GET in a pipeline is evaluated in place; a lone GET reads at the read index. *Else it misses the increment
//!    before it.*
//! 10. A COLLIE.ONCE record is a row, read through the overlay. *Else a repeated pending command counts twice.*
//! 11. An entry that splits the group is the last of its run, and alone. *Else what was evaluated before it is taken
//!     behind it.*
//! 12. A read of an expired key waits for an entry stamped behind the expiry. *Else a later leader shows the key
//!     again.*
//!
//! Rule 4 (apply compares what a run's first entry names) and rule 6 (the next run waits for all
//! entries of the last) each keep data right without the other. Without rule 6 clients see needless
//! TRYAGAINs; without rule 4 data hangs on what raft says about refusals. So both stay, and the model
//! demands that the first entry of a run is never skipped, apart from schedules in which its raft
//! lies about a refusal.
//!
//! * [`Leading`]: the leader's side of one replica: its runs, and the *overlay* of effects that are
//!   submitted and not applied yet.
//! * [`decide`]: the apply side: whether an entry continues what was taken before it.
//! * [`PendingReply`]: what a reply still waits for, and the answer to the client.

mod answer;
mod apply;
mod evaluation;
mod header;
mod leading;

pub use answer::{Answer, PendingReply, Todo};
pub use apply::{Decision, Skip, decide};
pub use evaluation::{Attempt, Effects, Evaluated, NotOpen, NotSubmitted, Stale, Standing};
pub use header::{HEADER, Header, Malformed, RECORDED, Recorded};
pub use leading::{EntryFate, Leading, Outcome, Proposal};

use std::fmt;

use crate::ids::LeaderId;

/// The entries that one leader proposes, each of which continues the one before it. When one of
/// them is not taken, the run is over, and a new one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunId {
    /// Who leads. Compared for equality only.
    pub leader: LeaderId,
    /// The number of the run among that leader's, from 1 on.
    pub run: u32,
}

/// An entry that was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The run that it belongs to.
    pub run: RunId,
    /// Its place in the run, from 1 on.
    pub n: u32,
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {} in {}", self.run, self.leader)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proposal {} of {}", self.n, self.run)
    }
}
