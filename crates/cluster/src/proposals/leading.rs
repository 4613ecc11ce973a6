//! The leader's side of one replica.

use std::collections::{BTreeSet, VecDeque};
use std::hash::Hash;

use parking_lot::Mutex;

use crate::ids::{EntryId, LeaderId};
use crate::proposals::evaluation::{
    Attempt, Effects, Evaluated, NotOpen, NotSubmitted, Overlay, Stale, Standing,
};
use crate::proposals::{Decision, Header, Recorded, RunId, Ticket};

/// What a replica proposes while it leads, for rows `R` with values `V`; `P` goes with each entry.
///
/// Its lock is the replica's one submit lock; it is never held during a call of the caller's code.
/// Callers hold the locks of the rows that their command touches from [`begin`](Self::begin) to
/// [`finish`](Self::finish).
#[derive(Debug)]
pub struct Leading<R, V, P> {
    state: Mutex<LeadingState<R, V, P>>,
    /// So many entries may be without an outcome.
    pending_max: usize,
}

#[derive(Debug)]
struct LeadingState<R, V, P> {
    phase: Phase<R, V>,
    /// What is to be proposed, in the order of submission, whatever became of its run since: raft
    /// or apply says what becomes of it.
    queue: VecDeque<Proposal<P>>,
    /// The newest stamp that was submitted here, or taken before the replica led.
    newest_ms: u64,
    /// The newest stamp that was taken: no later leader's time is before it.
    taken_ms: u64,
}

#[derive(Debug)]
enum Phase<R, V> {
    /// The replica does not lead, or has not applied the blank entry that begins its term.
    Following,
    /// A run takes entries.
    Open(Progress, Overlay<R, V>),
    /// An entry of the run was not taken. Nothing begins until nothing of it can come any more.
    Ending(Progress),
}

/// How far a run is.
#[derive(Debug)]
struct Progress {
    id: RunId,
    /// See [`Header::base`].
    base: u64,
    /// The number of its last entry.
    submitted: u32,
    /// The number of the last entry that was taken: all before it were, too.
    taken: u32,
    /// The index of the last entry that was taken, of this run or before it.
    taken_index: u64,
    /// Entries that were neither applied here nor refused before they were appended.
    unresolved: BTreeSet<u32>,
    /// The last entry of the run before that was taken: one who has seen it may ask for it late.
    before: Option<Ticket>,
    /// An entry was not taken: none behind it will be.
    is_lost: bool,
}

impl Progress {
    fn first(leader: LeaderId, taken_index: u64) -> Self {
        Self::of(RunId { leader, run: 1 }, taken_index)
    }

    fn of(id: RunId, taken_index: u64) -> Self {
        Self {
            id,
            base: taken_index,
            submitted: 0,
            taken: 0,
            taken_index,
            unresolved: BTreeSet::new(),
            before: None,
            is_lost: false,
        }
    }
}

/// An entry to propose, under its leader id and no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal<P> {
    /// What stands before the effects.
    pub header: Header,
    /// What its effects were submitted with.
    pub payload: P,
}

/// What is learned of an entry that was proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Applied here, and taken.
    Taken,
    /// Applied here, and skipped.
    Skipped,
    /// Raft did not append it: it named another leader, or its lease was over.
    Refused,
    /// Raft's log here does not hold it any more. Others may, and may still commit it.
    Discarded,
    /// Raft ended.
    Fatal,
    /// The task that knew has ended.
    Dropped,
    /// It took too long. What becomes of it is learned later; its run goes on.
    TimedOut,
}

/// What is known of an entry that a read saw pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryFate {
    /// It is applied here.
    Taken,
    /// Nothing yet.
    Waiting,
    /// Its run is over, and this replica will not say that the entry was taken.
    Lost,
}

impl<R: Hash + Ord + Clone, V: Clone, P> Leading<R, V, P> {
    /// Of a replica that does not lead. At most `pending_max` entries may be without an outcome.
    #[must_use]
    pub fn new(pending_max: usize) -> Self {
        Self {
            state: Mutex::new(LeadingState {
                phase: Phase::Following,
                queue: VecDeque::new(),
                newest_ms: 0,
                taken_ms: 0,
            }),
            pending_max,
        }
    }

    /// The replica has applied the blank entry with which it leads; `recorded` is the last entry
    /// that was taken up to there. Apply calls this, between that entry and the next. After a
    /// restart it may be the blank entry of a term that is long over: raft refuses what is proposed
    /// in it, and confirms no read.
    pub fn lead(&self, leader: LeaderId, recorded: Option<&Recorded>) {
        let progress = Progress::first(leader, Recorded::base(recorded));
        let mut state = self.state.lock();
        state.taken_ms = recorded.map_or(0, |recorded| recorded.stamp_ms);
        // Nothing is submitted with an older stamp.
        state.newest_ms = state.newest_ms.max(state.taken_ms);
        state.phase = Phase::Open(progress, Overlay::new());
    }

