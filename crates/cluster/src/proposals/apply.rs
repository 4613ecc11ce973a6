//! The apply side: whether an entry continues what was taken before it.

use crate::ids::EntryId;
use crate::proposals::{Header, Recorded};

/// What apply does with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Its effects are written, and with them, in one batch, this position.
    Taken(Recorded),
    /// Nothing of it is written.
    Skipped(Skip),
}

/// Why an entry is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// Another leader appended it than the one that computed it.
    Leader,
    /// It is not the next one of the run whose entry was taken last, nor the first of a later run.
    Order,
    /// It is the first of a run that began behind another entry than the one that was taken last.
    Base,
}

/// Whether the entry is taken, where `recorded` is the last one that was: all of its proposals or
/// none, as each continues the one before it. All replicas decide the same, as they decide from the
/// log alone.
#[must_use]
pub fn decide(recorded: Option<&Recorded>, entry: &EntryId, header: &Header) -> Decision {
    let ticket = header.ticket;
    if entry.leader != ticket.run.leader {
        return Decision::Skipped(Skip::Leader);
    }
    let first = ticket.n == 1;
    let in_order = match recorded {
        Some(last) if last.ticket.run.leader == ticket.run.leader => {
            let continues =
                last.ticket.run.run == ticket.run.run && last.ticket.n.checked_add(1) == Some(ticket.n);
            continues || (ticket.run.run > last.ticket.run.run && first)
        }
        // Numbers of runs mean nothing between leaders.
        Some(_) | None => first,
    };
    if !in_order {
        return Decision::Skipped(Skip::Order);
    }
    if first && header.base != Recorded::base(recorded) {
        return Decision::Skipped(Skip::Base);
    }
    Decision::Taken(Recorded {
        ticket: header.last(),
        index: entry.index,
        stamp_ms: recorded.map_or(0, |last| last.stamp_ms).max(header.stamp_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{RunId, Ticket};
    use super::*;
    use crate::ids::LeaderId;

    fn ticket(term: u64, run: u32, n: u32) -> Ticket {
        let leader = LeaderId { term, replica: 1 };
        Ticket {
            run: RunId { leader, run },
            n,
        }
    }

    /// Every row of the decision, by hand: what was taken last is the third of the second run, at
    /// index 10.
    #[test]
    fn an_entry_is_taken_only_where_it_continues() {
        let last = Recorded {
            ticket: ticket(5, 2, 3),
            index: 10,
            stamp_ms: 70,
        };
        let cases = [
            ("the next one", ticket(5, 2, 4), 5, 6, None),
            ("the same again", ticket(5, 2, 3), 5, 6, Some(Skip::Order)),
            ("one is missing", ticket(5, 2, 5), 5, 6, Some(Skip::Order)),
            (
                "the first of the same run",
                ticket(5, 2, 1),
                5,
                10,
                Some(Skip::Order),
            ),
            ("the first of a later run", ticket(5, 4, 1), 5, 10, None),
            ("a later run's second", ticket(5, 4, 2), 5, 10, Some(Skip::Order)),
            ("a run that is over", ticket(5, 1, 1), 5, 10, Some(Skip::Order)),
            (
                "a later run on another base",
                ticket(5, 4, 1),
                5,
                9,
                Some(Skip::Base),
            ),
            ("another leader's first run", ticket(6, 1, 1), 6, 10, None),
            (
                "another leader's second proposal",
                ticket(6, 9, 2),
                6,
                10,
                Some(Skip::Order),
            ),
            (
                "another leader on another base",
                ticket(6, 3, 1),
                6,
                11,
                Some(Skip::Base),
            ),
            (
                "appended by another leader",
                ticket(5, 2, 4),
                6,
                6,
                Some(Skip::Leader),
            ),
        ];
        for (name, ticket, term, base, skip) in cases {
            let entry = EntryId {
                leader: LeaderId { term, replica: 1 },
                index: 12,
            };
            let header = Header::of(ticket, base, 71);
            let taken = Recorded {
                ticket,
                index: 12,
                stamp_ms: 71,
            };
            let expected = skip.map_or(Decision::Taken(taken), Decision::Skipped);
            assert_eq!(decide(Some(&last), &entry, &header), expected, "{name}");
            // The newest stamp is kept, also where a later entry has an older one.
            let older = Header {
                stamp_ms: 69,
                ..header
            };
            let taken = Recorded {
                stamp_ms: 70,
                ..taken
            };
            let expected = skip.map_or(Decision::Taken(taken), Decision::Skipped);
            assert_eq!(decide(Some(&last), &entry, &older), expected, "{name}");
        }
    }
}
