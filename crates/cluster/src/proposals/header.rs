//! What stands before the effects in an entry, and what the replica records of the last entry that
//! it took. Little-endian; drawn in `docs/design/formats/cluster.md`.

use crate::ids::LeaderId;
use crate::proposals::{RunId, Ticket};

const TICKET: usize = 8 + 8 + 4 + 4;
/// The bytes of a [`Header`].
pub const HEADER: usize = TICKET + 4 + 8 + 8;
/// The bytes of a [`Recorded`].
pub const RECORDED: usize = TICKET + 8 + 8;

const _: () = assert!(
    HEADER == 44 && RECORDED == 40,
    "the sizes that docs/design/formats/cluster.md draws"
);

/// What stands before the effects of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its first proposal.
    pub ticket: Ticket,
    /// How many proposals of the run it has, one behind the other; at least one.
    pub count: u32,
    /// The log index of the last entry that was taken when the run began; 0 for none. The first
    /// entry of the run is taken only behind that one.
    pub base: u64,
    /// The time by which its last command ran, in milliseconds since 1970: the leader's clock, but
    /// never before the stamp of a proposal that was taken or submitted before it.
    pub stamp_ms: u64,
}

/// The last entry that a replica took. It stands in the same batch as that entry's effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Its last proposal.
    pub ticket: Ticket,
    /// Its index in the log.
    pub index: u64,
    /// The newest stamp of the entries that were taken so far, in milliseconds since 1970.
    pub stamp_ms: u64,
}

/// Bytes that are no header, or no recorded position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Malformed {
    /// What was expected.
    pub what: &'static str,
    /// What is wrong with it.
    pub why: &'static str,
}

impl Header {
    /// Of one proposal.
    #[must_use]
    pub fn of(ticket: Ticket, base: u64, stamp_ms: u64) -> Self {
        Self {
            ticket,
            count: 1,
            base,
            stamp_ms,
        }
    }

    /// Its last proposal.
    #[must_use]
    pub fn last(&self) -> Ticket {
        Ticket {
            run: self.ticket.run,
            // As it is, for a header that was decoded or joined.
            n: self.ticket.n.saturating_add(self.count - 1),
        }
    }

    /// Takes in the proposals of another header, if they are the next ones of the same run: then one
    /// entry may have the effects of both, one behind the other. Says whether they are.
    #[must_use]
    pub fn join(&mut self, next: &Self) -> bool {
        let last = self.last();
        let continues = next.ticket.run == last.run && last.n.checked_add(1) == Some(next.ticket.n);
        if continues {
            self.count += next.count;
            self.stamp_ms = self.stamp_ms.max(next.stamp_ms);
        }
        continues
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let (ticket, rest) = bytes.split_at_mut(TICKET);
        put_ticket(ticket, &self.ticket);
        let (count, rest) = rest.split_at_mut(4);
        let (base, stamp) = rest.split_at_mut(8);
        count.copy_from_slice(&self.count.to_le_bytes());
        base.copy_from_slice(&self.base.to_le_bytes());
        stamp.copy_from_slice(&self.stamp_ms.to_le_bytes());
        bytes
    }

    /// The header and what stands behind it.
    ///
    /// # Errors
    /// If the bytes are too few, or number a run or a proposal 0 or beyond 2³² - 1.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut fields = HeaderFields {
            rest: bytes,
            what: "the header of an entry with effects",
        };
        let ticket = fields.ticket()?;
        let header = Self {
            ticket,
            count: fields.counted()?,
            base: fields.u64()?,
            stamp_ms: fields.u64()?,
        };
        if ticket.n.checked_add(header.count - 1).is_none() {
            return Err(fields.malformed("a run has at most 2^32 - 1 proposals"));
        }
        Ok((header, fields.rest))
    }
}

impl Recorded {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORDED] {
        let mut bytes = [0; RECORDED];
        let (ticket, rest) = bytes.split_at_mut(TICKET);
        put_ticket(ticket, &self.ticket);
        let (index, stamp) = rest.split_at_mut(8);
        index.copy_from_slice(&self.index.to_le_bytes());
        stamp.copy_from_slice(&self.stamp_ms.to_le_bytes());
        bytes
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// If they are too few or too many, or number a run or a proposal 0.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = HeaderFields {
            rest: bytes,
            what: "the position of the last entry that was taken",
        };
        let recorded = Self {
            ticket: fields.ticket()?,
            index: fields.u64()?,
            stamp_ms: fields.u64()?,
        };
        if !fields.rest.is_empty() {
            return Err(fields.malformed("too long"));
        }
        Ok(recorded)
    }

    /// The `base` of a run that begins where this is the last entry that was taken.
    #[must_use]
    pub fn base(recorded: Option<&Self>) -> u64 {
        // Index 0 is the group's first membership: no entry with effects stands there.
        recorded.map_or(0, |recorded| recorded.index)
    }
}