    /// The time by which a command would run now, where the clock says `clock_ms`.
    #[must_use]
    pub fn now_ms(&self, clock_ms: u64) -> u64 {
        self.state.lock().newest_ms.max(clock_ms)
    }

    /// Whether [`finish`](Self::finish) would submit an entry for the time alone.
    #[must_use]
    pub fn has_to_raise(&self, evaluation: &Attempt) -> bool {
        // Most replies do not depend on the time.
        if evaluation.needed_ms == 0 {
            return false;
        }
        let state = self.state.lock();
        match &state.phase {
            Phase::Open(progress, _) if progress.id == evaluation.run => {
                state.carrier(progress, evaluation).is_none()
            }
            _ => false,
        }
    }

    /// Whether commands can begin.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match &self.state.lock().phase {
            Phase::Following => Standing::Following,
            Phase::Open(progress, _) => Standing::Open(progress.id),
            Phase::Ending(progress) => Standing::Ending(progress.id),
        }
    }

    /// Whether a command could begin now, and submit effects.
    #[must_use]
    pub fn takes_effects(&self) -> bool {
        let state = self.state.lock();
        matches!(&state.phase, Phase::Open(progress, _) if progress.unresolved.len() < self.pending_max)
    }

    /// The replica does not lead any more. It does no harm if this is said late, or never.
    pub fn follow(&self) {
        self.state.lock().phase = Phase::Following;
    }

    /// The replica has voted in this term, or for this leader: if it led in an older term, that is
    /// over. Unlike [`follow`](Self::follow) this may be said late, of a vote that the replica has
    /// won since.
    pub fn voted(&self, leader: LeaderId) {
        let phase = &mut self.state.lock().phase;
        if let Phase::Open(progress, _) | Phase::Ending(progress) = phase
            && progress.id.leader.term < leader.term
        {
            *phase = Phase::Following;
        }
    }

    /// Begins the evaluation of a command, whose rows are locked.
    ///
    /// # Errors
    /// If no run is open.
    pub fn begin(&self) -> Result<Attempt, NotOpen> {
        let state = self.state.lock();
        match &state.phase {
            Phase::Following => Err(NotOpen::Following),
            Phase::Ending(_) => Err(NotOpen::Ending),
            Phase::Open(progress, _) => Ok(Attempt {
                run: progress.id,
                seen: 0,
                newest_ms: state.newest_ms,
                needed_ms: 0,
            }),
        }
    }

    /// The value of a row as the command finds it: the pending one, or else what `table` reads.
    ///
    /// # Errors
    /// [`Stale`] if the run is over, or what `table` returns.
    pub fn get<E: From<Stale>>(
        &self,
        evaluation: &mut Attempt,
        row: &R,
        table: impl FnOnce() -> Result<Option<V>, E>,
    ) -> Result<Option<V>, E> {
        // The overlay first: what leaves it in between is in the table by then.
        if let Some((value, n)) = self.pending(evaluation, row)? {
            evaluation.seen = evaluation.seen.max(n);
            return Ok(value);
        }
        table()
    }

    fn pending(&self, evaluation: &Attempt, row: &R) -> Result<Option<(Option<V>, u32)>, Stale> {
        match &self.state.lock().phase {
            Phase::Open(progress, overlay) if progress.id == evaluation.run => Ok(overlay.get(row)),
            _ => Err(Stale),
        }
    }

    /// Ends the evaluation: submits the effects, if there are any, and with them `payload`. Then the
    /// rows can be unlocked. The stamp is `stamp_ms`, or the newest so far if that is later. Where
    /// there are none, and the time that the reply [needs](Attempt::needs) is in no entry yet, an
    /// entry without effects is submitted: one for all that need this time or an earlier one.
    ///
    /// # Errors
    /// If the run is over, or if too many entries wait.
    pub fn finish(
        &self,
        evaluation: Attempt,
        effects: Effects<R, V>,
        payload: P,
        stamp_ms: u64,
    ) -> Result<Evaluated, NotSubmitted> {
        let mut state = self.state.lock();
        let carrier = match &state.phase {
            Phase::Open(progress, _) if effects.is_empty() => state.carrier(progress, &evaluation),
            _ => None,
        };
        let run = state.run_of(&evaluation)?;
        if let Some(carrier) = carrier {
            let n = evaluation.seen.max(carrier);
            return Ok(Evaluated::Read {
                leader: run.leader,
                seen: (n > 0).then_some(Ticket { run, n }),
            });
        }
        let ticket = state.submit(&evaluation, effects, payload, stamp_ms, self.pending_max)?;
        Ok(Evaluated::Submitted(ticket))
    }

    /// As [`finish`](Self::finish), of effects that one entry has no room for: first an entry for each of `parts`, then
    /// that with `last`, which has them take place. Nothing comes between them, and that one is taken only behind all
    /// of them.
    ///
    /// # Errors
    /// As [`finish`](Self::finish); nothing was submitted.
    pub fn finish_in_parts(
        &self,
        evaluation: &Attempt,
        effects: Effects<R, V>,
        (parts, last): (Vec<P>, P),
        stamp_ms: u64,
    ) -> Result<Evaluated, NotSubmitted> {
        let mut state = self.state.lock();
        let ticket = state.submit_all(evaluation, effects, (parts, last), stamp_ms, self.pending_max)?;
        Ok(Evaluated::Submitted(ticket))
    }

    /// Submits an entry with which its run ends: whatever becomes of it, nothing that was evaluated before it is
    /// submitted behind it. Commands begin again when all entries of the run are decided.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_run(
        &self,
        evaluation: &Attempt,
        payload: P,
        stamp_ms: u64,
    ) -> Result<Evaluated, NotSubmitted> {
        let mut state = self.state.lock();
        let ticket = state.submit(evaluation, Effects::new(), payload, stamp_ms, self.pending_max)?;
        state.phase.end();
        Ok(Evaluated::Submitted(ticket))
    }

    /// The next entry to propose. One task per replica calls this and hands each entry to raft
    /// before it asks for the next: their order in the log is that of their numbers. An entry that
    /// was handed out has an [outcome](Self::outcome) sooner or later, also when its client waits no longer.
    #[must_use]
    pub fn next_proposal(&self) -> Option<Proposal<P>> {
        self.state.lock().queue.pop_front()
    }

    /// Whether an entry before one of this run was not taken, so that nothing of it would be: it need not be proposed.
    #[must_use]
    pub fn is_lost(&self, run: &RunId) -> bool {
        let state = self.state.lock();
        matches!(&state.phase, Phase::Ending(progress) if progress.id == *run && progress.is_lost)
    }

    /// An entry with effects on `rows` was applied: its batch, if it was taken, is written and can
    /// be read. Apply calls this for each, before anybody learns the outcome.
    pub fn applied<'a>(
        &self,
        entry: &EntryId,
        header: &Header,
        decision: &Decision,
        rows: impl Iterator<Item = &'a R>,
    ) where
        R: 'a,
    {
        let LeadingState { phase, taken_ms, .. } = &mut *self.state.lock();
        let Ticket { run, n: first } = header.ticket;
        let last = header.last().n;
        match phase {
            Phase::Following => return,
            Phase::Open(progress, _) | Phase::Ending(progress) => {
                if progress.id.leader != entry.leader {
                    // Another replica leads.
                    *phase = Phase::Following;
                    return;
                }
                if let Decision::Taken(recorded) = decision {
                    progress.taken_index = recorded.index;
                    *taken_ms = recorded.stamp_ms.max(*taken_ms);
                }
                if progress.id != run {
                    return;
                }
                for n in first..=last {
                    progress.unresolved.remove(&n);
                }
                if let Decision::Taken(_) = decision {
                    progress.taken = last;
                }
            }
        }
        match decision {
            Decision::Taken(_) => {
                if let Phase::Open(_, overlay) = phase {
                    overlay.applied(first..=last, rows);
                }
            }
            Decision::Skipped(_) => phase.lose(),
        }
        phase.go_on();
    }

    /// What raft, or a clock, says of an entry that was handed out.
    pub fn outcome(&self, ticket: &Ticket, outcome: Outcome) {
        let phase = &mut self.state.lock().phase;
        let (Phase::Open(progress, _) | Phase::Ending(progress)) = phase else {
            return;
        };
        if progress.id != ticket.run {
            return;
        }
        match outcome {
            // `applied` has dealt with it; or it may still come, and who begins meanwhile sees it.
            Outcome::Taken | Outcome::Skipped | Outcome::TimedOut => return,
            Outcome::Refused => {
                progress.unresolved.remove(&ticket.n);
            }
            // It may still come, so it stays unresolved.
            Outcome::Discarded | Outcome::Fatal | Outcome::Dropped => {}
        }
        phase.lose();
        phase.go_on();
    }

    /// What is known of an entry.
    #[must_use]
    pub fn settled(&self, ticket: &Ticket) -> EntryFate {
        let state = self.state.lock();
        match &state.phase {
            Phase::Open(progress, _) | Phase::Ending(progress) if progress.id == ticket.run => {
                if ticket.n <= progress.taken {
                    EntryFate::Taken
                } else if progress.unresolved.contains(&ticket.n) {
                    EntryFate::Waiting
                } else {
                    EntryFate::Lost
                }
            }
            Phase::Open(progress, _) | Phase::Ending(progress)
                if progress
                    .before
                    .is_some_and(|last| last.run == ticket.run && ticket.n <= last.n) =>
            {
                EntryFate::Taken
            }
            _ => EntryFate::Lost,
        }
    }
}

