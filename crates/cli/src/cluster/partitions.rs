//! `collie cluster partitions`: which slots each partition has, and which nodes have it.

use std::io;

use collie_cli::Outcome;
use collie_cli::output::Results;
use collie_cli::resp::Client;
use serde::Serialize;

use super::asking::{self, Fields};
use crate::args::NodesArgs;

/// A partition, as `COLLIE.NODE PARTITIONS` has it.
#[derive(Debug, Default, Serialize)]
struct PartitionRow {
    partition: i64,
    first: i64,
    last: i64,
    leader: Option<i64>,
    served: bool,
    nodes: Vec<i64>,
    joining: Vec<i64>,
    leaving: Vec<i64>,
    split_at: Option<i64>,
}

impl PartitionRow {
    fn of(fields: &Fields) -> io::Result<Self> {
        Ok(Self {
            partition: fields.number("partition")?,
            first: fields.number("first")?,
            last: fields.number("last")?,
            leader: fields.optional("leader")?,
            served: fields.text("served")? == "yes",
            nodes: fields.numbers("nodes")?,
            joining: fields.numbers("joining")?,
            leaving: fields.numbers("leaving")?,
            split_at: fields.optional("split_at")?,
        })
    }

    /// For the table: whether it is served, and what happens to it.
    fn state(&self) -> String {
        let mut state = match self.served {
            true => "served".to_owned(),
            false => "not served".to_owned(),
        };
        for (nodes, to) in [(&self.leaving, "from"), (&self.joining, "to")] {
            if !nodes.is_empty() {
                state += &format!(", moves {to} {}", listed(nodes));
            }
        }
        if let Some(slot) = self.split_at {
            state += &format!(", is split at {slot}");
        }
        state
    }

    fn line(&self) -> String {
        format!(
            "{:>9} {:<11} {:>6} {:<11} {}",
            self.partition,
            format!("{}-{}", self.first, self.last),
            self.leader
                .map_or_else(|| "-".to_owned(), |leader| leader.to_string()),
            listed(&self.nodes),
            self.state()
        )
    }
}

fn listed(nodes: &[i64]) -> String {
    let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
    nodes.join(",")
}

pub(super) fn partitions(args: &NodesArgs) -> anyhow::Result<Outcome> {
    let list = |client: &mut Client| {
        let partitions = asking::list(client, &[b"COLLIE.NODE", b"PARTITIONS"])?;
        partitions.iter().map(PartitionRow::of).collect()
    };
    // One that is cut off may know an old map, and no leader answers it.
    let sees_all = |partitions: &Vec<PartitionRow>| partitions.iter().all(|partition| partition.served);
    let partitions = asking::look(&args.at, list, sees_all)?;
    let mut results = Results::new();
    if !args.json {
        results.line(format_args!(
            "{:>9} {:<11} {:>6} {:<11} {}",
            "partition", "slots", "leader", "nodes", "state"
        ))?;
    }
    for partition in &partitions {
        match args.json {
            true => results.json(partition)?,
            false => results.line(format_args!("{}", partition.line()))?,
        }
    }
    results.flush()?;
    Ok(Outcome::Good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_happens_to_a_partition() {
        let mut row = PartitionRow {
            partition: 7,
            first: 512,
            last: 1023,
            leader: Some(2),
            served: true,
            nodes: vec![1, 2, 3],
            ..PartitionRow::default()
        };
        assert_eq!(row.line(), "        7 512-1023         2 1,2,3       served");
        row.split_at = Some(600);
        assert_eq!(row.state(), "served, is split at 600");
        (row.leader, row.served, row.split_at) = (None, false, None);
        (row.leaving, row.joining) = (vec![1], vec![4, 5]);
        assert_eq!(
            row.line(),
            "        7 512-1023         - 1,2,3       not served, moves from 1, moves to 4,5"
        );
    }
}
