//! `collie cluster duplicate`: the clusters that get the rows of this one.

use std::collections::BTreeMap;
use std::io;

use anyhow::bail;
use collie_cli::Outcome;
use collie_cli::output::Results;
use collie_cli::resp::Client;
use serde::Serialize;

use super::asking::{self, Fields};
use super::nodes::say;
use crate::args::{DuplicateCommand, DuplicateNameArgs};

/// A target, as nodes have it for the partitions that they lead.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
struct TargetRow {
    name: String,
    cluster: String,
    addresses: String,
    paused: bool,
    partitions: i64,
    waiting: i64,
    copying: i64,
    following: i64,
    lag_entries: i64,
    rows: i64,
    problem_s: i64,
    problem: String,
}

impl TargetRow {
    fn of(fields: &Fields) -> io::Result<Self> {
        Ok(Self {
            name: fields.text("name")?,
            cluster: fields.text("cluster")?,
            addresses: fields.text("addresses")?,
            paused: fields.number("paused")? == 1,
            partitions: fields.number("partitions")?,
            waiting: fields.number("waiting")?,
            copying: fields.number("copying")?,
            following: fields.number("following")?,
            lag_entries: fields.number("lag_entries")?,
            rows: fields.number("rows")?,
            problem_s: fields.number("problem_s")?,
            problem: fields.text("problem")?,
        })
    }

    /// With what another node has of the same target.
    fn add(&mut self, other: Self) {
        self.paused |= other.paused;
        self.partitions = self.partitions.max(other.partitions);
        self.waiting += other.waiting;
        self.copying += other.copying;
        self.following += other.following;
        self.lag_entries = self.lag_entries.saturating_add(other.lag_entries);
        self.rows = self.rows.saturating_add(other.rows);
        if other.problem_s > self.problem_s || self.problem.is_empty() {
            self.problem_s = other.problem_s;
            self.problem = other.problem;
        }
    }

    fn state(&self) -> String {
        // Those that no node leads, or none that has answered, count as missing.
        let lacks = match (self.partitions - self.following, self.lag_entries) {
            (..=0, 0) => "has everything".to_owned(),
            (..=0, lag) => format!("lacks {lag} entries"),
            (left, _) => format!("lacks {left} of {} partitions, or rows of them", self.partitions),
        };
        match self.paused {
            true => format!("paused by command, {lacks}"),
            false => lacks,
        }
    }
}

pub(super) fn duplicate(command: &DuplicateCommand) -> anyhow::Result<Outcome> {
    match command {
        DuplicateCommand::Add(args) => {
            let mut words: Vec<&[u8]> = vec![b"COLLIE.DUPLICATE", b"ADD", args.name.as_bytes()];
            words.extend(args.addresses.iter().map(|address| address.as_bytes()));
            asking::change(&args.at, |client| client.call(&words)?.good())?;
            say(format_args!(
                "the rows of this cluster go to {} from now on, first all that are there: `collie cluster duplicate list` \
                 shows how far that is",
                args.name
            ))
        }
        DuplicateCommand::End(args) => {
            change(b"END", args)?;
            say(format_args!("nothing goes to {} any more", args.name))
        }
        DuplicateCommand::Pause(args) => {
            change(b"PAUSE", args)?;
            say(format_args!(
                "nothing goes to {0} until `collie cluster duplicate resume {0}`: the log keeps what it lacks, within its \
                 limit",
                args.name
            ))
        }
        DuplicateCommand::Resume(args) => {
            change(b"RESUME", args)?;
            say(format_args!("{} gets what it lacks from now on", args.name))
        }
        DuplicateCommand::List(args) => {
            let list = |client: &mut Client| {
                let targets = asking::list(client, &[b"COLLIE.DUPLICATE", b"LIST"])?;
                targets.iter().map(TargetRow::of).collect::<io::Result<Vec<_>>>()
            };
            let (answers, silent) = asking::all(&args.at, list)?;
            if answers.is_empty() {
                bail!("{}", silent.join("; "));
            }
            let mut targets = BTreeMap::<String, TargetRow>::new();
            for row in answers.into_iter().flatten() {
                match targets.get_mut(&row.name) {
                    Some(there) => there.add(row),
                    None => _ = targets.insert(row.name.clone(), row),
                }
            }
            show(targets.values(), args.json, &silent)
        }
    }
}

/// Has the cluster change something about the target of this name.
fn change(what: &[u8], args: &DuplicateNameArgs) -> anyhow::Result<()> {
    let words: [&[u8]; 3] = [b"COLLIE.DUPLICATE", what, args.name.as_bytes()];
    asking::change(&args.at, |client| client.call(&words)?.good())?;
    Ok(())
}

fn show<'a>(
    targets: impl Iterator<Item = &'a TargetRow>,
    json: bool,
    silent: &[String],
) -> anyhow::Result<Outcome> {
    let mut results = Results::new();
    let mut targets = targets.peekable();
    if !json && targets.peek().is_none() {
        results.line("the rows of this cluster go to no other one")?;
    }
    for target in targets {
        if json {
            results.json(target)?;
            continue;
        }
        results.line(format_args!(
            "{}: {}, {} rows sent by the leaders that there are · {} at {}",
            target.name,
            target.state(),
            target.rows,
            target.cluster,
            target.addresses
        ))?;
        if !target.problem.is_empty() {
            results.line(format_args!("  for {} s: {}", target.problem_s, target.problem))?;
        }
    }
    results.flush()?;
    for node in silent {
        collie_cli::output::note(format_args!("{node}: its partitions are not counted"));
    }
    Ok(Outcome::Good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nodes_have_is_added_up() {
        let mut one = TargetRow {
            partitions: 3,
            following: 3,
            rows: 10,
            ..TargetRow::default()
        };
        assert_eq!(one.state(), "has everything");
        one.add(TargetRow {
            partitions: 5,
            following: 2,
            lag_entries: 7,
            problem_s: 4,
            problem: "it is away".to_owned(),
            ..TargetRow::default()
        });
        assert_eq!((one.state().as_str(), one.rows), ("lacks 7 entries", 10));
        assert_eq!((one.problem_s, one.problem.as_str()), (4, "it is away"));
        one.add(TargetRow {
            partitions: 8,
            copying: 1,
            ..TargetRow::default()
        });
        assert_eq!(one.state(), "lacks 3 of 8 partitions, or rows of them");
        assert_eq!(one.problem, "it is away");
        one.add(TargetRow {
            paused: true,
            ..TargetRow::default()
        });
        let state = one.state();
        assert!(state.starts_with("paused by command, lacks 3 of 8"), "{state}");
    }
}
