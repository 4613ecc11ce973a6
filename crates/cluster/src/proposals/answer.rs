//! What is still to be waited for, and the answers to a client.

use std::hash::Hash;

use crate::ids::LeaderId;
use crate::proposals::{EntryFate, Evaluated, Leading, Outcome, Ticket};

/// An answer to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<T> {
    /// Executed.
    Reply(T),
    /// `TRYAGAIN`: not executed, and never will be. It is safe to repeat it.
    TryAgain,
    /// `UNKNOWN`: it may have been executed, or may still be. The connection is closed; the server
    /// never repeats such a command by itself.
    Unknown,
}

impl<T> Answer<T> {
    /// Of a command whose effects were proposed.
    pub fn of(outcome: Outcome, reply: T) -> Self {
        match outcome {
            Outcome::Taken => Self::Reply(reply),
            Outcome::Skipped | Outcome::Refused => Self::TryAgain,
            Outcome::Discarded | Outcome::Fatal | Outcome::Dropped | Outcome::TimedOut => Self::Unknown,
        }
    }
}

/// A reply that is kept until it is known whether it holds.
#[derive(Debug)]
pub struct PendingReply<T> {
    evaluated: Evaluated,
    reply: T,
    /// Of its entry.
    outcome: Option<Outcome>,
    confirmation: Confirmation,
}

/// Whether reads are known to be of the newest state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confirmation {
    Needed,
    Asked,
    Of(Option<LeaderId>),
}

/// What a reply waits for.
#[derive(Debug, PartialEq, Eq)]
pub enum Todo<T> {
    /// That raft confirms, from now on, who leads.
    ReadIndex,
    /// That more becomes known.
    Wait,
    /// Nothing: this is the answer.
    Answer(Answer<T>),
}

impl<T: Clone> PendingReply<T> {
    /// The reply of a command, and what became of its evaluation.
    #[must_use]
    pub fn new(evaluated: Evaluated, reply: T) -> Self {
        Self {
            evaluated,
            reply,
            outcome: None,
            confirmation: Confirmation::Needed,
        }
    }

    /// The outcome of an entry. [`Leading`] must know it before.
    pub fn outcome(&mut self, ticket: &Ticket, outcome: Outcome) {
        if self.evaluated == Evaluated::Submitted(*ticket) {
            self.outcome.get_or_insert(outcome);
        }
    }

    /// Raft has answered: who was confirmed to lead, if anybody was.
    pub fn confirmed(&mut self, leader: Option<LeaderId>) {
        if self.confirmation == Confirmation::Asked {
            self.confirmation = Confirmation::Of(leader);
        }
    }

    /// What is to be done next. Asked again after each event, until it answers.
    pub fn next<R: Hash + Ord + Clone, V: Clone, P>(&mut self, leading: &Leading<R, V, P>) -> Todo<T> {
        if self.confirmation == Confirmation::Needed && self.is_read() {
            self.confirmation = Confirmation::Asked;
            return Todo::ReadIndex;
        }
        self.answer(leading).map_or(Todo::Wait, Todo::Answer)
    }

    fn answer<R: Hash + Ord + Clone, V: Clone, P>(&self, leading: &Leading<R, V, P>) -> Option<Answer<T>> {
        let Self { outcome, reply, .. } = self;
        match &self.evaluated {
            Evaluated::Submitted(_) => Some(Answer::of((*outcome)?, reply.clone())),
            Evaluated::Read { leader, seen } => {
                let Confirmation::Of(confirmed) = self.confirmation else {
                    return None;
                };
                if confirmed != Some(*leader) {
                    return Some(Answer::TryAgain);
                }
                match seen.as_ref().map(|seen| leading.settled(seen)) {
                    None | Some(EntryFate::Taken) => Some(Answer::Reply(reply.clone())),
                    Some(EntryFate::Waiting) => None,
                    Some(EntryFate::Lost) => Some(Answer::TryAgain),
                }
            }
        }
    }

    /// The answer where it is waited for no longer.
    pub fn give_up<R: Hash + Ord + Clone, V: Clone, P>(&self, leading: &Leading<R, V, P>) -> Answer<T> {
        let given_up = if self.is_read() {
            Answer::TryAgain
        } else {
            Answer::Unknown
        };
        self.answer(leading).unwrap_or(given_up)
    }

    fn is_read(&self) -> bool {
        matches!(self.evaluated, Evaluated::Read { .. })
    }
}