impl<R: Hash + Eq + Clone, V: Clone, P> LeadingState<R, V, P> {
    /// The run that takes entries, which an evaluation was begun in.
    fn run_of(&self, evaluation: &Attempt) -> Result<RunId, Stale> {
        match &self.phase {
            Phase::Open(progress, _) if progress.id == evaluation.run => Ok(progress.id),
            _ => Err(Stale),
        }
    }

    fn submit(
        &mut self,
        evaluation: &Attempt,
        effects: Effects<R, V>,
        payload: P,
        stamp_ms: u64,
        pending_max: usize,
    ) -> Result<Ticket, NotSubmitted> {
        self.submit_all(evaluation, effects, (Vec::new(), payload), stamp_ms, pending_max)
    }

    /// Submits an entry without effects for each of `parts`, and then one with them: all, or none.
    fn submit_all(
        &mut self,
        evaluation: &Attempt,
        effects: Effects<R, V>,
        (parts, last): (Vec<P>, P),
        stamp_ms: u64,
        pending_max: usize,
    ) -> Result<Ticket, NotSubmitted> {
        let run = self.run_of(evaluation)?;
        let Phase::Open(progress, overlay) = &mut self.phase else {
            return Err(Stale.into());
        };
        if progress.unresolved.len() >= pending_max {
            return Err(NotSubmitted::Full);
        }
        if (u32::MAX - progress.submitted) as usize <= parts.len() {
            // The run has no more numbers: the next one has.
            self.phase.end();
            self.phase.go_on();
            return Err(Stale.into());
        }
        let rows = (!parts.is_empty()).then(|| effects.keys().cloned().collect());
        self.newest_ms = stamp_ms.max(evaluation.needed_ms).max(self.newest_ms);
        for payload in parts.into_iter().chain([last]) {
            progress.submitted += 1;
            let ticket = Ticket {
                run,
                n: progress.submitted,
            };
            progress.unresolved.insert(ticket.n);
            let header = Header::of(ticket, progress.base, self.newest_ms);
            self.queue.push_back(Proposal { header, payload });
        }
        let n = progress.submitted;
        overlay.put(n, effects);
        if let Some(rows) = rows {
            overlay.note_rows(n, rows);
        }
        Ok(Ticket { run, n })
    }

