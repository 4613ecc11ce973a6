//! Waiting for what became of a command that was evaluated.

use tokio::time::{Instant, timeout_at};

use crate::proposals::{Answer, Evaluated, Outcome, Part, Pipeline, Todo};
use crate::raft::commands::{Commands, Submitted};

/// The answer of a command, as soon as it is known; at the deadline in any case. It may be dropped:
/// its effects are then decided without it.
pub(super) async fn answer<T: Clone>(
    commands: &Commands,
    submitted: Submitted,
    reply: T,
    deadline: Instant,
) -> Answer<T> {
    let Submitted { evaluated, outcome } = submitted;
    let mut outcome = Some(outcome);
    let mut progress = None;
    let mut pipeline = Pipeline::new();
    pipeline.push(Part::Evaluated(evaluated, reply));
    loop {
        let answers = match pipeline.next(&commands.leading) {
            Todo::Answer(answers) => answers,
            Todo::ReadIndex => {
                let confirmed = timeout_at(deadline, commands.confirm()).await;
                pipeline.confirmed(confirmed.unwrap_or(None));
                continue;
            }
            Todo::Wait => match (evaluated, outcome.take()) {
                (Evaluated::Submitted(ticket), Some(outcome)) => {
                    let outcome = match timeout_at(deadline, outcome).await {
                        Ok(known) => known.unwrap_or(Outcome::Dropped),
                        Err(_) => Outcome::TimedOut,
                    };
                    pipeline.outcome(&ticket, outcome);
                    continue;
                }
                _ => {
                    // Looked at once more after the first time: what came before that is not seen.
                    let Some(progress) = &mut progress else {
                        progress = Some(commands.progress());
                        continue;
                    };
                    match timeout_at(deadline, progress.changed()).await {
                        Ok(Ok(())) => continue,
                        _ => pipeline.give_up(&commands.leading),
                    }
                }
            },
        };
        return answers.into_iter().next().unwrap_or(Answer::Unknown);
    }
}
