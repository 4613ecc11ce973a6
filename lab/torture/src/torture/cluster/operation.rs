//! What clients do to the keys of an object, as commands and as steps that the checker knows.

use collie_check::objects::{Act, Answer, Step};
use collie_cli::resp::Reply;
use collie_sim::Rng;

use super::client::Commands;

/// Keys of an object: registers, then counters.
pub(crate) const REGISTERS: usize = 3;
pub(crate) const KEYS: usize = 5;
/// An increment is of this at most.
const ADDED_MAX: u64 = 9;

/// How the steps of an operation are put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// One command for one key.
    Single,
    /// `MSET`.
    SetSeveral,
    /// `MGET`.
    GetSeveral,
    /// `MULTI` and `EXEC` around a command for each step.
    Transaction,
    /// One command for one key, by `COLLIE.ONCE` under this number.
    Once(i64),
}

/// An operation that was drawn.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    shape: Shape,
    pub(crate) steps: Vec<Step>,
}

impl Drawn {
    /// Draws one. `fresh`: the last value that was given to a register, of which each is another.
    /// `has_once`: whether the nodes know `COLLIE.ONCE`.
    pub(crate) fn draw(rng: &mut Rng, has_once: bool, mut fresh: impl FnMut() -> i64) -> Self {
        let shape = match rng.below(if has_once { 22 } else { 20 }) {
            0..14 => Shape::Single,
            14 => Shape::SetSeveral,
            15 | 16 => Shape::GetSeveral,
            17..20 => Shape::Transaction,
            _ => Shape::Once(fresh()),
        };
        let count = match shape {
            Shape::Single | Shape::Once(_) => 1,
            Shape::SetSeveral => 2 + rng.index(REGISTERS - 1),
            Shape::GetSeveral => 2 + rng.index(KEYS - 1),
            Shape::Transaction => 2 + rng.index(3),
        };
        let mut steps: Vec<Step> = Vec::with_capacity(count);
        while steps.len() < count {
            let (key, act) = match shape {
                Shape::SetSeveral => (rng.index(REGISTERS), Act::Set(fresh())),
                Shape::GetSeveral => (rng.index(KEYS), Act::Get),
                Shape::Single | Shape::Transaction | Shape::Once(_) => draw_step(rng, &mut fresh),
            };
            if matches!(shape, Shape::Once(_)) && act == Act::Get {
                continue;
            }
            // A transaction may touch a key twice; MSET and MGET name each once.
            if shape == Shape::Transaction || steps.iter().all(|step| step.key != key) {
                steps.push(Step { key, act });
            }
        }
        Self { shape, steps }
    }

    /// A read of all keys.
    pub(crate) fn read_all() -> Self {
        Self {
            shape: Shape::GetSeveral,
            steps: (0..KEYS).map(|key| Step { key, act: Act::Get }).collect(),
        }
    }

    /// Whether it may be sent again though it may have been executed.
    pub(crate) fn is_once(&self) -> bool {
        matches!(self.shape, Shape::Once(_))
    }

    /// Whether it could change anything.
    pub(crate) fn writes(&self) -> bool {
        self.steps.iter().any(|step| step.act != Act::Get)
    }

    /// Its commands for the keys of an object.
    pub(crate) fn commands(&self, key: impl Fn(usize) -> Vec<u8>) -> Commands {
        let number = |n: i64| n.to_string().into_bytes();
        match self.shape {
            Shape::Single | Shape::Transaction | Shape::Once(_) => {
                let command = |step: &Step| {
                    let key = key(step.key);
                    match step.act {
                        Act::Get => vec![b"GET".to_vec(), key],
                        Act::Set(value) => vec![b"SET".to_vec(), key, number(value)],
                        Act::SetIfAbsent(value) => vec![b"SETNX".to_vec(), key, number(value)],
                        Act::Take => vec![b"GETDEL".to_vec(), key],
                        Act::Add(1) => vec![b"INCR".to_vec(), key],
                        Act::Add(by) => vec![b"INCRBY".to_vec(), key, number(by)],
                    }
                };
                let commands = self.steps.iter().map(|step| (step, command(step)));
                let once = |(step, words): (&Step, Vec<Vec<u8>>)| {
                    let Shape::Once(n) = self.shape else {
                        return words;
                    };
                    let client = b"torture".to_vec();
                    [
                        vec![b"COLLIE.ONCE".to_vec(), key(step.key), client, number(n)],
                        words,
                    ]
                    .concat()
                };
                commands.map(once).collect()
            }
            Shape::SetSeveral => {
                let mut words = vec![b"MSET".to_vec()];
                for step in &self.steps {
                    if let Act::Set(value) = step.act {
                        words.extend([key(step.key), number(value)]);
                    }
                }
                vec![words]
            }
            Shape::GetSeveral => {
                let mut words = vec![b"MGET".to_vec()];
                words.extend(self.steps.iter().map(|step| key(step.key)));
                vec![words]
            }
        }
    }

