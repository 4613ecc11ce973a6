//! `COLLIE.MERGE`: takes over rows of another cluster. See [`duplication`](crate::duplication).

use collie_protocol::Request;

use super::row::{Command, Keys};
use crate::duplication::Incoming;
use crate::exec::{Exec, Flow, Outcome, Transaction};
use crate::failure::{Failure, text};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[Command::new(NAME, -4, merge)
    .about(
        "7.0.0",
        "generic",
        "Takes over rows of another cluster that are newer than what is stored.",
    )
    .flags(&["write", "denyoom", "noscript", "no_multi"])
    .categories(&["@keyspace", "@write", "@slow"])
    .keys(&[Keys::to(1, -1, 3, &["RW", "update"])])];

const NAME: &str = "collie.merge";

/// `COLLIE.MERGE key header payload [key header payload …]`. Replies with the number of records that were newer.
fn merge(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let origin = match &exec.transaction {
        Some(Transaction::Partition(transaction)) => transaction.stamps(),
        Some(Transaction::Store(_)) | None => {
            return Err(
                "ERR COLLIE.MERGE is for clusters: this server is alone, and takes over no rows".into(),
            );
        }
    };
    if !(request.len() - 1).is_multiple_of(3) {
        return Err(text::arity(NAME).into());
    }
    let Some(origin) = origin else {
        return Err(NO_TARGET.into());
    };
    // All are read before the first is taken: a request with a bad one changes nothing.
    let mut rows = Vec::with_capacity(request.len() / 3);
    for number in (1..request.len()).step_by(3) {
        rows.push((request.at(number), incoming(request, number + 1, exec.now_ms)?));
    }
    let mut taken = 0;
    for (key, incoming) in rows {
        taken += i64::from(exec.merge(key, incoming, origin)?);
    }
    exec.reply.integer(taken);
    Ok(Flow::Next)
}

const NO_TARGET: &str = "ERR this cluster is no target of a duplication: its rows have no stamps to compare a \
     record's with; `collie cluster duplicate add` in the other cluster sets that up";

fn incoming<'r>(request: Request<'r>, number: usize, now_ms: u64) -> Result<Incoming<'r>, Failure> {
    let incoming = Incoming::decode(request.at(number), request.at(number + 1))
        .map_err(|bad| format!("ERR argument {number} is no header that COLLIE.MERGE takes: it has {bad}"))?;
    match incoming.is_ahead(now_ms) {
        true => Err(format!(
            "ERR argument {number} was written more than a day after this cluster's time: set the clocks of both right"
        )
        .into()),
        false => Ok(incoming),
    }
}