fn put_ticket(bytes: &mut [u8], ticket: &Ticket) {
    let (term, rest) = bytes.split_at_mut(8);
    let (replica, rest) = rest.split_at_mut(8);
    let (run, n) = rest.split_at_mut(4);
    term.copy_from_slice(&ticket.run.leader.term.to_le_bytes());
    replica.copy_from_slice(&ticket.run.leader.replica.to_le_bytes());
    run.copy_from_slice(&ticket.run.run.to_le_bytes());
    n.copy_from_slice(&ticket.n.to_le_bytes());
}

struct HeaderFields<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl HeaderFields<'_> {
    fn malformed(&self, why: &'static str) -> Malformed {
        Malformed { what: self.what, why }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self
            .rest
            .split_first_chunk()
            .ok_or_else(|| self.malformed("too short"))?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    fn counted(&mut self) -> Result<u32, Malformed> {
        match self.take().map(u32::from_le_bytes)? {
            0 => Err(self.malformed("runs and proposals are numbered from 1 on, and none is no entry")),
            number => Ok(number),
        }
    }

    fn ticket(&mut self) -> Result<Ticket, Malformed> {
        let leader = LeaderId {
            term: self.u64()?,
            replica: self.u64()?,
        };
        let run = RunId {
            leader,
            run: self.counted()?,
        };
        Ok(Ticket {
            run,
            n: self.counted()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        let leader = LeaderId { term: 5, replica: 7 };
        Ticket {
            run: RunId { leader, run: 2 },
            n: 0x0102_0304,
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_and_the_rest_is_left() {
        let header = Header {
            count: 3,
            ..Header::of(ticket(), 9, 1_700_000_000_000)
        };
        let mut bytes = header.encode().to_vec();
        assert_eq!(
            bytes[20..24],
            [4, 3, 2, 1],
            "little-endian, in the place that is drawn"
        );
        bytes.extend(b"effects");
        assert_eq!(Header::decode(&bytes), Ok((header, &b"effects"[..])));
        let recorded = Recorded {
            ticket: ticket(),
            index: 11,
            stamp_ms: 1_700_000_000_001,
        };
        assert_eq!(Recorded::decode(&recorded.encode()), Ok(recorded));
    }

    #[test]
    fn what_is_short_or_long_or_numbered_zero_is_refused() {
        let recorded = Recorded {
            ticket: ticket(),
            index: 11,
            stamp_ms: 1_700_000_000_001,
        };
        let bytes = recorded.encode();
        assert!(Recorded::decode(&bytes[..RECORDED - 1]).is_err());
        assert!(Recorded::decode(&[&bytes[..], &[0]].concat()).is_err());
        for number in [16, 20] {
            let mut zero = bytes;
            zero[number..number + 4].fill(0);
            assert!(Recorded::decode(&zero).is_err(), "the number at {number} is 0");
        }
        let one = Header::of(ticket(), 9, 0);
        assert!(Header::decode(&one.encode()[..HEADER - 1]).is_err());
        for count in [0, u32::MAX] {
            assert!(
                Header::decode(&Header { count, ..one }.encode()).is_err(),
                "{count} proposals"
            );
        }
    }

    #[test]
    fn proposals_are_joined_that_follow_one_another_in_one_run() {
        let at = |run, n, stamp_ms| {
            let mut ticket = ticket();
            (ticket.run.run, ticket.n) = (run, n);
            Header::of(ticket, 9, stamp_ms)
        };
        let mut header = at(2, 4, 70);
        for other in [
            at(2, 4, 71),
            at(2, 6, 71),
            at(2, 3, 71),
            at(3, 5, 71),
            at(3, 1, 71),
        ] {
            let before = header;
            assert!(!header.join(&other), "{other:?}");
            assert_eq!(header, before);
        }
        assert!(header.join(&at(2, 5, 71)) && header.join(&at(2, 6, 71)));
        assert_eq!((header.count, header.stamp_ms), (3, 71));
        assert_eq!(
            (header.ticket, header.last()),
            (at(2, 4, 0).ticket, at(2, 6, 0).ticket)
        );
        let last = at(2, u32::MAX, 72);
        assert!(!{ last }.join(&at(2, 1, 73)), "a run has no more numbers");
    }
}
