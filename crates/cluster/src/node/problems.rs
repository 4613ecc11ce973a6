//! What is wrong on a node that an operator has to do something about.

use std::collections::BTreeMap;

use crate::ids::ReplicaId;
use crate::node::shared::Inner;

/// Replicas with the same problem are named up to this number.
const NAMED: usize = 8;

impl Inner {
    /// A line for each thing that is wrong, with what to do; replicas with the same problem share one.
    pub(super) fn problem_lines(&self) -> Vec<String> {
        let problems = self.all_problems().into_iter();
        let mut all: Vec<_> = problems
            .map(|(about, problem)| format!("{about}: {problem}"))
            .collect();
        let mut by_problem = BTreeMap::<String, Vec<ReplicaId>>::new();
        for replica in self.node.replicas() {
            if let Some(problem) = replica.problem() {
                by_problem.entry(problem).or_default().push(replica.id());
            }
        }
        for lost in self.node.quarantined() {
            let problem = format!(
                "quarantined, since damage to the log took frames of it ({}); what is left is kept, and the others of its \
                 group go on",
                lost.lost
            );
            by_problem.entry(problem).or_default().push(lost.replica);
        }
        let line = |(problem, replicas): (String, Vec<ReplicaId>)| line(&problem, &replicas);
        all.extend(by_problem.into_iter().map(line));
        all
    }
}

fn line(problem: &str, replicas: &[ReplicaId]) -> String {
    let named: Vec<_> = replicas.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match replicas.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let each = if replicas.len() == 1 {
        "replica"
    } else {
        "each of the replicas"
    };
    format!("{each} {}{more}: {problem}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_of_many_replicas_is_one_line_that_names_some() {
        assert_eq!(line("waits", &[7]), "replica 7: waits");
        assert_eq!(line("waits", &[7, 9]), "each of the replicas 7, 9: waits");
        let many: Vec<_> = (1..=32).collect();
        assert_eq!(
            line("waits", &many),
            "each of the replicas 1, 2, 3, 4, 5, 6, 7, 8 and 24 more: waits"
        );
    }
}