    /// The entry of this run with which the time comes that a reply needs, 0 where it has come; none
    /// where no entry has it.
    fn carrier(&self, progress: &Progress, evaluation: &Attempt) -> Option<u32> {
        if evaluation.needed_ms <= self.taken_ms {
            return Some(0);
        }
        // The last entry of a run has the newest stamp. One of a run before it may never be taken.
        let is_pending = progress.submitted > progress.taken;
        (is_pending && evaluation.needed_ms <= self.newest_ms).then_some(progress.submitted)
    }
}

impl<R: Hash + Eq + Clone, V: Clone> Phase<R, V> {
    /// The run takes no more entries, and its pending effects are not read any more.
    fn end(&mut self) {
        *self = match std::mem::replace(self, Self::Following) {
            Self::Open(progress, _) => Self::Ending(progress),
            phase => phase,
        };
    }

    /// The same where an entry of it was not taken.
    fn lose(&mut self) {
        self.end();
        if let Self::Ending(progress) = self {
            progress.is_lost = true;
        }
    }

    /// Begins the next run if nothing of the last one can come any more: the table shows all of it
    /// that was taken.
    fn go_on(&mut self) {
        let Self::Ending(progress) = self else { return };
        if !progress.unresolved.is_empty() {
            return;
        }
        let RunId { leader, run } = progress.id;
        if let Some(run) = run.checked_add(1) {
            let taken = Ticket {
                run: progress.id,
                n: progress.taken,
            };
            let next = Progress {
                before: Some(taken),
                ..Progress::of(RunId { leader, run }, progress.taken_index)
            };
            *self = Self::Open(next, Overlay::new());
        }
    }
}

#[cfg(test)]
mod tests;
