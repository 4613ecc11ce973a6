//! What the clients saw of one key, and whether a single copy could have answered so.
//!
//! A search of all orders that respect the times (J. M. Wing, C. Gong, "Testing and verifying
//! concurrent objects", 1993), with a memory of what was tried (G. Lowe, 2017). Every increment
//! and every value is unique in its schedule, so replies leave few orders and the search is short.
//! (`collie_check::history` is faster, but knows registers alone.)

use std::collections::HashSet;

use crate::commands::{Command, Reply, execute};

#[derive(Debug, Clone)]
pub(crate) struct Op {
    pub(crate) key: u8,
    pub(crate) command: Command,
    pub(crate) call: u64,
    /// When which reply came; `None`: it may have been executed at any time since, or not at all.
    pub(crate) returned: Option<(u64, Reply)>,
    /// An operation of the same pipeline, whose reply is known, comes before.
    pub(crate) after: Option<usize>,
}

pub(crate) fn check(ops: &[Op], key: u8) -> Result<(), String> {
    let of_key: Vec<usize> = (0..ops.len()).filter(|op| ops[*op].key == key).collect();
    assert!(of_key.len() <= 128, "{} operations on a key", of_key.len());
    let local: Vec<Op> = of_key
        .iter()
        .map(|op| {
            let after = ops[*op]
                .after
                .and_then(|before| of_key.iter().position(|at| *at == before));
            Op {
                after,
                ..ops[*op].clone()
            }
        })
        .collect();
    let known = (0..local.len())
        .filter(|op| local[*op].returned.is_some())
        .fold(0, |mask, op| mask | 1 << op);
    let mut search = Search {
        ops: &local,
        known,
        tried: HashSet::new(),
    };
    if search.fits(0, None) {
        return Ok(());
    }
    let mut lines = String::new();
    for op in &local {
        lines += &format!(
            "\n  {:4} {:?} {:?} after {:?}",
            op.call, op.returned, op.command, op.after
        );
    }
    Err(format!("no order explains what was seen of key {key}:{lines}"))
}

struct Search<'a> {
    ops: &'a [Op],
    known: u128,
    tried: HashSet<(u128, Option<i64>)>,
}

impl Search<'_> {
    fn fits(&mut self, mut done: u128, value: Option<i64>) -> bool {
        loop {
            if done & self.known == self.known {
                return true;
            }
            let first_return = (0..self.ops.len())
                .filter(|op| done & 1 << op == 0)
                .filter_map(|op| self.ops[op].returned.map(|(at, _)| at))
                .min()
                .unwrap_or(u64::MAX);
            let mut branches = Vec::new();
            let mut read = None;
            for (n, op) in self.ops.iter().enumerate() {
                let waits = op.after.is_some_and(|before| done & 1 << before == 0);
                if done & 1 << n != 0 || waits || op.call > first_return {
                    continue;
                }
                let (reply, change) = execute(op.command, value);
                match (op.returned, change) {
                    (Some((_, seen)), _) if seen != reply => {}
                    // What changes nothing and fits here may as well stand here.
                    (Some(_), None) => read = Some(n),
                    (None, None) => {}
                    (_, Some(change)) => branches.push((n, change)),
                }
            }
            if let Some(read) = read {
                done |= 1 << read;
                continue;
            }
            if !self.tried.insert((done, value)) {
                return false;
            }
            return branches
                .into_iter()
                .any(|(n, value)| self.fits(done | 1 << n, value));
        }
    }
}

#[test]
fn histories_made_by_hand_are_judged_rightly() {
    let op = |command, call, returned: Option<(u64, Option<i64>)>| Op {
        key: 0,
        command,
        call,
        returned: returned.map(|(at, reply)| (at, Reply(reply))),
        after: None,
    };
    let incr = Command::Incr;
    let sound = [
        vec![
            op(incr(1), 1, Some((2, Some(1)))),
            op(Command::Get, 3, Some((4, Some(1)))),
        ],
        // An increment whose outcome is unknown counts late, or never.
        vec![
            op(incr(1), 1, None),
            op(Command::Get, 2, Some((3, None))),
            op(incr(2), 4, Some((5, Some(3)))),
        ],
        vec![op(incr(1), 1, None), op(incr(2), 4, Some((5, Some(2))))],
    ];
    for ops in sound {
        assert_eq!(check(&ops, 0), Ok(()));
    }
    let wrong = [
        // Acknowledged and lost; counted twice; stale; unknown and counted, then taken back.
        vec![
            op(incr(1), 1, Some((2, Some(1)))),
            op(incr(2), 3, Some((4, Some(2)))),
        ],
        vec![
            op(incr(1), 1, Some((2, Some(1)))),
            op(incr(2), 3, Some((4, Some(4)))),
        ],
        vec![
            op(incr(1), 1, Some((2, Some(1)))),
            op(Command::Get, 3, Some((4, None))),
        ],
        vec![
            op(incr(1), 1, None),
            op(Command::Get, 2, Some((3, Some(1)))),
            op(incr(2), 4, Some((5, Some(2)))),
        ],
    ];
    for ops in wrong {
        assert!(check(&ops, 0).is_err(), "{ops:?}");
    }
    let mut pipeline = vec![
        op(incr(1), 1, Some((9, Some(1)))),
        op(Command::Get, 1, Some((9, None))),
    ];
    assert_eq!(check(&pipeline, 0), Ok(()), "at the same time");
    pipeline[1].after = Some(0);
    assert!(check(&pipeline, 0).is_err(), "one after the other");
}
