//! What stands before the effects in an entry, and what the replica records of the last entry that
//! it took. Little-endian; drawn in `docs/format/cluster.md`.

use super::{RunId, Ticket};
use crate::ids::LeaderId;

const TICKET: usize = 8 + 8 + 4 + 4;
/// The bytes of a [`Header`].
pub const HEADER: usize = TICKET + 8 + 8;
/// The bytes of a [`Recorded`].
pub const RECORDED: usize = TICKET + 8 + 8;

const _: () = assert!(
    HEADER == 40 && RECORDED == 40,
    "the sizes that docs/format/cluster.md draws"
);

/// What stands before the effects of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which entry of which run it is.
    pub ticket: Ticket,
    /// The log index of the last entry that was taken when the run began; 0 for none. The first
    /// entry of the run is taken only behind that one.
    pub base: u64,
    /// The time by which the command ran, in milliseconds since 1970: the leader's clock, but never
    /// before the stamp of an entry that was taken or submitted before it.
    pub stamp_ms: u64,
}

/// The last entry that a replica took. It stands in the same batch as that entry's effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Which entry of which run it was.
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
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let (ticket, rest) = bytes.split_at_mut(TICKET);
        put_ticket(ticket, &self.ticket);
        let (base, stamp) = rest.split_at_mut(8);
        base.copy_from_slice(&self.base.to_le_bytes());
        stamp.copy_from_slice(&self.stamp_ms.to_le_bytes());
        bytes
    }

    /// The header and what stands behind it.
    ///
    /// # Errors
    /// If the bytes are too few, or number a run or a proposal 0.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut fields = Fields {
            rest: bytes,
            what: "the header of an entry with effects",
        };
        let ticket = fields.ticket()?;
        let header = Self {
            ticket,
            base: fields.u64()?,
            stamp_ms: fields.u64()?,
        };
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
        let mut fields = Fields {
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

struct Fields<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl Fields<'_> {
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
            0 => Err(self.malformed("runs and proposals are numbered from 1 on")),
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
            ticket: ticket(),
            base: 9,
            stamp_ms: 1_700_000_000_000,
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
        assert!(Header::decode(&bytes[..HEADER - 1]).is_err());
    }
}
