//! What a client sends at once: a pipeline, a transaction, several keys in one command.

use std::io;

use collie_cli::resp::{Client, Reply};
use collie_io::{Clock, Nanos, RealClock};
use collie_sim::Rng;

use super::ledger::{Kind, Ledger, Op, Span, Verdict, key};

/// Commands of one call, at most.
const OPS_MAX: usize = 16;
/// One in so many values has an expiry, one in so many of these a late one.
const EXPIRING_ONE_IN: u64 = 8;
const LATE_ONE_IN: u64 = 4;
/// Expiries, in milliseconds.
const SOON: std::ops::Range<u64> = 20..3_000;
const LATE: u64 = 3_600_000;

/// How the commands of a call are put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Single,
    Pipeline,
    Transaction,
    /// `MSET`.
    SetSeveral,
    /// `MGET`.
    GetSeveral,
}

/// Commands on different keys of one owner.
#[derive(Debug)]
pub(crate) struct Call {
    owner: u32,
    shape: Shape,
    ops: Vec<Op>,
}

/// What came of a call.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) took: Nanos,
    pub(crate) commands: u64,
    /// Commands that were acknowledged and change something.
    pub(crate) changed: u64,
    pub(crate) refused: Vec<String>,
    pub(crate) wrong: Vec<String>,
}

impl Call {
    /// Draws one. `owner`: whose keys they are.
    pub(crate) fn draw(rng: &mut Rng, owner: u32, keys: u32) -> Self {
        let shape = match rng.below(20) {
            0..10 => Shape::Single,
            10..14 => Shape::Pipeline,
            14..17 => Shape::Transaction,
            17 => Shape::SetSeveral,
            _ => Shape::GetSeveral,
        };
        let count = match shape {
            Shape::Single => 1,
            _ => 2 + rng.index(OPS_MAX - 1),
        };
        let mut ops: Vec<Op> = Vec::with_capacity(count);
        while ops.len() < count.min(keys as usize) {
            let which = u32::try_from(rng.below(keys.into())).unwrap_or(0);
            if ops.iter().all(|op| op.key != which) {
                ops.push(Op {
                    key: which,
                    kind: draw_kind(rng, shape),
                });
            }
        }
        Self { owner, shape, ops }
    }

    /// Sets these keys, in a pipeline.
    pub(crate) fn set_all(owner: u32, keys: std::ops::Range<u32>) -> Self {
        let set = |key| Op { key, kind: Kind::Set };
        Self {
            owner,
            shape: Shape::Pipeline,
            ops: keys.map(set).collect(),
        }
    }

    /// Reads these keys at once.
    pub(crate) fn get_all(owner: u32, keys: std::ops::Range<u32>) -> Self {
        let get = |key| Op { key, kind: Kind::Get };
        Self {
            owner,
            shape: Shape::GetSeveral,
            ops: keys.map(get).collect(),
        }
    }

    /// Sends it, takes the replies, and compares them with the ledger.
    pub(crate) fn make(&self, client: &mut Client, ledger: &mut Ledger<'_>) -> io::Result<Outcome> {
        let clock = RealClock;
        self.push(client, ledger);
        let (before, began) = (clock.wall_ms(), clock.monotonic());
        client.send()?;
        let replies = self.replies(client)?;
        let took = clock.monotonic().saturating_sub(began);
        let span = Span {
            before,
            after: clock.wall_ms(),
        };
        let mut outcome = Outcome {
            took,
            commands: self.ops.len() as u64,
            ..Outcome::default()
        };
        for (op, reply) in self.ops.iter().zip(&replies) {
            match ledger.judge(*op, reply, span) {
                Verdict::Right => outcome.changed += u64::from(op.kind != Kind::Get),
                Verdict::Refused(text) => outcome.refused.push(text),
                Verdict::Wrong(text) => outcome.wrong.push(text),
            }
        }
        Ok(outcome)
    }

    fn push(&self, client: &mut Client, ledger: &Ledger<'_>) {
        let mut push = |words: &[Vec<u8>]| {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            client.push(&words);
        };
        let commands = self.ops.iter().map(|&op| ledger.words(op));
        match self.shape {
            Shape::Single | Shape::Pipeline => commands.for_each(|words| push(&words)),
            Shape::Transaction => {
                push(&[b"MULTI".into()]);
                commands.for_each(|words| push(&words));
                push(&[b"EXEC".into()]);
            }
            Shape::SetSeveral => {
                let mut all = vec![b"MSET".to_vec()];
                // Without the command's name.
                commands.for_each(|words| all.extend(words.into_iter().skip(1)));
                push(&all);
            }
            Shape::GetSeveral => {
                let mut all = vec![b"MGET".to_vec()];
                all.extend(self.ops.iter().map(|op| key(self.owner, op.key)));
                push(&all);
            }
        }
    }

    /// A reply for each command.
    fn replies(&self, client: &mut Client) -> io::Result<Vec<Reply>> {
        let count = self.ops.len();
        match self.shape {
            Shape::Single | Shape::Pipeline => (0..count).map(|_| client.reply()).collect(),
            Shape::Transaction => {
                // To MULTI, and for each command that it was queued.
                for _ in 0..=count {
                    client.reply()?;
                }
                each(client.reply()?, count)
            }
            // One reply answers for all keys.
            Shape::SetSeveral => Ok(vec![client.reply()?; count]),
            Shape::GetSeveral => each(client.reply()?, count),
        }
    }
}

/// The elements of a reply, or the same error for each.
fn each(reply: Reply, count: usize) -> io::Result<Vec<Reply>> {
    match reply {
        Reply::Array(elements) if elements.len() == count => Ok(elements),
        Reply::Error(_) => Ok(vec![reply; count]),
        other => Err(io::Error::other(format!(
            "{count} replies were expected, found {other:?}"
        ))),
    }
}

fn draw_kind(rng: &mut Rng, shape: Shape) -> Kind {
    match shape {
        Shape::SetSeveral => return Kind::Set,
        Shape::GetSeveral => return Kind::Get,
        Shape::Single | Shape::Pipeline | Shape::Transaction => {}
    }
    match rng.below(12) {
        0..6 if rng.one_in(EXPIRING_ONE_IN) => {
            if rng.one_in(LATE_ONE_IN) {
                Kind::SetFor(LATE)
            } else {
                Kind::SetFor(SOON.start + rng.below(SOON.end - SOON.start))
            }
        }
        0..6 => Kind::Set,
        6 => Kind::Delete,
        _ => Kind::Get,
    }
}