    /// What the replies to its commands answer to its steps; `None` where they fit no such command.
    pub(crate) fn answers(&self, replies: Vec<Reply>) -> Option<Vec<Answer>> {
        let replies = match (self.shape, replies.as_slice()) {
            (Shape::Single | Shape::Transaction | Shape::Once(_), _) => replies,
            (Shape::SetSeveral, [reply]) => vec![reply.clone(); self.steps.len()],
            (Shape::GetSeveral, [Reply::Array(values)]) => values.clone(),
            _ => return None,
        };
        if replies.len() != self.steps.len() {
            return None;
        }
        let both = self.steps.iter().zip(&replies);
        both.map(|(step, reply)| answer(step.act, reply)).collect()
    }
}

fn draw_step(rng: &mut Rng, fresh: &mut impl FnMut() -> i64) -> (usize, Act) {
    let register = rng.index(REGISTERS);
    let counter = REGISTERS + rng.index(KEYS - REGISTERS);
    match rng.below(20) {
        0..5 => (register, Act::Set(fresh())),
        5..9 => (register, Act::Get),
        9..11 => (register, Act::SetIfAbsent(fresh())),
        11..13 => (register, Act::Take),
        13..16 => (counter, Act::Add(1)),
        16..18 => {
            let by = 1 + rng.below(ADDED_MAX);
            (counter, Act::Add(i64::try_from(by).unwrap_or(1)))
        }
        _ => (counter, Act::Get),
    }
}

fn answer(act: Act, reply: &Reply) -> Option<Answer> {
    match (act, reply) {
        (Act::Get | Act::Take, Reply::Nothing) => Some(Answer::Value(None)),
        (Act::Get | Act::Take, Reply::Bulk(bytes)) => {
            let number = std::str::from_utf8(bytes).ok()?.parse().ok()?;
            Some(Answer::Value(Some(number)))
        }
        (Act::Set(_), Reply::Text(text)) if text == "OK" => Some(Answer::Done),
        (Act::SetIfAbsent(_), Reply::Number(done @ (0 | 1))) => Some(Answer::Flag(*done == 1)),
        (Act::Add(_), Reply::Number(sum)) => Some(Answer::Value(Some(*sum))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_operation_is_drawn_and_understood() {
        let (mut rng, mut value) = (Rng::new(3), 0);
        let mut names = std::collections::BTreeSet::new();
        for _ in 0..1_000 {
            let drawn = Drawn::draw(&mut rng, true, || {
                value += 1;
                value
            });
            let commands = drawn.commands(|key| format!("k{key}").into_bytes());
            let command_names = commands
                .iter()
                .map(|words| String::from_utf8(words[0].clone()).unwrap());
            names.extend(command_names);
            // As a server would that has nothing.
            let replies = drawn.steps.iter().map(|step| match step.act {
                Act::Get | Act::Take => Reply::Nothing,
                Act::Set(_) => Reply::Text("OK".to_owned()),
                Act::SetIfAbsent(_) => Reply::Number(1),
                Act::Add(by) => Reply::Number(by),
            });
            let replies: Vec<Reply> = replies.collect();
            let replies = match drawn.shape {
                Shape::Single | Shape::Transaction | Shape::Once(_) => replies,
                Shape::SetSeveral => vec![Reply::Text("OK".to_owned())],
                Shape::GetSeveral => vec![Reply::Array(replies)],
            };
            assert_eq!(
                drawn.answers(replies).map(|answers| answers.len()),
                Some(drawn.steps.len()),
                "{drawn:?}"
            );
            assert_eq!(drawn.answers(vec![Reply::Error("ERR".to_owned())]), None);
        }
        let all = [
            "COLLIE.ONCE",
            "GET",
            "GETDEL",
            "INCR",
            "INCRBY",
            "MGET",
            "MSET",
            "SET",
            "SETNX",
        ];
        assert!(names.iter().map(String::as_str).eq(all), "{names:?}");
    }
}
