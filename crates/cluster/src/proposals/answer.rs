//! What is still to be waited for, and the answers to a client.

use std::hash::Hash;

use crate::ids::LeaderId;
use crate::proposals::{Evaluated, Leading, Outcome, Settled, Ticket};

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

    /// Whether the connection is closed behind it.
    #[must_use]
    pub fn closes(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

/// How a command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Begun and evaluated on the overlay, in its place among the others.
    Evaluated,
    /// From the table alone, once that is applied up to raft's read index.
    AtReadIndex,
}

/// How a command reads, where `lone` says that it is not one of a pipeline, and `get` that it only
/// reads.
#[must_use]
pub fn reading(lone: bool, get: bool) -> Reading {
    if lone && get {
        Reading::AtReadIndex
    } else {
        Reading::Evaluated
    }
}

/// A command of a [`Pipeline`].
#[derive(Debug)]
pub enum Part<T> {
    /// It was evaluated: this is its reply, if it holds.
    Evaluated(Evaluated, T),
    /// It was not, and this is its answer.
    Answered(Answer<T>),
}

/// Commands that were sent together, or one alone: they are answered together.
#[derive(Debug)]
pub struct Pipeline<T> {
    parts: Vec<(Part<T>, Option<Outcome>)>,
    confirmation: Confirmation,
}

/// Whether reads are known to be of the newest state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confirmation {
    Needed,
    Asked,
    Of(Option<LeaderId>),
}

/// What a pipeline waits for.
#[derive(Debug, PartialEq, Eq)]
pub enum Todo<T> {
    /// That raft confirms, from now on, who leads.
    ReadIndex,
    /// That more becomes known.
    Wait,
    /// Nothing: these are the answers.
    Answer(Vec<Answer<T>>),
}

impl<T> Default for Pipeline<T> {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            confirmation: Confirmation::Needed,
        }
    }
}

impl<T: Clone> Pipeline<T> {
    /// Without a command.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next command has been evaluated, or answered at once.
    pub fn push(&mut self, part: Part<T>) {
        self.parts.push((part, None));
    }

    /// How many commands have been.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether none has been.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The outcome of an entry. [`Leading`] must know it before.
    pub fn outcome(&mut self, ticket: &Ticket, outcome: Outcome) {
        for (part, known) in &mut self.parts {
            if let Part::Evaluated(Evaluated::Submitted(own), _) = part
                && own == ticket
            {
                known.get_or_insert(outcome);
            }
        }
    }

    /// Raft has answered: who was confirmed to lead, if anybody was.
    pub fn confirmed(&mut self, leader: Option<LeaderId>) {
        if self.confirmation == Confirmation::Asked {
            self.confirmation = Confirmation::Of(leader);
        }
    }

    /// Those of its entries whose outcome is not known.
    pub fn waits_for(&self) -> impl Iterator<Item = Ticket> {
        self.parts.iter().filter_map(|part| match part {
            (Part::Evaluated(Evaluated::Submitted(ticket), _), None) => Some(*ticket),
            _ => None,
        })
    }

    /// What is to be done next, when all commands have been pushed. Asked again after each event,
    /// until it answers.
    pub fn next<R: Hash + Ord + Clone, V: Clone, P>(&mut self, leading: &Leading<R, V, P>) -> Todo<T> {
        if self.confirmation == Confirmation::Needed && self.parts.iter().any(|(part, _)| part.is_read()) {
            self.confirmation = Confirmation::Asked;
            return Todo::ReadIndex;
        }
        let answers: Option<Vec<_>> = self
            .parts
            .iter()
            .map(|(part, outcome)| self.answer(part, *outcome, leading))
            .collect();
        answers.map_or(Todo::Wait, Todo::Answer)
    }

    fn answer<R: Hash + Ord + Clone, V: Clone, P>(
        &self,
        part: &Part<T>,
        outcome: Option<Outcome>,
        leading: &Leading<R, V, P>,
    ) -> Option<Answer<T>> {
        match part {
            Part::Answered(answer) => Some(answer.clone()),
            Part::Evaluated(Evaluated::Submitted(_), reply) => Some(Answer::of(outcome?, reply.clone())),
            Part::Evaluated(Evaluated::Read { leader, seen }, reply) => {
                let Confirmation::Of(confirmed) = self.confirmation else {
                    return None;
                };
                if confirmed != Some(*leader) {
                    return Some(Answer::TryAgain);
                }
                match seen.as_ref().map(|seen| leading.settled(seen)) {
                    None | Some(Settled::Taken) => Some(Answer::Reply(reply.clone())),
                    Some(Settled::Waiting) => None,
                    Some(Settled::Lost) => Some(Answer::TryAgain),
                }
            }
        }
    }

    /// The answers of a pipeline that is waited for no longer.
    pub fn give_up<R: Hash + Ord + Clone, V: Clone, P>(&self, leading: &Leading<R, V, P>) -> Vec<Answer<T>> {
        let answer = |(part, outcome): &(Part<T>, Option<Outcome>)| {
            let given_up = if part.is_read() {
                Answer::TryAgain
            } else {
                Answer::Unknown
            };
            self.answer(part, *outcome, leading).unwrap_or(given_up)
        };
        self.parts.iter().map(answer).collect()
    }
}

impl<T> Part<T> {
    fn is_read(&self) -> bool {
        matches!(self, Self::Evaluated(Evaluated::Read { .. }, _))
    }
}
