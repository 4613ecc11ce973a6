//! Histories of operations on a few keys at once, and whether some order of them fits.
//!
//! An *object* is a small number of keys that one operation may touch together: keys of one hash
//! slot, which a command or a transaction reads and changes in one step. Clients note when they
//! call and when they return; afterwards [`check`] says whether the operations can be put in one
//! order that respects the times and in which every answer is what the object would have given:
//! whether it is *linearizable*. Objects are checked one by one, which is enough (M. Herlihy, J.
//! Wing, "Linearizability: a correctness condition for concurrent objects", 1990, locality).
//!
//! [`crate::history`] does the same for reads and writes of single keys, in the time of a sort.
//! Counters, conditional writes and several keys have no such test; here an order is searched for,
//! and what was tried is remembered (G. Lowe, "Testing for linearizability", Concurrency and
//! Computation 29(4), 2017). A search may take exponential time; it is given up at a limit
//! ([`Judgement::Undecided`]).
//!
//! An operation whose outcome is unknown has happened at any moment after its call, or not at all.
//! One that was refused as *not executed* does not belong in a history: if it changed something all
//! the same, no order fits.

mod search;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::history::Moment;
use search::Search;

/// What is done to a key, whose value is a number, or which is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Reads it.
    Get,
    /// Gives it this value.
    Set(i64),
    /// Gives it this value if it is absent.
    SetIfAbsent(i64),
    /// Reads it and removes it.
    Take,
    /// Adds to it; an absent key counts as 0. Histories stay far from an overflow.
    Add(i64),
}

/// What an [`Act`] answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// To [`Act::Set`].
    Done,
    /// To [`Act::SetIfAbsent`]: whether the key was absent.
    Flag(bool),
    /// To the others: the value, for [`Act::Add`] the new one.
    Value(Option<i64>),
}

/// An act on a key of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Which of its keys, from 0.
    pub key: usize,
    /// What is done.
    pub act: Act,
}

/// An operation of a history: steps that are one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Who called it.
    pub client: u32,
    /// When.
    pub call: Moment,
    /// When its answers were known; `None` where they never were.
    pub returned: Option<Moment>,
    /// What it does, in this order.
    pub steps: Vec<Step>,
    /// An answer for each step; not looked at where it did not return.
    pub answers: Vec<Answer>,
}

/// What [`check`] says of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// Some order fits.
    Fits,
    /// No order was found and none ruled out within the limit.
    Undecided,
    /// No order fits. In words: how far the search came, and what has no place there.
    Contradiction(String),
}

impl Act {
    /// Does it to a key.
    pub fn apply(self, value: &mut Option<i64>) -> Answer {
        match self {
            Self::Get => Answer::Value(*value),
            Self::Set(new) => {
                *value = Some(new);
                Answer::Done
            }
            Self::SetIfAbsent(new) => {
                let absent = value.is_none();
                value.get_or_insert(new);
                Answer::Flag(absent)
            }
            Self::Take => Answer::Value(value.take()),
            Self::Add(by) => {
                let sum = value.unwrap_or(0).wrapping_add(by);
                *value = Some(sum);
                Answer::Value(Some(sum))
            }
        }
    }
}

impl Operation {
    /// Does its steps to an object. Whether the answers are those that were noted; always, where
    /// none were.
    ///
    /// # Panics
    /// Where the object has no such key.
    fn apply(&self, object: &mut [Option<i64>]) -> bool {
        let mut answers = self.answers.iter();
        let known = self.returned.is_some();
        self.steps.iter().all(|step| {
            let found = step.act.apply(&mut object[step.key]);
            !known || answers.next() == Some(&found)
        })
    }
}

/// Whether the operations on an object of so many keys, all absent at first, fit some order. At
/// most `configurations_max` configurations are tried and remembered, of about a hundred bytes
/// each.
///
/// # Panics
/// Where an operation names a key that the object does not have.
#[must_use]
pub fn check(operations: &[Operation], keys: usize, configurations_max: usize) -> Judgement {
    Search::new(operations).run(keys, configurations_max)
}

/// Whether a counter that only grows is what its increments make it: no less than those that were
/// acknowledged, no more than those and the ones of unknown outcome. `value`: what it was at the
/// end, when nothing was under way.
///
/// A test that has no limit, beside [`check`].
///
/// # Errors
/// The sums, in words.
pub fn sum(operations: &[Operation], key: usize, value: Option<i64>) -> Result<(), String> {
    let added = |known: bool| -> i64 {
        let some = operations.iter().filter(|o| o.returned.is_some() == known);
        let steps = some.flat_map(|operation| &operation.steps);
        steps
            .filter(|step| step.key == key)
            .map(|step| match step.act {
                Act::Add(by) => by,
                _ => 0,
            })
            .sum()
    };
    let (acknowledged, unknown) = (added(true), added(false));
    let found = value.unwrap_or(0);
    if (acknowledged..=acknowledged + unknown).contains(&found) {
        return Ok(());
    }
    Err(format!(
        "counter {key} is {found} at the end; {acknowledged} were acknowledged, and {unknown} are unknown"
    ))
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} from {} ", self.client, self.call)?;
        match self.returned {
            Some(returned) => write!(f, "to {returned}:")?,
            None => write!(f, "(outcome unknown):")?,
        }
        for (n, step) in self.steps.iter().enumerate() {
            write!(f, " {:?} of key {}", step.act, step.key)?;
            if let Some(answer) = self.answers.get(n) {
                write!(f, " = {answer:?}")?;
            }
        }
        Ok(())
    }
}
